"""A site that was restored from an older copy of its folder, or cloned, is told from one that goes on where it was.

The oracle is the set of contents that the far side took under each number: it must never take two, and a site that is
refused must keep every segment that the far side does not have.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.storage.files import read_record, write_record
from catchment.wire.chain import START, SegmentChain
from catchment.wire.receiving import seen_segments
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending.outbox import STATE_FILE, Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.uplink import Introduction, RefusedError
from tests.worlds.tiers import examples
from tests.worlds.waiting import wait_until
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import landed_segments

PATIENCE_S = 60.0


def make_outbox(folder: Path) -> Outbox:
    return Outbox(folder, "eu", "center", 10**9)


def append(outbox: Outbox, count: int, content: int = 0) -> None:
    for _ in range(count):
        outbox.append(outbox.next_sequence, some_messages(content + outbox.next_sequence))


def deliver(outbox: Outbox, inbox: Inbox, *, ack: bool = True) -> None:
    for pending in outbox.pending():
        data = outbox.read(pending.sequence)
        assert data is not None
        assert inbox.accept(data) == pending.sequence
        if ack:
            outbox.ack(pending.sequence)


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "in")


@pytest.fixture
def started() -> Iterator[Callable[[Outbox, Inbox], Sender]]:
    senders: list[Sender] = []

    def start(outbox: Outbox, inbox: Inbox) -> Sender:
        senders.append(Sender(outbox, lambda: LocalUplink(inbox)))
        senders[-1].start()
        return senders[-1]

    yield start
    for sender in senders:
        sender.stop()


def restored(folder: Path, inbox: Inbox) -> Outbox:
    """An outbox as it was after 5 segments, when the far side has 15."""
    outbox = make_outbox(folder / "site")
    append(outbox, 5)
    deliver(outbox, inbox)
    shutil.copytree(folder / "site", folder / "copy")
    append(outbox, 10)
    deliver(outbox, inbox)
    return make_outbox(folder / "copy")


@pytest.mark.parametrize("appended", [1, 10, 11, 22])
def test_a_restored_site_is_refused_wherever_its_numbers_are_and_loses_nothing(
    tmp_path: Path,
    inbox: Inbox,
    started: Callable[[Outbox, Inbox], Sender],
    appended: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = restored(tmp_path, inbox)
    append(outbox, appended, content=100)
    with caplog.at_level(logging.WARNING):
        sender = started(outbox, inbox)
        wait_until(lambda: "other_history" in inbox.refusals().get("eu", {}), "the sender")
        wait_until(lambda: "old copy" in str(sender.snapshot().last_error), "the sender")
    assert not sender.snapshot().connected
    assert len(outbox.pending()) == appended
    assert len(landed_segments(inbox)) == 15
    told = inbox.refusals()["eu"]["other_history"]
    assert "'eu'" in told["message"]
    assert told["first_us"] <= told["last_us"]
    assert sum("refused, other_history" in line for line in caplog.messages) == 1
    assert sum("eu -> center" in line for line in caplog.messages) == 1


def test_a_restored_site_that_appends_until_its_numbers_fit_is_still_refused(
    tmp_path: Path, inbox: Inbox, started: Callable[[Outbox, Inbox], Sender]
) -> None:
    outbox = restored(tmp_path, inbox)
    for _ in range(4):
        append(outbox, 5, content=100)
        sender = started(outbox, inbox)
        wait_until(lambda: "old copy" in str(sender.snapshot().last_error), "the sender")  # noqa: B023
        sender.stop()
    assert len(outbox.pending()) == 20
    assert len(landed_segments(inbox)) == 15


def test_a_restored_site_that_writes_the_very_same_segments_again_goes_on(
    tmp_path: Path, inbox: Inbox, started: Callable[[Outbox, Inbox], Sender]
) -> None:
    outbox = restored(tmp_path, inbox)
    append(outbox, 12)
    assert started(outbox, inbox).wait_until_empty(PATIENCE_S)
    assert sorted(s.sequence for s in landed_segments(inbox)) == list(range(17))


def test_of_two_clones_that_send_at_once_one_is_refused_by_its_content(
    tmp_path: Path, inbox: Inbox, started: Callable[[Outbox, Inbox], Sender]
) -> None:
    first = make_outbox(tmp_path / "site")
    append(first, 3)
    deliver(first, inbox)
    shutil.copytree(tmp_path / "site", tmp_path / "clone")
    second = make_outbox(tmp_path / "clone")
    append(first, 1, content=100)
    append(second, 1, content=200)
    deliver(first, inbox)
    with pytest.raises(RefusedError, match="segment 3 of 'eu' is here with another content") as refused:
        deliver(second, inbox)
    assert refused.value.reason == "other_history"
    append(second, 3, content=200)
    sender = started(second, inbox)
    wait_until(lambda: "other segments below 4" in str(sender.snapshot().last_error), "the sender")
    assert len(second.pending()) == 4
    assert started(first, inbox).wait_until_empty(PATIENCE_S)


def test_two_processes_that_have_sent_nothing_else_yet_are_told_apart(tmp_path: Path, inbox: Inbox) -> None:
    first = make_outbox(tmp_path / "site")
    append(first, 3)
    deliver(first, inbox)
    shutil.copytree(tmp_path / "site", tmp_path / "clone")
    second = make_outbox(tmp_path / "clone")
    introductions = [Introduction("eu", o.epoch, o.incarnation) for o in (first, second)]
    for introduction in (introductions[0], introductions[0], introductions[1], introductions[1]):
        assert inbox.greet(introduction).expected == 3
    with pytest.raises(RefusedError, match="two processes send as 'eu'") as refused:
        inbox.greet(introductions[0])
    assert refused.value.reason == "two_processes"
    again = make_outbox(tmp_path / "site")
    assert again.incarnation != first.incarnation
    assert inbox.greet(Introduction("eu", again.epoch, again.incarnation)).expected == 3


def test_a_late_word_of_a_process_that_has_ended_does_not_shut_out_the_next_one(tmp_path: Path, inbox: Inbox) -> None:
    first = make_outbox(tmp_path / "site")
    append(first, 3)
    deliver(first, inbox)
    introductions = []
    for _ in range(3):  # started again and again, and only the last one is heard at once
        outbox = make_outbox(tmp_path / "site")
        former = " ".join(outbox.former_incarnations)
        introductions.append(Introduction("eu", outbox.epoch, outbox.incarnation, former=former))
    assert inbox.greet(introductions[-1]).expected == 3
    for late in introductions[:-1]:
        with pytest.raises(RefusedError, match="two processes"):
            inbox.greet(late)
    assert inbox.greet(introductions[-1]).expected == 3


def test_the_incarnation_is_on_disk(tmp_path: Path) -> None:
    incarnation = make_outbox(tmp_path).incarnation
    state = read_record(tmp_path / STATE_FILE)
    assert state is not None
    assert state["incarnation"] == incarnation


def test_segments_whose_acks_were_lost_are_no_other_history(
    tmp_path: Path, started: Callable[[Outbox, Inbox], Sender]
) -> None:
    inbox = Inbox(tmp_path / "in")
    outbox = make_outbox(tmp_path / "site")
    append(outbox, 6)
    deliver(outbox, inbox, ack=False)
    inbox.discard(6)
    inbox = Inbox(tmp_path / "in")
    outbox = make_outbox(tmp_path / "site")
    deliver(outbox, inbox, ack=False)
    append(outbox, 2)
    assert started(outbox, inbox).wait_until_empty(PATIENCE_S)
    assert inbox.refused == {}
    assert inbox.lowest_missing("eu") == 8


def test_a_segment_that_was_taken_too_long_ago_to_be_compared_is_settled_by_a_new_connection(
    tmp_path: Path, inbox: Inbox, started: Callable[[Outbox, Inbox], Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_segments, "RECENT_DIGESTS", 8)
    outbox = make_outbox(tmp_path / "site")
    append(outbox, 1)
    first = outbox.read(0)
    assert first is not None
    append(outbox, 8)
    deliver(outbox, inbox, ack=False)
    with pytest.raises(RefusedError, match="taken long ago") as refused:
        inbox.accept(first)
    assert refused.value.retryable
    assert started(outbox, inbox).wait_until_empty(PATIENCE_S)


def drop_chain(path: Path) -> None:
    """Make the state file what it was before there were chains."""
    state = read_record(path)
    assert state is not None
    for record in (state, *state.get("origins", {}).values()):
        for field in ("chain", "recent", "compared_from", "incarnation"):
            record.pop(field, None)
    write_record(path, state)


@pytest.mark.parametrize("gap", [False, True])
def test_folders_from_before_there_were_chains_are_taken_up_and_have_chains_from_then_on(
    tmp_path: Path, started: Callable[[Outbox, Inbox], Sender], gap: bool
) -> None:
    inbox, outbox = Inbox(tmp_path / "in"), make_outbox(tmp_path / "site")
    append(outbox, 6)
    for number in (0, 1, 2, 4) if gap else range(4):
        inbox.accept(outbox.read(number) or b"")
        outbox.ack(number)
    inbox.discard(4)
    drop_chain(tmp_path / "in" / "inbox.json")
    drop_chain(tmp_path / "site" / STATE_FILE)
    inbox, outbox = Inbox(tmp_path / "in"), make_outbox(tmp_path / "site")
    sender = started(outbox, inbox)
    assert sender.wait_until_empty(PATIENCE_S)
    sender.stop()
    again = started(outbox, inbox)
    wait_until(lambda: again.snapshot().connected, "the sender")
    again.stop()
    assert outbox.chain_at(6) is not None
    shutil.copytree(tmp_path / "site", tmp_path / "copy")
    append(outbox, 2)
    deliver(outbox, inbox)
    restored_outbox = make_outbox(tmp_path / "copy")
    append(restored_outbox, 9, content=100)
    sender = started(restored_outbox, inbox)
    wait_until(lambda: "other segments below 8" in str(sender.snapshot().last_error), "the sender")
    assert len(restored_outbox.pending()) == 9


# ---- laws


@given(st.lists(st.integers(0, 2**32 - 1), max_size=12), st.data())
@settings(max_examples=examples(60))
def test_a_chain_is_the_same_however_its_segments_came_and_where_it_was_cut(
    digests: list[int], data: st.DataObject
) -> None:
    plain = SegmentChain()
    for number, digest in enumerate(digests):
        plain.add(number, digest)
    wanted = [plain.at(number) for number in range(len(digests) + 1)]
    assert wanted[0] == START
    assert len(set(wanted)) == len(wanted)

    other = SegmentChain()
    for number in data.draw(st.permutations(range(len(digests)))):
        other.add(number, digests[number])
    cut = data.draw(st.integers(0, len(digests)))
    other.advance_to(cut)
    other = SegmentChain.from_record(other.to_record(range(len(digests))))
    assert [other.at(n) for n in range(cut, len(digests) + 1)] == wanted[cut:]
    assert all(other.at(n) is None for n in range(cut))
    changed = data.draw(st.integers(0, len(digests) - 1)) if digests else None
    if changed is not None:
        plain.add(changed, digests[changed] ^ 1)
        assert [plain.at(n) == wanted[n] for n in range(len(wanted))] == [n <= changed for n in range(len(wanted))]


@settings(max_examples=examples(12))
@given(seed=st.integers(0, 10**6), restore=st.booleans())
def test_an_honest_site_is_never_refused_and_a_restored_one_always_is(seed: int, restore: bool) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        inbox, outbox = Inbox(folder / "in"), make_outbox(folder / "site0")
        taken: dict[int, bytes] = {}

        def accept(number: int) -> None:
            data = outbox.read(number)
            assert data is not None
            assert taken.setdefault(number, data) == data
            inbox.accept(data)

        def connect() -> None:
            greeting = inbox.greet(Introduction("eu", outbox.epoch, outbox.incarnation))
            outbox.adopt_chain(greeting.expected, greeting.chain or START)
            assert outbox.chain_at(greeting.expected) == greeting.chain
            outbox.ack_below(greeting.expected)

        def step() -> None:
            nonlocal inbox, outbox
            match chance.randrange(6):
                case 0:
                    append(outbox, chance.randrange(4), content=chance.randrange(1000))
                case 1:
                    for pending in chance.sample(outbox.pending(), len(outbox.pending()) // 2):
                        accept(pending.sequence)
                        if chance.random() < 0.5:
                            outbox.ack(pending.sequence)
                case 2:
                    connect()
                case 3:
                    inbox.discard(inbox.last_position + 1)
                case 4:
                    inbox = Inbox(folder / "in")
                case 5:
                    outbox = make_outbox(outbox.folder)

        for number in range(30):
            step()
            if number == 10:
                shutil.copytree(outbox.folder, folder / "copy")
        connect()
        for pending in outbox.pending():
            accept(pending.sequence)
        assert inbox.refused == {}
        if not restore:
            return
        append(outbox, 1, content=5000)
        accept(outbox.next_sequence - 1)
        lost = make_outbox(folder / "copy")
        append(lost, outbox.next_sequence - lost.next_sequence + chance.randrange(5), content=7000)
        before = lost.pending()
        assert lost.chain_at(outbox.next_sequence) != inbox.greet(Introduction("eu", lost.epoch)).chain
        for number, content in taken.items():
            data = lost.read(number)
            if data == content:
                assert inbox.accept(data) == number
            elif data is not None:
                with pytest.raises(RefusedError, match="another content"):
                    inbox.accept(data)
        assert lost.pending() == before
