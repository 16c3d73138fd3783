"""Views that are answered at several sites, on Spark and real sockets: in one process, and in several that are killed.

Catches: an answer at one sink that lacks or doubles what another has, a sink that waits for another one, records that
are evaluated once per sink.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from catchment.center.results.read import published_views, read_results
from catchment.cli.main import app
from catchment.deploy.submit import submit_text
from catchment.project.config import Project
from tests.worlds.answers import check_answers, check_final, check_numbers, check_published_once
from tests.worlds.processes import Role, kill_in_turn, running, wait_until_done
from tests.worlds.projects import QUERIES, as_lines, make_records, write_project
from tests.worlds.runs import run_project
from tests.worlds.waiting import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATE = (
    "CREATE MATERIALIZED VIEW by_page WITH (sink = 'far') AS "
    "SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), page;"
)


def make_project(folder: Path, connector: str, *, late: str = "") -> list[dict[str, Any]]:
    """Sites a and b, which send to the center by themselves, and to far: a by itself, b over the center."""
    records = {site: make_records(300, seed) for seed, site in enumerate(("a", "b"))}
    queries = QUERIES.replace("VIEW numbers ", "VIEW numbers WITH (sink = 'center,far') ")
    assert queries != QUERIES
    write_project(
        folder,
        ("a", "b"),
        {site: as_lines(mine) for site, mine in records.items()},
        connector=connector,
        queries=queries + late,
    )
    text = (folder / "catchment.toml").read_text()
    text = text.replace("[sites.center]\n", f'[sites.center]\nlisten = "127.0.0.1:{free_port()}"\n')
    text += f'[sites.far]\nlisten = "127.0.0.1:{free_port()}"\n'
    text += '[[links]]\nfrom = "a"\nto = "far"\n[[links]]\nfrom = "center"\nto = "far"\n'
    (folder / "catchment.toml").write_text(text)
    return [record for mine in records.values() for record in mine]


@pytest.mark.spark
def test_each_sink_answers_by_itself_what_is_evaluated_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    records = make_project(folder, "connector = 'files', path = 'data/{site}'", late=LATE)
    status = run_project(spark, folder, faults=True)
    far = Project.load(folder).answering_at("far").state_folder
    check_answers(folder / "state", records)
    check_numbers(far, records)
    assert published_views(far) == ["by_page", "numbers"]
    assert "by_page" not in published_views(folder / "state")
    counted = {(r["start"], r["page"]): r["n"] for r in read_results(far, "numbers").to_pylist()}
    assert {(r["start"], r["page"]): r["n"] for r in read_results(far, "by_page").to_pylist()} == counted
    assert set(status["sinks"]["far"]["relays"]) == {"center"}, "b has no link of its own to far"
    assert status["sites"]["a"]["sinks"]["far"]["to"] == "far"
    assert status["sites"]["b"]["sinks"]["far"]["to"] == "center"

    def ask(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, "-p", str(folder), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    assert ask("show", "results", "by_page")["rows"], "the only sink that has it is found"
    at_far = ask("sql", "SELECT count(*) AS n FROM numbers", "--sink", "far")["rows"]
    assert at_far == ask("sql", "SELECT count(*) AS n FROM numbers")["rows"]
    assert ask("show", "status")["sinks"]["far"]["center"]["queries"]
    assert ask("explain", "--sink", "far")["at"] == "far"
    assert [link["to"] for link in ask("explain", "by_page")["links"]] == ["far", "center", "far"]


@pytest.mark.e2e
@pytest.mark.spark
def test_kills_of_a_sink_and_of_a_site_change_no_answer_at_any_sink(tmp_path: Path) -> None:
    """The sink is killed before its second site begins, so that it cannot have ended; a view comes to it; then it and a
    site are killed once more, if their logs last."""
    folder, state = tmp_path / "p", tmp_path / "p" / "state"
    replay = "connector = 'replay', path = 'data/{site}.jsonl', format = 'json', speed = 60"
    records = make_project(folder, replay)
    far = Role(folder, "site", "far", state=state / "sinks" / "far" / "center")
    first, second = [Role(folder, "center"), Role(folder, "site", "a")], Role(folder, "site", "b")
    chance = random.Random(5)
    with running([far, *first]):
        assert kill_in_turn([far], 1, chance) == 1, "the sink ended before it was killed"
        submit_text(Project.load(folder), LATE)
        with running([second]):
            kill_in_turn([far, second], 2, chance)
            wait_until_done([far, *first, second])
    check_answers(state, records)
    check_final(state)
    check_numbers(state / "sinks" / "far", records)
    check_published_once(state / "sinks" / "far")
