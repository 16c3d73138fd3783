"""Tables that two outboxes send to one neighbour cross the link once, and nobody behind it can tell.

Catches: a brief frame that stands for other bytes than its frame, one that grows without bound or that names what
somebody else has sent, a sender that waits for ever for another one, a table that is lost because the far side has
forgotten it, and bytes that are counted though they were not sent.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.timeline import ManualClock
from catchment.wire.frames import brief as brief_module
from catchment.wire.frames.brief import UnknownTableError, is_brief, name_tables, read_brief, write_brief
from catchment.wire.frames.codec import encode_segment
from catchment.wire.frames.limits import WireLimits
from catchment.wire.messages import Message, Progress, Segment, Updates
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.receiving.recent_tables import RecentTables
from catchment.wire.sending import sender as sender_module
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.tables_there import MAX_NAMES, TablesThere
from catchment.wire.sending.uplink import Greeting, Introduction, RefusedError, Uplink
from tests.worlds.tiers import examples
from tests.worlds.wire_support import FaultyUplink, landed_segments, segments

SINKS = ("", "tokyo")


def messages(number: int, fragment: str) -> list[Message]:
    """A table that is the same whatever its fragment is called, and a mark."""
    values = [(number * 7919 + row * 104_729) % 1_000_003 for row in range(300)]
    table = pa.table({"slice_us": pa.array([0] * 300, pa.int64()), "n": values})
    return [Updates(fragment, table, ((0, 300),)), Progress(fragment, 60_000_000, 300 * (number + 1))]


# ---- brief frames


@settings(max_examples=examples(60))
@given(segments, st.data())
def test_a_brief_frame_stands_for_the_frame_whichever_tables_it_names(segment: Segment, data: st.DataObject) -> None:
    encoded = encode_segment(segment)
    sizes = [entry.packed_bytes for entry in encoded.header.packed()]
    tables = name_tables(encoded.data, sizes)
    there = {t.name for t in tables if data.draw(st.booleans())}
    known = {t.name: encoded.data[t.start : t.end] for t in tables}
    made = write_brief(encoded.data, tables, there)
    found = read_brief(made, {name: known[name] for name in there}.get, len(encoded.data))
    assert is_brief(made)
    assert not is_brief(encoded.data)
    assert found.frame == encoded.data
    assert found.kept == {name: table for name, table in known.items() if name not in there}
    cut = data.draw(st.integers(len(brief_module.MAGIC), len(made) - 1))
    with suppress(WireError):  # or its pieces are whole, and the checksum of the frame is not
        assert read_brief(made[:cut], known.get, len(encoded.data)).frame != encoded.data
    if there:
        with pytest.raises(UnknownTableError):
            read_brief(made, lambda name: None, len(encoded.data))


def test_a_small_frame_cannot_stand_for_a_huge_one() -> None:
    table = bytes(10_000)
    name = brief_module._name(table)
    piece = brief_module._head(brief_module._NAMED, len(table)) + name
    asked: list[bytes] = []

    def find(wanted: bytes) -> bytes:
        asked.append(wanted)
        return table

    with pytest.raises(WireError, match="more than the 100000 bytes"):
        read_brief(brief_module.MAGIC + piece * 1000, find, 100_000)
    assert len(asked) == 10


@pytest.mark.parametrize(
    ("kind", "size"), [(brief_module._KEPT, 0), (brief_module._KEPT, 63), (brief_module._NAMED, 63)]
)
def test_tables_that_are_too_small_to_be_named_are_refused(kind: int, size: int) -> None:
    content = bytes(brief_module.NAME_BYTES if kind == brief_module._NAMED else size)
    with pytest.raises(WireError, match="smaller than the 64 bytes"):
        read_brief(brief_module.MAGIC + brief_module._head(kind, size) + content, lambda name: bytes(size), 1000)


@pytest.mark.parametrize("content", [b"", b"x"])
def test_a_frame_that_is_cut_into_crumbs_is_refused(content: bytes) -> None:
    crumb = brief_module._head(brief_module._PLAIN, len(content)) + content
    with pytest.raises(WireError, match="is not one piece"):
        read_brief(brief_module.MAGIC + crumb * 2, lambda name: None, 1000)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(noise: bytes) -> None:
    try:
        read_brief(brief_module.MAGIC + noise, lambda name: None, 1000)
    except WireError:
        return


# ---- what a process remembers


def test_a_table_is_named_by_who_sent_it_only_and_for_any_inbox_of_the_process(tmp_path: Path) -> None:
    inboxes = [Inbox(tmp_path / name) for name in ("a", "b")]
    recent = RecentTables()
    frames = {}
    for site in ("eu", "us"):
        encoded = encode_segment(Segment(site, "life", 0, tuple(messages(0, "visits"))))
        frames[site] = encoded.data, name_tables(encoded.data, [e.packed_bytes for e in encoded.header.packed()])
    data, tables = frames["eu"]
    assert recent.accept(inboxes[0], write_brief(data, tables, ()), peer="eu") == 0
    named = write_brief(data, tables, {t.name for t in tables})
    assert len(named) < len(data) / 4
    assert recent.accept(inboxes[1], named, peer="eu") == 0
    assert landed_segments(inboxes[0]) == landed_segments(inboxes[1])
    data, tables = frames["us"]
    with pytest.raises(RefusedError) as refused:
        recent.accept(inboxes[0], write_brief(data, tables, {t.name for t in tables}), peer="us")
    assert refused.value.reason == "not_here"
    assert not inboxes[0].refused, "nobody has done anything wrong"


def test_what_an_inbox_refuses_is_not_remembered_and_the_oldest_is_forgotten(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "in", WireLimits(frame_bytes=100_000))
    recent = RecentTables(max_bytes=3000)
    with pytest.raises(RefusedError, match="a brief frame"):
        recent.accept(inbox, brief_module.MAGIC + b"noise", peer="eu")
    assert inbox.refused == {"corrupt": 1}
    made = [encode_segment(Segment("eu", "life", n, tuple(messages(n, "visits")))) for n in range(6)]
    tables = [name_tables(e.data, [p.packed_bytes for p in e.header.packed()]) for e in made]
    inbox.close("not yet")
    with pytest.raises(RefusedError):
        recent.accept(inbox, write_brief(made[0].data, tables[0], ()), peer="eu")
    inbox.open()
    remembered = []
    for number, encoded in enumerate(made):
        named = write_brief(encoded.data, tables[number], {t.name for t in tables[number]})
        with pytest.raises(RefusedError):
            recent.accept(inbox, named, peer="eu")
        assert recent.accept(inbox, write_brief(encoded.data, tables[number], ()), peer="eu") == number
        assert recent.accept(inbox, named, peer="eu") == number
    for number, encoded in enumerate(made):
        named = write_brief(encoded.data, tables[number], {t.name for t in tables[number]})
        with suppress(RefusedError):
            remembered.append(recent.accept(inbox, named, peer="eu"))
    assert 0 not in remembered
    assert remembered[-1] == 5


def test_a_peer_pays_for_what_its_brief_frames_stand_for(tmp_path: Path) -> None:
    encoded = encode_segment(Segment("eu", "life", 0, tuple(messages(0, "visits"))))
    tables = name_tables(encoded.data, [e.packed_bytes for e in encoded.header.packed()])
    inbox = Inbox(tmp_path / "in")
    asked: list[tuple[str, int]] = []

    def may_take(peer: str, size_bytes: int) -> bool:
        asked.append((peer, size_bytes))
        return len(asked) < 2

    recent = RecentTables(may_take=may_take)
    whole, named = (write_brief(encoded.data, tables, there) for there in ((), {t.name for t in tables}))
    assert recent.accept(inbox, whole, peer="eu") == 0
    assert asked == [], "all of it was sent, and is paid for"
    assert recent.accept(inbox, named, peer="eu") == 0
    assert asked == [("eu", len(encoded.data) - len(named))]
    with pytest.raises(RefusedError) as refused:
        recent.accept(inbox, named, peer="eu")
    assert refused.value.reason == "too_fast"


def test_small_tables_take_their_part_of_what_is_remembered(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "in")
    recent = RecentTables(max_bytes=10_000)
    for number in range(50):
        encoded = encode_segment(Segment("eu", "life", number, tuple(messages(number, "visits"))))
        crumbs = tuple(
            brief_module.NamedTable(b"", start, start + 64) for start in range(0, len(encoded.data) - 64, 64)
        )
        assert recent.accept(inbox, write_brief(encoded.data, crumbs, ()), peer="eu") == number
    assert len(recent._tables) <= 10_000 / (64 + 200), "what is around a table is counted too"


# ---- who sends what


def test_what_one_sender_has_under_way_is_waited_for_and_then_named_or_sent() -> None:
    there = TablesThere()
    first = there.claim([b"a", b"b"])
    assert first is not None
    assert not first.there
    assert first.sent == {b"a", b"b"}
    assert there.claim([b"b", b"c"]) is None
    other = there.claim([b"c"])
    assert other is not None
    there.end(first, arrived=False)
    again = there.claim([b"b"])
    assert again is not None
    assert again.sent == {b"b"}, "it did not arrive"
    there.end(first, arrived=True)  # ended before: it says nothing any more
    assert there.claim([b"b"]) is None
    there.end(again, arrived=True)
    named = there.claim([b"b", b"c", b"d"])
    assert named is None, "another one has c under way"
    there.end(other, arrived=True)
    named = there.claim([b"b", b"c", b"d"])
    assert named is not None
    assert named.there == {b"b", b"c"}
    assert named.sent == {b"d"}
    there.end(named, arrived=False)
    there.forget()
    forgotten = there.claim([b"b"])
    assert forgotten is not None
    assert forgotten.sent == {b"b"}


def test_names_are_bounded() -> None:
    there = TablesThere()
    for number in range(MAX_NAMES + 10):
        claim = there.claim([number.to_bytes(4)])
        assert claim is not None
        there.end(claim, arrived=True)
    claim = there.claim([n.to_bytes(4) for n in (0, 10, MAX_NAMES + 9)])
    assert claim is not None
    assert claim.sent == {(0).to_bytes(4)}


# ---- two senders to one neighbour


class Neighbour:
    """The inboxes of one process for two sinks, which forgets tables when it is told to."""

    def __init__(self, folder: Path, takes_brief: bool = True) -> None:
        self.inboxes = {sink: Inbox(folder / f"in{sink}") for sink in SINKS}
        self.recent = RecentTables()
        self.takes_brief = takes_brief
        self.received = 0
        self.brief = 0
        self._lock = threading.Lock()

    def uplink(self, sink: str) -> Uplink:
        return _ToNeighbour(self, sink)

    def take(self, sink: str, data: bytes) -> int:
        with self._lock:
            self.received += len(data)
            self.brief += is_brief(data)
        return self.recent.accept(self.inboxes[sink], data, peer="eu")


class _ToNeighbour:
    def __init__(self, neighbour: Neighbour, sink: str) -> None:
        self._neighbour, self._sink = neighbour, sink

    def connect(self, introduction: Introduction) -> Greeting:
        greeting = self._neighbour.inboxes[self._sink].greet(introduction)
        return replace(greeting, takes_brief=self._neighbour.takes_brief)

    def send(self, data: bytes) -> int:
        return self._neighbour.take(self._sink, data)

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_RETRY_S", "MAX_RETRY_S", "REFUSED_RETRY_S", "IDLE_CHECK_S"):
        monkeypatch.setattr(sender_module, name, 0.01)


@pytest.fixture
def outboxes(tmp_path: Path) -> dict[str, Outbox]:
    return {sink: Outbox(tmp_path / f"out{sink}", "eu", "hub", 10**9) for sink in SINKS}


def fill(outboxes: dict[str, Outbox], numbers: Sequence[int]) -> int:
    """Append the same partials to both under other names; return the bytes of one of them."""
    for number in numbers:
        for sink, outbox in outboxes.items():
            outbox.append(number, messages(number, f"visits_{sink}"))
    return outboxes[""].size_bytes


def make_senders(outboxes: dict[str, Outbox], open_uplink: Callable[[str], Uplink]) -> list[Sender]:
    there = TablesThere()
    return [Sender(outbox, partial(open_uplink, sink), tables_there=there) for sink, outbox in outboxes.items()]


def run(senders: Sequence[Sender]) -> None:
    for sender in senders:
        sender.start()
    try:
        assert all([sender.wait_until_empty(20.0) for sender in senders])  # noqa: C419 - each is waited for
        for sender in senders:
            sender.raise_failure()
    finally:
        for sender in senders:
            sender.stop()


def check_landed(inboxes: dict[str, Inbox], count: int) -> None:
    for sink, inbox in inboxes.items():
        landed = sorted(landed_segments(inbox), key=lambda s: s.sequence)
        assert [s.sequence for s in landed] == list(range(count))
        assert [list(s.messages) for s in landed] == [messages(n, f"visits_{sink}") for n in range(count)]


def test_tables_cross_the_link_once_and_what_is_counted_is_what_was_sent(
    tmp_path: Path, outboxes: dict[str, Outbox]
) -> None:
    one = fill(outboxes, range(40))
    neighbour = Neighbour(tmp_path)
    senders = make_senders(outboxes, neighbour.uplink)
    run(senders)
    check_landed(neighbour.inboxes, 40)
    assert neighbour.received < 1.25 * one, "tables of one of them, and the headers of both"
    counters = [sender.snapshot() for sender in senders]
    assert sum(c.bytes_sent for c in counters) == neighbour.received
    assert sum(c.bytes_acked for c in counters) == neighbour.received
    whole = sum(sum(c.fragment_bytes.values()) for c in counters)
    assert whole == pytest.approx(neighbour.received + sum(c.spared_bytes for c in counters), rel=0.02)


def test_a_sender_alone_and_one_whose_neighbour_is_older_send_whole_frames(
    tmp_path: Path, outboxes: dict[str, Outbox]
) -> None:
    fill(outboxes, range(5))
    old = Neighbour(tmp_path / "old", takes_brief=False)
    run(make_senders(outboxes, old.uplink))
    check_landed(old.inboxes, 5)
    alone = Outbox(tmp_path / "alone", "eu", "hub", 10**9)
    fill({"": alone}, range(5))
    new = Neighbour(tmp_path / "new")
    there = TablesThere()
    Sender(outboxes["tokyo"], lambda: new.uplink("tokyo"), tables_there=there).stop()
    run([Sender(alone, lambda: new.uplink(""), tables_there=there)])  # the other has stopped
    assert (old.brief, new.brief) == (0, 0)


@pytest.mark.parametrize("seed", range(examples(4)))
def test_whatever_the_link_does_and_however_often_the_neighbour_forgets_all_arrives_once(
    tmp_path: Path, outboxes: dict[str, Outbox], seed: int
) -> None:
    neighbour = Neighbour(tmp_path)
    seeds = itertools.count(seed * 1000)

    class Forgetful(FaultyUplink):
        def send(self, data: bytes) -> int:
            if self._random.random() < 0.2:
                neighbour.recent = RecentTables()
            return super().send(data)

    def open_uplink(sink: str) -> Uplink:
        return Forgetful(neighbour.uplink(sink), next(seeds), duplicate=0.0, reorder=0.0, drop=0.3)

    fill(outboxes, range(30))
    run(make_senders(outboxes, open_uplink))
    check_landed(neighbour.inboxes, 30)


def test_a_sender_that_stops_lets_the_other_one_send(tmp_path: Path, outboxes: dict[str, Outbox]) -> None:
    fill(outboxes, range(3))
    neighbour = Neighbour(tmp_path)
    there = TablesThere()
    entered, leave = threading.Event(), threading.Event()

    class Hanging(_ToNeighbour):
        def send(self, data: bytes) -> int:
            entered.set()
            leave.wait(20.0)
            return super().send(data)

    hanging = Sender(outboxes[""], lambda: Hanging(neighbour, ""), tables_there=there, lanes=1)
    other = Sender(outboxes["tokyo"], lambda: neighbour.uplink("tokyo"), tables_there=there)
    hanging.start()
    assert entered.wait(10.0)
    other.start()
    try:
        assert not other.wait_until_empty(0.3), "it waits for what the first one has under way"
        leave.set()
        assert hanging.wait_until_empty(10.0)
        assert other.wait_until_empty(10.0)
        assert other.snapshot().spared_bytes
    finally:
        leave.set()
        hanging.stop()
        other.stop()
    check_landed(neighbour.inboxes, 3)


def test_a_neighbour_that_never_knows_a_table_is_asked_ever_more_rarely(
    tmp_path: Path, outboxes: dict[str, Outbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "FIRST_RETRY_S", 1.0)
    monkeypatch.setattr(sender_module, "MAX_RETRY_S", 4.0)
    fill(outboxes, range(1))
    clock = ManualClock()
    sent_us: list[int] = []
    neighbour = Neighbour(tmp_path)

    class Ignorant(_ToNeighbour):
        is_ignorant = True

        def send(self, data: bytes) -> int:
            sent_us.append(clock.now_us())
            if self.is_ignorant:
                raise RefusedError("not_here", "a table that the frame names is not here")
            return super().send(data)

    uplink = Ignorant(neighbour, "")
    sender = Sender(outboxes[""], lambda: uplink, clock=clock, lanes=0)
    (line,) = sender._lines
    while clock.now_us() < 60_000_000:
        while sender._send_next(uplink, line):
            assert len(sent_us) < 1000, "it does not pause"
        clock.advance(100_000)
    pauses_s = [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(sent_us)]
    assert len(pauses_s) >= 60 / 4 - 2
    for number, pause_s in enumerate(pauses_s):
        longest_s = min(2**number, 4.0)
        assert longest_s / 2 <= pause_s <= longest_s + 0.2
    assert "not here" in str(sender.snapshot().last_error)
    uplink.is_ignorant = False
    clock.advance(4_000_000)
    assert sender._send_next(uplink, line)
    assert outboxes[""].is_empty
    assert sender.snapshot().last_error is None
    sender.stop()


# ---- over gRPC


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], tuple[InboxServer, dict[str, Inbox]]]]:
    servers: list[InboxServer] = []

    def start() -> tuple[InboxServer, dict[str, Inbox]]:
        inboxes = {sink: Inbox(tmp_path / f"in{sink}") for sink in SINKS}
        servers.append(InboxServer(inboxes[""], "127.0.0.1", 0, sink_inboxes={"tokyo": inboxes["tokyo"]}))
        servers[-1].start()
        return servers[-1], inboxes

    yield start
    for server in servers:
        server.close()


def test_tables_cross_a_real_connection_once(
    outboxes: dict[str, Outbox], serve: Callable[[], tuple[InboxServer, dict[str, Inbox]]]
) -> None:
    one = fill(outboxes, range(20))
    server, inboxes = serve()
    senders = make_senders(outboxes, lambda sink: GrpcUplink(f"127.0.0.1:{server.port}", sink=sink))
    run(senders)
    check_landed(inboxes, 20)
    assert sum(sender.snapshot().bytes_sent for sender in senders) < 1.25 * one
