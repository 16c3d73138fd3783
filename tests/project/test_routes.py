"""Ways to the center: fewest links, then least cost; what is on which way."""

from __future__ import annotations

from pathlib import Path

from catchment.optimizer.placement.topology import Topology
from catchment.project.config import Project
from catchment.project.routes import Routes, first_link
from catchment.project.sections import Link, Site


def project_of(*links: Link) -> Project:
    names = dict.fromkeys(["center", *(end for link in links for end in (link.origin, link.destination))])
    return Project("p", Path(), "center", {n: Site(n) for n in names}, {(k.origin, k.destination): k for k in links})


def test_a_link_of_ones_own_is_taken_before_any_way_over_others() -> None:
    project = project_of(Link("a", "hub"), Link("hub", "center"), Link("a", "center", 10.0, 10**6))
    assert Routes.of(project).route("a") == (("a", "center"),)
    assert Routes.of(project).relays == ()


def test_of_ways_with_as_many_links_the_cheapest_is_taken_as_in_plans() -> None:
    dear, cheap = Link("x", "center", 1e6, 90_000), Link("y", "center", 1e6, 10_000)
    project = project_of(Link("a", "x", 1e6), Link("a", "y", 1e6), dear, cheap)
    assert (
        Routes.of(project).route("a")
        == Topology.of_project(project).route("a", "center")
        == (("a", "y"), ("y", "center"))
    )


def test_relays_are_the_sites_that_others_go_over_nearest_the_center_first() -> None:
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
