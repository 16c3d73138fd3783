"""A folder against what was read of it: every byte is read once, whatever happens to names, times and files.

Catches: a file that is missed, read twice, or read though it changed; a record of known files that grows for ever.
Cannot catch: what Spark makes of the files; `tests/spark/test_files.py` does that.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import EngineError
from catchment.files import lines, watch
from catchment.files.digest import SAMPLES, WHOLE_BYTES, digest_of
from catchment.files.folder import WatchedFolder
from catchment.files.watch import FileChangedError, FilePiece, FolderLook, FolderWatch
from catchment.site.core import SiteCore
from catchment.site.known_files import FilesRead, FileStat, KnownFiles, StreamTimes
from catchment.storage.codec import decode, encode

DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000


@dataclass
class Reader:
    """Reads a folder as a site does, and remembers what it has read in a core that may be restarted."""

    folder: Path
    growing: bool = False
    pattern: str = "*"
    now_us: int = 0
    event_us: int = 0
    core: SiteCore = field(default_factory=SiteCore)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        state = decode(encode(self.core.snapshot()))
        self.core = SiteCore()
        self.core.restore(state)
        self.watch = FolderWatch(
            "s", WatchedFolder(self.folder, self.pattern), self.growing, keep_us=7 * DAY_US, horizon_us=HOUR_US
        )

    @property
    def known(self) -> KnownFiles:
        return self.core.files.of("s")

    @property
    def times(self) -> StreamTimes:
        return StreamTimes(self.now_us, self.event_us, self.event_us)

    def look(self) -> FolderLook:
        found = self.watch.look(self.known, self.times)
        if found.seen is not None:
            self.core.files.take_in(found.seen, self.times)
        return found

    def read(self) -> list[str]:
        """Return what is new, as the text of each piece."""
        pieces = self.look().pieces
        texts = [text_of(piece) for piece in pieces]
        self.core.files.take_in(FilesRead("s", tuple(self.watch.settle(pieces))), self.times)
        return texts


def text_of(piece: FilePiece) -> str:
    return Path(piece.path).read_bytes()[piece.start : piece.end].decode()


def set_times(path: Path, modified_s: float) -> None:
    os.utime(path, (modified_s, modified_s))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


# --- files that appear whole ------------------------------------------------------------------------------------


@pytest.mark.parametrize("modified_s", [0, 915_148_800, 4_102_444_800], ids=["epoch", "old", "future"])
def test_a_file_is_read_once_whatever_its_modification_time(folder: Path, modified_s: float) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("1")
    assert reader.read() == ["1"]
    (folder / "b").write_text("2")
    set_times(folder / "b", modified_s)
    assert reader.read() == ["2"]
    set_times(folder / "a", modified_s)
    set_times(folder / "b", 1)
    assert reader.read() == []
    reader.restart()
    assert reader.read() == []


def test_a_renamed_or_moved_file_is_not_read_again(folder: Path, tmp_path: Path) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("1")
    assert reader.read() == ["1"]
    (folder / "a").rename(folder / "b")
    assert reader.read() == []
    (folder / "b").rename(tmp_path / "away")
    assert reader.read() == []
    reader.restart()
    (tmp_path / "away").rename(folder / "c")
    assert reader.read() == []
    assert reader.known.status() == {"read": 1, "known": 1, "gone": 0, "renamed": 2, "forgotten": 0}


def test_two_files_of_equal_content_that_are_there_together_are_two_files(folder: Path) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("1")
    assert reader.read() == ["1"]
    (folder / "b").write_text("1")
    assert reader.read() == ["1"]
    (folder / "a").unlink()
    assert reader.read() == []


def test_names_that_are_rotated_are_followed_by_content(folder: Path) -> None:
    reader = Reader(folder)
    for round_ in range(5):
        for number in range(round_, 0, -1):
            (folder / f"log.{number - 1}").rename(folder / f"log.{number}")
        (folder / "log.0").write_text(f"round {round_}")
        assert reader.read() == [f"round {round_}"]
    assert len(reader.known.files) == 5


def test_a_file_that_grew_is_an_error_that_names_it_until_it_is_put_right(folder: Path) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("1\n")
    (folder / "b").write_text("x\n")
    assert reader.read() == ["1\n", "x\n"]
    (folder / "a").write_text("1\n2\n")
    (folder / "c").write_text("new\n")
    for _ in range(2):
        with pytest.raises(FileChangedError, match=r"the file .*in/a has grown from 2 to 4 bytes since it was read"):
            reader.look()
        reader.restart()
    (folder / "a").write_text("1\n")
    assert reader.read() == ["new\n"], "what came meanwhile is not lost"


def test_a_file_that_was_written_again_is_an_error_until_it_has_a_name_of_its_own(folder: Path) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("one")
    assert reader.read() == ["one"]
    (folder / "a").write_text("two")
    with pytest.raises(FileChangedError, match=r"in/a has other content than when it \(3 bytes\) was read"):
        reader.look()
    (folder / "a").rename(folder / "b")
    assert reader.read() == ["two"]


def test_a_file_that_changes_while_it_is_read_is_read_again_whole(folder: Path) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("half")
    pieces = reader.look().pieces
    (folder / "a").write_text("half and the rest")
    with pytest.raises(FileChangedError, match="was changed while it was read"):
        reader.watch.settle(pieces)
    assert reader.read() == ["half and the rest"]


def test_unfinished_and_empty_files_and_other_names_are_passed_over(folder: Path) -> None:
    reader = Reader(folder, pattern="*.{json,jsonl}")
    for name in ("_a.json", ".b.json", "c.json._COPYING_", "d.csv"):
        (folder / name).write_text("x")
    (folder / "e.json").touch()
    (folder / "sub").mkdir()
    (folder / "sub" / "f.json").write_text("x")
    (folder / "day=1").mkdir()
    (folder / "day=1" / "g.jsonl").write_text("g")
    assert reader.read() == ["g"]
    (folder / "e.json").write_text("e")
    assert reader.read() == ["e"], "an empty file that gets content has not grown"


def test_files_are_read_in_the_order_of_their_times_then_names(folder: Path) -> None:
    for name, modified_s in (("a", 3), ("b", 1), ("c", 2), ("d", 1)):
        (folder / name).write_text(name)
        set_times(folder / name, modified_s)
    assert Reader(folder).read() == ["b", "d", "c", "a"]


def test_a_frozen_watch_takes_only_what_was_there(folder: Path) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("1")
    reader.watch.freeze()
    (folder / "b").write_text("2")
    assert reader.read() == ["1"]
    assert reader.read() == []


def test_only_so_many_contents_are_compared_in_one_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(folder)
    for number in range(10):
        (folder / str(number)).write_text(f"text {number}")
    reader.read()
    monkeypatch.setattr(watch, "MAX_CHECKS", 3)
    for number in range(10):
        set_times(folder / str(number), 5)
    monkeypatch.setattr(WatchedFolder, "settled_ns", -1)  # as if the files were old
    assert [reader.look().has_more for _ in range(4)] == [True, True, True, False]


def test_a_change_within_one_tick_of_the_file_systems_clock_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(folder)
    just_now = FileStat(3, 7, time.time_ns())
    monkeypatch.setattr("catchment.files.folder._stat_of", lambda found: just_now)  # a clock that does not tick
    (folder / "a").write_text("one")
    assert reader.read() == ["one"]
    (folder / "a").write_text("two")
    with pytest.raises(FileChangedError, match="in/a has other content"):
        reader.look()


def test_a_folder_of_many_files_is_asked_about_in_turn_and_a_rename_is_seen_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MAX_ASKED", 3)
    reader = Reader(folder)
    for number in range(20):
        (folder / f"{number:02d}").write_text(f"text {number:02d}")
    assert len(reader.read()) == 20
    (folder / "07").rename(folder / "other")
    (folder / "07").write_text("text 99")
    assert reader.read() == ["text 99"], "the renamed file is not read, and what took its name is"
    (folder / "05").write_text("text 77")

    def look_in_turn() -> None:
        for _ in range(7):
            reader.look()

    with pytest.raises(FileChangedError, match="in/05 has other content"):
        look_in_turn()


def test_a_file_that_is_renamed_while_the_folder_is_listed_is_not_read_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing may name a file under its old name and under its new one."""
    reader = Reader(folder)
    (folder / "a").write_text("1")
    reader.read()
    (folder / "a").rename(folder / "b")
    monkeypatch.setattr(WatchedFolder, "names", lambda self: {"a": None, "b": None})
    assert reader.read() == []


