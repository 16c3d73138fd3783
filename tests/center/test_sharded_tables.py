"""Result tables that tasks write, shard by shard, hold what the plain ones hold: on real Delta, tasks in this process.

Catches: rows, bounds or takings-back that differ by how rows are divided, an enactment that is appended twice, files
that a restart does not find. Cannot catch: expressions and the order of LIMIT, which Spark computes.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate, partials
from catchment.center.events import Expired, Publish, UnfinishedRevision
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.read import read_windows
from catchment.center.results.write import ResultTables
from catchment.center.shards.consumer import ShardedCenter
from catchment.center.shards.folder import PartFolder
from catchment.center.shards.gather import write_parts
from catchment.center.shards.parts import ROW_SCHEMA, concat_rows, make_parts
from catchment.center.shards.runner import InProcess
from catchment.center.shards.tables import ShardedTables
from catchment.center.statuses import ON_TIME, SUSPENDED
from catchment.quality.merge_sites import ColumnLateness, Lateness
from catchment.query.fragment import SLICE_COLUMN
from tests.worlds.result_tables import CODE, COUNTRY, NUMBERS, SKETCHES, Row, make_tables, publish, states
from tests.worlds.tiers import examples

LATE = Lateness(3.0, 10.0, (ColumnLateness("n", 0.3, 3.0), ColumnLateness("total", 0.3, 9.0)))
rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 4), st.integers(-20, 20)), min_size=1, max_size=25
)
steps = st.lists(
    st.tuples(st.sampled_from(["close", "repair", "replace", "late", "status"]), st.integers(0, 1), rows), max_size=6
)


def sharded_tables(folder: Path, plain: ResultTables, shards: int, **changes: Any) -> ShardedTables:
    """Tables like these whose rows tasks write, however few there are."""
    spread = ShardedCenter(shards, InProcess(), PartFolder(folder / "parts"))
    given = (folder, plain.query, plain.fragment, plain.finish, plain.laws)
    return ShardedTables(*given, **{"spread": spread, "rename": plain.finish, "small_rows": 0, **changes})


def in_parts(tables: ShardedTables, table: pa.Table, window_us: int) -> pa.Table:
    """Rows as two parts that lie in files."""
    folder = tables.spread.folder.begin_run(0)
    placed = table.add_column(0, SLICE_COLUMN, pa.array([window_us] * table.num_rows, pa.int64()))
    half = table.num_rows // 2
    halves = (placed.slice(0, half), placed.slice(half))
    parts = [p for h in halves for p in write_parts(folder, "q", tables.fragment, h, tables.spread.shards)]
    return make_parts(parts).drop_columns([SLICE_COLUMN])


def enact(tables: ResultTables, number: int, revisions: list[Publish], expired: list[Expired]) -> list[Any]:
    """What a center does with an enactment, twice, as after a crash."""
    noted: list[Any] = []
    for _ in range(2):
        fetched = revisions
        given_up: list[Expired] = []
        if isinstance(tables, ShardedTables):
            fetched, given_up = tables.fetch_rows(number, revisions, lambda windows, why: noted.append((windows, why)))
        tables.register_late(number, [*expired, *given_up])
        tables.publish(number, fetched)
    return noted


def content(folder: Path) -> list[list[dict[str, Any]]]:
    """All that is in the tables of a query, in one order."""
    found = []
    for kind in ("results", "windows", "late"):
        path = folder / kind / "q"
        table = DeltaTable(path).to_pyarrow_table() if path.exists() else pa.table({})
        names = sorted(table.column_names)
        found.append(sorted(table.select(names).to_pylist(), key=repr))
    return found


@settings(max_examples=examples(6), deadline=None)
@given(script=steps, shards=st.sampled_from([1, 3, 7]), above=st.sampled_from([0, 2]), data=st.data())
def test_tasks_write_what_the_driver_writes(script: Any, shards: int, above: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        here, there = Path(temporary) / "plain", Path(temporary) / "sharded"
        aggregates = (*NUMBERS, *SKETCHES)
        plain = make_tables(here, (COUNTRY, CODE), aggregates, above)
        sharded = sharded_tables(there, plain, shards)
        revisions = {0: 0, 1: 0}
        for number, (step, minute, records) in enumerate(script):
            if data.draw(st.booleans()):
                sharded = sharded_tables(there, plain, shards)  # a restart
            step = "close" if not revisions[minute] and step != "late" else step
            revision = revisions[minute] + (step not in ("late", "status"))
            revisions[minute] = revision
            changes: dict[str, Any] = {"late": LATE, "status": ON_TIME} if data.draw(st.booleans()) else {}
            one = publish(plain, minute, records, revision, **changes)
            other = publish(sharded, minute, records, revision, **changes)
            start_us = one.window.start_us
            fresh, parts = one.rows, in_parts(sharded, one.rows, start_us)
            late: tuple[list[Expired], list[Expired]] = ([], [])
            if step == "late":
                late = [Expired("q", one.window, fresh, 5)], [Expired("q", one.window, parts, 5)]
                fresh, parts = fresh.slice(0, 0), parts.slice(0, 0)
            elif step == "status":
                fresh, parts = fresh.slice(0, 0), parts.slice(0, 0)
            elif step == "repair":
                keys = fresh.select(["country", "code"])
                wanted = keys.add_column(0, WINDOW_COLUMN, pa.array([start_us] * keys.num_rows, pa.int64()))
                known = plain.recall(wanted).drop_columns([WINDOW_COLUMN])
                fresh = partials.combine(pa.concat_tables([known, fresh]), ["country", "code"], aggregates)
                recalled = sharded.recall(wanted)
                assert recalled.column_names == [WINDOW_COLUMN, *ROW_SCHEMA.names]
                parts = concat_rows([recalled.drop_columns([WINDOW_COLUMN]), parts])
            replaces = step == "replace"
            enact(plain, number, [_replace(one, fresh, replaces)] if step != "late" else [], late[0])
            enact(sharded, number, [_replace(other, parts, replaces)] if step != "late" else [], late[1])
        assert content(there) == content(here)


def _replace(publish: Publish, table: pa.Table, replaces: bool) -> Publish:
    return replace(publish, rows=table, replaces=replaces)


def test_a_crash_before_the_log_of_windows_appends_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_tables(tmp_path / "plain")
    tables = sharded_tables(tmp_path / "sharded", plain, 3)
    records: list[Row] = [("a", 1, 5), ("b", 2, 7), ("c", 3, 9)]
    one = publish(tables, 0, records)
    one = _replace(one, in_parts(tables, one.rows, 0), False)
    fetched, _ = tables.fetch_rows(0, [one])
    assert not (tmp_path / "sharded" / "results" / "q" / "_delta_log").exists(), "nothing is committed yet"
    monkeypatch.setattr(ShardedTables, "_append", _fail)
    with pytest.raises(OSError, match="killed"):
        tables.publish(0, fetched)
    monkeypatch.undo()
    enact(sharded_tables(tmp_path / "sharded", plain, 3), 0, [one], [])
    enact(plain, 0, [publish(plain, 0, records)], [])
    assert content(tmp_path / "sharded") == content(tmp_path / "plain")


def _fail(*_: Any) -> None:
    raise OSError("killed")


@pytest.mark.parametrize("small_rows", [0, 10**6])
def test_a_sum_that_does_not_fit_is_given_up_alone(tmp_path: Path, small_rows: int) -> None:
    plain = make_tables(tmp_path, aggregates=(make_aggregate("sum", "v", pa.int64(), name="total"),))
    tables = sharded_tables(tmp_path, plain, 3, small_rows=small_rows)
    bad = publish(tables, 0, [("a", 1, 2**62)])
    good = publish(tables, 1, [("a", 1, 1), ("b", 1, 2)])
    twice = pa.concat_tables([in_parts(tables, bad.rows, 0)] * 2)
    noted: list[Any] = []
    revisions = [_replace(bad, twice, False), _replace(good, in_parts(tables, good.rows, 0), False)]
    fetched, late = tables.fetch_rows(0, revisions, lambda windows, why: noted.append((windows, why)))
    tables.publish(0, fetched)
    ((windows, why),) = noted
    assert [(w.start_us, w.overflows) for w in windows] == [(0, True)]
    assert isinstance(windows[0], UnfinishedRevision)
    assert "does not fit" in why
    assert not late, "it was not published before: nothing of it came late"
    log = read_windows(tmp_path, "q").to_pylist()
    assert [(row["status"], row["rows_changed"]) for row in log] == [(SUSPENDED, 0), ("exact", 2)]
    assert states(tables, [("a", 1, 1)]).num_rows == 1
