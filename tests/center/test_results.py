"""Result tables on real Delta, against a model that keeps every published revision in a list.

Catches: rows lost, doubled or hidden by revisions, restarts, compaction or null keys; stale words on a window.
Cannot catch: what the core should have published in the first place; `test_spine.py` does that.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import PyFileSystem, SubTreeFileSystem

from catchment.aggregates import partials
from catchment.center.events import Expired, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results import store as results_module
from catchment.center.results.newest_rows import dataset_of, open_table
from catchment.center.results.quality import view_quality
from catchment.center.results.read import newest_windows, read_results, read_windows
from catchment.center.results.recent import RecentRows
from catchment.center.results.store import APPLICATION, COMPACT_ABOVE_FILES, DeltaStore
from catchment.center.results.write import ResultTables
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.errors import CenterError
from catchment.quality.merge_sites import ColumnLateness, Lateness
from catchment.query.fragment import Key
from catchment.timeline import Window
from tests.worlds.result_tables import (
    COUNTRY,
    MINUTE_US,
    NUMBERS,
    SKETCHES,
    START,
    Row,
    answers,
    make_tables,
    publish,
    states,
    wanted,
)
from tests.worlds.tiers import examples

# --- idempotence ------------------------------------------------------------------------------------------------


def test_enacting_a_number_again_writes_nothing(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    first, second = publish(tables, 0, [("nl", 200, 5)]), publish(tables, 1, [("de", 200, 7)])
    for number, one in ((3, first), (3, first), (8, second), (3, first), (8, second)):
        tables.publish(number, [one])
        tables.register_late(number, [Expired("q", one.window, one.rows)])
    assert answers(read_results(tmp_path, "q", revisions="all")) == {(0, "nl", 200): (1, 5), (1, "de", 200): (1, 7)}
    assert read_windows(tmp_path, "q").num_rows == 2
    late = open_table(tmp_path / "late" / "q")
    assert late is not None
    assert late.to_pyarrow_table().num_rows == 2


def test_a_table_is_read_by_arrow_alone(tmp_path: Path) -> None:
    """A file system in Python is called by threads that outlive the interpreter, and ends commands with SIGABRT."""
    folder = tmp_path / "a name with 100% of it"
    make_tables(folder).publish(3, [publish(make_tables(folder), 0, [("nl", 200, 5)])])
    table = open_table(folder / "results" / "q")
    assert table is not None
    read = dataset_of(table)
    assert isinstance(read.filesystem, SubTreeFileSystem)
    assert not isinstance(read.filesystem.base_fs, PyFileSystem)
    assert read.to_table().num_rows == table.to_pyarrow_table().num_rows == 1


def test_a_death_between_the_two_tables_of_an_enactment_is_made_good_by_enacting_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = make_tables(tmp_path)
    tables.publish(1, [publish(tables, 0, [("nl", 200, 5)])])
    one = publish(tables, 1, [("nl", 200, 1)], status=ON_TIME, missing_sites=("eu",), coverage=0.5)

    def die(*_: Any) -> pa.Table:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(results_module, "in_fresh_buffers", _only_first(results_module.in_fresh_buffers, die))
        with pytest.raises(RuntimeError, match="power cut"):
            tables.publish(2, [one])
    between = read_results(tmp_path, "q").to_pylist()
    assert [(r["status"], r["coverage"], r["missing_sites"]) for r in between] == [
        (EXACT, 1.0, []),
        (ON_TIME, 0.5, ["eu"]),
    ], "a row whose window is not in the log yet keeps its own word"
    tables.publish(2, [one])
    assert answers(read_results(tmp_path, "q")) == {(0, "nl", 200): (1, 5), (1, "nl", 200): (1, 1)}
    assert newest_windows(read_windows(tmp_path, "q"))["status"].to_pylist() == [EXACT, ON_TIME]


def test_an_answer_without_rows_replaces_what_was_there_also_where_nothing_was(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    nothing = replace(publish(tables, 0, [], revision=2), replaces=True)
    tables.publish(1, [nothing])
    assert read_windows(tmp_path, "q").num_rows == 1
    tables.publish(2, [publish(tables, 0, [("nl", 200, 5)], revision=3)])
    for _ in range(2):
        tables.publish(3, [replace(nothing, revision=4)])
        assert answers(read_results(tmp_path, "q")) == {}
    assert read_windows(tmp_path, "q").num_rows == 3


def _only_first(real: Any, then: Any) -> Any:
    calls = iter([real])
    return lambda table: next(calls, then)(table)


def test_the_number_of_the_enactment_is_an_application_transaction_of_the_table(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    tables.publish(41, [publish(tables, 0, [("nl", 200, 5)])])
    table = open_table(tmp_path / "results" / "q")
    assert table is not None
    assert table.transaction_version(APPLICATION) == 41


# --- reading ----------------------------------------------------------------------------------------------------

COUNTRIES = st.sampled_from(["nl", "de", None])
CODES = st.sampled_from([200, 404, None])
RECORDS = st.lists(st.tuples(COUNTRIES, CODES, st.integers(-5, 5)), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 2), RECORDS), min_size=1, max_size=6)


@settings(max_examples=examples(12))
@given(STEPS, st.data())
def test_latest_is_the_last_published_of_each_row_and_all_is_every_one(
    steps: list[tuple[int, list[Row]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tables = make_tables(Path(folder))
        newest: dict[tuple[int, Any, Any], tuple[int, int]] = {}
        rows_published, revision_of = 0, dict[int, int]()
        for number, (minute, records) in enumerate(steps):
            revision_of[minute] = revision_of.get(minute, 0) + 1
            tables.publish(number, [publish(tables, minute, records, revision_of[minute])])
            totals = totals_by_key(records)
            newest |= {(minute, *key): value for key, value in totals.items()}
            rows_published += len(totals)
        assert answers(read_results(Path(folder), "q")) == newest
        assert read_results(Path(folder), "q", revisions="all").num_rows == rows_published
        check_recall(tables, newest, data.draw(st.lists(st.tuples(st.integers(0, 3), COUNTRIES, CODES), max_size=4)))


def totals_by_key(records: Sequence[Row]) -> dict[tuple[Any, Any], tuple[int, int]]:
    totals: dict[tuple[Any, Any], tuple[int, int]] = {}
    for country, code, value in records:
        n, total = totals.get((country, code), (0, 0))
        totals[country, code] = (n + 1, total + value)
    return totals


def check_recall(
    tables: ResultTables, newest: Mapping[tuple[int, Any, Any], tuple[int, int]], asked: Sequence[tuple[int, Any, Any]]
) -> None:
    found = tables.recall(wanted(tables, [(m * MINUTE_US, c, k) for m, c, k in asked]))
    lowered = partials.lower(found, [WINDOW_COLUMN, "country", "code"], tables.fragment.aggregates).to_pylist()
    rows = [((r[WINDOW_COLUMN] // MINUTE_US, r["country"], r["code"]), (r["n"], r["total"])) for r in lowered]
    assert len(rows) == len(dict(rows))
    assert dict(rows) == {place: newest[place] for place in asked if place in newest}


def test_rows_that_having_leaves_out_come_back_when_a_revision_lets_them_in(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, above=1)
    tables.publish(1, [publish(tables, 0, [("nl", 200, 5), ("de", 200, 1), ("de", 200, 2)])])
    assert set(answers(read_results(tmp_path, "q"))) == {(0, "de", 200)}
    everything = read_results(tmp_path, "q", revisions="all").to_pylist()
    assert {r["country"]: r["retracted"] for r in everything} == {"nl": True, "de": False}
    recalled = tables.recall(wanted(tables, [(0, "nl", 200)]))
    assert recalled.num_rows == 1, "a row that is hidden still has the state that late partials are merged into"
    tables.publish(2, [publish(tables, 0, [("nl", 200, 5), ("nl", 200, 6)], revision=2)])
    assert answers(read_results(tmp_path, "q")) == {(0, "de", 200): (2, 3), (0, "nl", 200): (2, 11)}
    tables.publish(3, [publish(tables, 0, [("de", 200, 1)], revision=3)])
    assert set(answers(read_results(tmp_path, "q"))) == {(0, "nl", 200)}


def test_a_replacing_revision_takes_back_what_is_appended_together_with_it(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    first = publish(tables, 0, [("nl", 200, 5)])
    second = replace(publish(tables, 0, [("de", 200, 7), ("nl", 200, 5)]), revision=2, replaces=True)
    third = replace(publish(tables, 0, [("nl", 200, 6)]), revision=3, replaces=True)
    tables.publish(1, [first])
    tables.publish(2, [second, third])
    assert answers(read_results(tmp_path, "q")) == {(0, "nl", 200): (1, 6)}


def test_a_replacing_revision_without_rows_where_there_were_none_is_in_the_log_alone(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    tables.publish(1, [publish(tables, 0, [("nl", 200, 5)])])
    tables.publish(2, [replace(publish(tables, 1, []), revision=2, replaces=True)])
    assert answers(read_results(tmp_path, "q")) == {(0, "nl", 200): (1, 5)}
    assert read_windows(tmp_path, "q").num_rows == 2


def test_latest_rows_carry_the_newest_word_on_their_window(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    without = publish(tables, 0, [("nl", 200, 5)], status=ON_TIME, coverage=0.6, missing_sites=("eu",))
    empty = without.rows.slice(0, 0)
    done = replace(without, status=EXACT, coverage=1.0, missing_sites=(), rows=empty, reason="every site has passed")
    tables.publish(1, [without])
    (row,) = read_results(tmp_path, "q").to_pylist()
    assert (row["status"], row["coverage"], row["missing_sites"]) == (ON_TIME, 0.6, ["eu"])
    assert row["bound"] == {"n": None, "total": None}, "nobody knows what the missing site would add"
    tables.publish(2, [done, replace(done, status=FINAL)])
    (row,) = read_results(tmp_path, "q").to_pylist()
    assert (row["status"], row["coverage"], row["missing_sites"]) == (FINAL, 1.0, [])
    assert row["bound"] == {"n": 0.0, "total": 0.0}, "the site had nothing to add: the row is exact now"
    (published,) = read_results(tmp_path, "q", revisions="all").to_pylist()
    assert (published["status"], published["bound"]) == (ON_TIME, {"n": None, "total": None})
    log = read_windows(tmp_path, "q").to_pylist()
    assert [(w["status"], w["rows_changed"], w["reason"]) for w in log] == [
        (ON_TIME, 1, "closed"),
        (EXACT, 0, "every site has passed"),
        (FINAL, 0, "every site has passed"),
    ]
    assert newest_windows(read_windows(tmp_path, "q"))["status"].to_pylist() == [FINAL]


def test_rows_say_their_window_when_they_were_published_and_in_which_revision(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    tables.publish(1, [publish(tables, 3, [("nl", 200, 5)], revision=2, published_us=77)])
    (row,) = read_results(tmp_path, "q", state=True).to_pylist()
    assert row["window_start"] == START + timedelta(minutes=3)
    assert row["window_end"] == START + timedelta(minutes=4)
    assert (row["revision"], row["published_at"]) == (2, START + timedelta(microseconds=77))
    assert row["state"]["key"] == {"country": "nl", "code": 200}
    assert "state" not in read_results(tmp_path, "q").column_names


# --- recalling states -------------------------------------------------------------------------------------------


def test_a_query_without_keys_has_one_row_a_window_and_it_can_be_recalled(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, keys=())
    for number, minute in enumerate((0, 1, 2)):
        tables.publish(number, [publish(tables, minute, [(None, None, minute)] * 2)])
    tables.publish(9, [publish(tables, 1, [(None, None, 1)] * 5, revision=2)])
    rows = read_results(tmp_path, "q").to_pylist()
    assert [(r["n"], r["total"]) for r in rows] == [(2, 0), (5, 5), (2, 4)]
    found = tables.recall(wanted(tables, [(MINUTE_US,), (2 * MINUTE_US,), (7 * MINUTE_US,)]))
    lowered = partials.lower(found, [WINDOW_COLUMN], tables.fragment.aggregates).to_pylist()
    assert lowered == [
        {WINDOW_COLUMN: MINUTE_US, "n": 5, "total": 5},
        {WINDOW_COLUMN: 2 * MINUTE_US, "n": 2, "total": 4},
    ]


def test_before_anything_is_published_nothing_is_recalled_and_the_schema_is_that_of_the_states(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, aggregates=(*NUMBERS, *SKETCHES))
    found = tables.recall(wanted(tables, [(0, "nl", 200)]))
    assert found.num_rows == 0
    assert found.schema.names == [WINDOW_COLUMN, *tables.fragment.schema.names[1:]]
    tables.publish(1, [publish(tables, 0, [("nl", 200, 5)])])
    assert tables.recall(wanted(tables, [(0, "nl", 200)])).schema == found.schema


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.float64(), [0.0, math.nan, None, -1.5]),
        (pa.timestamp("us", tz="UTC"), [datetime(2024, 3, 1, tzinfo=UTC), None]),
        (pa.date32(), [datetime(2024, 3, 1).date(), None]),
        (pa.decimal128(10, 2), ["1.25", None]),
        (pa.bool_(), [True, False, None]),
        (pa.int16(), [7, None]),
        (pa.binary(), [b"\x00\xff", b"", None]),
    ],
    ids=str,
)
def test_keys_of_any_type_are_recalled_by_equal_keys(tmp_path: Path, type: pa.DataType, values: list[Any]) -> None:
    tables = make_tables(tmp_path, keys=(Key("k", "k", type),))
    keys = pa.array(values, pa.string()).cast(type) if pa.types.is_decimal(type) else pa.array(values, type)
    raw = pa.table({"k": keys, "v": pa.array(range(len(values)), pa.int64())})
    rows = partials.lift(raw, ["k"], tables.fragment.aggregates)
    tables.publish(1, [Publish("q", Window(0, MINUTE_US), 1, EXACT, 1.0, (), "closed", rows)])
    asked = pa.table({WINDOW_COLUMN: pa.array([0] * (len(values) - 1), pa.int64()), "k": keys.slice(1)})
    found = tables.recall(asked)
    assert found["k"].type == type
    assert sorted(partials.lower(found, [WINDOW_COLUMN, "k"], NUMBERS)["total"].to_pylist()) == [*range(1, len(values))]


def test_states_of_sketches_come_back_byte_for_byte_and_still_merge(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, keys=(COUNTRY,), aggregates=(*NUMBERS, *SKETCHES))
    chance = random.Random(4)
    records = [(chance.choice(["nl", None]), None, chance.randrange(50)) for _ in range(300)]
    tables.publish(1, [publish(tables, 0, records[:250])])
    recalled = tables.recall(wanted(tables, [(0, "nl"), (0, None)])).drop_columns([WINDOW_COLUMN])
    kept = states(tables, records[:250])
    assert recalled.sort_by("country").equals(kept.cast(recalled.schema).sort_by("country"))
    merged = partials.combine(
        pa.concat_tables([recalled, states(tables, records[250:]).cast(recalled.schema)]),
        ["country"],
        tables.fragment.aggregates,
    )
    for row in partials.lower(merged, ["country"], tables.fragment.aggregates).to_pylist():
        mine = [v for c, _, v in records if c == row["country"]]
        assert (row["n"], row["total"]) == (len(mine), sum(mine))
        assert row["users"] == len(set(mine)), "fifty values: the sketch counts them exactly"
        best = max(set(mine), key=mine.count)
        assert row["top"][0]["count"] == mine.count(best)
    (shown,) = [r for r in read_results(tmp_path, "q").to_pylist() if r["country"] == "nl"]
    assert len(shown["moments"]) == 5


# --- upkeep -----------------------------------------------------------------------------------------------------


def test_compaction_removes_what_it_replaced_and_remembers_the_newest_number(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path, keep_hours=0)
    for number in range(COMPACT_ABOVE_FILES + 5):
        store.append("late", "q", number, lambda n=number: pa.table({"n": [n]}))  # type: ignore[misc]
    folder = tmp_path / "late" / "q"
    before = len(list(folder.glob("*.parquet")))
    store.compact("late", "q")
    assert before == COMPACT_ABOVE_FILES + 5
    assert len(list(folder.glob("*.parquet"))) == 1
    assert len(list((folder / "_delta_log").glob("*.json"))) < 10
    assert store.newest_number("late", "q") == COMPACT_ABOVE_FILES + 4, "or an enactment would be written twice"
    assert sorted(DeltaTable(folder).to_pyarrow_table()["n"].to_pylist()) == list(range(COMPACT_ABOVE_FILES + 5))
    store.append("late", "q", 1, lambda: pa.table({"n": [-1]}))
    assert DeltaTable(folder).to_pyarrow_table().num_rows == COMPACT_ABOVE_FILES + 5


def test_a_table_is_compacted_by_the_number_of_its_files_while_it_is_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "COMPACT_ABOVE_FILES", 6)
    monkeypatch.setattr(results_module, "LOOK_EVERY_APPENDS", 4)
    store = DeltaStore(tmp_path)
    most = 0
    for number in range(30):
        store.append("late", "q", number, lambda n=number: pa.table({"n": [n]}))  # type: ignore[misc]
        most = max(most, len(DeltaTable(tmp_path / "late" / "q").file_uris()))
    assert 6 < most <= 6 + 4
    table = DeltaTable(tmp_path / "late" / "q")
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == list(range(30))
    assert store.newest_number("late", "q") == 29


def test_replaced_files_stay_for_readers_that_have_begun(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path, keep_hours=1)
    for number in range(COMPACT_ABOVE_FILES + 1):
        store.append("late", "q", number, lambda: pa.table({"n": [1]}))
    begun = DeltaTable(tmp_path / "late" / "q")
    store.compact("late", "q")
    assert begun.to_pyarrow_table().num_rows == COMPACT_ABOVE_FILES + 1


def test_compaction_folds_files_and_keeps_every_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "COMPACT_ABOVE_FILES", 4)
    tables = make_tables(tmp_path, aggregates=(*NUMBERS, *SKETCHES))
    for number in range(12):
        tables.publish(number, [publish(tables, number % 3, [("nl", None, number)], revision=number // 3 + 1)])
    before = [read_results(tmp_path, "q", revisions=r).to_pylist() for r in ("latest", "all")]
    log = read_windows(tmp_path, "q").to_pylist()
    tables.compact()
    table = open_table(tmp_path / "results" / "q")
    assert table is not None
    assert len(table.file_uris()) == 1
    assert [read_results(tmp_path, "q", revisions=r).to_pylist() for r in ("latest", "all")] == before
    assert read_windows(tmp_path, "q").to_pylist() == log
    tables.publish(11, [publish(tables, 0, [("nl", None, 99)], revision=9)])
    assert read_results(tmp_path, "q").to_pylist() == before[0], "the table still knows what it has"
    tables.publish(12, [publish(tables, 0, [("nl", None, 99)], revision=9)])
    assert (0, "nl", None) in answers(read_results(tmp_path, "q"))
    assert answers(read_results(tmp_path, "q"))[0, "nl", None] == (1, 99)


def test_partials_after_the_horizon_are_registered_with_their_window_and_not_published(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    tables.publish(1, [publish(tables, 5, [("nl", 200, 5)])])
    late = publish(tables, 0, [("de", 200, 1), ("de", 200, 2), (None, None, 3)])
    tables.register_late(2, [Expired("q", late.window, late.rows)])
    found = open_table(tmp_path / "late" / "q")
    assert found is not None
    rows = found.to_pyarrow_table()
    assert {t.as_py() for t in rows["window_start"]} == {START}
    registered = pa.Table.from_pylist(rows["state"].to_pylist(), late.rows.schema)
    assert partials.lower(registered, ["country", "code"], NUMBERS).sort_by("n").to_pylist() == [
        {"country": None, "code": None, "n": 1, "total": 3},
        {"country": "de", "code": 200, "n": 2, "total": 3},
    ]
    assert set(answers(read_results(tmp_path, "q"))) == {(5, "nl", 200)}


# --- mistakes ---------------------------------------------------------------------------------------------------


def test_a_query_that_has_not_published_is_an_error_that_names_those_that_have(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    tables.publish(1, [publish(tables, 0, [("nl", 200, 5)])])
    for read in (read_results, read_windows):
        with pytest.raises(CenterError, match="'traffik' has not published") as caught:
            read(tmp_path, "traffik")
        assert caught.value.hint is not None
        assert "q" in caught.value.hint
    with pytest.raises(CenterError, match="'latest' or 'all', not 'newest'"):
        read_results(tmp_path, "q", revisions="newest")


# --- recent rows --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(10))
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.sampled_from(["nl", "de", None]), min_size=1)), max_size=8),
    st.sets(st.integers(0, 8)),
    st.integers(0, 400),
)
def test_what_is_recalled_from_memory_is_what_the_table_holds(
    published: list[tuple[int, set[str | None]]], restarts: set[int], max_bytes: int
) -> None:
    """Windows are published and revised in any order, the process dies in between, and memory forgets at its bound."""
    with tempfile.TemporaryDirectory() as folder:
        recent, revisions = RecentRows(max_bytes), dict.fromkeys(range(4), 0)
        for number, (minute, countries) in enumerate(published):
            if number in restarts:
                recent = RecentRows(max_bytes)
            tables = replace(make_tables(Path(folder)), recent=recent)
            revisions[minute] += 1
            records = [(c, 1, number) for c in sorted(countries, key=str)]
            tables.publish(number, [publish(tables, minute, records, revisions[minute])])
            for places in (
                [(minute * MINUTE_US, c, 1) for c in countries],
                [(m * MINUTE_US, "nl", 1) for m in range(3)],
            ):
                asked = wanted(tables, places)
                from_table = tables._recall("results", tables.fragment, asked)
                known = recent.recall(asked)
                assert sorted(tables.recall(asked).to_pylist(), key=str) == sorted(from_table.to_pylist(), key=str)
                assert known is None or known.num_rows == asked.num_rows


def test_a_repair_of_what_was_just_published_does_not_read_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = make_tables(tmp_path)
    tables.publish(1, [publish(tables, 0, [("nl", 200, 5)])])
    monkeypatch.setattr(DeltaStore, "read", lambda self, kind, *asked: pytest.fail(f"{kind} was opened"))
    assert tables.recall(wanted(tables, [(0, "nl", 200)]))["total__sum"].to_pylist() == [5]
    with pytest.raises(pytest.fail.Exception):
        tables.recall(wanted(tables, [(0, "de", 200)]))


# --- what was promised, and what came true ---------------------------------------------------------------------------


def test_a_bound_of_a_row_that_is_taken_back_was_missed(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, (COUNTRY,))
    late = Lateness(5.0, 20.0, (ColumnLateness("total", None, None),))
    first = publish(tables, 0, [("nl", 200, 1)] * 20 + [("de", 200, 1)] * 4, status=ON_TIME, coverage=0.8, late=late)
    tables.publish(1, [first])
    tables.publish(2, [replace(publish(tables, 0, [("nl", 200, 1)] * 24, revision=2), replaces=True)])
    count, total = view_quality(tmp_path, "q", 0.95)["columns"]
    assert (count["values"], count["promised"], count["missed"], count["taken_back"]) == (2, 2, 1, 1)
    assert count["mean_error"] == pytest.approx(4 / 24), "a row that is gone has no error to average"
    assert (total["promised"], total["taken_back"]) == (0, 1)


def test_quality_counts_promises_that_were_missed_against_the_exact_answers(tmp_path: Path) -> None:
    """Four windows lack records when they close: three within what is stated, one not; one never becomes exact."""
    tables = make_tables(tmp_path, (COUNTRY,))
    late = Lateness(5.0, 20.0, (ColumnLateness("total", None, None),))
    for minute in range(5):
        lacking = publish(tables, minute, [("nl", 200, 1)] * 20, status=ON_TIME, coverage=0.8, late=late)
        tables.publish(2 * minute + 1, [replace(lacking, published_us=(minute + 1) * MINUTE_US + 2_000_000)])
        if minute < 4:
            all_of_it = publish(tables, minute, [("nl", 200, 1)] * (40 if minute == 3 else 22), revision=2)
            tables.publish(2 * minute + 2, [replace(all_of_it, published_us=(minute + 1) * MINUTE_US + 9_000_000)])
    found = view_quality(tmp_path, "q", 0.95)
    assert (found["windows"], found["exact_windows"], found["promised"], found["missed"]) == (5, 4, 4, 1)
    assert found["latency_s"] == {"median": 2.0, "p95": 2.0, "most": 2.0}
    assert found["staleness_s"] == {"median": 9.0, "p95": 9.0, "most": 9.0}
    count, total = found["columns"]
    assert (count["column"], count["values"], count["promised"], count["missed"]) == ("n", 4, 4, 1)
    assert count["largest_error"] == pytest.approx(0.5)
    assert count["mean_bound"] == pytest.approx(0.2)
    assert (total["column"], total["values"], total["promised"]) == ("total", 4, 0), "nothing was stated of the sum"
    assert view_quality(tmp_path, "q", 0.95, max_windows=2)["windows"] == 2