# --- what is remembered has a bound ------------------------------------------------------------------------------


def test_thousands_of_files_that_come_and_go_leave_a_bounded_record(folder: Path) -> None:
    """Two files per hour for 30 days, each removed after an hour: only those of the last week are known."""
    reader = Reader(folder)
    step_us = 30 * 60 * 1_000_000
    most = 0
    for number in range(30 * 48):
        reader.now_us = reader.event_us = number * step_us
        (folder / f"{number}").write_text(f"{number}")
        (folder / f"{number - 2}").unlink(missing_ok=True)
        assert reader.read() == [f"{number}"]
        most = max(most, len(reader.known.files))
    assert most <= 7 * 48 + 5
    assert reader.known.forgotten == 30 * 48 - len(reader.known.files)


def test_a_gone_file_is_not_forgotten_while_its_windows_can_still_change(folder: Path) -> None:
    reader = Reader(folder)
    (folder / "a").write_text("1")
    reader.read()
    (folder / "a").unlink()
    reader.look()
    reader.now_us += 30 * DAY_US  # nothing was read for a month: event time stands still
    reader.look()
    assert list(reader.known.files) == ["a"]
    (folder / "a").write_text("1")
    assert reader.read() == []
    (folder / "a").unlink()
    reader.look()
    reader.event_us += 2 * HOUR_US
    reader.now_us += 8 * DAY_US
    reader.look()
    assert not reader.known.files


