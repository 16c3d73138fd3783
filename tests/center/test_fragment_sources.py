"""What a query has moved away from is still taken while a site that was away may send it."""

from __future__ import annotations

from catchment.center.fragment_sources import FragmentSource, FragmentSources
from catchment.center.query import CenterQuery
from catchment.progress.frontier import Frontier
from catchment.timeline import START_OF_TIME_US, WindowSpec
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
