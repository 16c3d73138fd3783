"""Making good what was shed: when the load allows, a shed batch is read whole, kept, and the rest of it is sent.

One batch at a time, in a thread of its own, so that neither the stream nor the ticks of its site wait. A repair is one
entry of the journal: the partials of what was left out, the terms of the sample with the other sign, and the fact that
nothing is owed any more. A crash before it leaves the debt, and the repair is made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame

from catchment.aggregates import partials
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.debts import BatchRepaired, Debt
from catchment.shedding.places import SamplingRule
from catchment.shedding.terms import negated
from catchment.site.events import Absorbed, Event
from catchment.site.lifting import Side
from catchment.spark.evaluation.evaluator import NOT_KNOWN_ROWS, Evaluator
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.sources.reread import ROW

CHECK_S = 0.25


def repair_events(
    stream: str, debt: Debt, rows: DataFrame, fragments: Sequence[Fragment], evaluator: Evaluator
) -> list[Event]:
    """What makes the fragments whole again. `rows` are all good records of the batch, each with its place."""
    rates, spares, groups = dict(debt.rates), dict(debt.spares), dict(debt.groups)
    takes = [
        Take(f, rates[f.name], side, spares.get(f.name, ()), groups=groups.get(f.name))
        for f in fragments
        for side in (Side.LEFT, Side.KEPT)
    ]
    size = NOT_KNOWN_ROWS if debt.start is None or debt.end is None else debt.end - debt.start
    found = evaluator.reduce_all(rows, takes, size, SamplingRule(stream, (ROW,)))
    events: list[Event] = []
    for fragment, rest, kept in zip(fragments, found[::2], found[1::2], strict=True):
        both = pa.concat_tables([rest.table, negated(kept.table, fragment.aggregates)])
        table = partials.combine(both, [SLICE_COLUMN, *fragment.key_names], fragment.aggregates)
        events.append(Absorbed(fragment.name, table, rest.records))
    events.append(BatchRepaired(stream, debt.batch, tuple(f.name for f in fragments)))
    return events


@dataclass
class Repairer:
    """Runs `work` again and again while it says that there was something to do; `failure` is what stopped it."""

    work: Callable[[], bool]
    failure: BaseException | None = None
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="repairs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let a repair that is under way end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self.work():
                    self._stopping.wait(CHECK_S)
            except BaseException as failure:  # noqa: BLE001 - told to whoever ticks the site
                if not self._stopping.is_set():
                    self.failure = failure
                return
