"""The states of operators at one host: kept while events come, and made again from the events that it keeps. Pure.

A period is one lifetime of the view, from full lifetime to full lifetime of event time. A host gives rows only of
periods that it has whole: those that begin after the instant since which it sees every event of the feed. Before that
instant is known it gives none. So two hosts of a view that moves never give different rows of one event.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from catchment.feeds.language.operators import Columns, FeedOperator

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

MAX_KEYS = 10_000  # of one row of a view and period; events of further keys give nothing, and are counted
Args = tuple[Any, ...]


@dataclass
class _Run:
    """The states of one row of a view in one period, by key."""

    period: int
    states: dict[Args, Any] = field(default_factory=dict)


class OperatorRuns:
    """The operators of the views that are installed at a host."""

    def __init__(self) -> None:
        self.since_us: dict[str, int] = {}  # from when on a host sees every event, by view
        self.runs: dict[tuple[str, int], _Run] = {}
        self.refused: Counter[str] = Counter()  # events beyond `MAX_KEYS`, and those at which an operator failed

    def begin(self, view: str, since_us: int) -> None:
        """Note since when every event of a view's feed is seen here; what was said first holds."""
        self.since_us.setdefault(view, since_us)

    def forget_states(self, view: str) -> None:
        """Forget the states of a view: they are made again."""
        self.runs = {at: run for at, run in self.runs.items() if at[0] != view}

    def forget(self, view: str) -> None:
        """Forget a view that is computed here no more."""
        self.forget_states(view)
        self.since_us.pop(view, None)

    def has_whole(self, view: str, period: int, period_us: int) -> bool:
        """Return whether every event of a period is seen here."""
        return view in self.since_us and period * period_us > self.since_us[view]

    def needs_past(self, at: tuple[str, int], period: int) -> bool:
        """Return whether the earlier rows of a period must be given to `replay` first."""
        run = self.runs.get(at)
        return run is None or run.period != period

    def replay(self, at: tuple[str, int], period: int, operator: FeedOperator, past: Iterable[Args]) -> None:
        """Make the states again from the earlier rows of a period, in order."""
        self.runs[at] = _Run(period)
        for row in past:
            self.step(at, operator, row)

    def step(self, at: tuple[str, int], operator: FeedOperator, row: Args) -> list[Args]:
        """Take one row; return those that follow from it."""
        states = self.runs[at].states
        names = [name for name, _ in operator.inputs]
        key = tuple(row[names.index(name)] for name in operator.key)
        if key not in states and len(states) >= MAX_KEYS:
            self.refused[at[0]] += 1
            return []
        try:
            before = states[key] if key in states else operator.start()
            states[key], made = operator.update(before, to_batch([row], operator.inputs))
            return to_rows(made, operator.outputs)
        except Exception:  # noqa: BLE001 - what a project's code raises must not end a cloud
            self.refused[at[0]] += 1
            _log.warning("operator %s failed at an event of view %s", operator.name, at[0], exc_info=True)
            return []


def to_batch(rows: list[Args], columns: Columns) -> pa.RecordBatch:
    """Return rows as an operator is given them."""
    import pyarrow as pa  # only a device with operators needs it

    schema = pa.schema([(name, _arrow_type(kind)) for name, kind in columns])
    arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_rows(batch: pa.RecordBatch, columns: Columns) -> list[Args]:
    """Return the rows that an operator made; refuse other columns than it declared."""
    names = [name for name, _ in columns]
    kinds = [_arrow_type(kind) for _, kind in columns]
    if batch.schema.names != names or [f.type for f in batch.schema] != kinds:
        raise TypeError(f"found the columns {batch.schema}; declared were {columns}")
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _arrow_type(kind: str) -> Any:
    import pyarrow as pa

    return {
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "BOOLEAN": pa.bool_(),
    }[kind]
