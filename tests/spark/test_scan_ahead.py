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


def refuse() -> ScanFindings:
    raise NotVectorisedError("an odd file")


def fail() -> ScanFindings:
    raise OSError("the disk is gone")


def test_a_batch_takes_what_was_found_ahead_of_the_same_files_once() -> None:
    wanted = plan()
    ahead = ScanAhead(spawn)
    found = ScanFindings(rows=7)
    ahead.start(wanted, [piece("a"), piece("b")], lambda: found)
    assert ahead.take(wanted, [piece("a"), piece("b")]) is found
    assert ahead.take(wanted, [piece("a"), piece("b")]) is None


@pytest.mark.parametrize("other", [[], [piece("a")], [piece("b"), piece("a")]])
def test_what_was_found_in_other_files_is_thrown_away(other: list[FilePiece]) -> None:
    wanted = plan()
    ahead = ScanAhead(spawn)
    ahead.start(wanted, [piece("a"), piece("b")], ScanFindings)
    assert ahead.take(wanted, other) is None
    assert ahead.take(wanted, [piece("a"), piece("b")]) is None


def test_what_another_pass_has_found_is_thrown_away() -> None:
    ahead = ScanAhead(spawn)
    ahead.start(plan(), [piece("a")], ScanFindings)
    assert ahead.take(plan(), [piece("a")]) is None


def test_a_pass_ahead_that_failed_leaves_the_batch_to_scan_again_unless_arrow_cannot_read_its_files() -> None:
    wanted = plan()
    ahead = ScanAhead(spawn)
    ahead.start(wanted, [piece("a")], fail)
    assert ahead.take(wanted, [piece("a")]) is None
    ahead.start(wanted, [piece("a")], refuse)
    with pytest.raises(NotVectorisedError, match="odd file"):
        ahead.take(wanted, [piece("a")])


def test_nothing_is_scanned_any_more_once_it_is_discarded() -> None:
    may_end = threading.Event()
    ended = threading.Event()

    def scan() -> ScanFindings:
        may_end.wait()
        ended.set()
        return ScanFindings()

    ahead = ScanAhead(spawn)
    ahead.start(plan(), [piece("a")], scan)
    threading.Timer(0.01, may_end.set).start()
    ahead.discard()
    assert ended.is_set()


def test_each_batch_of_a_look_is_told_which_files_follow_and_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_FILES_PER_BATCH", 2)
    pieces = tuple(piece(name) for name in "abcde")
    told: list[tuple[str, str]] = []
    ended = threading.Event()

    def read(these: Sequence[FilePiece], following: Sequence[FilePiece]) -> None:
        told.append(("".join(p.name for p in these), "".join(p.name for p in following)))

    context = SimpleNamespace(setJobGroup=lambda *_given, **_named: None, cancelJobGroup=lambda _group: None)
    spark: Any = SimpleNamespace(sparkContext=context)
    FileReading(spark, "edge.hits", lambda: FolderLook(pieces, None), read, None, on_end=ended.set)
    assert ended.wait(60)
    assert told == [("ab", "cd"), ("cd", "e"), ("e", "")]
