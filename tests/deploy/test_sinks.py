"""What is deployed at several sinks: who runs what, and what is refused before anything changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.repairing.heal import heal
from catchment.deploy.store import DeploymentStore
from catchment.deploy.submit import drop, submit_text
from catchment.deploy.twins import find_twins, with_twins
from catchment.errors import CatchmentError, QueryError
from catchment.project.config import Project
from catchment.site.events import Absorbed, LowMarkRaised
from catchment.storage.codec import decode, encode

TOML = """[project]
name = "sinks"
center = "center"
[sites.center]
[sites.a]
[sites.b]
[sites.tokyo]
[sites.light]
compute = false
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "center"
[[links]]
from = "light"
to = "center"
[[links]]
from = "center"
to = "tokyo"
[[links]]
from = "a"
to = "tokyo"
"""
STREAM = "CREATE STREAM hits (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', sites = 'a,b', path = 'data/{site}');"
SELECT = "SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), page"
HERE = f"CREATE MATERIALIZED VIEW here AS {SELECT};"
THERE = f"CREATE MATERIALIZED VIEW there WITH (sink = 'tokyo') AS {SELECT};"
BOTH = f"CREATE MATERIALIZED VIEW both WITH (sink = 'center,tokyo') AS {SELECT};"


def make_project(folder: Path, *statements: str, toml: str = TOML) -> Project:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(toml)
    (folder / "queries" / "q.sql").write_text("\n".join([STREAM, *statements]))
    return Project.load(folder)


def started(project: Project) -> Deployment:
    """What is deployed after the first run."""
    deployment = Deployment.load(project.folder)
    DeploymentStore(project.state_folder).keep(deployment.deployed)
    return deployment


def test_each_sink_has_its_views_routes_and_folder_and_a_site_runs_the_fragments_of_all(tmp_path: Path) -> None:
    deployment = Deployment.load(make_project(tmp_path, HERE, THERE, BOTH).folder)
    tokyo = deployment.sinks["tokyo"]
    assert [p.name for p in deployment.plans] == ["here", "both"]
    assert [p.name for p in tokyo.plans] == ["there", "both"]
    assert tokyo.routes.route("b") == (("b", "center"), ("center", "tokyo"))
    assert tokyo.project.state_folder == deployment.project.state_folder / "sinks" / "tokyo"
    assert tokyo.project.site_folder("a") == deployment.project.site_folder("a")
    plans = deployment.fragments_at("a")
    assert [plan.exit_name for plan in plans] == ["", "tokyo"]
    names = [plan.fragment.name for plan in plans]
    assert names[1] == f"{names[0]}_at_tokyo"
    assert decode(encode(deployment.deployed)) == deployment.deployed


def test_records_are_reduced_once_for_fragments_that_differ_in_their_sink_only(tmp_path: Path) -> None:
    other = (
        "CREATE MATERIALIZED VIEW other WITH (sink = 'tokyo') AS "
        "SELECT window.start, max(page) AS last FROM hits GROUP BY window(ts, '1 minute')"
    )
    plans = Deployment.load(make_project(tmp_path, BOTH, f"{other};").folder).fragments_at("a")
    first, second = (next(p.fragment.name for p in plans if p.exit_name == sink) for sink in ("", "tokyo"))
    assert find_twins(plans, ())[first] == (second,)
    assert find_twins(plans, (second,)) == find_twins(plans, (first,)) == {}
    asked: list[FragmentPlan] = [plan for plan in plans if plan.exit_name == ""]
    assert find_twins(asked, ()) == {}
    absorbed = Absorbed(first, plans[0].fragment.schema.empty_table())
    mark = LowMarkRaised("hits", 5)
    found = list(with_twins([absorbed, mark], {first: (second,)}))
    assert [getattr(event, "fragment", None) for event in found] == [first, second, None]


def test_a_change_at_a_sink_is_a_new_version_of_the_whole(tmp_path: Path) -> None:
    project = make_project(tmp_path, HERE)
    before = started(project).deployed
    assert submit_text(project, THERE)["version"] == before.version + 1
    again = Deployment.load(project.folder)
    assert again.deployed == DeploymentStore(project.state_folder).read()
    assert [p.name for p in again.sinks["tokyo"].plans] == ["there"]
    assert again.sinks["tokyo"].deployed.begun, "streams may have been read before it came"
    answer = drop(project, "there")
    assert answer["ended_fragments"] == list(again.sinks["tokyo"].deployed.sharing.fragments)
    assert Deployment.load(project.folder).sinks["tokyo"].plans == ()
    assert submit_text(project, THERE)["queries"][0]["query"] == "there@2"
    assert (project.answering_at("tokyo").state_folder / "names.json").is_file()


def test_a_declared_view_that_gets_another_sink_begins_there_with_what_comes(tmp_path: Path) -> None:
    project = make_project(tmp_path, HERE)
    started(project)
    (tmp_path / "queries" / "q.sql").write_text(f"{STREAM}\n{HERE}\n{BOTH}")
    deployment = Deployment.load(tmp_path)
    assert deployment.sinks["tokyo"].deployed.begun
    assert deployment.deployed.version > 1


def test_healing_a_site_computes_again_what_every_sink_has_of_it(tmp_path: Path) -> None:
    project = make_project(tmp_path, HERE, THERE)
    started(project)
    assert heal(project.folder, "a")["views"] == ["here", "there"]
    deployment = Deployment.load(project.folder)
    for part in deployment.parts:
        assert part.deployed.orders.lives == {"a": 1}
        assert set(part.deployed.renewals.values()) == {1}
    assert heal(project.folder, "tokyo")["healed"] == ["a", "b", "center"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (THERE.replace("tokyo", "moon"), "undeclared site 'moon'"),
        (THERE.replace("tokyo", "light"), "compute = false"),
        (THERE.replace("there", "here"), "already taken"),
        (THERE.replace("tokyo", "b"), "to which 'a' has no link"),
        (
            "CREATE MATERIALIZED VIEW top WITH (sink = 'tokyo') AS "
            "SELECT window.start, max(n) AS most FROM here GROUP BY window(start, '1 hour');",
            "'here', which it reads, is not",
        ),
        (THERE.replace("FROM hits", "FROM nothing"), "not declared"),
    ],
)
def test_what_cannot_be_answered_at_a_sink_is_refused_and_changes_nothing(
    tmp_path: Path, statement: str, message: str
) -> None:
    project = make_project(tmp_path, HERE)
    started(project)
    before = DeploymentStore(project.state_folder).read_document()
    with pytest.raises(QueryError, match=message):
        submit_text(project, statement)
    assert DeploymentStore(project.state_folder).read_document() == before


def test_an_unknown_sink_is_refused_by_readers(tmp_path: Path) -> None:
    project = make_project(tmp_path, HERE)
    with pytest.raises(CatchmentError, match="there is no site 'moon'"):
        project.answering_at("moon")
    with pytest.raises(CatchmentError, match="nothing is answered at 'b'"):
        Deployment.load(project.folder).part_at("b")
