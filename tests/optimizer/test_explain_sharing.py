"""EXPLAIN tells what a query shares, what crosses each link for it, and which choices there were."""

from __future__ import annotations

import pytest

from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.explain_sharing import explain_sharing, explain_text
from catchment.project.sections import Link, Site
from tests.worlds.query_support import make_project
from tests.worlds.sharing_support import DENSE, SPARSE, make_queries, select, site_rates

LINKS = {(s, "center"): Link(s, "center", 1000.0) for s in ("us", "eu")}
PAGES = select("page, sum(bytes) AS b", "page")
TOTAL = select("sum(bytes) AS b")
COUNTRIES = select("country, sum(bytes) AS b", "country")


def test_a_derived_query_names_its_fragment_its_peers_and_what_it_saves() -> None:
    deployed = deploy_first(make_queries(PAGES, TOTAL), Strength.FULL, DENSE.sent_bytes_per_s)
    told = explain_sharing("q1", deployed, DENSE, make_project(links=LINKS))
    assert told["shared_with"] == ["q0"]
    assert told["fragment"] in deployed.sharing.fragments
    chosen = [c for c in told["choices"] if c["chosen"]]
    assert [(c["kind"], c["with"], c["added_bytes_per_s"]) for c in chosen] == [("derive", ["q0"], 0.0)]
    assert told["why"].startswith("derived from what q0 needs too: saves ")


def test_the_links_carry_every_fragment_once() -> None:
    deployed = deploy_first(make_queries(PAGES, TOTAL, COUNTRIES), Strength.FULL, DENSE.sent_bytes_per_s)
    told = explain_sharing("q1", deployed, DENSE, make_project(links=LINKS))
    rates = site_rates(deployed.sharing, DENSE)
    assert {row["from"]: row["bytes_per_s"] for row in told["links"]} == pytest.approx(rates)
    assert [row["utilisation"] for row in told["links"]] == pytest.approx([r / 1000.0 for r in rates.values()])
    assert all(row["fragment_bytes_per_s"] < row["bytes_per_s"] for row in told["links"])


def test_a_query_on_its_own_says_what_widening_another_would_have_added() -> None:
    deployed = deploy_first(make_queries(PAGES, COUNTRIES), Strength.FULL, DENSE.sent_bytes_per_s)
    told = explain_sharing("q1", deployed, DENSE, make_project(links=LINKS))
    assert {c["kind"]: c["chosen"] for c in told["choices"]} == {"widen": False, "own": True}
    added = {c["kind"]: c["added_bytes_per_s"] for c in told["choices"]}
    assert added["widen"] > added["own"] > 0
    assert "its own fragment sends" in told["why"]
    shown = explain_text(told)
    assert "* own" in shown
    assert "us -> center" in shown


def test_over_a_hub_it_says_where_partials_merge_and_counts_every_link() -> None:
    hops = {"us": "hub", "eu": "hub", "hub": "center"}
    links = {(a, b): Link(a, b, 1000.0) for a, b in hops.items()}
    project = make_project(sites={n: Site(n) for n in (*hops, "center")}, links=links)
    deployed = deploy_first(make_queries(PAGES, COUNTRIES), Strength.FULL, DENSE.sent_bytes_per_s)
    told = explain_sharing("q1", deployed, DENSE, project)
    rates = {(row["from"], row["to"]): row["fragment_bytes_per_s"] for row in told["links"]}
    (merge,) = told["merges"]
    assert (merge["at"], merge["of"]) == ("hub", ["us", "eu"])
    assert merge["bytes_per_s_in"] == pytest.approx(rates["us", "hub"] + rates["eu", "hub"])
    assert merge["bytes_per_s_out"] == rates["hub", "center"] < merge["bytes_per_s_in"]
    added = {c["kind"]: c["added_bytes_per_s"] for c in told["choices"]}
    assert added["own"] == pytest.approx(sum(rates.values())), "its own fragment is on all links"
    assert "merged at hub of us, eu" in explain_text(told)


def test_nothing_is_shared_where_nothing_may_be() -> None:
    deployed = deploy_first(make_queries(PAGES, TOTAL), Strength.NONE, SPARSE.sent_bytes_per_s)
    told = explain_sharing("q1", deployed, SPARSE, make_project(links=LINKS))
    assert told["shared_with"] == []
    assert told["why"] == "nothing is shared at this strength"
