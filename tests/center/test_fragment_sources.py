"""What a query has moved away from is still taken while a site that was away may send it."""

from __future__ import annotations

import pytest

from catchment.center.core import CenterCore
from catchment.center.events import QueryAdded, QueryMoved
from catchment.center.fragment_sources import FragmentSource, FragmentSources
from catchment.center.query import CenterQuery
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.progress.frontier import Frontier
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, WindowSpec
from catchment.wire.messages import Deferred, Delivered, Fact, Progress, Relayed, Repaired, Shed
from tests.worlds.world import lifted, make_fragment

WINDOW = WindowSpec.tumbling(10)
FRAGMENT = make_fragment(WINDOW)
MOVED_AT = 100
FINAL = 1000  # windows before it are final, without a site that is away


def test_a_source_stays_until_every_site_has_passed_it_though_its_windows_are_final() -> None:
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a", "b"), 50, None)
    old = FragmentSource("old", None, start_us=START_OF_TIME_US, until_us=MOVED_AT)
    sources = FragmentSources(query, [old, FragmentSource("new", None, start_us=MOVED_AT)])
    frontiers = {"a": Frontier(marks={"old": MOVED_AT, "new": 500}), "b": Frontier(marks={"old": 50})}
    sources.forget_final(FINAL, frontiers)
    late = lifted(FRAGMENT, [(65, "b", 1)])
    ((taken, records),) = sources.take("old", late.partials, (("b", 60, 1),))
    assert (taken.num_rows, records) == (1, (("b", 60, 1),)), "it is registered as too late, not dropped"
    frontiers["b"] = Frontier(marks={"old": MOVED_AT})
    sources.forget_final(FINAL, frontiers)
    assert sources.fragments == ("new",)


def test_a_site_that_counts_only_from_later_on_is_not_waited_for() -> None:
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a",), 50, None)
    old = FragmentSource("old", None, start_us=START_OF_TIME_US, until_us=MOVED_AT)
    sources = FragmentSources(query, [old, FragmentSource("new", None, start_us=MOVED_AT)])
    sources.roster.begin("joined", MOVED_AT)
    sources.forget_final(FINAL, {"a": Frontier(marks={"old": MOVED_AT}), "joined": Frontier()})
    assert sources.fragments == ("new",)


@pytest.mark.parametrize(
    ("lacking", "settled"),
    [
        (Deferred(FRAGMENT.name, "r", 7, 0.5, ("k",), ((0, 2),), is_counted=True), Delivered(FRAGMENT.name, "r", 7)),
        (Shed(FRAGMENT.name, 7, 0.5, ((0, 2),)), Repaired(FRAGMENT.name, 7)),
    ],
)
def test_a_source_stays_while_what_was_shed_or_deferred_of_it_is_on_its_way(lacking: Fact, settled: Fact) -> None:
    """Its windows are final without a site that is away, which then passes the source before it sends the rest."""
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a", "b"), 50, freshness_us=5)
    core = CenterCore()
    core.handle(QueryAdded(query), 0)

    def land(number: int, *facts: tuple[str, Fact], now_us: int) -> None:
        core.handle(Landed("r", number, relayed=tuple(Relayed(site, fact) for site, fact in facts)), now_us)
        core.handle(Ticked(), now_us)

    some = lifted(FRAGMENT, [(1, "a", 1)])
    core.handle(Gathered(FRAGMENT.name, some.partials, (("a", 0, 1),), (("a", 0),)), 0)
    land(0, ("b", lacking), ("a", Progress(FRAGMENT.name, MOVED_AT, 0)), now_us=0)
    core.handle(QueryMoved("q", Derivation("q", "new", (), (), (), (), FRAGMENT.aggregates, WINDOW), waits=True), 0)
    begun = Progress("new", MOVED_AT, 0)
    land(1, ("a", begun), ("b", begun), ("a", Progress("new", 1_000, 0)), now_us=10)
    assert 0 in core.queries["q"].windows.state.closed
    land(2, now_us=1_000)
    assert 0 not in core.queries["q"].windows.state.closed, "it is final"
    ended = Progress(FRAGMENT.name, END_OF_TIME_US, 0), Progress("new", 1_000, 0)
    land(3, *(("a", fact) for fact in ended), *(("b", fact) for fact in ended), now_us=1_000)
    assert core.fragments == {FRAGMENT.name, "new"}
    land(4, ("b", settled), now_us=1_000)
    assert core.fragments == {"new"}
