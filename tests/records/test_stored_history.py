"""History in a real object store: every record once, whatever is killed, and whether the store answers or not.

Catches: a run of which something is on neither side, objects that nobody names, a reader that needs the store to know
which event times there are. Cannot catch: what Spark makes of the files; `tests/spark/test_objects.py` does that.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from catchment.deploy.processes.history_store import LONGEST_PAUSE_US, HistoryMover
from catchment.records import stored_history
from catchment.records.object_store import S3Settings, StoreError
from catchment.records.stored_history import FETCHED, StoredHistory
from catchment.storage import batch_retention, compacted_batches
from catchment.storage.batch_retention import BatchRetention
from catchment.storage.batch_times import RemovedBatches, TimeSpan, note_removed
from catchment.storage.compacted_batches import BATCH, BatchCompactor, find_run, list_runs, run_bytes, times_of_run
from catchment.storage.disk import use_disk
from catchment.testing.simulated.disk import DiskFault, Killed, SimulatedDisk
from catchment.timeline import ManualClock
from tests.storage.test_compacted_batches import BEGIN_US, HOUR_US, write_batch
from tests.worlds.s3_server import BUCKET, MISSING, REGION, S3Server, has_server

pytestmark = pytest.mark.integration
BATCHES = 9  # of which the last stays as it is
Found = dict[int, list[tuple[str, int]]]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    if not has_server():
        pytest.skip(MISSING)
    started = S3Server().start()
    started.make_bucket()
    yield started
    started.remove()


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_batches, "KEEP_NEWEST", 1)
    monkeypatch.setattr(compacted_batches, "RUN_BATCHES", 4)


def make_history(server: S3Server, folder: Path) -> StoredHistory:
    """Nine batches over three hours, of which eight are two runs."""
    for number in range(BATCHES):
        write_batch(folder, number, [BEGIN_US + (number + place) % 3 * HOUR_US + place for place in range(5)])
    compactor = BatchCompactor(folder, "ts")
    while compactor.compact_next():
        pass
    settings = S3Settings(server.endpoint, REGION, server.access_key, server.secret_key)
    return StoredHistory(folder, f"s3://{BUCKET}/{folder.parent.name}/eu/hits", settings)


def read_all(stored: StoredHistory, span: TimeSpan | None = None) -> Found:
    """Return what a reader finds of each batch that was compacted."""
    found: Found = {number: [] for number in range(BATCHES - 1)}
    for number in found:
        run = find_run(stored.folder, number)
        assert run is not None
        for path in stored.files_of(run, span):
            rows = pq.read_table(path, partitioning=None).to_pylist()
            found[number] += [(row["id"], row["_row"]) for row in rows if row[BATCH] == number]
    return {number: sorted(rows) for number, rows in found.items()}


def objects_of(server: S3Server, stored: StoredHistory) -> list[str]:
    prefix = stored.address.removeprefix(f"s3://{BUCKET}/")
    listed = server.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return [entry["Key"] for entry in listed if not entry["Key"].endswith("/")]  # which are marks of folders


def move_all(stored: StoredHistory) -> None:
    while stored.move_next():
        pass


def data_files(folder: Path) -> list[Path]:
    return [path for run in list_runs(folder) for path in run.rglob("*.parquet")]


def test_moved_runs_are_read_as_before_by_hour_and_known_without_the_store(server: S3Server, tmp_path: Path) -> None:
    stored = make_history(server, tmp_path / "history")
    before = read_all(stored)
    times = [times_of_run(run) for run in list_runs(stored.folder)]
    sizes = [run_bytes(run) for run in list_runs(stored.folder)]
    assert sum(len(rows) for rows in before.values()) == 5 * (BATCHES - 1)
    assert stored.waiting_runs() == 2
    move_all(stored)
    assert (stored.moved_runs, stored.waiting_runs()) == (2, 0)
    assert data_files(stored.folder) == []
    assert len(objects_of(server, stored)) == 2 * (3 + 1), "three hours and a manifest per run"
    server.stop()
    try:
        assert [times_of_run(run) for run in list_runs(stored.folder)] == times
        known = [run_bytes(run) for run in list_runs(stored.folder)]
        assert all(size <= now for size, now in zip(sizes, known, strict=True)), "what is in the store counts"
        with pytest.raises(StoreError, match="does not answer"):
            read_all(stored)
    finally:
        server.start()
    hour = BEGIN_US, BEGIN_US + HOUR_US
    of_hour = read_all(stored, hour)
    assert 0 < sum(map(len, of_hour.values())) < 5 * (BATCHES - 1)
    assert len(list((stored.folder / FETCHED).rglob("*.parquet"))) == 2, "only the files of that hour are fetched"
    assert read_all(stored) == before
    assert not stored.move_next(), "nothing is moved twice"


def test_what_was_fetched_is_forgotten_beyond_a_bound(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = make_history(server, tmp_path / "history")
    before = read_all(stored)
    move_all(stored)
    assert read_all(stored) == before
    monkeypatch.setattr(stored_history, "MAX_FETCHED_BYTES", 1)
    stored.make_room()
    assert list((stored.folder / FETCHED).iterdir()) == []
    assert read_all(stored) == before


@pytest.mark.parametrize(("kind", "power_cut"), [(DiskFault.KILL, False), (DiskFault.TORN_WRITE, True)])
def test_a_crash_at_any_call_of_the_disk_loses_and_doubles_nothing(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: DiskFault, power_cut: bool
) -> None:
    monkeypatch.setattr(compacted_batches, "RUN_BATCHES", BATCHES - 1)
    whole = make_history(server, tmp_path / "whole" / "history")
    before = read_all(whole)
    stops = 0
    while True:
        folder = tmp_path / f"crash-{stops}" / "history"
        shutil.copytree(whole.folder, folder)
        disk = SimulatedDisk(random.Random(stops))
        disk.machine(folder)
        disk.plan_fault(folder, stops, kind)
        stored = StoredHistory(folder, f"{whole.address}/{kind}-{power_cut}-{stops}", whole.settings)
        with use_disk(disk):
            try:
                move_all(stored)
                break
            except Killed:
                stops += 1
            if power_cut:
                disk.cut_power(folder)
        assert read_all(stored) == before
        move_all(stored)
        assert read_all(stored) == before
        assert data_files(folder) == []
        assert len(objects_of(server, stored)) == 4, "no object that nobody names"
    assert stops >= 5


def test_a_store_that_is_away_delays_what_is_moved_and_removed_and_retention_leaves_no_object(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_retention, "KEEP_NEWEST", 1)
    stored = make_history(server, tmp_path / "history")
    before = read_all(stored)
    clock = ManualClock(0)
    mover = HistoryMover(stored, clock)
    server.stop()
    try:
        assert not mover.move_next()
        assert "does not answer" in (mover.failure or "")
        assert mover.status()["waiting_runs"] == 2
        assert read_all(stored) == before, "what has not been moved is read from disk"
    finally:
        server.start()
    assert not mover.move_next(), "it is tried again after a pause"
    clock.advance(LONGEST_PAUSE_US)
    assert mover.move_next()
    assert mover.move_next()
    assert mover.failure is None
    kept = BatchRetention(stored.folder, clock, keep_us=1)
    kept.note = lambda batches: note_removed(stored.folder, batches, "ts", times_of_run)
    kept.forget = mover.forget
    span = times_of_run(list_runs(stored.folder)[0])
    assert span is not None
    clock.advance(10**18)
    server.stop()
    try:
        kept.tidy()
    finally:
        server.start()
    assert list_runs(stored.folder) == [], "it no longer counts"
    assert len(objects_of(server, stored)) == 8
    noted = RemovedBatches.read(stored.folder)
    assert noted == RemovedBatches(0, 7, 8, True, span.span)
    clock.advance(2 * LONGEST_PAUSE_US)
    kept.tidy()
    clock.advance(2 * LONGEST_PAUSE_US)
    kept.tidy()
    assert objects_of(server, stored) == []
    assert [path.name for path in stored.folder.glob("_removed-*")] == []


def test_a_run_that_is_removed_before_it_was_moved_whole_leaves_no_object(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_retention, "KEEP_NEWEST", 1)
    stored = make_history(server, tmp_path / "history")
    uploaded: list[str] = []
    upload = StoredHistory._upload

    def upload_one(self: StoredHistory, path: Path, address: str) -> int:
        if uploaded:
            raise StoreError("the store is full")
        uploaded.append(address)
        return upload(self, path, address)

    monkeypatch.setattr(StoredHistory, "_upload", upload_one)
    clock = ManualClock(0)
    mover = HistoryMover(stored, clock)
    assert not mover.move_next()
    assert mover.failure == "the store is full"
    assert len(objects_of(server, stored)) == 1
    kept = BatchRetention(stored.folder, clock, keep_us=1)
    kept.forget = mover.forget
    clock.advance(10**18)
    server.stop()
    try:
        kept.tidy()
        left = [path for path in stored.folder.glob("_removed-*") for path in path.rglob("*.parquet")]
        assert left == [], "the disk has its room back although the store is away"
    finally:
        server.start()
    for _ in range(2):
        clock.advance(2 * LONGEST_PAUSE_US)
        kept.tidy()
    assert objects_of(server, stored) == []
    assert [path.name for path in stored.folder.glob("_removed-*")] == []


def test_a_file_that_is_missing_on_disk_is_told_and_its_run_is_not_moved_again_and_again(
    server: S3Server, tmp_path: Path
) -> None:
    stored = make_history(server, tmp_path / "history")
    data_files(stored.folder)[0].unlink()
    mover = HistoryMover(stored, ManualClock(0))
    assert not mover.move_next()
    assert "cannot be moved" in (mover.failure or "")


@pytest.mark.parametrize("left", [0, 100])
def test_what_a_power_cut_has_left_of_fetched_files_is_fetched_again(
    server: S3Server, tmp_path: Path, left: int
) -> None:
    stored = make_history(server, tmp_path / "history")
    before = read_all(stored)
    move_all(stored)
    assert read_all(stored) == before
    for path in (stored.folder / FETCHED).rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:left])
    assert read_all(stored) == before


def test_an_object_of_another_size_is_refused(server: S3Server, tmp_path: Path) -> None:
    stored = make_history(server, tmp_path / "history")
    move_all(stored)
    for key in objects_of(server, stored):
        server.client().put_object(Bucket=BUCKET, Key=key, Body=b"another")
    with pytest.raises(StoreError, match="has 7 bytes in the store"):
        read_all(stored)


def test_a_damaged_record_of_where_a_run_is_stops_only_who_reads_it(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_retention, "KEEP_NEWEST", 1)
    stored = make_history(server, tmp_path / "history")
    clock = ManualClock(0)
    mover = HistoryMover(stored, clock)
    assert mover.move_next()
    record = list_runs(stored.folder)[0] / compacted_batches.STORED
    record.write_bytes(record.read_bytes().replace(b"eu", b"us"))
    assert mover.move_next(), "the other run is moved"
    assert mover.status()["waiting_runs"] == 0
    with pytest.raises(StoreError, match="checksum"):
        read_all(stored)
    kept = BatchRetention(stored.folder, clock, keep_us=1)
    kept.forget = mover.forget
    kept.tidy()
    assert len(kept) == BATCHES
    clock.advance(10**18)
    kept.tidy()
    assert objects_of(server, stored) == []
