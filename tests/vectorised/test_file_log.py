"""The files of a micro-batch, from a checkpoint as Spark's file source writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.file_log import files_of_batch


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


def test_a_batch_reads_the_lists_after_those_of_the_batch_before(tmp_path: Path) -> None:
    lists = [["file:///d/b", "file:///d/a%20%C3%A4"], ["file:///d/c"], [], ["file:///d/e", "file:///d/d"]]
    checkpoint = write_checkpoint(tmp_path, lists, set(), [0, 2, 3])
    assert files_of_batch(checkpoint, 0) == ["/d/a ä", "/d/b"]
    assert files_of_batch(checkpoint, 1) == ["/d/c"]
    assert files_of_batch(checkpoint, 2) == ["/d/d", "/d/e"]


def test_a_compacted_list_has_the_files_of_its_batch_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = [[f"file:///d/{number}-{n}" for n in range(number + 1)] for number in range(12)]
    checkpoint = write_checkpoint(tmp_path, lists, {9}, list(range(12)))
    for block in (7, 100, 1 << 16):
        monkeypatch.setattr("catchment.vectorised.file_log._BLOCK_BYTES", block)
        assert files_of_batch(checkpoint, 9) == sorted(f"/d/9-{n}" for n in range(10))
        assert files_of_batch(checkpoint, 11) == sorted(f"/d/11-{n}" for n in range(12))


@pytest.mark.parametrize(
    ("path", "offset"), [("hdfs://host/d/a", '{"logOffset":0}'), ("file:///d/a", '{"row":3}'), ("file:///d/a", "7")]
)
def test_what_is_no_list_of_local_files_is_left_to_spark(tmp_path: Path, path: str, offset: str) -> None:
    checkpoint = write_checkpoint(tmp_path, [[path]], set(), [0])
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{offset}")
    with pytest.raises(NotVectorisedError):
        files_of_batch(checkpoint, 0)


def test_a_lost_list_is_left_to_spark(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, [["file:///d/a"]], set(), [0])
    (checkpoint / "sources" / "0" / "0").unlink()
    with pytest.raises(NotVectorisedError, match="batch 0"):
        files_of_batch(checkpoint, 0)
