"""Files that Spark's own source has read are taken over from its checkpoint, as earlier versions wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catchment.errors import EngineError
from catchment.files.folder import WatchedFolder
from catchment.files.spark_checkpoint import is_spark_file_log, take_over
from catchment.files.watch import FolderWatch
from catchment.site.known_files import KnownFiles, StreamTimes


def entry(path: str, number: int) -> str:
    return json.dumps({"path": path, "timestamp": 1, "batchId": number}, separators=(",", ":"))


def write_checkpoint(folder: Path, lists: list[list[str]], compacted: set[int], offsets: list[int]) -> Path:
    """Write lists of files, some of them compacted, and the last list of each batch."""
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "offsets").mkdir()
    for number, paths in enumerate(lists):
        if number in compacted:
            lines = [entry(path, n) for n, earlier in enumerate(lists[: number + 1]) for path in earlier]
            (folder / "sources" / "0" / f"{number}.compact").write_text("\n".join(["v1", *lines]))
        else:
            lines = [entry(path, number) for path in paths]
            (folder / "sources" / "0" / str(number)).write_text("\n".join(["v1", *lines]))
    for batch, offset in enumerate(offsets):
        (folder / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{offset}}}')
    return folder


def names(checkpoint: Path, committed: int, folder: Path) -> list[str]:
    return [file.name for file in take_over(checkpoint, committed, "s", WatchedFolder(folder)).files]


def test_the_files_of_committed_batches_are_known_and_no_others(tmp_path: Path) -> None:
    lists = [[f"file:///d/{number}-{n}" for n in range(2)] for number in range(12)]
    for compacted in (set(), {9}, {4, 9}):
        folder = tmp_path / str(len(compacted))
        checkpoint = write_checkpoint(folder, lists, compacted, list(range(12)))
        assert is_spark_file_log(checkpoint)
        for committed in (0, 3, 8, 9, 11):
            expected = sorted(f"{number}-{n}" for number in range(committed + 1) for n in range(2))
            assert names(checkpoint, committed, Path("/d")) == expected


def test_names_are_within_the_folder_also_where_it_was_moved(tmp_path: Path) -> None:
    lists = [["file:///old/site=a/b%20%C3%A4", "file:///old/site=a/day=1/c"]]
    checkpoint = write_checkpoint(tmp_path / "c", lists, set(), [0])
    assert names(checkpoint, 0, Path("/old/site=a")) == ["b ä", "day=1/c"]
    lists = [["file:///old/b", "file:///old/day=1/c"]]
    checkpoint = write_checkpoint(tmp_path / "d", lists, set(), [0])
    assert names(checkpoint, 0, Path("/new")) == ["b", "day=1/c"]


def test_what_was_taken_over_is_not_read_again_and_what_was_only_planned_is(tmp_path: Path) -> None:
    data = tmp_path / "in"
    data.mkdir()
    for name in "abcd":
        (data / name).write_text(name)
    (data / "empty").touch()
    lists = [
        [f"file://{data}/a", f"file://{data}/empty", f"file://{data}/gone"],
        [f"file://{data}/b"],
        [f"file://{data}/c"],
    ]
    checkpoint = write_checkpoint(tmp_path / "c", lists, set(), [0, 1, 2])
    known = KnownFiles()
    watched = WatchedFolder(data)
    known.note_read(take_over(checkpoint, 1, "s", watched))
    look = FolderWatch("s", watched).look(known, StreamTimes(0, 0, None))
    assert [piece.name for piece in look.pieces] == ["c", "d"]
    (data / "gone").write_text("is back, and was read long ago")
    look = FolderWatch("s", watched).look(known, StreamTimes(0, 0, None))
    assert [piece.name for piece in look.pieces] == ["c", "d"]
    (data / "a").rename(data / "renamed")
    look = FolderWatch("s", watched).look(known, StreamTimes(0, 0, None))
    assert [piece.name for piece in look.pieces] == ["c", "d"]


@pytest.mark.parametrize("damage", ["list", "offset", "replay"])
def test_a_checkpoint_that_does_not_say_what_was_read_is_refused(tmp_path: Path, damage: str) -> None:
    checkpoint = write_checkpoint(tmp_path, [["file:///d/a"]], set(), [0])
    if damage == "list":
        (checkpoint / "sources" / "0" / "0").unlink()
    else:
        (checkpoint / "offsets" / "0").write_text("v1\n{}\n" + {"offset": "7", "replay": '{"row":3}'}[damage])
    with pytest.raises(EngineError, match="Spark's list of the files that were read cannot be read"):
        names(checkpoint, 0, Path("/d"))
