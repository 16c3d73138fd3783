"""Twins, fragments that differ only in the sink that they go to, leave a site together where one link leads to both.

The oracle is the other twin: the same partials leave by both exits with the same event, row for row. Catches: a share
of the link, or a view of it, that only one of them has, and one that counts what crosses the link once as if it crossed
it twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.project.sections import Link
from catchment.site.core import SiteCore
from catchment.site.events import Event, FragmentAdded, LinkMeasured, LowMarkRaised
from catchment.site.exits import Exit, Exits
from catchment.site.outbox_writer import OutboxWriter
from catchment.site.policies.registry import policy_by_name, policy_names
from catchment.storage.codec import decode, encode
from catchment.wire.messages import Updates
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending.link_meter import LinkCounters
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from tests.worlds.site_support import absorbed, fragment
from tests.worlds.tiers import examples

HERE = fragment()
THERE = replace(HERE, name="f_at_tokyo")
BESIDE = replace(HERE, name="g", where="n > 0")  # something else, that only the center gets
MEASURES = st.tuples(st.sampled_from([None, 3.0, 200.0, 1e6]), st.integers(0, 500), st.floats(0.1, 3), st.floats(0, 80))
RECORDS = st.lists(st.tuples(st.integers(0, 39), st.sampled_from("abcdefgh"), st.integers(-5, 5)), max_size=12)
STEPS = st.lists(st.tuples(RECORDS, MEASURES, st.integers(0, 45), st.booleans()), max_size=20)


def measured(goodput: float | None, queued: int, ratio: float, frame: float) -> Iterator[LinkMeasured]:
    for sink, other in (("", "tokyo"), ("tokyo", "")):
        yield LinkMeasured(goodput, queued, False, ratio, frame, sink, beside=(other,))


@pytest.mark.parametrize("policy", policy_names())
@settings(max_examples=examples(60))
@given(steps=STEPS)
def test_twins_leave_together_whatever_the_link_does_and_whatever_leaves_beside_one_of_them(
    policy: str, steps: list[tuple[Any, Any, int, bool]]
) -> None:
    core = SiteCore()
    added = [FragmentAdded(f, policy_by_name(policy)) for f in (BESIDE, HERE)]
    added.append(FragmentAdded(THERE, policy_by_name(policy), sink="tokyo"))
    core.handle_all(added, 0)
    for number, (records, link, mark, restarts) in enumerate(steps, 1):
        events: list[Event] = [absorbed(f, records) for f in (BESIDE, HERE, THERE)]
        sent = core.handle_all([*events, *measured(*link), LowMarkRaised("s", mark)], number * 1_000_000)
        updates: dict[str, list[tuple[Any, Any]]] = {HERE.name: [], THERE.name: [], BESIDE.name: []}
        for message in (m for action in sent for m in action.messages if isinstance(m, Updates)):
            updates[message.fragment].append((message.table.to_pylist(), message.records))
        assert updates[HERE.name] == updates[THERE.name]
        if restarts:
            again = SiteCore()
            again.handle_all(added, 0)
            again.restore(decode(encode(core.snapshot())))
            core = again
    core.validate()


# ---- what exits are told of a link that several use


class Told(Sender):
    """A sender whose link is as it is told."""

    counters = LinkCounters()

    def snapshot(self) -> LinkCounters:
        return self.counters


@pytest.fixture
def exits(tmp_path: Path) -> Exits:
    ends = {"": "hub", "tokyo": "hub", "tokyo>far": "far"}

    def open_exit(name: str) -> Exit:
        outbox = Outbox(tmp_path / f"out{name}", "eu", ends[name], 10**9)
        sender = Told(outbox, lambda: LocalUplink(Inbox(tmp_path / "in")), lanes=0)
        return Exit(name, Link("eu", ends[name]), outbox, OutboxWriter(outbox, None, name), sender)

    found = Exits(open_exit)
    found.named("tokyo")
    found.named("tokyo>far")
    return found


def tell(exits: Exits, name: str, **counters: Any) -> None:
    cast(Told, exits.named(name).sender).counters = LinkCounters(**counters)


def test_exits_that_use_one_link_are_told_the_same_of_it(exits: Exits) -> None:
    tell(exits, "", connected=True, goodput_bytes_per_s=100.0)
    tell(exits, "tokyo", connected=True, goodput_bytes_per_s=30.0)
    tell(exits, "tokyo>far", connected=True, goodput_bytes_per_s=7.0)
    found = {link.sink: link for link in exits.measure()}
    goodput = {name: link.goodput_bytes_per_s for name, link in found.items()}
    assert goodput == {"": 100.0, "tokyo": 100.0, "tokyo>far": 7.0}
    assert {name: link.beside for name, link in found.items()} == {"": ("tokyo",), "tokyo": ("",), "tokyo>far": ()}


def test_an_exit_whose_end_takes_nothing_says_nothing_of_the_link_of_others(exits: Exits) -> None:
    tell(exits, "", connected=True, goodput_bytes_per_s=100.0, last_error="the far side is full")
    tell(exits, "tokyo", connected=True, goodput_bytes_per_s=30.0)
    found = {link.sink: link for link in exits.measure()}
    goodput = {name: link.goodput_bytes_per_s for name, link in found.items()}
    assert goodput == {"": 100.0, "tokyo": 30.0, "tokyo>far": None}
    assert not any(link.beside for link in found.values())
