"""Ways from one end to the next: the direct link, then those that share the least with it; compared with all paths."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.project.config import Project
from catchment.project.sections import Link, Site
from catchment.project.ways import MAX_FORWARDERS, MAX_WAYS, Ways, links_of

SITES = ("center", "a", "b", "c", "d", "e")


def mesh(links: list[Link], listening: frozenset[str] = frozenset(SITES)) -> Project:
    sites = {name: Site(name, listen=("127.0.0.1", 1) if name in listening else None) for name in SITES}
    return Project("p", Path(), "center", sites, {(k.origin, k.destination): k for k in links})


@st.composite
def meshes(draw: st.DrawFn) -> Project:
    pairs = [(a, b) for a in SITES for b in SITES if a != b]
    bandwidths = st.sampled_from((None, 1e3, 1e6, 1e8))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=18))
    links = [Link(a, b, draw(bandwidths), draw(st.sampled_from((0, 250_000)))) for a, b in chosen]
    return mesh(links, draw(st.frozensets(st.sampled_from(SITES))))


def allowed(project: Project, origin: str, end: str) -> list[tuple[str, ...]]:
    """All ways that may be taken, by trying every order of every choice of forwarders."""
    between = [s for s in SITES if s not in (origin, end, "center") and project.sites[s].listen is not None]
    tried = [(origin, *chosen, end) for n in range(MAX_FORWARDERS + 1) for chosen in permutations(between, n)]
    return [way for way in tried if all(link in project.links for link in links_of(way))]


@given(meshes())
def test_every_further_way_shares_the_fewest_links_and_then_is_the_fastest(project: Project) -> None:
    ways = Ways.of(project)
    for origin, end in ways.routes.hops.items():
        possible = allowed(project, origin, end)
        found = ways.from_end(origin)
        assert found[0] == (origin, end)
        used: Counter[tuple[str, str]] = Counter()
        for number, way in enumerate(found):
            if number:
                cost = {w: (sum(used[link] for link in links_of(w)), ways.time_us(w)) for w in possible}
                assert cost[way] == min(cost.values())
            used.update(links_of(way))
        assert len(set(found)) == len(found) <= MAX_WAYS
        without_direct = [way for way in possible if (origin, end) not in links_of(way)]
        assert (len(found) > 1) == bool(without_direct), "where the direct link can be gone around, it is"


@given(meshes())
def test_a_way_is_allowed_exactly_if_it_leads_to_the_next_end_over_links_and_sites_that_forward(
    project: Project,
) -> None:
    ways = Ways.of(project)
    for origin in SITES:
        for n in range(MAX_FORWARDERS + 2):
            for rest in permutations([s for s in SITES if s != origin], n):
                way = (origin, *rest)
                end = ways.next_end(origin)
                is_allowed = end is not None and way[-1] == end and way in allowed(project, origin, end)
                if is_allowed:
                    assert ways.check(way) == way
                else:
                    with pytest.raises(WireError):
                        ways.check(way)


def test_a_site_twice_too_many_forwarders_and_unknown_sites_are_no_way() -> None:
    chain = [Link(a, b) for a, b in zip(SITES[1:], (*SITES[2:], "center"), strict=True)]
    ways = Ways.of(mesh([*chain, Link("a", "center")]))
    assert ways.from_end("a") == (("a", "center"),), "the way around has more forwarders than may be"
    for way in (("a", "b", "c", "d", "e", "center"), ("a", "b", "a", "center"), ("a",), (), ("a", "x", "center")):
        with pytest.raises(WireError, match="is not a way"):
            ways.check(way)


def test_the_way_of_a_site_never_leads_past_the_relay_that_merges_for_it() -> None:
    links = [Link("a", "b", 1e8), Link("b", "center", 1e8), Link("a", "c"), Link("c", "b"), Link("c", "center", 1e3)]
    ways = Ways.of(mesh(links))
    assert ways.next_end("a") == "b"
    assert ways.from_end("a") == (("a", "b"), ("a", "c", "b"))
    with pytest.raises(WireError, match="not for 'center'"):
        ways.check(("a", "c", "center"))


def test_a_site_that_does_not_listen_forwards_nothing() -> None:
    links = [Link("a", "center"), Link("a", "b"), Link("b", "center")]
    assert Ways.of(mesh(links)).from_end("a") == (("a", "center"), ("a", "b", "center"))
    quiet = mesh(links, frozenset(SITES) - {"b"})
    assert Ways.of(quiet).from_end("a") == (("a", "center"),)
    assert Ways.of(quiet).forwarders == frozenset()
    assert Ways.of(replace(quiet, links={})).from_end("a") == ()
