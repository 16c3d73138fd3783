"""An outbox and an inbox against a model of plain sets, through random stories with restarts."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.uplink import Introduction
from tests.worlds.tiers import examples
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import NEVER, FailingDisk, failing_disk, landed_segments

PICK = st.integers(0, 10**6)


class Story(RuleBasedStateMachine):
    """What a site stored, sent and heard; what a center landed, consumed and discarded."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.disk = ExitStack()
        self.disk.enter_context(failing_disk(FailingDisk(NEVER, "kill")))
        self.stored = 0
        self.sent: dict[int, bytes] = {}
        self.landed: list[int] = []
        self.acked: set[int] = set()
        self.discarded = 0
        self.open_outbox()
        self.open_inbox()

    def teardown(self) -> None:
        self.disk.close()
        shutil.rmtree(self.folder)

    @rule()
    def open_outbox(self) -> None:
        self.outbox = Outbox(self.folder / "out", "eu", "center", 10**9)

    @rule()
    def open_inbox(self) -> None:
        self.inbox = Inbox(self.folder / "in")

    @rule()
    def store(self) -> None:
        self.outbox.append(self.stored, some_messages(self.stored))
        self.stored += 1

    @precondition(lambda self: self.stored)
    @rule(pick=PICK)
    def store_again(self, pick: int) -> None:
        self.outbox.append(pick % self.stored, some_messages(10**6))

    @precondition(lambda self: self.outbox.pending())
    @rule(pick=PICK)
    def send(self, pick: int) -> None:
        waiting = self.outbox.pending()
        number = waiting[pick % len(waiting)].sequence
        self.sent[number] = self.outbox.read(number) or b""
        self.arrive(number)

    @precondition(lambda self: self.sent)
    @rule(pick=PICK)
    def arrive_again(self, pick: int) -> None:
        self.arrive(sorted(self.sent)[pick % len(self.sent)])

    def arrive(self, number: int) -> None:
        assert self.inbox.accept(self.sent[number]) == number
        self.landed += [number] if number not in self.landed else []

    @precondition(lambda self: self.landed)
    @rule(pick=PICK)
    def hear_ack(self, pick: int) -> None:
        number = self.landed[pick % len(self.landed)]
        self.outbox.ack(number)
        self.acked.add(number)

    @rule()
    def reconnect(self) -> None:
        expected = self.inbox.greet(Introduction("eu", self.outbox.epoch)).expected
        self.outbox.ack_below(expected)
        self.acked |= set(range(expected))

    @rule(pick=PICK)
    def discard(self, pick: int) -> None:
        self.discarded += pick % (len(self.landed) - self.discarded + 1)
        self.inbox.discard(self.discarded)

    @invariant()
    def holds(self) -> None:
        assert self.outbox.next_sequence == self.stored
        assert {p.sequence for p in self.outbox.pending()} == set(range(self.stored)) - self.acked
        assert self.outbox.missing() == []
        assert self.outbox.lowest_unacked == min(set(range(self.stored + 1)) - self.acked)
        assert self.inbox.last_position == len(self.landed) - 1
        assert self.inbox.lowest_missing("eu") == min(set(range(self.stored + 1)) - set(self.landed))
        here = [(s.sequence, next(s.progress()).updates_total) for s in landed_segments(self.inbox)]
        assert here == [(n, n) for n in self.landed[self.discarded :]]


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=examples(25), stateful_step_count=40)
