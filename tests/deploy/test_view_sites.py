"""Views that name sites: what is deployed for them, and what follows when sites come, go and are healed."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.center.events import SiteJoined, SiteRetired
from catchment.center.sites_apart import find_alike
from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.heal import heal
from catchment.deploy.reports.role_files import refuse_redefined_views
from catchment.deploy.sites import add_site, retire_site
from catchment.errors import ConfigError, QueryError
from catchment.project.config import PROJECT_FILE
from catchment.query.explain import explain
from tests.worlds.operated_project import OperatedProject

SELECT = "SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), page"
STREAM = "CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE) WITH (event_time = 'ts', {connector});\n"
QUERIES = f"""{STREAM}
CREATE MATERIALIZED VIEW every AS {SELECT};
CREATE MATERIALIZED VIEW some WITH (sites = 'b,a') AS {SELECT};
CREATE MATERIALIZED VIEW slow WITH (sites = 'a') AS
  SELECT window.start, max(ms) AS ms FROM hits WHERE ms > 100 GROUP BY window(ts, '7 seconds');
"""


def operate(folder: Path, queries: str = QUERIES) -> OperatedProject:
    return OperatedProject(folder, ["a", "b", "c"], queries)


def test_a_view_waits_for_the_sites_that_it_names_and_shares_their_fragment(tmp_path: Path) -> None:
    world = operate(tmp_path)
    assert world.sites() == {"every": ("a", "b", "c"), "some": ("a", "b"), "slow": ("a",)}
    shared = {world.deployment.deployed.derivation(name).fragment for name in ("every", "some")}
    assert len(shared) == 1
    assert [len(world.deployment.fragments_at(site)) for site in "abc"] == [2, 1, 1]


def test_partials_are_merged_only_with_those_that_the_same_views_want(tmp_path: Path) -> None:
    world = operate(tmp_path)
    fragment = world.deployment.deployed.derivation("every").fragment
    queries, routings = list(world.core.queries.values()), world.deployment.routings
    assert [find_alike(queries, routings, fragment, site) for site in "abc"] == [("a", "b"), ("a", "b"), ("c",)]
    own = world.deployment.deployed.derivation("slow").fragment
    assert find_alike(queries, routings, own, "a") == ("a",)
    assert find_alike(queries, routings, "unknown", "a") == ()


def test_a_new_site_joins_only_views_that_name_none(tmp_path: Path) -> None:
    world = operate(tmp_path)
    add_site(tmp_path, "d")
    assert world.follow() == [SiteJoined(("every",), "d")]
    assert world.sites()["some"] == ("a", "b")


def test_a_named_site_is_retired_and_comes_back(tmp_path: Path) -> None:
    world = operate(tmp_path)
    retire_site(tmp_path, "b")
    assert world.follow() == [SiteRetired(("every", "some"), "b")]
    assert world.sites() == {"every": ("a", "c"), "some": ("a",), "slow": ("a",)}
    add_site(tmp_path, "b")
    assert world.follow() == [SiteJoined(("every", "some"), "b")]


def test_the_last_site_of_a_view_is_not_retired(tmp_path: Path) -> None:
    operate(tmp_path)
    with pytest.raises(QueryError, match="'slow' reads stream 'hits' at a only") as refused:
        retire_site(tmp_path, "a")
    assert "bring a back" in (refused.value.hint or "")


def test_other_sites_are_another_definition_and_another_order_is_not(tmp_path: Path) -> None:
    world = operate(tmp_path)
    path = tmp_path / "queries" / "q.sql"
    path.write_text(path.read_text().replace("'b,a'", "'a,b'"))
    refuse_redefined_views(tmp_path / "state" / "center", Deployment.load(tmp_path).plans)
    path.write_text(path.read_text().replace("'a,b'", "'a,c'"))
    with pytest.raises(ConfigError, match="the definition of some has changed"):
        refuse_redefined_views(tmp_path / "state" / "center", Deployment.load(tmp_path).plans)
    assert world.sites()["some"] == ("a", "b")


def test_healing_a_site_renews_no_view_that_is_not_about_it(tmp_path: Path) -> None:
    operate(tmp_path)
    assert heal(tmp_path, "c")["views"] == ["every", "some"], "they share a fragment"
    assert Deployment.load(tmp_path).deployed.renewals == {"every": 1, "some": 1}


def test_a_site_that_no_view_wants_reads_nothing(tmp_path: Path) -> None:
    world = operate(tmp_path, f"{STREAM}CREATE MATERIALIZED VIEW some WITH (sites = 'a,b') AS {SELECT};")
    assert world.deployment.sites == ("a", "b")
    assert not world.deployment.streams_at("c")


def test_links_by_which_sites_would_come_merged_are_refused_while_views_tell_them_apart(tmp_path: Path) -> None:
    operate(tmp_path)
    path = tmp_path / PROJECT_FILE
    path.write_text(path.read_text().replace('from = "c"\nto = "center"', 'from = "c"\nto = "b"'))
    with pytest.raises(ConfigError, match="their partials come merged with those of c"):
        Deployment.load(tmp_path)


def test_a_view_that_is_read_through_keeps_its_sites(tmp_path: Path) -> None:
    views = f"""{STREAM}
    CREATE MATERIALIZED VIEW plain WITH (sites = 'a,b') AS SELECT ts, page FROM hits;
    CREATE MATERIALIZED VIEW counted WITH (sites = 'b,c') AS
      SELECT window.start, count(*) AS n FROM plain GROUP BY window(ts, '1 minute');
    """
    assert operate(tmp_path, views).sites() == {"plain": ("a", "b"), "counted": ("b",)}


def test_explain_names_the_sites(tmp_path: Path) -> None:
    world = operate(tmp_path)
    (plan,) = (p for p in world.deployment.plans if p.view == "some")
    text = explain(plan, world.deployment.project)
    assert "at a, b, and only at a, b" in text
    assert "  a -> center" in text
    assert "  c -> center" not in text
