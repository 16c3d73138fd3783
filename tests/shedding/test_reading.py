"""The parts of live shedding that need no Spark session: what a reader samples, where a batch begins and ends, what was
published of a sample, and how the answer is read once it is whole."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.events import Publish
from catchment.center.results.bounds import law_of_aggregate
from catchment.center.results.read import read_results
from catchment.center.results.write import ResultTables
from catchment.center.statuses import EXACT, ON_TIME
from catchment.files.folder import WatchedFolder
from catchment.files.numbered_lines import find_parts, number_lines
from catchment.files.watch import FolderWatch
from catchment.query.fragment import SLICE_COLUMN
from catchment.replay.spool import ARRIVAL, ROWS_PER_BATCH
from catchment.shedding.debts import BatchGivenUp, BatchShed, ShedDebts
from catchment.shedding.fragment_stats import SheddableFragment
from catchment.shedding.monitor import LoadMonitor
from catchment.shedding.places import SamplingRule, history_rule
from catchment.shedding.reader_filter import ROW, ReadRequest
from catchment.shedding.terms import negate_terms, scale_answers
from catchment.site.known_files import KnownFiles, StreamTimes
from catchment.spark.pipelines.shed_repair import ShedRepairs
from catchment.spark.pipelines.shedding import (
    MAX_LACKING_SLICES,
    WARM_UP_ROWS,
    BatchTimer,
    StreamShedding,
    lacking_records,
)
from catchment.spark.sources import kafka_reread
from catchment.spark.sources.file_reread import LinePartReader
from catchment.spark.sources.kafka_reread import TopicPartReader, offsets_of_batch
from catchment.spark.sources.replay import RowRange
from catchment.spark.sources.reread import BatchRows, RangeReader, passes
from catchment.spark.sources.streams import OpenedStream, _spooled_rows
from catchment.spark.streaming import rows_of_batch
from catchment.timeline import ManualClock, Slicing, Window, WindowSpec
from tests.worlds.shed_partials import partials_of, shed_fragment
from tests.worlds.tiers import examples


def write_spool(path: Path, rows: int) -> Path:
    table = pa.table({ARRIVAL: pa.array(np.arange(rows)), "value": pa.array([f"line {i}" for i in range(rows)])})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS_PER_BATCH)
    return path


def read_range(spool: Path, start: int, end: int, rate: float) -> tuple[list[int], list[str]]:
    reader = RangeReader(spool, RowRange(start, end), "s", (ReadRequest(rate),))
    batches = [b for part in reader.partitions() for b in reader.read(part)]
    return (
        [n for b in batches for n in b[ROW].to_pylist()],
        [v for b in batches for v in b["value"].to_pylist()],
    )


@pytest.mark.parametrize(("start", "end"), [(0, 70_000), (65_530, 65_540), (100, 100)])
def test_a_range_is_read_again_with_its_numbers_and_a_sample_of_it_is_what_the_rule_lets_pass(
    tmp_path: Path, start: int, end: int
) -> None:
    spool = write_spool(tmp_path / "s.arrow", 70_000)
    numbers, values = read_range(spool, start, end, 1.0)
    assert numbers == list(range(start, end))
    assert values == [f"line {i}" for i in numbers]
    kept: Any = SamplingRule("s", (ROW,)).keep([pa.array(np.arange(start, end))], 0.1) if end > start else []
    assert read_range(spool, start, end, 0.1)[0] == [n for n, passed in zip(numbers, kept, strict=True) if passed]


def test_the_rows_of_a_batch_are_between_its_offset_and_the_one_before(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for batch, row in enumerate((10, 25)):
        (offsets / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({"row": row})}')
    assert rows_of_batch(tmp_path, 0) == (0, 10)
    assert rows_of_batch(tmp_path, 1) == (10, 25)
    assert rows_of_batch(tmp_path, 2) is None
    (offsets / "2").write_text('v1\n{}\n{"logOffset":3}')
    assert rows_of_batch(tmp_path, 2) is None, "files have no row numbers"


def test_the_records_of_a_batch_of_a_topic_are_numbered_over_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for batch, reached in enumerate(({"0": 5, "1": 7}, {"0": 9, "10": 2, "1": 7})):
        (offsets / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(reached)}")
    assert offsets_of_batch(tmp_path, 0) is None, "where it begins is not in the checkpoint"
    rows = offsets_of_batch(tmp_path, 1)
    assert rows == BatchRows(1, 0, 6, "[[0, 5, 9], [1, 7, 7], [10, 0, 2]]")
    assert offsets_of_batch(tmp_path, 2) is None, "it is not planned yet"
    monkeypatch.setattr(kafka_reread, "ROWS_PER_TASK", 3)
    parts = TopicPartReader({}, rows, "hits", (ReadRequest(1.0),)).partitions()
    assert [(p.partition, p.start, p.end, p.first_row) for p in parts] == [(0, 5, 8, 0), (0, 8, 9, 3), (10, 0, 2, 4)]


def test_a_record_passes_as_its_batch_and_number_say() -> None:
    rows = pa.array(np.arange(500))
    batch = pa.array([3] * 500, pa.int64())
    passed = passes("hits", 3, (ReadRequest(0.1), ReadRequest(0.3)), rows)
    assert passed.tolist() == history_rule("hits", 3).keep([batch, rows], 0.3).tolist()
    assert passes("hits", 3, (ReadRequest(1.0),), rows).all()


def test_lines_of_files_are_sampled_by_their_numbers_and_the_rest_is_found_again(tmp_path: Path) -> None:
    """The oracle: every line is in the sample or in what is left of all, by the rule of its batch and number."""
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("".join(f"{name} {i}\n" for i in range(200)))
    watched = WatchedFolder(tmp_path)
    pieces = FolderWatch("hits", watched).look(KnownFiles(), StreamTimes(0, 0, None)).pieces
    numbered = number_lines(watched, pieces, False)
    assert numbered is not None
    parts = find_parts(watched, numbered.place)

    def read(rate: float) -> dict[int, str]:
        reader = LinePartReader(parts, 3, "hits", (ReadRequest(rate),))
        tables = [pa.Table.from_batches(reader.read(part)) for part in reader.partitions()]
        rows = pa.concat_tables(tables).to_pylist()
        return {row["_row"]: row["value"] for row in rows}

    everything, sample = read(1.0), read(0.3)
    assert [everything[row] for row in range(400)] == [f"{piece.name} {i}" for piece in pieces for i in range(200)]
    rows = pa.array(sorted(everything))
    kept = history_rule("hits", 3).keep([pa.array([3] * len(rows), pa.int64()), rows], 0.3)
    assert sample == {row: everything[row] for row, is_kept in zip(rows.to_pylist(), kept, strict=True) if is_kept}


def test_a_sample_is_taken_for_nothing_once_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps({'row': 3 * WARM_UP_ROWS})}")
    fixed = SheddableFragment("fixed", (("d", "count"),), 10.0, fixed=True)
    monitor = LoadMonitor("s", (SheddableFragment("f", (("n", "count"),), 10.0), fixed), 0.05, True)
    opened = OpenedStream(None, reread_rows=lambda *_: None, batch_rows=_spooled_rows)  # nothing is read
    timer = BatchTimer(1.0)
    shedding = StreamShedding("s", monitor, opened, None, tmp_path, ManualClock(0), timer, {}, {})  # type: ignore[arg-type]
    assert shedding.warm_up_sample() is None, "nothing was read so far"
    shedding.begin_batch(0)
    assert shedding.warm_up_sample() is None, "the first micro-batch is under way"
    shedding.finish_batch(0, 0, None)
    monitor.load = 0.8
    assert shedding.warm_up_sample() is None, "there is no room"
    monitor.load = 0.1
    sample = shedding.warm_up_sample()
    assert sample is not None
    assert sample.source == BatchRows(0, 2 * WARM_UP_ROWS, 3 * WARM_UP_ROWS)
    assert sample.decision.rates["f"] < 1.0 == sample.decision.rates["fixed"]
    assert shedding.warm_up_sample() is None, "once is enough"


@settings(max_examples=examples(60))
@given(
    low=st.integers(0, 10_000),
    length=st.integers(0, 500),
    rate=st.floats(0.01, 0.99),
    window=st.sampled_from([WindowSpec.tumbling(10), WindowSpec(12, 5), WindowSpec(30, 10, 3)]),
)
def test_every_slice_that_a_sample_spans_is_named_and_one_to_either_side(
    low: int, length: int, rate: float, window: WindowSpec
) -> None:
    slicing = Slicing.of([window])
    first = slicing.start_of(low)
    named = lacking_records(slicing, ((first, 7),), rate, (low, low + length))
    starts = [s for s, _ in named]
    assert {slicing.start_of(t) for t in range(low, low + length + 1)} <= set(starts)
    assert starts[0] < first
    assert starts[-1] > low + length
    assert dict(named)[first] == round(7 * (1 / rate - 1))
    assert len(named) <= MAX_LACKING_SLICES


@pytest.mark.parametrize("coverage", [0.5, 1.0], ids=["half is in", "about all is in"])
def test_a_sampled_window_is_published_with_bounds_and_read_without_them_once_it_is_whole(
    tmp_path: Path, coverage: float
) -> None:
    fragment, window = shed_fragment(WindowSpec.tumbling(10)), Window(0, 10)

    def finish(rows: pa.Table) -> pa.Table:
        kept = rows.select(["k", "n", "total"])
        return kept.append_column("retracted", pa.array([False] * rows.num_rows))

    laws = tuple(law_of_aggregate(a.name, a) for a in fragment.aggregates[:2])
    tables = ResultTables(tmp_path, "q", fragment, finish, laws)
    sampled = partials_of(fragment, [(i % 10, "a", 4) for i in range(200)], 0.5)[0]
    untouched = partials_of(fragment, [(1, "b", 4)], 1.0)[0]
    rows = pa.concat_tables([sampled.slice(0, 1), untouched]).drop_columns([SLICE_COLUMN])
    first = Publish("q", window, 1, ON_TIME, coverage, (), "shed", rows, 0, lowest_rate=0.5)
    tables.publish(0, [first])
    a, b = sorted(read_results(tmp_path, "q").to_pylist(), key=lambda r: r["k"])
    assert (a["n"], a["total"]) == (2 * 200, 2 * 800)
    assert 0 < a["bound"]["n"] < 1
    assert b["n"] == 1
    assert b["bound"]["n"] is None or b["bound"]["n"] > 0, "a site may have lost every other record of this row"
    whole = replace(first, revision=1, status=EXACT, coverage=1.0, lowest_rate=1.0, rows=rows.schema.empty_table())
    tables.publish(1, [whole])
    assert all(r["bound"] == {"n": 0.0, "total": 0.0} for r in read_results(tmp_path, "q").to_pylist())


def test_what_is_taken_back_leaves_the_state_of_no_record() -> None:
    fragment = shed_fragment(WindowSpec.tumbling(10))
    table, _ = partials_of(fragment, [(1, "a", 3), (2, "a", 5)], 0.25)
    back = negate_terms(table, fragment.aggregates)
    assert back["n__count"].to_pylist() == [0]
    assert back["total__sum"].to_pylist() == [None]
    assert back["n__terms__kept"].to_pylist() == [-2]
    values, errors = scale_answers(back, fragment.aggregates[0], 0.05, 1.0)
    assert (values.to_pylist(), errors.tolist()) == ([0], [0.0]), "its sample is still on its way: nothing is scaled"


def test_what_is_owed_of_a_file_that_is_gone_is_given_up_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without Spark: the journal hears that the batch is given up, and nothing is read or repaired of it."""
    (tmp_path / "a.json").write_text("1\n2\n")
    watched = WatchedFolder(tmp_path)
    pieces = FolderWatch("hits", watched).look(KnownFiles(), StreamTimes(0, 0, None)).pieces
    numbered = number_lines(watched, pieces, False)
    assert numbered is not None
    debts = ShedDebts()
    list(debts.add(BatchShed("hits", 7, (), (0, numbered.records), None, numbered.place)))

    def reread(rows: BatchRows, wanted: Any) -> Any:
        find_parts(watched, rows.place)
        raise AssertionError("it was to be refused")

    stream = SimpleNamespace(name="hits", event_time="ts")
    shedding = SimpleNamespace(has_room=lambda: True)
    opened = SimpleNamespace(reread_rows=reread, files=None)
    state: Any = SimpleNamespace(stream=stream, shedding=shedding, opened=opened, own_plans=[], is_finished=False)
    submitted: list[Any] = []
    repairs = ShedRepairs(
        cast("Any", SimpleNamespace(folder=tmp_path, site="a")),
        cast("Any", None),
        lambda: debts,
        lambda: [state],
        list,
        list,
        submitted.extend,
        threading.Event(),
    )
    (tmp_path / "a.json").unlink()
    assert repairs.repair_next()
    assert submitted == [BatchGivenUp("hits", 7)]
    assert f"what is owed of batch 7 of hits is given up: the file {tmp_path / 'a.json'} is gone" in caplog.text
