"""Routes to the center: by what links carry, then the fewest links; what is on which route.

The oracle goes over all simple paths. It shares with the code what one link costs, so a second test says in plain
figures what that must mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from catchment.optimizer.placement.topology import Topology
from catchment.project.config import Project
from catchment.project.routes import Routes, carry_us, first_link
from catchment.project.sections import Link, Site


def project_of(*links: Link) -> Project:
    names = dict.fromkeys(["center", *(end for link in links for end in (link.origin, link.destination))])
    return Project("p", Path(), "center", {n: Site(n) for n in names}, {(k.origin, k.destination): k for k in links})


def test_a_link_of_ones_own_is_taken_where_no_link_says_what_it_carries() -> None:
    project = project_of(Link("a", "hub"), Link("hub", "center"), Link("a", "center"))
    assert Routes.of(project).route("a") == (("a", "center"),)
    assert Routes.of(project).relays == ()


def test_a_slow_link_of_ones_own_does_not_beat_two_fast_ones_and_a_usual_one_does() -> None:
    fast = [Link("a", "hub", 1e8), Link("hub", "center", 1e8)]
    assert Routes.of(project_of(*fast, Link("a", "center", 1e3))).route("a") == (("a", "hub"), ("hub", "center"))
    assert Routes.of(project_of(*fast, Link("a", "center", 2e6, 40_000))).route("a") == (("a", "center"),)
    assert Routes.of(project_of(*fast, Link("a", "center", 1e8, 900_000))).route("a") == (
        ("a", "hub"),
        ("hub", "center"),
    )


SITES = ("center", "a", "b", "c", "d")


@st.composite
def meshes(draw: st.DrawFn) -> Project:
    """Return a project of a few sites, any two of which may have a link of any bandwidth and latency."""
    pairs = [(a, b) for a in SITES for b in SITES if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True))
    bandwidths = st.sampled_from((None, 1e3, 1e5, 1e6, 1e8))
    links = [Link(a, b, draw(bandwidths), draw(st.sampled_from((0, 1_000, 250_000, 10**6)))) for a, b in chosen]
    sites = {name: Site(name) for name in SITES}
    return Project("p", Path(), "center", sites, {(k.origin, k.destination): k for k in links})


def simple_paths(project: Project, site: str, end: str, seen: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if site == end:
        yield (*seen, site)
        return
    for origin, destination in project.links:
        if origin == site and destination not in (*seen, site):
            yield from simple_paths(project, destination, end, (*seen, site))


def cost(project: Project, path: tuple[str, ...]) -> tuple[int, int]:
    links = [project.links[pair] for pair in pairwise(path)]
    return sum(carry_us(k.bandwidth_bytes_per_s, k.latency_us) for k in links), len(links)


@given(meshes())
def test_a_route_is_the_best_of_all_simple_paths_and_the_same_in_plans(project: Project) -> None:
    routes = Routes.of(project)
    topology = Topology.of_project(project)
    for site in SITES[1:]:
        paths = list(simple_paths(project, site, "center"))
        assert routes.reaches(site) == bool(paths)
        if paths:
            taken = (site, *(to for _, to in routes.route(site)))
            best = min(cost(project, path) for path in paths)
            assert cost(project, taken) == best
            assert taken[1] == min(path[1] for path in paths if cost(project, path) == best)  # by name where equal
            planned = topology.required_route(site, "center")
            assert cost(project, (site, *(to for _, to in planned))) == best


@given(meshes(), st.randoms())
def test_routes_do_not_depend_on_the_order_in_which_links_are_declared(project: Project, chance: object) -> None:
    links = list(project.links.items())
    chance.shuffle(links)  # type: ignore[attr-defined]
    again = Project("p", Path(), "center", project.sites, dict(links))
    assert Routes.of(again).hops == Routes.of(project).hops


def test_of_routes_with_as_many_links_the_fastest_is_taken_as_in_plans() -> None:
    slow, fast = Link("x", "center", 1e6, 90_000), Link("y", "center", 1e6, 10_000)
    project = project_of(Link("a", "x", 1e6), Link("a", "y", 1e6), slow, fast)
    assert (
        Routes.of(project).route("a")
        == Topology.of_project(project).route("a", "center")
        == (("a", "y"), ("y", "center"))
    )


def test_relays_are_the_sites_that_others_go_through_nearest_the_center_first() -> None:
    project = project_of(Link("a", "far"), Link("far", "near"), Link("near", "center"), Link("b", "near"))
    routes = Routes.of(project)
    assert routes.relays == ("near", "far")
    assert [routes.sender("near", s) for s in ("a", "b", "near", "center")] == ["far", "b", "near", None]
    assert routes.may_speak_for("far", "a")
    assert not routes.may_speak_for("far", "b")


def test_a_site_without_a_way_reaches_nothing_and_a_link_from_the_center_is_no_way() -> None:
    routes = Routes.of(project_of(Link("a", "center"), Link("center", "b"), Link("b", "c")))
    assert [routes.reaches(s) for s in ("a", "b", "c", "center")] == [True, False, False, True]


def test_streams_of_a_relay_and_of_the_center_stay_at_first_where_they_are() -> None:
    project = project_of(Link("a", "hub", 5.0), Link("hub", "center", 9.0))
    assert first_link(project, "a").bandwidth_bytes_per_s == 5.0
    assert first_link(project, "hub").bandwidth_bytes_per_s is None
    assert [Routes.of(project).next_inbox(s) for s in ("a", "hub", "center")] == ["hub", "hub", "center"]
