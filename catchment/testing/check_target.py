"""A check of a target that somebody has written: is what it stores what the view shows, whatever fails in between?

A small view is published step by step (`PublishedView`), without Spark, and delivered: with rows that are revised,
retracted and shown again, keys that are null, windows that only change their status, batches that come twice, and
targets that are made anew, as after a start of the center.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import make_aggregate, partials
from catchment.center.events import Publish
from catchment.center.results.read import read_results
from catchment.center.results.write import ResultTables
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.query.fragment import Fragment, Key
from catchment.sinks.changes import ViewChanges
from catchment.sinks.delivery import Delivery
from catchment.sinks.target import Target
from catchment.timeline import SystemClock, Window, WindowSpec

MINUTE_US = 60_000_000
VIEW = "traffic"
KEYS = {"country": "country"}
STEPS: tuple[tuple[int, list[tuple[str | None, int]], str], ...] = (
    (0, [("nl", 5), ("de", 3), (None, 1)], ON_TIME),
    (1, [("nl", 2)], EXACT),
    (0, [("nl", 6), ("de", -3)], EXACT),  # de is left out from now on
    (0, [], FINAL),  # only the status changes
    (1, [("de", 4)], EXACT),
    (2, [("nl", -1)], ON_TIME),  # a window without a row that is shown
    (2, [("nl", 1)], FINAL),
)
Stored = Callable[[], Collection[Mapping[str, Any]]]


class TargetError(AssertionError):
    """A target does not store what a view shows."""


def check_target(make_target: Callable[[], Target], read: Stored) -> None:
    """Deliver a view to targets that `make_target` makes, and compare what `read` gives with what the view shows.

    `read` returns the rows that are stored now, with at least window_start, country, n, bytes, status and revision.
    """
    with tempfile.TemporaryDirectory() as folder:
        view = PublishedView(Path(folder))
        for minute, requests, status in STEPS:
            view.publish(minute, requests, status)
            deliver_all(view.deliver("checked", lambda life: make_target()))
            _compare(view, read)
        again = ViewChanges(view.state, VIEW, KEYS).since(None)  # as after a crash before the place was kept
        assert again is not None
        make_target().write(again)
        _compare(view, read)


def _compare(view: PublishedView, read: Stored) -> None:
    columns = ("window_start", "country", "n", "bytes", "status", "revision")
    shown = sorted(([row[c] for c in columns] for row in read_results(view.state, VIEW).to_pylist()), key=repr)
    stored = sorted(([row[c] for c in columns] for row in read()), key=repr)
    if stored != shown:
        raise TargetError(f"the view shows {shown}, and the target has {stored}")


class PublishedView:
    """Requests and bytes per minute and country, of which only countries with bytes are shown."""

    def __init__(self, state: Path) -> None:
        self.state = state
        aggregates = (
            make_aggregate("count", None, None, name="n"),
            make_aggregate("sum", "v", pa.int64(), name="bytes"),
            make_aggregate("approx_top_k", "v", pa.int64(), ("2",), name="top"),
        )
        fragment = Fragment(
            VIEW,
            "requests",
            "ts",
            (Key("country", "country", pa.string()),),
            aggregates,
            (WindowSpec(MINUTE_US, MINUTE_US),),
        )
        self._tables = ResultTables(state, VIEW, fragment, _finish)
        self._number = 0
        self._revisions: dict[int, int] = {}

    def publish(self, minute: int, requests: list[tuple[str | None, int]], status: str = EXACT) -> None:
        """Publish a revision of a window: the rows of these countries, or only another status."""
        self._number += 1
        self._revisions[minute] = self._revisions.get(minute, 0) + bool(requests)
        raw = pa.table(
            {
                "country": pa.array([c for c, _ in requests], pa.string()),
                "v": pa.array([v for _, v in requests], pa.int64()),
            }
        )
        rows = partials.lift(raw, ["country"], self._tables.fragment.aggregates)
        window = Window(minute * MINUTE_US, (minute + 1) * MINUTE_US)
        made = Publish(VIEW, window, self._revisions[minute], status, 1.0, (), "why", rows, self._number)
        self._tables.publish(self._number, [made])

    def deliver(self, name: str, make_target: Callable[[str], Target], *, changelog: bool = False) -> Delivery:
        """Return a delivery of this view, as a center makes it after a start."""
        changes = ViewChanges(self.state, VIEW, KEYS, changelog=changelog)
        return Delivery(name, changes, make_target, self.state / "center" / "sinks", SystemClock())


def _finish(rows: pa.Table) -> pa.Table:
    shown = rows.drop_columns(["window_start", "window_end"])
    return shown.append_column("retracted", pc.less_equal(rows["bytes"], 0))


def deliver_all(delivery: Delivery) -> None:
    """Deliver until there is nothing more."""
    while delivery.step():
        pass
