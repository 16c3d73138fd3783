"""A log laid out for replay, and the reader that releases it: no Spark session, a clock that the test moves.

Catches: rows lost, doubled or out of order over restarts; a bad record that stalls or scrambles a replay. Cannot catch:
how Spark drives the reader; `test_sources.py` and `test_kill.py` do that.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import EngineError
from catchment.query.sql.connectors import ReplayConnector
from catchment.replay import spool as spool_module
from catchment.replay import spool_writer
from catchment.replay.spool import read_arrivals, read_rows
from catchment.replay.spool_writer import make_spool
from catchment.spark.sources import replay as replay_module
from tests.worlds.tiers import examples

START = datetime(2024, 3, 1, tzinfo=UTC)
DAY_US = 86_400_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])


def iso(second: float) -> str:
    return (START + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def lay_out(log: Path, spool: Path, *, schema: pa.Schema = SCHEMA, arrival: str = "ts", **options: Any) -> int:
    return make_spool(log, spool, ReplayConnector(str(log), **options), schema, arrival, DAY_US)


def values(spool: Path, start: int = 0, end: int | None = None) -> list[str]:
    end = len(read_arrivals(spool)) if end is None else end
    return [v for batch in read_rows(spool, start, end) for v in batch["value"].to_pylist()]


def seconds(spool: Path) -> list[float]:
    """When each row arrives, in seconds after the first day began."""
    return list(map(float, (read_arrivals(spool) - int(START.timestamp() * 1e6)) / 1e6))


# --- laying out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_log_is_laid_out_in_order_of_arrival_whatever_its_compression(tmp_path: Path, suffix: str) -> None:
    lines = [json.dumps({"ts": iso(s), "n": s}) for s in (3, 1, 2, 1)]
    text = ("\n".join(lines) + "\n").encode()
    pack: Callable[[bytes], bytes] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    log, spool = tmp_path / f"log.jsonl{suffix}", tmp_path / "state" / "log.arrow"
    log.write_bytes(pack(text))
    assert lay_out(log, spool) == 4
    assert values(spool) == [lines[1], lines[3], lines[2], lines[0]], "equal arrivals keep the order of the log"
    assert seconds(spool) == [1, 1, 2, 3]


def test_a_line_whose_arrival_cannot_be_read_keeps_its_place_behind_the_line_before_it(tmp_path: Path) -> None:
    log, spool = tmp_path / "log.jsonl", tmp_path / "log.arrow"
    odd = ["not json", '{"n": 1}', '{"ts": {"a": 1}}', '{"ts": true}', "[1]", '{"ts": "yesterday"}', '{"ts": 1e300}']
    lines = ["first of all", json.dumps({"ts": iso(1)}), *odd, "", json.dumps({"ts": iso(2)})]
    log.write_text("\r\n".join(lines))
    assert lay_out(log, spool) == 10
    assert values(spool) == [line for line in lines if line]
    assert seconds(spool) == [1] * 9 + [2]


def test_an_arrival_years_from_the_others_does_not_hold_the_replay_up(tmp_path: Path) -> None:
    log, spool = tmp_path / "log.jsonl", tmp_path / "log.arrow"
    times = [iso(0), "1970-01-01T00:00:00Z", iso(1), "2099-01-01T00:00:00Z", iso(2), "9999-12-31T00:00:00Z"]
    log.write_text("\n".join(json.dumps({"ts": t}) for t in times))
    lay_out(log, spool)
    assert seconds(spool) == [0, 0, 1, 1, 2, 2]
    assert [json.loads(v)["ts"] for v in values(spool)] == times


def test_one_number_among_texts_does_not_unsettle_the_order(tmp_path: Path) -> None:
    log, spool = tmp_path / "log.jsonl", tmp_path / "log.arrow"
    start = START.timestamp()
    log.write_text("\n".join(json.dumps({"ts": t}) for t in (iso(2), start + 1.5, iso(1), str(start + 3))))
    lay_out(log, spool)
    assert seconds(spool) == [1, 1.5, 2, 3]


def test_csv_is_read_by_its_header_or_in_declared_order_with_any_delimiter(tmp_path: Path) -> None:
    rows = [f'"a;b";{iso(2)};1', f"c;{iso(1)};2", "short"]
    (tmp_path / "with.csv").write_text("\ufeffname; TS ;n\n" + "\n".join(rows))
    (tmp_path / "without.csv").write_text("\n".join(rows))
    declared = pa.schema([("name", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    lay_out(tmp_path / "with.csv", tmp_path / "1.arrow", format="csv", delimiter=";")
    lay_out(tmp_path / "without.csv", tmp_path / "2.arrow", schema=declared, format="csv", delimiter=";", header=False)
    for spool in (tmp_path / "1.arrow", tmp_path / "2.arrow"):
        assert values(spool) == [rows[1], rows[2], rows[0]]
        assert seconds(spool) == [1, 1, 2]


def test_parquet_gives_the_declared_columns_in_their_order_and_types(tmp_path: Path) -> None:
    log, spool = tmp_path / "log.parquet", tmp_path / "log.arrow"
    times = pa.array([START + timedelta(seconds=s) for s in (2, 1)], pa.timestamp("ns"))
    pq.write_table(pa.table({"more": ["x", "y"], "N": pa.array([1, 2], pa.int32()), "ts": times}), log)
    assert lay_out(log, spool, format="parquet") == 2
    (batch,) = read_rows(spool, 0, 2)
    assert batch.schema.equals(SCHEMA)
    assert batch.to_pylist() == [
        {"ts": START + timedelta(seconds=1), "n": 2},
        {"ts": START + timedelta(seconds=2), "n": 1},
    ]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("log.csv", "a,b\n1,2\n", {"format": "csv"}, r"no column 'ts' to replay by, only \['a', 'b'\]"),
        ("log.parquet", {"n": [1]}, {"format": "parquet"}, r"\['ts'\] are declared, but the columns .* \['n'\]"),
        ("log.parquet", {"ts": ["soon"], "n": [1]}, {"format": "parquet"}, "not of the declared types"),
    ],
    ids=["no column in CSV", "no column in Parquet", "wrong type in Parquet"],
)
def test_a_log_that_does_not_fit_its_declaration_is_refused(
    tmp_path: Path, name: str, content: Any, options: dict[str, str], message: str
) -> None:
    log = tmp_path / name
    if isinstance(content, str):
        log.write_text(content)
    else:
        pq.write_table(pa.table(content), log)
    with pytest.raises(EngineError, match=message):
        lay_out(log, tmp_path / "log.arrow", **options)
    assert not (tmp_path / "log.arrow").exists()


def test_a_log_that_is_not_there_or_has_changed_is_refused(tmp_path: Path) -> None:
    log, spool = tmp_path / "log.jsonl", tmp_path / "log.arrow"
    with pytest.raises(EngineError, match="there is no log"):
        lay_out(log, spool)
    log.write_text(json.dumps({"ts": iso(0)}) + "\n")
    lay_out(log, spool)
    assert lay_out(log, spool) == 1, "laid out once"
    log.write_text(json.dumps({"ts": iso(0)}) + "\n" + json.dumps({"ts": iso(1)}) + "\n")
    with pytest.raises(EngineError, match="has changed since its replay began") as caught:
        lay_out(log, spool)
    assert caught.value.hint is not None
    assert str(spool) in caught.value.hint


@settings(max_examples=examples(30))
@given(st.integers(0, 23), st.data())
def test_any_range_of_rows_is_exactly_those_rows(tmp_path_factory: Any, count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, count))
    end = data.draw(st.integers(start, count))
    spool = tmp_path_factory.mktemp("spool") / "log.arrow"
    with pytest.MonkeyPatch.context() as patched:
        for module in (spool_module, spool_writer):
            patched.setattr(module, "ROWS_PER_BATCH", 5)
        log = spool.with_suffix(".jsonl")
        log.write_text("".join(json.dumps({"ts": iso(i), "n": i}) + "\n" for i in range(count)))
        assert lay_out(log, spool) == count
        assert [json.loads(v)["n"] for v in values(spool, start, end)] == list(range(start, end))


# --- releasing --------------------------------------------------------------------------------------------------


class Drive:
    """Drives a reader as Spark does: plan to the newest offset, read its partitions, keep the offset."""

    def __init__(self, spool: Path, speed: float, at: dict[str, int] | None = None) -> None:
        self.reader = replay_module.ReplayReader(spool, speed, max_rows=10**6)
        self.at = at or self.reader.initialOffset()

    def batch(self, limit: Any = None) -> list[int]:
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        parts = self.reader.partitions(self.at, end)
        self.at = json.loads(json.dumps(end))  # through the checkpoint
        return [json.loads(v)["n"] for p in parts for b in self.reader.read(p) for v in b["value"].to_pylist()]


@pytest.fixture
def spooled(tmp_path: Path) -> Path:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"ts": iso(10 * i), "n": i}) + "\n" for i in range(20)))
    lay_out(log, tmp_path / "log.arrow")
    return tmp_path / "log.arrow"


class Clock:
    """In the place of the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(replay_module, "time", made)
    return made


