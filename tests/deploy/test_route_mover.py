"""When sites are moved to other routes, by a clock that is driven: what pays, for how long, and how often.

The search is compared with trying all routes of small projects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from catchment.deploy.routes.route_mover import (
    BETTER,
    FIRST_STAY_US,
    HOLD_US,
    UNUSABLE_US,
    MeasuredLink,
    RouteMover,
    RouteTimes,
    find_faster_routes,
)
from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.project.routes import LinkName, Routes
from catchment.project.sections import Link, Site
from catchment.timeline import SECOND_US

MEGABYTE = 1e6
LINKS = [("a", "near"), ("a", "far"), ("a", "center"), ("near", "center"), ("near", "far"), ("far", "center")]


def make_project(bandwidths: Mapping[LinkName, float | None]) -> Project:
    sites = {name: Site(name) for name in ("center", "near", "far", "a")}
    links = {link: Link(*link, bandwidth_bytes_per_s=bandwidth) for link, bandwidth in bandwidths.items()}
    return Project(folder=Path(), name="p", center="center", sites=sites, links=links)


def make_times(
    project: Project,
    measured: Mapping[LinkName, MeasuredLink] | None = None,
    load: float = 0.0,
) -> RouteTimes:
    def traffic(routes: Routes) -> dict[LinkName, float]:
        return dict.fromkeys(routes.route("a"), load)

    return RouteTimes(project, measured or {}, traffic, ["a"])


NEAR = {
    ("a", "near"): 10 * MEGABYTE,
    ("a", "far"): 3 * MEGABYTE,
    ("a", "center"): 0.1 * MEGABYTE,
    ("near", "center"): 10 * MEGABYTE,
    ("near", "far"): 0.1 * MEGABYTE,
    ("far", "center"): 10 * MEGABYTE,
}
SLOW = MeasuredLink(0.05 * MEGABYTE, 0.01)
DOWN = MeasuredLink(None, None, is_down=True)


def choose_after(
    mover: RouteMover, routes: Routes, times: RouteTimes, start_us: int, steps: int, step_us: int = 10 * SECOND_US
) -> tuple[int, Mapping[str, str]] | None:
    """Ask again and again; return when a move was chosen first, and which."""
    for step in range(steps):
        found = mover.choose(routes, times, LINKS, start_us + step * step_us)
        if found is not None:
            return step * step_us, found.hops
    return None


def test_a_link_that_is_slow_for_a_while_moves_its_site_and_not_before() -> None:
    project = make_project(NEAR)
    routes = Routes.declared(project)
    assert routes.hops["a"] == "near"
    times = make_times(project, {("a", "near"): SLOW})
    found = choose_after(RouteMover(), routes, times, 0, 10)
    assert found == (HOLD_US, {"a": "far"})
    mover = RouteMover()
    for step in range(10):  # slow and fast again: nothing is moved
        measured = {("a", "near"): SLOW} if step % 2 else {}
        assert mover.choose(routes, make_times(project, measured), LINKS, step * 20 * SECOND_US) is None


def test_a_relay_whose_link_is_slow_is_moved_around_or_its_sites_are() -> None:
    project = make_project(NEAR)
    times = make_times(project, {("near", "center"): SLOW})
    found = choose_after(RouteMover(), Routes.declared(project), times, 0, 10)
    assert found is not None
    assert found[1] == {"a": "far"}, "by the far hub it is faster than from the near one over a slow link"


def test_a_route_that_is_not_twice_as_fast_is_not_taken() -> None:
    project = make_project(NEAR)
    routes = Routes.declared(project)
    times = make_times(project)
    now_us, then_us = times.of(routes)["a"], times.of(routes.moved({"a": "far"}))["a"]
    assert now_us is not None
    assert then_us is not None
    assert now_us < then_us < BETTER * now_us
    assert choose_after(RouteMover(), routes.moved({"a": "far"}), times, 0, 10) is None


def test_a_stream_that_grows_beyond_its_link_moves_its_site_where_there_is_room_and_nowhere_else() -> None:
    project = make_project({**NEAR, ("a", "near"): 1 * MEGABYTE, ("a", "far"): 0.8 * MEGABYTE})
    routes = Routes.declared(project)
    assert routes.hops["a"] == "near"
    assert choose_after(RouteMover(), routes, make_times(project, load=0.1 * MEGABYTE), 0, 10) is None
    grown = make_times(project, load=0.99 * MEGABYTE)
    assert choose_after(RouteMover(), routes, grown, 0, 10) is None, "every link is too small: it does not pay"
    wide = make_project({**NEAR, ("a", "near"): 1 * MEGABYTE, ("a", "far"): 0.99 * MEGABYTE, ("a", "center"): None})
    more_room = replace(wide, links={**wide.links, ("a", "far"): Link("a", "far", bandwidth_bytes_per_s=5 * MEGABYTE)})
    assert Routes.declared(wide).hops["a"] in ("near", "center")
    found = choose_after(RouteMover(), routes, make_times(more_room, load=0.99 * MEGABYTE), 0, 10)
    assert found is not None
    assert found[1] == {"a": "far"}


def test_links_of_which_nothing_is_known_are_taken_only_around_one_that_is_down() -> None:
    project = make_project({**NEAR, ("a", "far"): None, ("a", "center"): None, ("far", "center"): None})
    routes = Routes.declared(project).moved({"a": "near"})
    assert choose_after(RouteMover(), routes, make_times(project, {("a", "near"): SLOW}), 0, 10) is None
    found = choose_after(RouteMover(), routes, make_times(project, {("a", "near"): DOWN}), 0, 10)
    assert found is not None
    assert found[1]["a"] in ("far", "center")


def test_a_site_that_was_moved_stays_and_each_time_twice_as_long() -> None:
    project = make_project({**NEAR, ("a", "far"): 0.3 * MEGABYTE})
    declared = Routes.declared(project)
    mover = RouteMover()
    slow = make_times(project, {("a", "near"): SLOW})
    now_us = 0
    waits = []
    routes = declared
    for _ in range(3):  # the link stays slow: away from it, back when it counts as declared again, and away
        found = choose_after(mover, routes, slow, now_us, 2_000)
        assert found is not None
        now_us += found[0]
        waits.append(found[0])
        mover.note_moved(found[1], now_us)
        routes = routes.moved(found[1])
    assert [routes.hops["a"]] == ["far"]
    assert waits[0] == HOLD_US
    assert FIRST_STAY_US <= waits[1] <= FIRST_STAY_US + 2 * HOLD_US
    assert 2 * FIRST_STAY_US <= waits[2] <= 2 * FIRST_STAY_US + 2 * HOLD_US


@given(st.lists(st.sampled_from([0.02, 0.1, 1.0, 10.0]), min_size=len(LINKS), max_size=len(LINKS)))
def test_what_the_search_finds_is_no_worse_than_twice_the_best_of_all_routes(megabytes: list[float]) -> None:
    """It may stop where a further step gains less than it asks for, and never makes anything slower."""
    project = make_project(NEAR)
    measured = {link: MeasuredLink(mb * MEGABYTE, 0.0) for link, mb in zip(LINKS, megabytes, strict=True)}
    times = make_times(project, measured)
    routes = Routes.declared(project)
    found_us = times.of(find_faster_routes(routes, times, LINKS))["a"]
    before_us = times.of(routes)["a"]
    assert found_us is not None
    assert before_us is not None
    assert found_us <= before_us
    best_us = min(_every_time(routes, times))
    assert found_us <= BETTER**2 * best_us, "two steps at most lead to any route here"
    assert best_us < UNUSABLE_US


def _every_time(routes: Routes, times: RouteTimes) -> list[int]:
    ends = {site: [to for origin, to in LINKS if origin == site] for site in ("a", "near", "far")}
    found = []
    for choice in product(*ends.values()):
        try:
            time_us = times.of(routes.moved(dict(zip(ends, choice, strict=True))))["a"]
        except ConfigError:
            continue
        assert time_us is not None
        found.append(time_us)
    return found
