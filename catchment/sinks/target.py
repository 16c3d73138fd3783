"""What a sink delivers to: the one interface that Kafka, PostgreSQL and classes of users have.

Whoever writes a target of their own writes a class with `write`. Everything else is optional: a target that stores the
place of what it was given together with the rows gets every batch once; for one that does not, the place is kept in the
state folder, and after a crash its last batch may come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from catchment.errors import CatchmentError

OPERATION = "operation"  # the column that says what a row of a batch does
UPSERTED, DELETED = "upsert", "delete"
INSERTED, RETRACTED, UPDATED = "insert", "retract", "update"


class SinkError(CatchmentError):
    """A target cannot be reached, or refuses what is delivered."""


@dataclass(frozen=True, order=True)
class Place:
    """How far a view was delivered: up to which revision in the log of its windows.

    `life` tells apart logs of views that had one name one after the other.
    """

    life: str = field(compare=False)
    entry: int
    step: int


@dataclass(frozen=True)
class ChangeBatch:
    """Rows that changed, in the order in which they changed, and the place that is reached with them.

    `rows` has the columns of the view, those that the engine adds, and `operation`: 'upsert' or 'delete' for a sink of
    upserts; 'insert', 'retract' (the row as it was), 'update' (as it is now) or 'delete' (as it was) for a changelog.
    `keys` are the columns that tell rows apart, `window_start` first. A deleted row has its keys, and other columns may
    be null.
    """

    view: str
    keys: tuple[str, ...]
    rows: pa.Table
    end: Place
    is_changelog: bool = False

    def key_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a row."""
        return {name: row[name] for name in self.keys}


class Target(Protocol):
    """Another system that takes the changes of one view."""

    def write(self, batch: ChangeBatch) -> None:
        """Take a batch: when this returns, its rows are stored. It may come again after a failure or a crash."""
        ...


class PlacedTarget(Target, Protocol):
    """A target that stores the place of a batch with its rows, both or neither."""

    def place(self) -> Place | None:
        """Return the place that was stored with the last batch; None before the first."""
        ...
