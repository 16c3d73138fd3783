"""The journal and its host: what was acknowledged survives, what was torn is dropped, what was altered is refused."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import StorageError
from catchment.storage import codec
from catchment.storage import host as host_module
from catchment.storage.codec import decode, encode, stored
from catchment.storage.host import Host
from catchment.storage.journal import Entry, Journal
from catchment.storage.journal_file import (
    ENTRY_HEAD_BYTES,
    FILE_HEAD_BYTES,
    SECTOR_BYTES,
    DamagedFileError,
    file_head,
    read_bodies,
    with_checksums,
)
from catchment.timeline import ManualClock


@stored()
@dataclass(frozen=True)
class Put:
    key: str
    table: pa.Table = field(compare=False)
    tags: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Unknown:
    key: str


def put(key: str, *tags: Any) -> Put:
    return Put(key, pa.table({"x": [1, 2]}), tags)


class Adder:
    """A core that keeps keys and acts on each."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def handle_all(self, events: Sequence[Put], now_us: int) -> list[str]:
        self.keys += [event.key for event in events]
        return [event.key for event in events if event.key != "quiet"]

    def snapshot(self) -> Any:
        return {"keys": self.keys}

    def restore(self, snapshot: Any) -> None:
        self.keys = list(snapshot["keys"])


class Effects:
    """Idempotent by number, and able to fail once."""

    def __init__(self) -> None:
        self.done: dict[int, list[str]] = {}
        self.fail = False

    def enact(self, number: int, actions: Any) -> int:
        if self.fail:
            self.fail = False
            raise OSError("the disk is full")
        assert self.done.setdefault(number, list(actions)) == list(actions), "re-enacting must repeat itself"
        return 1


def open_host(folder: Path, effects: Effects) -> Host[Any, Any]:
    opened: Host[Any, Any] = Host(Adder(), Journal(folder), effects.enact, ManualClock(7))
    opened.recover()
    return opened


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
)
keys = st.text() | st.integers(-(2**70), 2**70) | st.tuples(st.integers(), st.text())
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.frozensets(scalars)
        | st.sets(scalars)
        | st.lists(inner).map(lambda items: deque(items, maxlen=5))
        | st.lists(st.text()).map(Counter)
    ),
    max_leaves=8,
)


def forge_extension(kind_and_content: tuple[int, Any]) -> bytes:
    kind, content = kind_and_content
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(kind, msgspec.msgpack.encode(content)))


