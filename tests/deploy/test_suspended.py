"""Which views are suspended and how they are resumed, by the files that roles write. Nothing here starts Spark.

Catches: a suspension that is not told or told of the wrong view, a request that reaches nobody. Cannot catch: what a
role does with the request; `tests/spark/test_isolation.py` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.suspended import describe_queries, resume
from catchment.deploy.reports.requests import requested_resumptions
from catchment.deploy.reports.role_files import write_status
from catchment.errors import ConfigError
from catchment.project.config import Project
from tests.worlds.projects import TWO_VIEWS, write_project

WHY = {
    "batch": 3,
    "from_us": 0,
    "reason": "[CAST_INVALID_INPUT] ...",
    "expression": "CAST(t AS INT)",
    "record": "part0.json: x",
    "missed_us": [0, 60_000_000],
}


def suspend(project: Project, view: str, **at_center: Any) -> str:
    """Let site a say that the fragment of a view is suspended; return the fragment."""
    deployed = Deployment.load(project.folder).deployed
    fragment = deployed.derivation(view).fragment
    folder = project.site_folder("a")
    folder.mkdir(parents=True, exist_ok=True)
    write_status(folder, {"fragments": {fragment: {"suspended": WHY}}})
    center = project.state_folder / "center"
    center.mkdir(exist_ok=True)
    write_status(center, {"queries": {view: at_center}})
    return fragment


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.load(write_project(tmp_path / "p", ("a", "b"), {}, queries=TWO_VIEWS, toml='sharing = "strict"'))


def test_a_suspended_view_is_told_with_its_record_and_the_others_run(project: Project) -> None:
    fragment = suspend(project, "numbers")
    found = {q["query"]: q for q in describe_queries(project)}
    assert {name: q["state"] for name, q in found.items()} == {"numbers": "suspended", "slowest": "running"}
    (told,) = found["numbers"]["suspended"]
    assert (told["site"], told["fragment"], told["record"]) == ("a", fragment, "part0.json: x")


def test_resuming_asks_the_site_and_names_what_was_missed(project: Project) -> None:
    fragment = suspend(project, "numbers")
    answer = resume(project, "numbers")
    assert answer["resumed"][0]["missed_us"] == [0, 60_000_000]
    assert requested_resumptions(project.site_folder("a")) == {fragment}
    assert not requested_resumptions(project.state_folder / "center")


def test_answers_that_could_not_be_finished_are_resumed_at_the_center(project: Project) -> None:
    suspend(project, "numbers", unfinished={"reason": "[DIVIDE_BY_ZERO] ...", "windows_us": [0, 60_000_000]})
    answer = resume(project, "numbers")
    assert [r["site"] for r in answer["resumed"]] == ["a", "center"]
    assert requested_resumptions(project.state_folder / "center") == {"numbers"}


def test_a_site_that_runs_elsewhere_is_told_of_by_the_center_and_resumed_there(project: Project) -> None:
    suspend(project, "slowest", suspended={"b": {**WHY, "fragment": "f"}})
    (here, there) = next(q for q in describe_queries(project) if q["query"] == "slowest")["suspended"]
    assert (here["site"], there["site"]) == ("a", "b")
    with pytest.raises(ConfigError, match="suspended at 'b', which does not run from this state folder"):
        resume(project, "slowest")


@pytest.mark.parametrize(
    ("name", "message"), [("numbers", "is not suspended"), ("number", "there is no view 'number'")]
)
def test_what_is_not_suspended_cannot_be_resumed(project: Project, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resume(project, name)


def test_views_that_treat_failing_records_differently_share_no_fragment(tmp_path: Path) -> None:
    same = (
        "SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page"
    )
    queries = f"{TWO_VIEWS}CREATE MATERIALIZED VIEW lenient WITH (on_error = 'quarantine', max_errors = 7) AS {same};"
    deployment = Deployment.load(write_project(tmp_path / "p", ("a",), {}, queries=queries))
    errors = {plan.fragment.name: plan.max_errors for plan in deployment.fragments_at("a")}
    deployed = deployment.deployed
    assert errors[deployed.derivation("lenient").fragment] == 7
    assert errors[deployed.derivation("numbers").fragment] is None
