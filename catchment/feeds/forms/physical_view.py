"""A physical view: a template over feeds that are named, and the reference rows that it serves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One joined reference row of a view, in the order of the template's inputs."""

    inputs: tuple[str, ...]
    shares: tuple[float, ...]
    devices: tuple[Any, ...]
    params: tuple[Any, ...]
    notified: str

    @property
    def sort_key(self) -> tuple[Any, ...]:
        return (self.inputs, self.shares, tuple(map(repr, self.params)), self.notified)


@dataclass(frozen=True)
class PhysicalView:
    """A view to be placed: its inputs by name, sorted, and the reference rows that it serves."""

    name: str
    template: str
    inputs: tuple[str, ...]
    rows: tuple[ViewRow, ...]

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of each input that the view demands: the largest of its rows."""
        found: dict[str, float] = {}
        for row in self.rows:
            for name, share in zip(row.inputs, row.shares, strict=True):
                found[name] = max(share, found.get(name, 0.0))
        return found

    def share_of(self, feed: str) -> float:
        return self.shares[feed]


def view_name(template: str, inputs: tuple[str, ...]) -> str:
    """Return the name under which equal views meet."""
    return f"{template}({','.join(inputs)})"


def template_of(view: str) -> str:
    """Return the template of a physical view, by its name."""
    return view.split("(", 1)[0]
