"""What sinks are given, against what readers of the result tables see.

Catches: rows that a sink keeps after they were retracted, misses after a kill, or has with a stale status; retractions
that do not match what they retract. Cannot catch: what targets do with it; `test_postgres.py` and `test_kafka.py` do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate, partials
from catchment.center.events import Publish
from catchment.center.results.bounds import law_of_aggregate
from catchment.center.results.read import read_results
from catchment.center.results.write import ResultTables, UnfinishedRowsError
from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME
from catchment.query.fragment import Fragment, Key
from catchment.sinks.changes import ViewChanges
from catchment.sinks.target import DELETED, INSERTED, OPERATION, RETRACTED, UPDATED, UPSERTED, ChangeBatch, Place
from catchment.timeline import Window, WindowSpec
from tests.worlds.tiers import examples

MINUTE_US = 60_000_000
KEYS = {"country": "land"}  # the view calls its key otherwise
AGGREGATES = (make_aggregate("count", None, None, name="n"), make_aggregate("sum", "v", pa.int64(), name="total"))
UNFINISHED_TOTAL = 13  # a sum on which the last step of the view fails

Step = tuple[int, str, list[tuple[str | None, int]], tuple[str, ...]]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([EARLY, ON_TIME, EXACT, FINAL]),
        st.lists(st.tuples(st.sampled_from(["nl", "de", None]), st.integers(-3, 13)), max_size=4),
        st.sampled_from([(), ("eu",)]),
    ),
    min_size=1,
    max_size=8,
)


def make_tables(folder: Path) -> ResultTables:
    """Tables of a view with HAVING total > 0, whose last step fails where the total is 13."""
    fragment = Fragment(
        "q", "s", "ts", (Key("country", "country", pa.string()),), AGGREGATES, (WindowSpec(MINUTE_US, MINUTE_US),)
    )

    def finish(rows: pa.Table) -> pa.Table:
        if pc.any(pc.equal(rows["total"], UNFINISHED_TOTAL)).as_py():
            raise UnfinishedRowsError("thirteen")
        shown = pa.table({"land": rows["country"], "n": rows["n"], "total": rows["total"]})
        return shown.append_column("retracted", pc.less_equal(rows["total"], 0))

    return ResultTables(folder, "q", fragment, finish, tuple(law_of_aggregate(a.name, a) for a in AGGREGATES))


def publish(tables: ResultTables, number: int, step: Step, revisions: dict[int, int]) -> None:
    """Publish one step: rows of a window, or only another word about it."""
    minute, status, records, missing = step
    revisions[minute] = revisions.get(minute, 0) + bool(records or minute not in revisions)
    raw = pa.table(
        {
            "country": pa.array([c for c, _ in records], pa.string()),
            "v": pa.array([v for _, v in records], pa.int64()),
        }
    )
    rows = partials.lift(raw, ["country"], tables.fragment.aggregates)
    window = Window(minute * MINUTE_US, (minute + 1) * MINUTE_US)
    tables.publish(number, [Publish("q", window, revisions[minute], status, 0.5, missing, "why", rows, number)])


class Copy:
    """A copy of a view, made of the batches of a sink."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def take(self, batch: ChangeBatch) -> None:
        for row in batch.rows.to_pylist():
            key = tuple(batch.key_of(row).values())
            operation = row.pop(OPERATION)
            if operation in (DELETED, RETRACTED):
                if operation == RETRACTED or key in self.rows:
                    kept = self.rows.pop(key)
                    assert batch.is_changelog is False or kept == row, "what is retracted is what was given"
            else:
                assert operation == UPSERTED or key not in self.rows, "a row is retracted before another replaces it"
                self.rows[key] = row


def batches(changes: ViewChanges, place: Place | None) -> Iterator[ChangeBatch]:
    while (batch := changes.since(place)) is not None:
        yield batch
        place = batch.end


def published(folder: Path, columns: tuple[str, ...] | None = None) -> list[Mapping[str, Any]]:
    """What readers see: nothing before the first row was published."""
    rows = read_results(folder, "q").to_pylist() if (folder / "results" / "q").exists() else []
    return sorted(({c: row[c] for c in columns or row} for row in rows), key=repr)


@settings(max_examples=examples(10))
@given(STEPS, st.data())
def test_whoever_applies_every_batch_has_what_readers_see(steps: list[Step], data: st.DataObject) -> None:
    """Also with deliveries that come twice, and with publications between two looks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables, copy, place = make_tables(folder), Copy(), None
        changes = ViewChanges(folder, "q", KEYS)
        revisions: dict[int, int] = {}
        for number, step in enumerate(steps):
            publish(tables, number, step, revisions)
            if data.draw(st.booleans(), label="look") or number == len(steps) - 1:
                again = data.draw(st.booleans(), label="killed before the place was kept")
                before = place
                for batch in batches(changes, place):
                    copy.take(batch)
                    place = batch.end
                if again:
                    for batch in batches(ViewChanges(folder, "q", KEYS), before):
                        copy.take(batch)
                assert sorted(copy.rows.values(), key=repr) == published(folder)


@settings(max_examples=examples(10))
@given(STEPS, st.data())
def test_a_changelog_retracts_what_it_gave_and_ends_with_what_readers_see(
    steps: list[Step], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables, copy, place = make_tables(folder), Copy(), None
        changes = ViewChanges(folder, "q", KEYS, changelog=True)
        revisions: dict[int, int] = {}
        operations = set()
        for number, step in enumerate(steps):
            publish(tables, number, step, revisions)
            if data.draw(st.booleans(), label="look") or number == len(steps) - 1:
                for batch in batches(changes, place):
                    copy.take(batch)
                    place = batch.end
                    operations |= set(batch.rows[OPERATION].to_pylist())
        columns = ("window_start", "land", "n", "total")
        found = sorted(({c: row[c] for c in columns} for row in copy.rows.values()), key=repr)
        assert found == published(folder, columns)
        assert operations <= {INSERTED, RETRACTED, UPDATED, DELETED}


def test_a_place_of_other_tables_or_of_a_future_that_was_lost_counts_as_the_beginning(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    publish(tables, 0, (0, EXACT, [("nl", 5)], ()), {})
    changes = ViewChanges(tmp_path, "q", KEYS)
    (batch,) = batches(changes, None)
    assert changes.since(batch.end) is None
    for other in (replace(batch.end, life="another"), replace(batch.end, entry=7)):
        found = changes.since(other)
        assert found is not None
        assert found.rows.num_rows == 1


def test_a_window_that_says_something_else_is_delivered_with_all_its_rows(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    revisions: dict[int, int] = {}
    publish(tables, 0, (0, ON_TIME, [("nl", 5), ("de", 3)], ("eu",)), revisions)
    publish(tables, 1, (1, EXACT, [("nl", 4)], ()), revisions)
    changes = ViewChanges(tmp_path, "q", KEYS)
    *_, last = batches(changes, None)
    publish(tables, 2, (0, FINAL, [], ()), revisions)
    (batch,) = batches(changes, last.end)
    assert [(r["land"], r["status"], r["missing_sites"]) for r in batch.rows.to_pylist()] == [
        ("nl", FINAL, []),
        ("de", FINAL, []),
    ]
