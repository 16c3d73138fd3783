"""State folders of released versions are taken up by this one, and what it cannot read is refused by name.

The folders were written by the versions themselves (`tests.worlds.state_fixtures`), each stopped in the middle of its
work. Catches: a stored class that changed without a migration, a core that replays an old journal differently, a wire
or result format that moved. Cannot catch: kinds of state that no fixture holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from catchment.errors import StorageError
from catchment.storage import codec
from catchment.storage.codec import decode, stored
from catchment.storage.host import HostState
from catchment.storage.journal import Journal
from catchment.storage.lock import LOCK_FILE
from catchment.version import VERSION
from tests.worlds import stopped_project
from tests.worlds.state_fixtures import (
    CLASSES,
    GOLDEN,
    MAX_ARCHIVE_BYTES,
    SPARK_KIND,
    WORLDS,
    describe_stored_classes,
    find_archives,
    find_changes,
    kind_of,
    main,
    newest_archives,
    pack,
    unpack,
)
from tests.worlds.stopped_world import NOTES_FILE

COMMAND = "python -m tests.worlds.state_fixtures tests/golden --only classes"


def archives_of(*kinds: str) -> list[ParameterSet]:
    """Return the archives of these kinds, of every version that is kept."""
    archives = (path for path in find_archives() if kind_of(path) in kinds)
    return [pytest.param(path, id=f"{path.parent.name}-{kind_of(path)}") for path in archives]


@pytest.mark.parametrize("archive", archives_of(*WORLDS))
def test_the_state_of_a_release_is_taken_up(archive: Path, tmp_path: Path) -> None:
    WORLDS[kind_of(archive)].go_on(unpack(archive, tmp_path / "world"))


@pytest.mark.spark
@pytest.mark.parametrize("archive", archives_of(SPARK_KIND))
def test_the_project_of_a_release_is_taken_up(archive: Path, tmp_path: Path, spark: Any) -> None:
    stopped_project.go_on(spark, unpack(archive, tmp_path / "project"))


def test_every_kind_of_state_is_kept_of_the_newest_release() -> None:
    assert newest_archives().keys() == {*WORLDS, SPARK_KIND}
    assert all(path.stat().st_size < MAX_ARCHIVE_BYTES for path in find_archives())


@pytest.mark.parametrize("role", ["a", "hub", "center"])
def test_a_snapshot_with_a_class_of_a_newer_version_is_refused_and_left_as_it_was(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, journal, state = open_relay_world(tmp_path, role)
    name = type(state.core).__name__
    known = codec._REGISTRY[name]
    with monkeypatch.context() as newer:
        newer.setitem(codec._REGISTRY, name, replace(known, version=known.version + 1))
        rewrite_snapshot(journal, state)
    check_refused(folder, journal, f"a {name} of version {known.version + 1} was written by a newer catchment")


@pytest.mark.parametrize("role", ["a", "hub", "center"])
def test_a_snapshot_with_an_unknown_class_is_refused_and_left_as_it_was(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @stored()
    @dataclass
    class StateOfTomorrow:
        core: Any

    folder, journal, state = open_relay_world(tmp_path, role)
    rewrite_snapshot(journal, replace(state, core=StateOfTomorrow(state.core)))
    monkeypatch.delitem(codec._REGISTRY, "StateOfTomorrow")
    check_refused(folder, journal, "a document holds a 'StateOfTomorrow', which this catchment does not know")


def test_the_fields_of_stored_classes_change_only_with_their_version() -> None:
    promised, now = (GOLDEN / CLASSES).read_text().splitlines(), describe_stored_classes()
    changed = list(find_changes(promised, now))
    assert not changed, "\n".join(
        ["the fields of stored classes changed:", *changed, f"raise the version, add a migration, and run: {COMMAND}"]
    )
    assert promised == now, f"stored classes, or their versions, are new or gone: run {COMMAND}"


def test_a_changed_class_is_named_and_its_promise_is_not_overwritten(tmp_path: Path) -> None:
    promised = [line.replace("Ticked 1:", "Ticked 1: hour") for line in describe_stored_classes()]
    (tmp_path / CLASSES).write_text("\n".join(promised))
    with pytest.raises(SystemExit, match="Ticked 1 had the fields hour, and now has"):
        main([str(tmp_path), "--only", "classes"])
    assert (tmp_path / CLASSES).read_text() == "\n".join(promised)
    main([str(tmp_path), "--only", "classes", "--overwrite"])
    assert (tmp_path / CLASSES).read_text().splitlines() == describe_stored_classes()


def test_the_state_of_a_version_is_not_overwritten(tmp_path: Path) -> None:
    archive = tmp_path / "state" / VERSION / "star.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"promised")
    with pytest.raises(SystemExit, match="later versions rely on it"):
        main([str(tmp_path), "--only", "star"])
    assert archive.read_bytes() == b"promised"


def test_what_is_packed_comes_back_without_its_locks(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "journal").mkdir(parents=True)
    (folder / "journal" / "snapshot-3.bin").write_bytes(b"123")
    (folder / "journal" / "journal-3.log").write_bytes(b"45")
    (folder / LOCK_FILE).write_text("1\n")
    pack(folder, tmp_path / "a.tar.gz")
    found = read_files(unpack(tmp_path / "a.tar.gz", tmp_path / "b"))
    assert found == {"journal/snapshot-3.bin": b"123", "journal/journal-3.log": b"45"}


def open_relay_world(tmp_path: Path, role: str) -> tuple[Path, Journal, HostState]:
    """Return the folder of a world with every kind of role, and of one of them the journal and its snapshot."""
    folder = unpack(newest_archives()["relay"], tmp_path / "world")
    (snapshot,) = (path for path in folder.rglob("snapshot-*.bin") if path.parent.parent.name == role)
    journal = Journal(snapshot.parent)
    state = journal.snapshot()
    assert isinstance(state, HostState)
    return folder, journal, state


def rewrite_snapshot(journal: Journal, state: HostState) -> None:
    journal.compact(journal.base, state)
    journal.close()


def check_refused(folder: Path, journal: Journal, message: str) -> None:
    before = read_files(journal.folder.parent)
    with pytest.raises(StorageError, match=message) as refused:
        WORLDS["relay"](folder, decode((folder / NOTES_FILE).read_bytes()))
    assert refused.value.where is not None
    assert str(journal.folder) in refused.value.where
    assert refused.value.hint is not None
    assert "restore a copy of the state from before the upgrade" in refused.value.hint
    assert read_files(journal.folder.parent) == before


def read_files(folder: Path) -> Mapping[str, bytes]:
    """Return the content of every file but of locks, which say who looked last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