# --- files that grow ----------------------------------------------------------------------------------------------


def test_of_a_growing_file_complete_lines_are_read_and_the_rest_when_it_comes(folder: Path) -> None:
    reader = Reader(folder, growing=True)
    log = folder / "app.log"
    log.write_text("1\n2\nhal")
    assert reader.read() == ["1\n2\n"]
    assert reader.read() == []
    reader.restart()
    with log.open("a") as file:
        file.write("f\n3\n")
    assert reader.read() == ["half\n3\n"]
    log.rename(folder / "app.log.1")
    with (folder / "app.log.1").open("a") as file:
        file.write("4\n")
    log.write_text("5\n")
    assert reader.read() + reader.read() == ["5\n", "4\n"]


def test_what_was_read_of_a_growing_file_must_not_change(folder: Path) -> None:
    reader = Reader(folder, growing=True)
    (folder / "a").write_text("1\n2\n")
    reader.read()
    (folder / "a").write_text("9\n")
    with pytest.raises(FileChangedError, match="has other content than when its first 4 bytes was read"):
        reader.look()


def test_a_line_without_end_and_a_compressed_file_cannot_grow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_PIECE_BYTES", 100)
    (folder / "a").write_text("x" * 101)
    with pytest.raises(EngineError, match="no end of a line in 100 bytes"):
        Reader(folder, growing=True).look()
    (folder / "a").rename(folder / "a.gz")
    with pytest.raises(EngineError, match="is compressed"):
        Reader(folder, growing=True).look()


@given(st.integers(0, 10_000))
def test_every_line_of_growing_files_is_read_once(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Writers append anywhere in a line, files are rotated, times lie and the reader restarts: the lines are equal."""
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("in")
    reader = Reader(folder, growing=True)
    written: list[str] = []
    found: list[str] = []
    name = "log"
    for step in range(25):
        path = folder / name
        new = [f"{step}-{n}-{'x' * chance.randrange(30)}" for n in range(chance.randrange(1, 4))]
        text = "".join(f"{line}\n" for line in new)
        cut = chance.randrange(len(text) + 1)
        for part in (text[:cut], text[cut:]):
            with path.open("a") as file:
                file.write(part)
            if chance.random() < 0.6:
                found += [line for piece in reader.read() for line in piece.splitlines()]
        written += new
        match chance.randrange(6):
            case 0:
                path.rename(folder / f"log-{step}")
            case 1:
                reader.restart()
            case 2:
                set_times(path, chance.randrange(2_000_000_000))
    for _ in range(3):
        found += [line for piece in reader.read() for line in piece.splitlines()]
    assert sorted(found) == sorted(written)


@given(st.integers(0, 10_000))
def test_every_whole_file_is_read_once(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Files appear, are renamed, moved away and back, touched and removed; restarts come between."""
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("in")
    away = tmp_path_factory.mktemp("away")
    reader = Reader(folder)
    written: list[str] = []
    found: list[str] = []
    for step in range(30):
        there = sorted(path for path in folder.iterdir() if path.read_text() in found)
        match chance.randrange(7):
            case 0 | 1:
                written.append(f"file {step}")
                (folder / f"f{step}").write_text(written[-1])
            case 2 if there:
                chance.choice(there).rename(folder / f"r{step}")
            case 3 if there:
                chance.choice(there).rename(away / f"m{step}")
            case 4:
                for path in away.iterdir():
                    path.rename(folder / path.name)
            case 5:
                reader.restart()
            case 6 if there:
                set_times(chance.choice(there), chance.randrange(2_000_000_000))
        if chance.random() < 0.7:
            found += reader.read()
    found += reader.read()
    assert sorted(found) == sorted(written)


# --- digests ------------------------------------------------------------------------------------------------------


def test_a_digest_sees_every_byte_of_a_small_file_and_both_ends_of_a_large_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    small = bytearray(random.Random(1).randbytes(3_000))
    path.write_bytes(small)
    before = digest_of(path, len(small))
    for at in range(0, len(small), 97):
        changed = small.copy()
        changed[at] ^= 1
        path.write_bytes(changed)
        assert digest_of(path, len(small)) != before
    large = bytearray(random.Random(2).randbytes(WHOLE_BYTES * 5 + 123))
    path.write_bytes(large)
    before = digest_of(path, len(large))
    assert before == digest_of(path, len(large))
    gap = len(large) // SAMPLES
    for at in (0, 100_000, len(large) - 1, len(large) - 100_000):
        changed = large.copy()
        changed[at] ^= 1
        path.write_bytes(changed)
        assert digest_of(path, len(large)) != before
    changed = large.copy()
    changed[len(large) // 2 : len(large) // 2 + gap] = bytes(gap)
    path.write_bytes(changed)
    assert digest_of(path, len(large)) != before
    assert digest_of(path, len(large) + 1) is None
