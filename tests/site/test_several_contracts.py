"""One fragment under several contracts: every query gets the marks and records that a fragment of its own would give.

Catches: a mark that passes what its query still awaits, a query that waits for another one's contract, partials that
are sent once per contract. Cannot catch: what relays and the center make of the marks; that is tested in
`tests/center/test_several_contracts` and simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.progress.events import Ticked
from catchment.site import events as site_events
from catchment.site.core import SiteCore
from catchment.site.fragment import BY_STREAM
from catchment.site.policies.registry import policy_by_name
from catchment.site.slack import SlackPlan
from catchment.site.suspension import FragmentResumed, FragmentSuspended
from catchment.storage.codec import decode, encode
from catchment.timeline import END_OF_TIME_US, SECOND_US, START_OF_TIME_US
from catchment.wire.messages import Progress, QueryMark, Updates
from tests.worlds.contract_site import FRAGMENT, Row, observed, plan
from tests.worlds.tiers import examples
from tests.worlds.world import lifted

STREAM_SLACK_US = 2 * SECOND_US
CONTROLLERS = ("fixed:0", "fixed:1", "fixed:4", "mp-k-slack", "adaptive")
FIXED = {"fixed:0": 0, "fixed:1": 1, "fixed:4": 4, BY_STREAM: STREAM_SLACK_US // SECOND_US}


class Sender:
    """A site core with one fragment, and what it has sent and stated."""

    def __init__(self, consumers: Sequence[str], policy: str = "batching") -> None:
        self.consumers = tuple(consumers)
        self.policy = policy
        self.core = SiteCore()
        self.sent: Counter[int] = Counter()  # records by slice
        self.rows = 0
        self.mark_us = START_OF_TIME_US
        self.query_marks: dict[str, int] = {}
        self.handle([self.added(self.consumers)], 0)

    def added(self, consumers: Sequence[str]) -> site_events.FragmentAdded:
        slacks = tuple(plan_of(name) for name in consumers if name != BY_STREAM)
        goes_by_stream = BY_STREAM in consumers and bool(slacks)
        return site_events.FragmentAdded(
            FRAGMENT, policy_by_name(self.policy), slacks=slacks, goes_by_stream=goes_by_stream
        )

    def take(self, rows: Sequence[Row], newest_us: int, now_us: int) -> None:
        events: list[site_events.Event] = []
        if rows:
            events.append(lifted(FRAGMENT, [(at, source, value) for source, at, value in rows]))
            events += [
                site_events.Observed("q", name, observed(list(rows))) for name in self.consumers if name != BY_STREAM
            ]
        self.handle([*events, site_events.LowMarkRaised("s", newest_us - STREAM_SLACK_US)], now_us)

    def handle(self, events: Sequence[site_events.Event], now_us: int) -> None:
        for action in self.core.handle_all(events, now_us):
            for message in action.messages:
                if isinstance(message, Updates):
                    self.rows += message.rows
                    self.sent.update(dict(message.records))
                elif isinstance(message, Progress):
                    assert message.low_mark_us > self.mark_us
                    assert message.updates_total == self.rows
                    self.mark_us = message.low_mark_us
                elif isinstance(message, QueryMark):
                    assert message.low_mark_us > self.mark(message.query)
                    self.query_marks[message.query] = message.low_mark_us
        self.core.validate()

    def mark(self, consumer: str) -> int:
        return max(self.mark_us, self.query_marks.get(consumer, START_OF_TIME_US))

    def restart(self) -> None:
        state = decode(encode(self.core.snapshot()))
        self.core = SiteCore()
        self.core.restore(state)


def plan_of(controller: str) -> SlackPlan:
    return replace(plan(controller), query=controller)


def slice_of(mark_us: int) -> int:
    """The slices that a mark has passed, by the end of the last one."""
    return mark_us if mark_us in (START_OF_TIME_US, END_OF_TIME_US) else mark_us // SECOND_US * SECOND_US


def lost_before(mark_us: int, taken: Mapping[int, int], sent: Mapping[int, int]) -> list[int]:
    """The slices before a mark of which something that was taken in has not left."""
    return [s for s, count in taken.items() if s + SECOND_US <= mark_us and sent.get(s, 0) != count]


batches = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 0, 0, 1, 3, 7])), max_size=8), min_size=1, max_size=30
)


@settings(max_examples=examples(40), deadline=None)
@given(batches, st.sets(st.sampled_from([*CONTROLLERS, BY_STREAM]), min_size=2, max_size=4), st.integers(0, 30))
def test_every_query_has_the_marks_and_the_records_of_a_fragment_of_its_own(
    drawn: list[list[tuple[str, int]]], consumers: set[str], restart_at: int
) -> None:
    shared = Sender(sorted(consumers))
    alone = {name: Sender([name]) for name in consumers}
    taken: Counter[int] = Counter()
    for step, batch in enumerate(drawn):
        now_us = (step + 1) * SECOND_US
        rows = [(source, max(now_us - 1 - late_s * SECOND_US, 0), 1) for source, late_s in batch]
        taken.update(at // SECOND_US * SECOND_US for _, at, _ in rows)
        for sender in (shared, *alone.values()):
            sender.take(rows, now_us - 1, now_us)
            sender.handle([Ticked()], now_us)
        if step == restart_at:
            shared.restart()
        for name, own in alone.items():
            assert slice_of(shared.mark(name)) == slice_of(own.mark(name)), name
            assert not lost_before(shared.mark(name), taken, shared.sent)
    for sender in (shared, *alone.values()):
        sender.handle([site_events.LowMarkRaised("s", END_OF_TIME_US, ended=True)], now_us)
    assert {shared.mark(name) for name in consumers} == {END_OF_TIME_US}
    assert shared.sent == taken
    assert shared.rows <= sum(own.rows for own in alone.values())
    assert all(shared.rows >= own.rows for own in alone.values())


@pytest.mark.parametrize("consumers", list(combinations(FIXED, 2)), ids=str)
def test_the_partials_that_leave_are_those_of_the_query_that_waits_least(consumers: tuple[str, str]) -> None:
    least = min(consumers, key=lambda name: FIXED[name])
    shared, alone = Sender(consumers), Sender([least])
    for step in range(40):
        now_us = (step + 1) * SECOND_US
        late = [("b", max(now_us - 1 - (step % 7) * SECOND_US, 0), 1)]
        for sender in (shared, alone):
            sender.take([("a", now_us - 1, 1), *late], now_us - 1, now_us)
    assert (shared.rows, shared.sent) == (alone.rows, alone.sent)


def test_a_query_that_joins_with_another_contract_holds_back_nobody() -> None:
    site = Sender(["fixed:0"])
    for step in range(20):
        now_us = (step + 1) * SECOND_US
        if step == 10:
            site.consumers = ("fixed:0", "fixed:4", BY_STREAM)
            site.handle([site.added(site.consumers)], now_us)
        site.take([("a", now_us - 1, 1)], now_us - 1, now_us)
    joined_us = 10 * SECOND_US
    assert slice_of(site.mark("fixed:0")) == 19 * SECOND_US
    assert joined_us <= slice_of(site.mark("fixed:4")) == 15 * SECOND_US
    assert slice_of(site.mark(BY_STREAM)) == 17 * SECOND_US


def test_where_the_only_contract_leaves_the_stream_says_how_far_the_fragment_is() -> None:
    site = Sender(["fixed:0"])
    for step in range(20):
        now_us = (step + 1) * SECOND_US
        if step == 10:
            site.consumers = (BY_STREAM,)
            site.handle([site.added(site.consumers)], now_us)
        site.take([("a", now_us - 1, 1)], now_us - 1, now_us)
        assert slice_of(site.mark("fixed:0")) == slice_of(max(min(step, 9), step - 2) * SECOND_US)


def test_windows_of_every_contract_pass_while_their_fragment_is_suspended() -> None:
    site = Sender(["fixed:0", "fixed:4"])
    site.take([("a", SECOND_US, 1)], SECOND_US, SECOND_US)
    site.handle([FragmentSuspended("s", 1, "q", 2 * SECOND_US, "failed")], 2 * SECOND_US)
    site.handle([site_events.LowMarkRaised("s", 9 * SECOND_US)], 9 * SECOND_US)
    assert {site.mark(name) for name in site.consumers} == {9 * SECOND_US}
    site.handle([FragmentResumed("q")], 9 * SECOND_US)
    for second in range(10, 31):
        site.take([("a", second * SECOND_US, 1)], second * SECOND_US, second * SECOND_US)
    assert [slice_of(site.mark(name)) // SECOND_US for name in site.consumers] == [30, 26]
