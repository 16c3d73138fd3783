"""What is scanned ahead counts only for the batch that wants exactly that, and never outlives its reader; no JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from catchment.files.watch import FilePiece, FolderLook
from catchment.site.known_files import FileStat
from catchment.spark.pipelines import reading
from catchment.spark.pipelines.reading import FileReading
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.scan import ScanFindings, ScanPlan
from catchment.vectorised.scan_ahead import ScanAhead


def plan() -> ScanPlan:
    return ScanPlan(pa.schema([("ts", pa.timestamp("us", "UTC"))]), "ts", 1)


def piece(name: str) -> FilePiece:
    return FilePiece(name, f"/data/{name}", 0, 10, cast(FileStat, None))


def spawn(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def refuse(*_: object) -> ScanFindings:
    raise NotVectorisedError("an odd file")


def fail(*_: object) -> ScanFindings:
    raise OSError("the disk is gone")


def find_rows(pieces: Sequence[FilePiece], on_under_way: Callable[[], None]) -> ScanFindings:
    """Find as many rows as the names of the files say."""
    on_under_way()
    return ScanFindings(rows=sum(int(piece.name) for piece in pieces))


def scans() -> ScanAhead[ScanFindings]:
    return ScanAhead(spawn)


def test_batches_take_what_was_found_ahead_of_the_same_files_in_their_order_and_once() -> None:
    wanted = plan()
    ahead = scans()
    batches = [[piece("1"), piece("2")], [piece("4")], [piece("8")]]
    ahead.begin(wanted, batches, find_rows)
    for pieces, rows in zip(batches, (3, 4, 8), strict=True):
        found = ahead.take(wanted, pieces)
        assert found is not None
        assert found.rows == rows
    assert ahead.take(wanted, batches[2]) is None


def test_a_pass_that_was_begun_is_not_begun_again() -> None:
    wanted = plan()
    ahead = scans()
    ahead.begin(wanted, [[piece("1")], [piece("2")]], find_rows)
    ahead.begin(wanted, [[piece("1")], [piece("2")], [piece("4")]], lambda *given: ScanFindings(rows=100))
    rows = [found.rows for name in "124" if (found := ahead.take(wanted, [piece(name)])) is not None]
    assert rows == [1, 2, 100]


def test_a_pass_begins_when_the_one_before_it_is_under_way_and_does_not_wait_for_its_end() -> None:
    wanted = plan()
    ahead = scans()
    begun: list[str] = []
    second_has_ended = threading.Event()

    def scan(pieces: Sequence[FilePiece], on_under_way: Callable[[], None]) -> ScanFindings:
        begun.append(pieces[0].name)
        on_under_way()
        if pieces[0].name == "1":
            assert second_has_ended.wait(60)
        else:
            second_has_ended.set()
        return ScanFindings(rows=int(pieces[0].name))

    ahead.begin(wanted, [[piece("1")], [piece("2")]], scan)
    found = ahead.take(wanted, [piece("1")])
    assert found is not None
    assert found.rows == 1
    assert begun == ["1", "2"]


@pytest.mark.parametrize("other", [[], [piece("1")], [piece("2"), piece("1")]])
def test_what_was_found_in_other_files_is_thrown_away(other: list[FilePiece]) -> None:
    wanted = plan()
    thrown: list[int] = []
    ahead: ScanAhead[ScanFindings] = ScanAhead(spawn, lambda found: thrown.append(found.rows))
    ahead.begin(wanted, [[piece("1"), piece("2")], [piece("4")]], find_rows)
    assert ahead.take(wanted, other) is None
    assert thrown == [3, 4]
    assert ahead.take(wanted, [piece("1"), piece("2")]) is None


def test_what_another_pass_has_found_is_thrown_away() -> None:
    ahead = scans()
    ahead.begin(plan(), [[piece("1")]], find_rows)
    assert ahead.take(plan(), [piece("1")]) is None


def test_passes_that_are_not_wanted_any_more_are_thrown_away_before_others_begin() -> None:
    wanted = plan()
    thrown: list[int] = []
    ahead: ScanAhead[ScanFindings] = ScanAhead(spawn, lambda found: thrown.append(found.rows))
    ahead.begin(wanted, [[piece("1")], [piece("2")]], find_rows)
    ahead.begin(wanted, [[piece("1")], [piece("4")]], find_rows)
    assert thrown == [1, 2]
    assert [ahead.take(wanted, [piece(name)]) for name in "14"] == [ScanFindings(rows=1), ScanFindings(rows=4)]


def test_a_pass_ahead_that_failed_leaves_the_batch_to_scan_again_unless_arrow_cannot_read_its_files() -> None:
    wanted = plan()
    ahead = scans()
    ahead.begin(wanted, [[piece("1")]], fail)
    assert ahead.take(wanted, [piece("1")]) is None
    ahead.begin(wanted, [[piece("1")], [piece("2")]], refuse)
    with pytest.raises(NotVectorisedError, match="odd file"):
        ahead.take(wanted, [piece("1")])


def test_nothing_is_scanned_any_more_once_it_is_discarded() -> None:
    may_end = threading.Event()
    ended = threading.Event()

    def scan(*_: object) -> ScanFindings:
        may_end.wait()
        ended.set()
        return ScanFindings()

    ahead = scans()
    ahead.begin(plan(), [[piece("1")]], scan)
    threading.Timer(0.01, may_end.set).start()
    ahead.discard()
    assert ended.is_set()


def test_each_batch_of_a_look_is_told_which_files_follow_and_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_FILES_PER_BATCH", 2)
    pieces = tuple(piece(name) for name in "abcdefgh")
    told: list[tuple[str, str]] = []
    ended = threading.Event()

    def read(these: Sequence[FilePiece], following: Sequence[Sequence[FilePiece]]) -> None:
        told.append(("".join(p.name for p in these), ",".join("".join(p.name for p in batch) for batch in following)))

    context = SimpleNamespace(setJobGroup=lambda *_given, **_named: None, cancelJobGroup=lambda _group: None)
    spark: Any = SimpleNamespace(sparkContext=context)
    FileReading(spark, "edge.hits", lambda: FolderLook(pieces, None), read, None, on_end=ended.set)
    assert ended.wait(60)
    assert told == [("ab", "cd,ef"), ("cd", "ef,gh"), ("ef", "gh"), ("gh", "")]


def test_a_reader_has_failed_only_when_nothing_of_it_is_under_way() -> None:
    is_ending = threading.Event()
    may_end = threading.Event()

    def look() -> FolderLook:
        raise OSError("the disk is gone")

    def end() -> None:
        is_ending.set()
        may_end.wait(60)

    context = SimpleNamespace(setJobGroup=lambda *_given, **_named: None, cancelJobGroup=lambda _group: None)
    spark: Any = SimpleNamespace(sparkContext=context)
    failing = FileReading(spark, "edge.hits", look, lambda *_: None, None, on_end=end)
    assert is_ending.wait(60)
    told_before = failing.failure()
    may_end.set()
    failing.stop()
    assert told_before is None, "whoever starts another one would share its passes ahead"
    assert isinstance(failing.failure(), OSError)
