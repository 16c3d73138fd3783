"""Lines of files that are numbered within a batch: each has one number, and is found again by it.

Catches: lines that are lost, doubled or numbered twice at the ends of parts, files that are read again though they are
others. Cannot catch: what Spark makes of the lines; `tests/e2e/test_shedding.py` does.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.files import numbered_lines
from catchment.files.folder import WatchedFolder
from catchment.files.lines import read_lines
from catchment.files.numbered_lines import FileGoneError, find_parts, number_lines, read_part
from catchment.files.watch import FilePiece, FolderWatch
from catchment.site.known_files import KnownFiles, StreamTimes
from catchment.spark.streaming import is_outage
from tests.worlds.tiers import examples

TIMES = StreamTimes(0, 0, None)


def pieces_of(folder: Path) -> tuple[FilePiece, ...]:
    return FolderWatch("s", WatchedFolder(folder)).look(KnownFiles(), TIMES).pieces


texts = st.lists(st.sampled_from(["", " ", "a", "{}", "é,1", "long " * 9]), min_size=1, max_size=30)


@settings(max_examples=examples(100))
@given(
    files=st.lists(st.tuples(texts, st.sampled_from(["\n", "\r\n"]), st.booleans()), min_size=1, max_size=4),
    part_bytes=st.integers(1, 60),
    has_header=st.booleans(),
)
def test_every_line_has_one_number_however_files_are_cut(
    files: list[tuple[list[str], str, bool]], part_bytes: int, has_header: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setattr(numbered_lines, "PART_BYTES", part_bytes)
        for number, (lines, end, is_ended) in enumerate(files):
            (folder / f"{number}.csv").write_bytes((end.join(lines) + (end if is_ended else "")).encode())
        pieces = pieces_of(folder)
        whole = [line for piece in pieces for line in read_lines(piece.path, piece.start, piece.end)]
        records = sum(bool(line.strip(" ")) for line in whole) - has_header * len(pieces)
        numbered = number_lines(WatchedFolder(folder), pieces, has_header)
        if numbered is None:
            assert records <= 0
            return
        assert numbered.records == records
        found = {
            part.first_line + i: line.decode()
            for part in find_parts(WatchedFolder(folder), numbered.place)
            for i, line in enumerate(read_part(part))
        }
        assert [found[i] for i in range(len(whole))] == whole
        assert len(found) == len(whole)


def test_a_file_is_found_under_another_name_and_one_that_is_gone_or_changed_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.json").write_text(f"{name}1\n{name}2\n")
    watched = WatchedFolder(tmp_path)
    numbered = number_lines(watched, pieces_of(tmp_path), False)
    assert numbered is not None
    (tmp_path / "b.json").rename(tmp_path / "b.json.1")
    lines = [line for part in find_parts(watched, numbered.place) for line in read_part(part)]
    assert sorted(lines) == [b"a1", b"a2", b"b1", b"b2", b"c1", b"c2"]
    (tmp_path / "a.json").write_text("a1\nA2\n")
    with pytest.raises(OSError, match=r"a\.json has other content than when its first 6 bytes were read"):
        find_parts(watched, numbered.place)
    (tmp_path / "a.json").unlink()
    with pytest.raises(FileGoneError, match=r"a\.json is gone") as gone:
        find_parts(watched, numbered.place)
    assert is_outage(gone.value), "a batch whose lines are being sampled is read again without the file"


def test_a_change_that_the_samples_of_a_digest_do_not_show_is_refused_when_lines_are_read(
    tmp_path: Path,
) -> None:
    """Nothing else has the records that were left out: a repair with others would call its windows exact."""
    path = tmp_path / "a.csv"
    data = bytearray(b"1,2\n" * 500_000)
    path.write_bytes(data)
    watched = WatchedFolder(tmp_path)
    numbered = number_lines(watched, pieces_of(tmp_path), False)
    assert numbered is not None
    before = watched.digests({"a.csv": len(data)})
    data[150_000] = ord("7")
    path.write_bytes(data)
    assert watched.digests({"a.csv": len(data)}) == before, "the samples of the digest show nothing"
    with pytest.raises(OSError, match=r"a\.csv has other content in its bytes 0 to 2000000 than when it was read"):
        [read_part(part) for part in find_parts(watched, numbered.place)]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    """Spark's reader of text leaves it out: a batch that is read again must have the same records."""
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf{}\n{}\n")
    watched = WatchedFolder(tmp_path)
    pieces = pieces_of(tmp_path)
    numbered = number_lines(watched, pieces, False)
    assert numbered is not None
    assert numbered.records == 2
    assert [read_part(part) for part in find_parts(watched, numbered.place)] == [[b"{}", b"{}"]]
    assert [read_lines(piece.path, piece.start, piece.end) for piece in pieces] == [["{}", "{}"]]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["feed", "both", "return"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_line_that_is_too_long_is_never_held_whole_and_its_place_is_told_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: bytes, is_ended: bool
) -> None:
    monkeypatch.setattr(numbered_lines, "PART_BYTES", 1 << 16)
    monkeypatch.setattr(numbered_lines, "MAX_LINE_BYTES", 1 << 18)
    path = tmp_path / "a.json"
    long_bytes = 20 << 20
    fitting = b"f" * ((1 << 18) - 2)
    path.write_bytes(end.join([b"one", b"x" * long_bytes, b"two", fitting, b"y" * long_bytes]) + end * is_ended)
    watched = WatchedFolder(tmp_path)
    pieces = pieces_of(tmp_path)
    tracemalloc.start()
    numbered = number_lines(watched, pieces, False)
    assert numbered is not None
    lines = [line for part in find_parts(watched, numbered.place) for line in read_part(part)]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert numbered.records == 5
    first, second = 3 + len(end), 3 + 3 + len(fitting) + long_bytes + 4 * len(end)
    sizes = long_bytes + len(end), long_bytes + len(end) * is_ended
    told = [f'"a line of {size} bytes at byte {at} of {path}' for size, at in zip(sizes, (first, second), strict=True)]
    assert [line[: len(told[0])] for line in lines[:2]] == [b"one", told[0].encode()]
    assert lines[2:4] == [b"two", fitting]
    assert lines[4].decode().startswith(told[1])
    assert [message for message in caplog.messages if "quarantine" in message and told[0][1:] in message]
    with path.open("r+b") as file:
        file.seek(first + long_bytes // 2)
        file.write(b"z")
    with pytest.raises(OSError, match="has other content"):
        [read_part(part) for part in find_parts(watched, numbered.place)]


def test_files_that_are_compressed_are_not_numbered(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(b"x")
    assert number_lines(WatchedFolder(tmp_path), pieces_of(tmp_path), False) is None
