"""The two extremes: send everything at once, or nothing before the slice is due.

Heintz et al., HPDC'15, section 1: pure streaming is early and sends most; pure batching sends least and is
late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catchment.site.policies.base import NOTHING, Moment, Proposal, SliceView
from catchment.site.policies.reasons import STREAMED
from catchment.storage.codec import stored


class _Memoryless:
    """A state that learns nothing."""

    def close(self, view: SliceView, moment: Moment) -> None:
        return None

    def dump(self) -> dict[str, Any]:
        return {}


class _StreamingState(_Memoryless):
    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        return Proposal(view.pending, STREAMED)


class _BatchingState(_Memoryless):
    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        return NOTHING


@stored()
@dataclass(frozen=True)
class Streaming:
    """Every partial leaves with the micro-batch that brought it."""

    name: str = "streaming"

    def build(self, resume: Mapping[str, Any] | None = None) -> _StreamingState:
        return _StreamingState()


@stored()
@dataclass(frozen=True)
class Batching:
    """Every partial waits until its slice is due."""

    name: str = "batching"

    def build(self, resume: Mapping[str, Any] | None = None) -> _BatchingState:
        return _BatchingState()