def type_tree(value: Any) -> Any:
    """The types of a value and of all that is in it: equality alone does not tell a list from what compares equal."""
    if isinstance(value, dict):
        return type(value), [(type_tree(k), type_tree(v)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [type_tree(v) for v in value]
    return type(value)


@given(plain)
def test_what_is_decoded_equals_what_was_encoded(value: Any) -> None:
    again = decode(encode(value))
    assert again == value
    assert type_tree(again) == type_tree(value)


def test_tables_and_classes_come_back_as_they_were() -> None:
    event = put("a", 1, ("b", None))
    again = decode(encode(event))
    assert again == event
    assert again.table.equals(event.table)


def test_unknown_classes_are_refused_both_ways() -> None:
    with pytest.raises(StorageError, match="a Unknown cannot be stored"):
        encode(Unknown("a"))
    newer = stored()(Unknown)
    document = encode(newer("a"))
    del codec._REGISTRY["Unknown"]
    with pytest.raises(StorageError, match="holds a 'Unknown'"):
        decode(document)


@pytest.mark.parametrize("dtype", ["<i8", "<f8", "|b1", "<U3", "|u1"])
@pytest.mark.parametrize("rows", [2, 0, 4000])
def test_arrays_come_back_as_they_were_and_can_be_changed(dtype: str, rows: int) -> None:
    array = np.arange(3 * rows).reshape(rows, 3).astype(dtype)
    again = decode(encode(array))
    assert again.dtype == array.dtype
    assert np.array_equal(again, array)
    again[:1] = again[-1:]


def test_large_arrays_are_compressed() -> None:
    assert len(encode(np.zeros(100_000))) < 1_000


def test_an_older_version_is_migrated_step_by_step_and_a_newer_one_is_refused_by_name() -> None:
    @dataclass(frozen=True)
    class Grown:
        name: str
        size: int
        unit: str = "bytes"

    try:
        stored()(Grown)
        first = encode(Grown("a", 3))
        stored(version=2)(Grown)
        with pytest.raises(StorageError, match="a Grown of version 1 cannot be migrated to version 2"):
            decode(first)
        older: dict[int, codec.Migration] = {
            1: lambda fields: fields | {"name": fields["name"] * 2},
            2: lambda fields: fields | {"size": fields["size"] * 10},
        }
        stored(version=3, migrations=older)(Grown)
        assert decode(first) == Grown("aa", 30)
        newest = encode(Grown("b", 1))
        stored(version=2)(Grown)
        with pytest.raises(StorageError, match="a Grown of version 3 was written by a newer catchment"):
            decode(newest)
    finally:
        del codec._REGISTRY["Grown"]


contents = st.recursive(
    st.none() | st.integers(-(2**63), 2**63) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@given(st.binary(max_size=200) | st.tuples(st.integers(0, 20), contents).map(forge_extension))
def test_bytes_that_nobody_wrote_are_read_or_refused_and_never_break_the_reader(data: bytes) -> None:
    with contextlib.suppress(StorageError):  # whatever else is raised fails
        decode(data)


@pytest.mark.parametrize("kind", range(1, 21))
def test_an_extension_without_content_is_refused_or_empty(kind: int) -> None:
    """The kinds that hold items may be empty; all others need their parts."""
    empty: dict[int, Any] = {3: (), 4: set(), 5: frozenset(), 7: Counter(), 8: {}}
    if kind in empty:
        assert decode(forge_extension((kind, []))) == empty[kind]
    else:
        with pytest.raises(StorageError):
            decode(forge_extension((kind, [])))


def test_entries_survive_a_restart_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for n in range(5):
        journal.append(Entry(n, "s", n, n, (put(str(n)),)))
    journal.close()
    assert [e.sequence for e in Journal(tmp_path).entries()] == [0, 1, 2, 3, 4]


def test_every_torn_end_is_cut_off_and_the_rest_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(Entry(0, "s", 0, 0, (put("a"),)))
    whole = journal.size_bytes
    journal.append(Entry(1, "s", 1, 0, (put("b"),)))
    journal.close()
    path = tmp_path / "journal-0.log"
    data = path.read_bytes()
    for cut in range(whole, len(data), 7):
        path.write_bytes(data[:cut])
        opened = Journal(tmp_path)
        assert [e.sequence for e in opened.entries()] == [0], cut
        opened.append(Entry(1, "s", 1, 0, (put("again"),)))
        opened.close()
        assert [e.events[0].key for e in Journal(tmp_path).entries()] == ["a", "again"]


def test_every_altered_byte_is_refused_in_the_last_entry_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for n in range(2):
        journal.append(Entry(n, "s", n, 0, (put("a"),)))
    journal.close()
    path = tmp_path / "journal-0.log"
    data = path.read_bytes()
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(StorageError, match="checksum"):
            list(Journal(tmp_path).entries())


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_an_entry_of_which_some_sectors_were_never_written_is_torn(tmp_path: Path, kept: int) -> None:
    journal = Journal(tmp_path)
    journal.append(Entry(0, "s", 0, 0, (put("a"),)))
    whole = journal.size_bytes
    text = "".join(chr(33 + n % 90) for n in range(5_000))
    journal.append(Entry(1, "s", 1, 0, (put(text),)))
    journal.close()
    path = tmp_path / "journal-0.log"
    data = bytearray(path.read_bytes())
    lost = (whole // SECTOR_BYTES + 1 + kept) * SECTOR_BYTES
    data[lost : lost + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    path.write_bytes(data)
    assert [e.sequence for e in Journal(tmp_path).entries()] == [0]


@pytest.mark.parametrize("head_bytes", range(1, 12))
def test_an_entry_whose_head_lies_in_two_sectors_is_torn_where_the_second_was_never_written(
    tmp_path: Path, head_bytes: int
) -> None:
    path = tmp_path / "journal-0.log"
    whole = with_checksums(b"x" * 40)
    before = file_head() + with_checksums(b"y" * (512 - head_bytes - FILE_HEAD_BYTES - ENTRY_HEAD_BYTES))
    data = before + whole[:head_bytes] + bytes(len(whole) - head_bytes)
    assert len(list(read_bodies(data, path))) == 1, "the entry was never acknowledged, and the one before it was"
    altered = data[:-1] + b"z"
    with pytest.raises(DamagedFileError):
        list(read_bodies(altered, path))


def test_space_that_was_reserved_but_never_written_is_a_torn_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(Entry(0, "s", 0, 0, (put("a"),)))
    journal.close()
    with (tmp_path / "journal-0.log").open("ab") as log:
        log.write(bytes(100))
    assert [e.sequence for e in Journal(tmp_path).entries()] == [0]


def test_a_batch_is_handled_once_in_all_lives(tmp_path: Path) -> None:
    effects = Effects()
    for _ in range(3):
        host = open_host(tmp_path, effects)
        host.submit("s", [put("a")], batch=0)
        host.submit("s", [put("b")], batch=1)
        host.journal.close()
    assert effects.done == {0: ["a"], 1: ["b"]}


def test_after_a_failed_enactment_nothing_else_is_enacted_under_its_number(tmp_path: Path) -> None:
    """Other threads submit to the same host: what they bring must not take the place of what failed."""
    effects = Effects()
    host = open_host(tmp_path, effects)
    host.submit("s", [put("a")])
    effects.fail = True
    with pytest.raises(OSError, match="the disk is full"):
        host.submit("s", [put("b")])
    with pytest.raises(StorageError, match="an earlier entry could not be carried out: the disk is full"):
        host.submit("another thread", [put("c")])
    with pytest.raises(StorageError, match="an earlier entry could not be carried out"):
        host.checkpoint()
    assert effects.done == {0: ["a"]}
    host.journal.close()
    again = open_host(tmp_path, effects)
    again.submit("another thread", [put("c")])
    assert effects.done == {0: ["a"], 1: ["b"], 2: ["c"]}


@pytest.mark.parametrize("lost", ["all of it", "its newest entries"])
def test_a_journal_that_is_older_than_what_left_it_is_refused(tmp_path: Path, lost: str) -> None:
    """Else what it enacts next would have numbers that the outside knows, and would be dropped as repeated."""
    effects = Effects()
    host = open_host(tmp_path / "state", effects)
    host.submit("s", [put("a")])
    host.journal.close()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    host = open_host(tmp_path / "state", effects)
    host.submit("s", [put("b")])
    host.journal.close()
    shutil.rmtree(tmp_path / "state")
    if lost == "its newest entries":
        shutil.copytree(tmp_path / "copy", tmp_path / "state")
    again: Host[Any, Any] = Host(Adder(), Journal(tmp_path / "state"), effects.enact, ManualClock(7))
    with pytest.raises(StorageError, match="of the 2 steps that were carried out: it was lost, or is older"):
        again.recover(already_enacted=2)
    whole: Host[Any, Any] = Host(Adder(), Journal(tmp_path / "copy"), effects.enact, ManualClock(7))
    whole.recover(already_enacted=1)


def test_what_was_journalled_but_not_enacted_is_enacted_after_the_crash(tmp_path: Path) -> None:
    effects = Effects()
    host = open_host(tmp_path, effects)
    host.submit("s", [put("a")], batch=0)
    effects.fail = True
    with pytest.raises(OSError, match="disk is full"):
        host.submit("s", [put("b")], batch=1)
    host.journal.close()
    again = open_host(tmp_path, effects)
    assert effects.done == {0: ["a"], 1: ["b"]}
    assert again.is_committed("s", 1)
    assert again.core.keys == ["a", "b"]  # type: ignore[attr-defined]


def test_entries_that_lead_to_nothing_take_no_number(tmp_path: Path) -> None:
    effects = Effects()
    host = open_host(tmp_path, effects)
    for n, key in enumerate(["a", "quiet", "b"]):
        host.submit("s", [put(key)], batch=n)
    assert effects.done == {0: ["a"], 1: ["b"]}


def test_a_snapshot_stands_for_everything_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "SNAPSHOT_MAX_ENTRIES", 4)
    effects = Effects()
    keys = []
    for life in range(5):
        host = open_host(tmp_path, effects)
        for n in range(3):
            host.submit("s", [put(f"{life}/{n}")], batch=life * 3 + n)
            keys.append(f"{life}/{n}")
        host.journal.close()
    host = open_host(tmp_path, effects)
    assert host.core.keys == keys  # type: ignore[attr-defined]
    assert [a for n in sorted(effects.done) for a in effects.done[n]] == keys
    assert sorted(effects.done) == list(range(15))
    assert len(list(tmp_path.iterdir())) == 4, "the newest snapshot and the one before it, each with its entries"


def test_snapshots_of_a_large_state_wait_until_the_journal_has_grown_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "SNAPSHOT_EVERY_ENTRIES", 4)
    monkeypatch.setattr(host_module, "SNAPSHOT_MAX_ENTRIES", 100)
    host = open_host(tmp_path, Effects())
    bases = []
    for key in ["x" * 1_000_000, *(f"key {n}" for n in range(203))]:
        host.submit("s", [put(key)])
        bases.append(host.journal.base)
    assert sorted(set(bases)) == [0, 4, 104, 204], "one that is small, then only where a restart would replay too much"
    for _ in range(3):
        host.submit("s", [put("y" * 400_000)])
    assert host.journal.base == 204, "too few entries"
    host.submit("s", [put("y" * 400_000)])
    assert host.journal.base == 208, "the journal has grown by more than the snapshot has"
    host.journal.close()
    again = open_host(tmp_path, Effects())
    assert again.journal.snapshot_bytes == (tmp_path / "snapshot-208.bin").stat().st_size


def write_generations(folder: Path, entries: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Effects, list[str]]:
    """A host that took a snapshot every four entries and was stopped."""
    monkeypatch.setattr(host_module, "SNAPSHOT_MAX_ENTRIES", 4)
    effects = Effects()
    host = open_host(folder, effects)
    keys = [f"key {n}" for n in range(entries)]
    for n, key in enumerate(keys):
        host.submit("s", [put(key)], batch=n)
    host.journal.close()
    return effects, keys


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    altered = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    path.write_bytes({"altered": altered, "empty": b"", "cut short": data[:-3], "zeros": bytes(len(data))}[how])


@pytest.mark.parametrize("how", ["altered", "empty", "cut short", "zeros"])
@pytest.mark.parametrize("entries", [4, 6, 8, 11, 12])
def test_a_damaged_snapshot_is_made_again_from_the_one_before(
    tmp_path: Path, entries: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects, keys = write_generations(tmp_path, entries, monkeypatch)
    newest = tmp_path / f"snapshot-{entries // 4 * 4}.bin"
    damage(newest, how)
    warnings = []
    for life in range(7):  # long enough to take further snapshots
        host = open_host(tmp_path, effects)
        warnings.append(host.journal.warnings)
        assert host.core.keys == keys  # type: ignore[attr-defined]
        keys.append(f"more {life}")
        host.submit("s", [put(keys[-1])])
        host.journal.close()
    assert newest.name in warnings[0][0], "the operator is told"
    assert warnings[-1] == [], "once, until a new snapshot is there"
    assert [a for n in sorted(effects.done) for a in effects.done[n]] == keys


def test_two_damaged_snapshots_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_generations(tmp_path, 9, monkeypatch)
    for number in (4, 8):
        damage(tmp_path / f"snapshot-{number}.bin", "altered")
    with pytest.raises(StorageError, match="checksum") as refused:
        Journal(tmp_path)
    assert "snapshot-8.bin" in str(refused.value.where)


def test_a_snapshot_is_not_taken_up_when_entries_after_it_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_generations(tmp_path, 9, monkeypatch)
    damage(tmp_path / "snapshot-8.bin", "altered")
    (tmp_path / "journal-4.log").unlink()
    with pytest.raises(StorageError, match="the entries from number 4 to 8 are missing"):
        Journal(tmp_path)


def test_an_end_that_is_torn_before_a_later_snapshot_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_generations(tmp_path, 9, monkeypatch)
    damage(tmp_path / "snapshot-8.bin", "altered")
    damage(tmp_path / "journal-4.log", "cut short")
    with pytest.raises(StorageError, match="the entries from number 7 to 8 are missing"):
        Journal(tmp_path)


def test_what_does_not_belong_to_a_journal_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal may have a disk of its own, whose root has a folder of the file system in it."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes-1.txt").write_text("mine")
    (tmp_path / "snapshot-new.bin").write_text("mine")
    (tmp_path / "snapshot-3.bin.tmp").write_bytes(b"half")
    effects, keys = write_generations(tmp_path, 9, monkeypatch)
    assert open_host(tmp_path, effects).core.keys == keys  # type: ignore[attr-defined]
    assert {"lost+found", "notes-1.txt", "snapshot-new.bin"} <= {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / "snapshot-3.bin.tmp").exists()
