"""`catchment plan`: the document, what it refuses, and that plans of the example keep their promises.

The strengths are compared by planned bytes on the example's own rates; what flows live is measured elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from catchment.cli.commands import plan as command
from catchment.errors import CatchmentError, ConfigError, PlanError, QueryError
from catchment.optimizer.choices import Strength
from catchment.optimizer.placement.planner import plan_wan, queries_of_catalog
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing.demand_estimate import MESSAGE_BYTES
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.link_traffic import bytes_over_links, link_traffic
from catchment.optimizer.sharing.statistics import load_statistics
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.query.catalog import load_catalog
from tests.worlds.shell import Shell

TOML = """
[project]
name = "small"
center = "hub"
[sites.hub]
[sites.mid]
[sites.edge]
compute = false
[[links]]
from = "edge"
to = "mid"
bandwidth = "8 Mbit/s"
latency = "10 ms"
[[links]]
from = "mid"
to = "hub"
bandwidth = "80 kbit/s"
latency = "40 ms"
"""
STREAM = """CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, bytes BIGINT)
  WITH (event_time = 'ts', sites = 'edge', path = 'data/{site}');"""
VIEWS = """
CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, sum(bytes) AS b FROM hits
  GROUP BY window(ts, '10 seconds'), page;
CREATE MATERIALIZED VIEW means AS SELECT window.start, sum(bytes) AS b FROM hits GROUP BY window(ts, '1 minute');
"""
RATES = """[streams.hits]
rows_per_s = 1000
row_bytes = 100
[streams.hits.distinct]
page = 50
"""


def write(folder: Path, *, toml: str = TOML, sql: str = STREAM + VIEWS, rates: str | None = RATES) -> Path:
    (folder / "queries").mkdir(exist_ok=True)
    (folder / "catchment.toml").write_text(toml)
    (folder / "queries" / "q.sql").write_text(sql)
    if rates is not None:
        (folder / "statistics.toml").write_text(rates)
    return folder


def run(folder: Path, *options: str) -> dict[str, Any]:
    app = typer.Typer()
    command.register(app)
    found = CliRunner().invoke(app, [str(folder), *options, "--json"])
    if found.exception is not None:
        raise found.exception
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def test_the_document_has_exactly_its_keys_and_its_bytes_add_up(tmp_path: Path) -> None:
    answer = run(write(tmp_path))
    assert list(answer) == ["wan_bytes_per_s", "links", "fragments", "shared", "rates"]
    assert all(list(link) == ["from", "to", "bytes_per_s", "utilisation"] for link in answer["links"])
    assert answer["wan_bytes_per_s"] == pytest.approx(sum(link["bytes_per_s"] for link in answer["links"]))
    assert {q for f in answer["fragments"] for q in f["queries"]} == {"pages", "means"}
    assert answer["shared"][0]["queries"] == ["pages", "means"]


def test_records_are_aggregated_on_the_way_and_partials_forwarded(tmp_path: Path) -> None:
    """1000 records of 100 bytes a second go to mid; from there 50 groups of 32 bytes every ten seconds."""
    answer = run(write(tmp_path), "--planner", "greedy")
    rates = {(link["from"], link["to"]): link["bytes_per_s"] for link in answer["links"]}
    assert rates["edge", "mid"] == 100_000
    assert rates["mid", "hub"] <= 50 * 32 / 10 + 50 * 24 / 10 + 10
    assert answer["fragments"][0]["computed_at"] == ["mid"]
    assert [c["site"] for c in answer["fragments"][0]["choices"] if c["chosen"]] == ["mid"]


def test_it_agrees_with_explain(shell: Shell, published: Path) -> None:
    """A project that has run, whose rates nobody declared: both predict from what was measured there."""
    planned = shell.json("plan", "-p", published)
    explained = shell.json("explain", "-p", published)
    assert planned["rates"] == explained["rates"]
    carried = {(link["from"], link["to"]): link["bytes_per_s"] for link in explained["links"]}
    assert {(link["from"], link["to"]): link["bytes_per_s"] for link in planned["links"]} == pytest.approx(carried)
    assert planned["wan_bytes_per_s"] == pytest.approx(sum(carried.values()))
    computed = {(f["fragment"], s["site"], *f["serves"]) for s in explained["sites"] for f in s["fragments"]}
    assert {(f["name"], f["origin"], *f["queries"]) for f in planned["fragments"]} == computed


TREE = """[project]
name = "tree"
center = "top"
[sites.top]
""" + "".join(
    f'[sites.{a}]\n[[links]]\nfrom = "{a}"\nto = "{b}"\nbandwidth = "1 Mbit/s"\n'
    for a, b in {"a": "low", "b": "low", "c": "high", "low": "high", "high": "top", "d": "top"}.items()
)


@pytest.mark.parametrize("strength", ["none", "full"])
def test_over_a_tree_partials_merge_where_ways_meet_as_in_a_run(tmp_path: Path, strength: str) -> None:
    """a and b meet at low, these and c at high, all and d at top; groups are counted by hand."""
    sql = STREAM.replace("sites = 'edge'", "sites = 'a,b,c,d'") + VIEWS
    folder = write(tmp_path, toml=TREE, sql=sql)
    (folder / "statistics.toml").write_text(RATES.replace("rows_per_s = 1000", "rows_per_s = 8"))
    answer = run(folder, "--sharing", strength, "--planner", "run")
    rates = {(link["from"], link["to"]): link["bytes_per_s"] for link in answer["links"]}
    project = Project.load(folder)
    catalog = load_catalog(project)
    known = load_statistics(project, catalog)
    deployed = deploy_first(
        queries_of_catalog(catalog), Strength(strength), bytes_over_links(Routes.of(project), known)
    )
    assert rates == pytest.approx(link_traffic(project, deployed.sharing, known)), "it is what a run deploys"
    if strength == "full":  # one fragment by page: in ten seconds 2 records a second and site meet so many of 50 pages
        groups = [50 * (1 - (1 - 1 / 50) ** (20 * sites)) for sites in (1, 2, 3)]
        around = MESSAGE_BYTES / 10  # one message per slice
        row = (rates["d", "top"] - around) / groups[0]
        found = [(rates[x] - around) / row for x in (("low", "high"), ("high", "top"))]
        assert found == pytest.approx(groups[1:])
    assert {tuple(f["merged_at"]) for f in answer["fragments"]} == {("low", "high", "top")}
    assert {f["origin"]: f["computed_at"] for f in answer["fragments"]} == {s: [s] for s in "abcd"}


def test_a_planner_that_may_choose_merges_at_a_hub_where_that_sends_less(tmp_path: Path) -> None:
    """Sites send dense partials: merging before the last link beats merging behind it, and both planners find that."""
    sql = STREAM.replace("sites = 'edge'", "sites = 'a,b,c,d'") + VIEWS
    folder = write(tmp_path, toml=TREE, sql=sql)
    (folder / "statistics.toml").write_text(RATES.replace("rows_per_s = 1000", "rows_per_s = 400"))
    found = {planner: run(folder, "--planner", planner) for planner in ("greedy", "exact", "run")}
    sent = {planner: answer["wan_bytes_per_s"] for planner, answer in found.items()}
    assert sent["exact"] == pytest.approx(sent["run"])
    assert sent["greedy"] == pytest.approx(sent["run"])
    assert {"low", "high"} <= set(found["greedy"]["fragments"][0]["merged_at"])


@pytest.mark.parametrize("planner", ["greedy", "exact"])
def test_more_sharing_never_sends_more_until_max(tmp_path: Path, planner: str) -> None:
    folder = write(tmp_path)
    sent = [run(folder, "--sharing", s, "--planner", planner)["wan_bytes_per_s"] for s in ("none", "strict", "full")]
    assert sent[0] >= sent[1] >= sent[2]
    assert sent[0] > 1.5 * sent[2]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"sql": STREAM + VIEWS.replace("FROM hits", "FROM hit")}, QueryError, "'hit', which is not declared"),
        ({"sql": STREAM + VIEWS.replace("page,", "pager,")}, QueryError, "no column 'pager'"),
        ({"sql": STREAM + VIEWS + VIEWS}, QueryError, "already taken"),
        ({"sql": STREAM + VIEWS.replace("pages AS", "pages WITH (sink = 'moon') AS")}, QueryError, "undeclared site"),
        ({"toml": TOML.replace('from = "edge"', 'from = "hub"')}, PlanError, "no route from site 'edge' to site 'hub'"),
        ({"rates": None}, PlanError, "no rates are declared for stream 'hits'"),
        ({"rates": RATES.replace("streams.hits", "streams.hots")}, ConfigError, "no stream 'hots'"),
        ({"rates": RATES.replace("page =", "pag =")}, ConfigError, "no option 'pag'"),
        ({"rates": RATES + "[streams.hits.share]\nedge = 0.5\n"}, ConfigError, "add up to 0.5"),
        ({"rates": RATES.replace("row_bytes = 100", "")}, ConfigError, "lacks the option 'row_bytes'"),
        (
            {"sql": "CREATE MATERIALIZED VIEW a AS SELECT count(*) AS n FROM a GROUP BY window(ts, '1 minute');"},
            QueryError,
            "reads itself",
        ),
    ],
)
def test_a_mistake_is_an_error_before_anything_is_planned(
    tmp_path: Path, change: dict[str, str], kind: type[CatchmentError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        run(write(tmp_path, **change), "--planner", "greedy")
    assert caught.value.hint


def test_a_contract_that_a_link_cannot_carry_is_refused(tmp_path: Path) -> None:
    views = VIEWS.replace("pages AS", "pages WITH (max_error = 0.1) AS")
    slow = TOML.replace("80 kbit/s", "100 bytes/s")
    with pytest.raises(PlanError, match="'pages' cannot meet its contract: the link mid -> hub"):
        run(write(tmp_path, sql=STREAM + views, toml=slow), "--planner", "greedy")


def test_sharing_of_the_example_saves_what_its_documentation_says() -> None:
    """92 % less than placement without sharing; equal fragments save nothing (docs/measurements/sharing.md)."""
    project = Project.load(Path(__file__).parents[2] / "examples" / "wan_workload")
    catalog = load_catalog(project, star=False)
    queries, topology = queries_of_catalog(catalog), Topology.of_project(project)
    assert len(queries) == 12
    assert len(topology.compute_sites) == 8
    known = load_statistics(project, catalog)
    sent = {s: plan_wan(queries, topology, known, s).wan_bytes_per_s for s in Strength}
    in_kb = {strength: round(rate / 1e3) for strength, rate in sent.items()}
    assert in_kb == {Strength.NONE: 23_186, Strength.STRICT: 23_186, Strength.FULL: 1_933, Strength.MAX: 1_933}