def test_rows_are_released_at_the_pace_of_the_log_times_the_speed(spooled: Path, clock: Clock) -> None:
    drive = Drive(spooled, speed=10)
    assert drive.batch() == [0]
    clock.now += 0.5
    assert drive.batch() == []
    clock.now += 0.5
    assert drive.batch() == [1]
    clock.now += 3
    assert drive.batch() == [2, 3, 4]
    clock.now += 1000
    assert drive.batch() == list(range(5, 20))
    assert drive.batch() == []
    assert drive.at == {"row": 20}


def test_a_restart_goes_on_at_its_offset_without_loss_repetition_or_making_up_for_the_pause(
    spooled: Path, clock: Clock
) -> None:
    drive, seen = Drive(spooled, speed=10), list[int]()
    for _ in range(40):
        seen += drive.batch()
        clock.now += 50  # the process is away for long
        drive = Drive(spooled, speed=10, at=drive.at)
        seen += drive.batch()
        clock.now += 1
    assert seen == list(range(20))
    first = Drive(spooled, speed=10, at={"row": 7})
    assert first.batch() == [7], "only what is due now, not what would have come while it was away"


def test_a_micro_batch_has_a_bound_and_the_rest_comes_in_the_next_one(spooled: Path) -> None:
    drive = Drive(spooled, speed=0)
    limit = replay_module.ReadMaxRows(8)
    assert [drive.batch(limit) for _ in range(4)] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 20)),
        [],
    ]


def test_reading_once_releases_everything_that_is_there(spooled: Path, clock: Clock) -> None:
    drive = Drive(spooled, speed=0.001)
    drive.reader.prepareForTriggerAvailableNow()
    assert drive.batch(replay_module.ReadAllAvailable()) == list(range(20))


def test_large_batches_are_split_into_partitions_that_cover_them_once(
    spooled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "ROWS_PER_PARTITION", 6)
    reader = replay_module.ReplayReader(spooled, 0, max_rows=10**6)
    parts = reader.partitions({"row": 1}, {"row": 20})
    assert [(p.start, p.end) for p in parts] == [(1, 7), (7, 13), (13, 19), (19, 20)]
    assert reader.partitions({"row": 5}, {"row": 5}) == []


def test_arrivals_never_decrease(spooled: Path) -> None:
    assert np.all(np.diff(read_arrivals(spooled)) >= 0)
