"""Who scans the files of a micro-batch: processes beside the driver, tasks where one is lost, nobody once it is ended.

No JVM: what Spark is asked for is run here. That tasks of a real Spark find the same is shown in test_vectorised.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.files.watch import FilePiece
from catchment.query.types import TIMESTAMP
from catchment.site.known_files import FileStat
from catchment.spark.evaluation import file_scan
from catchment.spark.evaluation.file_scan import FileScanner
from catchment.vectorised import scan as scan_module
from catchment.vectorised import scan_order
from catchment.vectorised.scan import ScanPlan
from catchment.vectorised.scan_order import PassEndedError
from catchment.vectorised.scan_pool import ScanPool, ScanProcessLostError

PLAN = ScanPlan(pa.schema([("ts", TIMESTAMP), ("v", pa.int64())]), "ts", 1_000_000)
ROWS = 100


class FakeJobs:
    """Stands for a Spark context: runs the tasks of a job one after another, and counts the jobs."""

    def __init__(self) -> None:
        self.jobs = 0
        self.defaultParallelism = 2

    def parallelize(self, shares: list[Any], count: int) -> Any:
        assert count == len(shares)

        def collect(run: Any) -> list[Any]:
            self.jobs += 1
            return [answer for share in shares for answer in run(iter([share]))]

        return SimpleNamespace(mapPartitions=lambda run: SimpleNamespace(collect=lambda: collect(run)))


class LostPool(ScanPool):
    """A pool whose processes are always lost."""

    def map(self, *_given: Any) -> list[Any]:
        raise ScanProcessLostError("a scan process has ended")


@pytest.fixture(scope="module")
def pool() -> Iterator[ScanPool]:
    pool = ScanPool(2)
    yield pool
    pool.close()


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FilePiece]:
    monkeypatch.setattr(file_scan, "SMALL_BYTES", 0)
    found = []
    for number in range(2):
        path = tmp_path / f"{number}.parquet"
        times = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()).cast(TIMESTAMP)
        pq.write_table(pa.table({"ts": times, "v": list(range(ROWS))}), path)
        size = path.stat().st_size
        found.append(FilePiece(path.name, str(path), 0, size, FileStat(size, 0, 0)))
    return found


def scanner_of(context: FakeJobs, folder: Path, pool: ScanPool | None) -> FileScanner:
    spark: Any = SimpleNamespace(sparkContext=context)
    return FileScanner(spark, folder / "scratch", pool)


@pytest.mark.parametrize("kind", ["processes", "lost processes", "tasks"])
def test_processes_scan_and_tasks_do_where_there_are_none(
    tmp_path: Path, pieces: list[FilePiece], pool: ScanPool, kind: str
) -> None:
    context = FakeJobs()
    history = tmp_path / "history"
    history.mkdir()
    pools = {"processes": pool, "lost processes": LostPool(2), "tasks": None}
    found = scanner_of(context, tmp_path, pools[kind]).scan(PLAN, pieces, None, history)
    assert context.jobs == (0 if kind == "processes" else 1)
    assert (found.rows, found.low_us, found.high_us) == (2 * ROWS, 0, 2 * ROWS - 1)
    assert sorted(found.history) == sorted(path.name for path in history.iterdir())
    assert pq.read_table(history).num_rows == 2 * ROWS
    assert not list((tmp_path / "scratch").rglob("*.arrow"))


def test_a_pass_that_is_ended_stops_where_it_is(
    tmp_path: Path, pieces: list[FilePiece], monkeypatch: pytest.MonkeyPatch
) -> None:
    scanner = scanner_of(FakeJobs(), tmp_path, None)
    begun = threading.Event()
    may_go_on = threading.Event()
    scan = scan_module.scan

    def wait(*given: Any) -> Any:
        begun.set()
        assert may_go_on.wait(60)
        return scan(*given)

    monkeypatch.setattr(scan_order, "scan", wait)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            scanner.scan(PLAN, pieces, None, None, "hits")
        except PassEndedError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    scanner.end_passes("visits")  # another stream
    scanner.end_passes("hits")
    may_go_on.set()
    thread.join(60)
    assert len(raised) == 1
