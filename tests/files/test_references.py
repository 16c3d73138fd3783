"""Files that history refers to: found again under any name while they are what was read, and else named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from catchment.files.digest import content_of
from catchment.files.folder import WatchedFolder
from catchment.files.references import FilesLostError, ReferencedFiles
from catchment.files.watch import FileChangedError, FolderWatch
from catchment.site.known_files import KnownFiles, StreamTimes
from catchment.storage.referenced_batches import ReferencedFile

LARGE = 3 << 20  # of which samples would not tell every byte


def write(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    os.utime(folder / name, ns=(1_000_000_000, 1_000_000_000))


def refer(folder: Path) -> tuple[ReferencedFiles, tuple[ReferencedFile, ...]]:
    watched = WatchedFolder(folder)
    pieces = FolderWatch("hits", watched).look(KnownFiles(), StreamTimes(0, 0, None)).pieces
    files = ReferencedFiles(watched)
    return files, tuple(sorted(files.refer(pieces), key=lambda file: file.name))


def names_of(files: ReferencedFiles, referred: tuple[ReferencedFile, ...]) -> list[str]:
    return [piece.name for piece in files.find(referred)]


def test_files_that_are_as_they_were_are_found_whole(tmp_path: Path) -> None:
    write(tmp_path, "a.json", b"{}\n")
    write(tmp_path, "b.json", b"{}\n" * 2)
    files, referred = refer(tmp_path)
    assert [(file.name, file.size_bytes) for file in referred] == [("a.json", 3), ("b.json", 6)]
    found = files.find(referred)
    assert [(piece.path, piece.start, piece.end) for piece in found] == [
        (str(tmp_path / "a.json"), 0, 3),
        (str(tmp_path / "b.json"), 0, 6),
    ]


def test_one_byte_in_the_middle_of_a_large_file_tells_it_from_what_was_read(tmp_path: Path) -> None:
    write(tmp_path, "a.json", bytes(LARGE))
    files, referred = refer(tmp_path)
    for place in (0, 200_001, LARGE // 2 + 12_345, LARGE - 1):
        changed = bytearray(LARGE)
        changed[place] = 1
        write(tmp_path, "a.json", bytes(changed))
        with pytest.raises(FilesLostError, match=r"a.json has other content than when it \(3145728 bytes\) was read"):
            files.find(referred)
    write(tmp_path, "a.json", bytes(LARGE))
    assert names_of(files, referred) == ["a.json"], "it was put back"


@pytest.mark.parametrize("content", [b"{}\n{}\n", b""])
def test_a_file_that_has_grown_or_was_emptied_is_not_what_was_read(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, "a.json", b"{}\n")
    files, referred = refer(tmp_path)
    write(tmp_path, "a.json", content)
    with pytest.raises(FilesLostError, match="other content"):
        files.find(referred)


def test_a_file_that_is_gone_is_named_and_one_that_was_renamed_is_found_by_its_content(tmp_path: Path) -> None:
    write(tmp_path, "a.json", b"1\n")
    write(tmp_path, "b.json", b"2\n")
    files, referred = refer(tmp_path)
    (tmp_path / "a.json").rename(tmp_path / "archived.json")
    assert names_of(files, referred) == ["archived.json", "b.json"]
    write(tmp_path, "a.json", b"3\n")
    assert names_of(files, referred) == ["archived.json", "b.json"], "its name was taken over, as when logs rotate"
    (tmp_path / "archived.json").unlink()
    (tmp_path / "a.json").unlink()
    with pytest.raises(FilesLostError, match=r"^the file .*/a.json is gone$"):
        files.find(referred)


def test_files_of_equal_content_are_as_many_as_were_read(tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "c.json"):
        write(tmp_path, name, b"{}\n")
    files, referred = refer(tmp_path)
    (tmp_path / "a.json").rename(tmp_path / "x.json")
    (tmp_path / "b.json").rename(tmp_path / "y.json")
    assert sorted(names_of(files, referred)) == ["c.json", "x.json", "y.json"]
    (tmp_path / "x.json").unlink()
    with pytest.raises(FilesLostError, match="is gone"):
        files.find(referred)


def test_all_that_is_lost_is_told_and_a_folder_that_is_gone_loses_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(5):
        write(folder, f"{number}.json", b"%d\n" % number)
    files, referred = refer(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(FilesLostError, match=r"0.json is gone; .*2.json is gone, and 2 others too"):
        files.find(referred)


def test_a_digest_is_computed_again_only_where_the_file_system_cannot_vouch_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def compute(path: Path, length: int) -> bytes | None:
        computed.append(path.name)
        return content_of(path, length)

    monkeypatch.setattr("catchment.files.references.content_of", compute)
    monkeypatch.setattr(WatchedFolder, "settled_ns", 0)
    write(tmp_path, "a.json", b"1\n")
    files, referred = refer(tmp_path)
    files.find(referred)
    assert computed == ["a.json"]
    write(tmp_path, "a.json", b"2\n")
    with pytest.raises(FilesLostError):
        files.find(referred)
    monkeypatch.setattr(WatchedFolder, "settled_ns", 3600 * 10**9)
    write(tmp_path, "b.json", b"1\n")
    computed.clear()
    for _ in range(2):
        assert names_of(files, referred) == ["b.json"]
    assert computed.count("b.json") == 2, "it was changed just now, and could be again within one tick"


def test_a_file_that_changes_while_it_is_read_ends_the_batch(tmp_path: Path) -> None:
    write(tmp_path, "a.json", b"{}\n")
    watched = WatchedFolder(tmp_path)
    pieces = FolderWatch("hits", watched).look(KnownFiles(), StreamTimes(0, 0, None)).pieces
    (tmp_path / "a.json").write_bytes(b"{}\n{}\n")
    with pytest.raises(FileChangedError, match="was changed or removed while it was read"):
        ReferencedFiles(watched).refer(pieces)
