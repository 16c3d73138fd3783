"""Two ends of a link of different releases: the newest version that both know is used, and nothing is lost or doubled.

An end of the previous release is this code, told to read and write the previous version only, and to say nothing of
versions. The frames of that version are held to the bytes that the release wrote; what else its code did is not tested.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.wire import segment_folder
from catchment.wire.frames.codec import decode_segment, read_frame
from catchment.wire.frames.versions import NEWEST_VERSION, PREVIOUS_VERSION, READ_VERSIONS, VersionsByNumber
from catchment.wire.receiving.grpc_server import CONNECT, InboxServer
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending.grpc_uplink import GrpcUplink, read_answer
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.uplink import Greeting, Introduction, RefusedError
from tests.worlds.golden_frames import SEGMENT, frame_file
from tests.worlds.tiers import examples
from tests.worlds.waiting import wait_until
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import frames_on_disk, landed_segments, store

OLD = (PREVIOUS_VERSION,)
NEW = READ_VERSIONS
PATIENCE_S = 60.0


@pytest.mark.parametrize("version", READ_VERSIONS)
def test_a_frame_that_was_kept_of_a_version_is_read(version: int) -> None:
    encoded = read_frame(frame_file(version).read_bytes())
    assert encoded.version == version
    assert encoded.decode() == SEGMENT


def send_all(outbox: Outbox, inbox: Inbox, versions: tuple[int, ...]) -> None:
    sender = Sender(outbox, lambda: LocalUplink(inbox), versions=versions)
    sender.start()
    assert sender.wait_until_empty(PATIENCE_S), sender.snapshot().last_error
    sender.stop()


def landed_versions(inbox: Inbox) -> list[int]:
    """The versions of what has landed, by the number of the segment."""
    frames = map(read_frame, frames_on_disk(inbox.folder).values())
    return [frame.version for frame in sorted(frames, key=lambda frame: frame.header.sequence)]


def assert_landed(inbox: Inbox, count: int) -> None:
    """Every number landed once, with the content that it was given."""
    landed = sorted(landed_segments(inbox), key=lambda segment: segment.sequence)
    assert [(s.sequence, list(s.messages)) for s in landed] == [(n, some_messages(n)) for n in range(count)]


@pytest.mark.parametrize(
    ("sender", "receiver", "expected"),
    [(OLD, OLD, 2), (OLD, NEW, 2), (NEW, OLD, 2), (NEW, NEW, 4), (NEW, NEW[:-1], 3), (NEW[:-1], NEW, 3)],
    ids=["both old", "old site, new center", "new site, old center", "both new", "center of before", "site of before"],
)
def test_the_newest_version_that_both_ends_know_is_used(
    tmp_path: Path, sender: tuple[int, ...], receiver: tuple[int, ...], expected: int
) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    inbox = Inbox(tmp_path / "in", versions=receiver)
    store(outbox, range(3))  # before anything is known of the receiver
    send_all(outbox, inbox, sender)
    store(outbox, range(3, 6))
    send_all(outbox, inbox, sender)
    assert landed_versions(inbox) == [2, 2, 2, expected, expected, expected]
    assert_landed(inbox, 6)


def test_what_waits_is_sent_as_it_is_when_either_end_has_been_upgraded(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    store(outbox, range(3))
    waiting = [outbox.read(number) for number in range(3)]
    inbox = Inbox(tmp_path / "in")
    send_all(outbox, inbox, NEW)
    assert sorted(frames_on_disk(inbox.folder).values()) == sorted(map(bytes, filter(None, waiting)))


def test_a_receiver_that_goes_back_refuses_newer_frames_by_name_until_it_is_upgraded_again(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    outbox.write_in(NEWEST_VERSION)
    store(outbox, range(1))
    inbox = Inbox(tmp_path / "in", versions=OLD)
    sender = Sender(outbox, lambda: LocalUplink(inbox))
    sender.start()
    wait_until(
        lambda: "is of version 4, this catchment reads version 2" in str(sender.snapshot().last_error), "refusal"
    )
    sender.stop()
    assert inbox.refused == {"unknown_version": inbox.refused["unknown_version"]}
    assert not outbox.is_empty, "it is kept"
    store(outbox, range(1, 2))
    assert decode_segment(outbox.read(1) or b"").sequence == 1
    assert read_frame(outbox.read(1) or b"").version == PREVIOUS_VERSION, "what follows is understood there"


def test_ends_that_know_no_common_version_say_so(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    sender = Sender(outbox, lambda: LocalUplink(Inbox(tmp_path / "in")), versions=(5,))
    with pytest.raises(RefusedError, match=r"reads frames of versions 2, 3 and 4, 'eu' writes version 5") as caught:
        sender._take_greeting(0, 0, Greeting(0, versions=READ_VERSIONS))
    assert caught.value.reason == "unknown_version"


def test_a_number_keeps_its_version_when_its_file_was_damaged_and_is_stored_anew(tmp_path: Path) -> None:
    """The far side may have the segment without an ack that was heard, and would take other bytes for another one."""
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    store(outbox, range(2))
    outbox.write_in(NEWEST_VERSION)
    store(outbox, range(2, 4))
    stored = [outbox.read(number) for number in range(4)]
    paths = [pending.path for pending in outbox.pending()]
    del outbox
    for path in paths:
        path.rename(path.with_name(path.name + segment_folder.DAMAGED_SUFFIX))
    again = Outbox(tmp_path / "out", "eu", "center", 10**9)
    assert again.missing() == [0, 1, 2, 3]
    store(again, range(4))
    assert [again.read(number) for number in range(4)] == stored


# ---- over the network


def connect(server: InboxServer, **said: str) -> dict[str, object]:
    """Greet as some release does, in JSON."""
    uplink = GrpcUplink(f"127.0.0.1:{server.port}")
    try:
        return uplink._call(CONNECT, json.dumps(said).encode(), PATIENCE_S)
    finally:
        uplink.close()


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., InboxServer]:
    def start(versions: tuple[int, ...] | None = None) -> InboxServer:
        server = InboxServer(Inbox(tmp_path / "in", versions=versions), "127.0.0.1", 0)
        server.start()
        return server

    return start


def test_a_greeting_over_the_network_names_the_versions_that_are_read(serve: Callable[..., InboxServer]) -> None:
    server = serve()
    try:
        uplink = GrpcUplink(f"127.0.0.1:{server.port}")
        assert uplink.connect(Introduction("eu", "life")).versions == READ_VERSIONS
        uplink.close()
        assert connect(server, origin="eu", epoch="life", of_a_later_release="more")["number"] == 0
    finally:
        server.close()


def test_an_answer_without_versions_is_of_the_previous_release() -> None:
    old = json.dumps({"number": 4, "chain": None}).encode()
    assert read_answer(old, "center") == {"number": 4, "chain": None}
    assert Greeting(4).versions == OLD


# ---- upgrades in the middle


@given(st.data())
@settings(max_examples=examples(25), deadline=None)
def test_whenever_the_ends_are_upgraded_every_segment_lands_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Acks are lost, processes restart, files are damaged and stored anew, and each end is upgraded at some time."""
    folder = tmp_path_factory.mktemp("link")
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    steps = 15
    upgraded = {end: chance.randrange(steps) for end in ("sender", "receiver")}
    outbox = Outbox(folder / "out", "eu", "center", 10**9)
    inbox = Inbox(folder / "in", versions=OLD)
    for step in range(steps):
        if step == upgraded["receiver"]:
            del inbox
            inbox = Inbox(folder / "in", versions=NEW)
        if chance.random() < 0.3:
            del outbox
            outbox = Outbox(folder / "out", "eu", "center", 10**9)
            if chance.random() < 0.5 and outbox.pending():
                outbox = damage_one(folder, outbox, chance)
        greet(outbox, inbox, NEW if step >= upgraded["sender"] else OLD)
        store(outbox, range(outbox.next_sequence, outbox.next_sequence + chance.randrange(3)))
        for pending in outbox.pending():
            frame = outbox.read(pending.sequence)
            if frame is not None and chance.random() < 0.5:
                inbox.accept(frame)
                if chance.random() < 0.5:
                    outbox.ack(pending.sequence)
    greet(outbox, inbox, NEW)
    store(outbox, range(outbox.next_sequence, outbox.next_sequence + 1))
    for pending in outbox.pending():
        inbox.accept(outbox.read(pending.sequence) or b"")
    assert_landed(inbox, outbox.next_sequence)
    versions = landed_versions(inbox)
    assert versions == sorted(versions)
    assert versions[-1] == NEWEST_VERSION


