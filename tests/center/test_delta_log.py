"""Delta tables after a power cut: what is torn is written again, and what the journal may forget is on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from catchment.center.results import delta_log
from catchment.center.results.delta_log import LOG_FOLDER, find_torn_commits, find_unreadable_commits
from catchment.center.results.newest_rows import open_table
from catchment.center.results.store import DeltaStore
from catchment.errors import CenterError


def append(store: DeltaStore, number: int) -> None:
    store.append("results", "q", number, lambda: pa.table({"n": [number]}))


def numbers(folder: Path) -> list[int]:
    table = open_table(folder / "results" / "q")
    assert table is not None
    return sorted(table.to_pyarrow_table()["n"].to_pylist())


def damage_newest(folder: Path, how: str) -> None:
    table = folder / "results" / "q"
    newest = max((table / LOG_FOLDER).glob("*.json"))
    data = newest.read_bytes()
    if how == "data file":
        max(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns).write_bytes(b"")
    else:
        newest.write_bytes({"empty": b"", "cut short": data[: len(data) // 2], "zeros": bytes(len(data))}[how])


@pytest.mark.parametrize("how", ["empty", "cut short", "zeros", "data file"])
@pytest.mark.parametrize("commits", [1, 4])
def test_a_torn_newest_commit_is_removed_and_written_again(tmp_path: Path, how: str, commits: int) -> None:
    store = DeltaStore(tmp_path)
    for number in range(commits):
        append(store, number)
    damage_newest(tmp_path, how)
    again = DeltaStore(tmp_path)
    (told,) = again.remove_torn("results", "q", 0)
    assert "commit" in told
    assert again.newest_number("results", "q") == (commits - 2 if commits > 1 else None)
    for number in range(commits):  # as the journal does
        append(again, number)
    assert numbers(tmp_path) == list(range(commits))
    assert again.remove_torn("results", "q", 0) == []


def test_a_torn_commit_behind_which_a_whole_one_stands_is_not_touched(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path)
    for number in range(3):
        append(store, number)
    first = min((tmp_path / "results" / "q" / LOG_FOLDER).glob("*.json"))
    first.write_bytes(b"")
    assert find_torn_commits(tmp_path / "results" / "q") == []
    assert [found.path for found in find_unreadable_commits(tmp_path / "results" / "q")] == [first]


def test_a_torn_checkpoint_of_the_log_is_removed(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path)
    for number in range(3):
        append(store, number)
    path = tmp_path / "results" / "q"
    table = open_table(path)
    assert table is not None
    table.create_checkpoint()
    (checkpoint,) = (path / LOG_FOLDER).glob("*.checkpoint*.parquet")
    checkpoint.write_bytes(b"PAR1")
    first = min((path / LOG_FOLDER).glob("*.json"))
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(CenterError, match="the commits that it stands for were cleaned up"):
        store.remove_torn("results", "q", 0)
    first.write_bytes(kept)
    assert [told.split(":")[0] for told in store.remove_torn("results", "q", 0)] == [str(checkpoint)]
    assert numbers(tmp_path) == [0, 1, 2]


def test_every_file_of_a_commit_is_synced_once_before_the_journal_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def note(paths: Iterable[Path]) -> None:
        synced.extend(paths)

    monkeypatch.setattr(delta_log, "sync_files", note)
    store = DeltaStore(tmp_path)
    append(store, 0)
    append(store, 1)
    store.flush("results", "q")
    table = tmp_path / "results" / "q"
    written = {path for path in table.rglob("*") if path.suffix in (".json", ".parquet")}
    assert written <= set(synced)
    synced.clear()
    store.flush("results", "q")
    assert synced == []
    append(store, 2)
    store.flush("results", "q")
    new = {path for path in table.rglob("*") if path.suffix in (".json", ".parquet")} - written
    assert {path for path in synced if path.suffix in (".json", ".parquet")} == new


def test_a_commit_that_lacks_its_data_and_that_the_journal_has_forgotten_is_refused(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path)
    for number in range(3):
        append(store, number)
    damage_newest(tmp_path, "data file")
    with pytest.raises(CenterError, match="is missing or empty, and the journal has forgotten it"):
        store.remove_torn("results", "q", 3)
    assert len(store.remove_torn("results", "q", 2)) == 1
