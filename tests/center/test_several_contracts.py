"""Views with several contracts over one fragment: each closes windows by its own mark, directly and over a relay."""

from __future__ import annotations

import pytest

from catchment.aggregates import partials
from catchment.center.core import CenterCore
from catchment.center.events import Publish, QueryAdded
from catchment.center.query import CenterQuery
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.progress.frontier import Frontier
from catchment.quality.contract import Contract
from catchment.relay.core import RelayCore
from catchment.relay.events import Carried, Forward
from catchment.site.policies.registry import policy_by_name
from catchment.storage.codec import decode, encode
from catchment.timeline import START_OF_TIME_US, WindowSpec
from catchment.wire.messages import MarkFact, Progress, QueryMark, Relayed, Updates
from tests.worlds.world import lifted, make_fragment

WINDOW = WindowSpec.tumbling(10)
FRAGMENT = make_fragment(WINDOW)
CONTRACTS = {"quick": Contract(0.5), "patient": Contract(0.01), "plain": None}


class OneSite:
    """A center with three views of one fragment, and the site that sends it, over a relay or not."""

    def __init__(self, relayed: bool) -> None:
        self.center = CenterCore()
        for name, contract in CONTRACTS.items():
            self.center.handle(QueryAdded(CenterQuery(name, FRAGMENT, WINDOW, ("a",), 10_000, contract=contract)), 0)
        self.relay = RelayCore(wait_us=1_000) if relayed else None
        if self.relay is not None:
            self.relay.handle(Carried(FRAGMENT, policy_by_name("batching"), (("a", "a"),)), 0)
        self.sent: dict[str, tuple[int, int]] = {"a": (0, 0), "relay": (0, 0)}  # segments, rows
        self.published: list[tuple[str, int, int]] = []  # (query, window's start, records in it)

    def send(self, times: list[int], *marks: tuple[str | None, int]) -> None:
        """Send records and marks: of all queries, or of the one that is named."""
        absorbed = lifted(FRAGMENT, [(ts, "k", 1) for ts in times])
        number, rows = self.sent["a"]
        rows += absorbed.partials.num_rows
        self.sent["a"] = number + 1, rows
        facts: list[MarkFact] = [
            Progress("q", mark, rows) if query is None else QueryMark("q", query, mark) for query, mark in marks
        ]
        landed = Landed("a", number, (("q", absorbed.partials.num_rows),), tuple(facts))
        records = tuple(("a", slice_us, n) for slice_us, n in absorbed.records)
        if self.relay is None:
            self.publish(Gathered("q", absorbed.partials, records), landed)
            return
        senders = tuple(("a", slice_us) for slice_us, _ in absorbed.records)
        events = (Gathered("q", absorbed.partials, records, senders), landed, Ticked())
        for action in self.relay.handle_all(events, number):
            self.forward(action)
        self.relay.validate()

    def forward(self, action: Forward) -> None:
        number, rows = self.sent["relay"]
        updates: tuple[Updates, ...] = action.updates
        added = sum(update.rows for update in updates)
        self.sent["relay"] = number + 1, rows + added
        landed = Landed("relay", number, (("q", added),), relayed=action.facts)
        self.publish(*(Gathered("q", update.table) for update in updates), landed)

    def publish(self, *events: Gathered | Landed) -> None:
        for action in self.center.handle_all((*events, Ticked()), 0):
            if isinstance(action, Publish) and action.rows.num_rows:
                counts = partials.lower(action.rows, ["k"], FRAGMENT.aggregates)["n"].to_pylist()
                self.published.append((action.query, action.window.start_us, sum(counts)))
        self.center = restarted(self.center)

    def taken(self) -> list[tuple[str, int, int]]:
        published = self.published
        self.published = []
        return sorted(published)


def restarted(core: CenterCore) -> CenterCore:
    state = decode(encode(core.snapshot()))
    core = CenterCore()
    core.restore(state)
    return core


@pytest.mark.parametrize("relayed", [False, True])
def test_each_view_closes_a_window_by_its_own_mark_and_has_what_came_until_then(relayed: bool) -> None:
    site = OneSite(relayed)
    site.send([1, 2, 11], ("quick", 10))
    assert site.taken() == [("quick", 0, 2)]
    site.send([3], ("", 10), ("quick", 20))
    assert site.taken() == [("plain", 0, 3), ("quick", 10, 1)]
    site.send([4, 12], (None, 10), ("", 20))
    assert site.taken() == [("patient", 0, 4), ("plain", 10, 2)]
    site.send([13], (None, 20))
    assert site.taken() == [("patient", 10, 3)]


def test_a_mark_of_one_query_is_forgotten_when_all_have_reached_it() -> None:
    frontier = Frontier()
    for fact in (QueryMark("q", "quick", 30), QueryMark("q", "", 20), Progress("q", 20, 0)):
        frontier.note(fact)
    assert frontier.query_marks == {"q": {"quick": 30}}
    assert [frontier.mark("q", name) for name in ("quick", "patient", "")] == [30, 20, 20]
    assert (frontier.furthest_mark("q"), frontier.mark("q")) == (30, 20)
    frontier.note(Progress("q", 40, 0))
    assert frontier.query_marks == {}
    assert frontier.furthest_mark("q") == 40
    assert frontier.furthest_mark("other") == START_OF_TIME_US


def test_a_relay_passes_a_mark_of_one_query_on_after_what_it_is_about() -> None:
    relay = RelayCore(wait_us=1_000)
    relay.handle(Carried(FRAGMENT, policy_by_name("batching"), (("a", "a"), ("b", "b"))), 0)
    absorbed = lifted(FRAGMENT, [(1, "k", 1)])
    gathered = Gathered("q", absorbed.partials, (("a", 0, 1),), (("a", 0),))
    landed = Landed("a", 0, (("q", 1),), (QueryMark("q", "quick", 10),))
    first = relay.handle_all((gathered, landed, Ticked()), 0)
    assert not any(QueryMark("q", "quick", 10) == fact.fact for action in first for fact in action.facts)
    later = relay.handle_all((Landed("b", 0, (), (QueryMark("q", "quick", 10),)), Ticked()), 1)
    assert [update.rows for action in later for update in action.updates] == [1]
    facts = [fact for action in later for fact in action.facts]
    assert {Relayed(site, QueryMark("q", "quick", 10)) for site in "ab"} <= set(facts)