def greet(outbox: Outbox, inbox: Inbox, versions: tuple[int, ...]) -> None:
    sender = Sender(outbox, lambda: LocalUplink(inbox), versions=versions)
    lowest = outbox.lowest_unacked
    sender._take_greeting(0, lowest, inbox.greet(Introduction("eu", outbox.epoch)))


def damage_one(folder: Path, outbox: Outbox, chance: random.Random) -> Outbox:
    """Lose the file of a segment that waits, as a disk may, and store it anew, as a site does from its journal."""
    lost = chance.choice(outbox.pending())
    lost.path.rename(lost.path.with_name(lost.path.name + segment_folder.DAMAGED_SUFFIX))
    del outbox
    again = Outbox(folder / "out", "eu", "center", 10**9)
    store(again, range(lost.sequence, lost.sequence + 1))
    return again


def test_changes_of_the_version_are_kept_only_for_numbers_that_wait() -> None:
    versions = VersionsByNumber()
    assert versions.of(7) == PREVIOUS_VERSION
    versions.change(10, NEWEST_VERSION)
    versions.change(20, PREVIOUS_VERSION)
    versions.change(20, NEWEST_VERSION)
    assert [versions.of(n) for n in (9, 10, 19, 20)] == [2, 4, 4, 4]
    kept = VersionsByNumber(versions.to_record(15))
    assert [kept.of(n) for n in (15, 20)] == [4, 4]
    assert versions.to_record(15) == [[15, 4], [20, 4]]
