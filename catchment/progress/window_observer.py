"""Who wants to see the life of a window, from its first record at a site to its exact answer.

The pipelines tell an observer what happens when it happens; without one, nothing is counted or kept for it. An observer
must not wait, and must not fail: it is called where records are merged and answers published.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from catchment.wire.messages import Segment, Updates


class WindowObserver(Protocol):
    """Is told what happens to slices and windows. A slice is named by its fragment and its start."""

    def note_read(self, site: str, fragment: str, slices_us: Iterable[int]) -> None:
        """A micro-batch at a site has records of these slices."""
        ...

    def note_flushed(self, site: str, sequence: int, updates: Sequence[Updates]) -> None:
        """A site has put partials into its outbox, in the segment of this number."""
        ...

    def note_acked(self, site: str, sequence: int) -> None:
        """The far end of a site's link has a segment."""
        ...

    def note_landed(self, segment: Segment) -> None:
        """A segment is about to be written to the inbox of the center."""
        ...

    def note_merged(self, events: Iterable[Any], began_us: int) -> None:
        """The center has merged what these events say, and begun with it at an instant."""
        ...

    def note_published(self, actions: Iterable[Any]) -> None:
        """The center has published what these actions say."""
        ...
