"""The journal and its host: what was acknowledged survives, what was torn is dropped, what was altered is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.storage import host as host_module
from catchment.storage.codec import EventCodec
from catchment.storage.host import Host
from catchment.storage.journal import Entry, Journal
from catchment.timeline import ManualClock


@dataclass(frozen=True)
class Put:
    key: str
    table: pa.Table = field(compare=False)
    tags: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Unknown:
    key: str


CODEC = EventCodec([Put])


def put(key: str, *tags: Any) -> Put:
    return Put(key, pa.table({"x": [1, 2]}), tags)


class Adder:
    """A core that keeps keys and acts on each."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def handle(self, event: Put, now_us: int) -> list[str]:
        self.keys.append(event.key)
        return [event.key] if event.key != "quiet" else []

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
    opened: Host[Any, Any] = Host(Adder(), Journal(folder, EventCodec([Put])), effects.enact, ManualClock(7))
    opened.recover()
    return opened


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner).map(tuple) | st.dictionaries(st.text(min_size=1).filter(lambda k: k[0] != "$"), inner)
    ),
    max_leaves=8,
)


@given(plain)
def test_what_is_decoded_equals_what_was_encoded(value: Any) -> None:
    assert CODEC.decode(CODEC.encode(value)) == value


def test_tables_and_classes_come_back_as_they_were() -> None:
    event = put("a", 1, ("b", None))
    again = CODEC.decode(CODEC.encode(event))
    assert again == event
    assert again.table.equals(event.table)


def test_unknown_classes_are_refused_both_ways() -> None:
    with pytest.raises(WireError, match="no way to write a Unknown"):
        CODEC.encode(Unknown("a"))
    with pytest.raises(WireError, match="holds a 'Unknown'"):
        CODEC.decode(EventCodec([Unknown]).encode(Unknown("a")))


def test_entries_survive_a_restart_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path, EventCodec([Put]))
    for n in range(5):
        journal.append(Entry(n, "s", n, n, (put(str(n)),)))
    journal.close()
    assert [e.sequence for e in Journal(tmp_path, EventCodec([Put])).entries()] == [0, 1, 2, 3, 4]


def test_every_torn_end_is_cut_off_and_the_rest_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, EventCodec([Put]))
    journal.append(Entry(0, "s", 0, 0, (put("a"),)))
    whole = journal.size_bytes
    journal.append(Entry(1, "s", 1, 0, (put("b"),)))
    journal.close()
    path = tmp_path / "journal-0.log"
    data = path.read_bytes()
    for cut in range(whole, len(data), 7):
        path.write_bytes(data[:cut])
        opened = Journal(tmp_path, EventCodec([Put]))
        assert [e.sequence for e in opened.entries()] == [0], cut
        opened.append(Entry(1, "s", 1, 0, (put("again"),)))
        opened.close()
        assert [e.events[0].key for e in Journal(tmp_path, EventCodec([Put])).entries()] == ["a", "again"]


def test_every_altered_byte_of_an_entry_that_others_follow_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path, EventCodec([Put]))
    for n in range(2):
        journal.append(Entry(n, "s", n, 0, (put("a"),)))
    first = journal.size_bytes // 2
    journal.close()
    path = tmp_path / "journal-0.log"
    data = path.read_bytes()
    for place in range(0, first, 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(WireError, match="checksum"):
            list(Journal(tmp_path, EventCodec([Put])).entries())


def test_space_that_was_reserved_but_never_written_is_a_torn_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path, EventCodec([Put]))
    journal.append(Entry(0, "s", 0, 0, (put("a"),)))
    journal.close()
    with (tmp_path / "journal-0.log").open("ab") as log:
        log.write(bytes(100))
    assert [e.sequence for e in Journal(tmp_path, EventCodec([Put])).entries()] == [0]


def test_a_batch_is_handled_once_in_all_lives(tmp_path: Path) -> None:
    effects = Effects()
    for _ in range(3):
        host = open_host(tmp_path, effects)
        host.submit("s", [put("a")], batch=0)
        host.submit("s", [put("b")], batch=1)
        host.journal.close()
    assert effects.done == {0: ["a"], 1: ["b"]}


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
    assert again.committed("s", 1)
    assert again.core.keys == ["a", "b"]  # type: ignore[attr-defined]


def test_entries_that_lead_to_nothing_take_no_number(tmp_path: Path) -> None:
    effects = Effects()
    host = open_host(tmp_path, effects)
    for n, key in enumerate(["a", "quiet", "b"]):
        host.submit("s", [put(key)], batch=n)
    assert effects.done == {0: ["a"], 1: ["b"]}


def test_a_snapshot_stands_for_everything_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "SNAPSHOT_EVERY_ENTRIES", 4)
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
    assert len(list(tmp_path.iterdir())) == 2, "older journals are removed"
