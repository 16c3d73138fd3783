"""`catchment feeds place`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from catchment.cli.main import app
from catchment.errors import FeedError

KEYS = ["cost", "all_upload_cost", "improvement", "conflicts", "residual_components", "optimal", "seconds"]
RATES = "src,dst,rate\nalice,bob,1\nbob,alice,360\nbob,carol,5\ncarol,bob,5\n"


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.csv"
    path.write_text(RATES)
    return path


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["feeds", "place", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_answer_has_the_promised_keys_and_the_file_the_decisions(rates: Path) -> None:
    out = rates.with_name("decisions.csv")
    answer = json.loads(_run(rates, "--upload-cost", 1, "--download-cost", 1, "--out", out, "--json"))
    assert list(answer) == KEYS
    assert (answer["cost"], answer["all_upload_cost"], answer["optimal"]) == (12.0, 366.0, True)
    lines = out.read_text().splitlines()
    assert lines == ["src,dst,decision", "alice,bob,U", "bob,alice,D", "bob,carol,U", "carol,bob,U"]


def test_a_budget_moves_views_to_the_cloud(rates: Path) -> None:
    budget = rates.with_name("budget.csv")
    budget.write_text("device,budget\nbob,0\n")
    answer = json.loads(_run(rates, "--budget", budget, "--json"))
    assert answer["cost"] == answer["all_upload_cost"] == 366.0


def test_uploads_that_do_not_nest_are_paid_one_by_one(rates: Path) -> None:
    answer = json.loads(_run(rates, "--unshared", "--json"))
    assert (answer["cost"], answer["all_upload_cost"]) == (12.0, 371.0)


def test_an_endless_improvement_is_said_as_null(tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("src,dst,rate\n1,2,0\n2,1,9\n")
    answer = json.loads(_run(rates, "--json"))
    assert (answer["cost"], answer["improvement"]) == (0.0, None)


def test_a_person_gets_a_table(rates: Path) -> None:
    assert "improvement" in _run(rates)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--upload-cost", "-1"], "expected a finite number"),
        (["--out", "/nowhere/at/all.csv"], "there is no folder"),
        (["--engine", "spark", "--unshared"], "does not run on Spark"),
        (["--budget", "/nowhere.csv"], "there is no such file"),
    ],
)
def test_bad_options_are_refused(rates: Path, arguments: list[str], says: str) -> None:
    with pytest.raises(FeedError, match=says):
        CliRunner().invoke(app, ["feeds", "place", str(rates), *arguments], catch_exceptions=False)


def test_the_earlier_name_works_the_same_and_is_not_listed(rates: Path) -> None:
    answers = []
    for words in (["feeds", "place"], ["place"]):
        done = CliRunner().invoke(app, [*words, str(rates), "--json"], catch_exceptions=False)
        assert done.exit_code == 0
        answers.append({**json.loads(done.stdout), "seconds": 0})
    assert answers[0] == answers[1]
    listed = CliRunner().invoke(app, ["--help"]).stdout
    assert "feeds" in listed
    assert " place " not in listed
    assert " place " in CliRunner().invoke(app, ["feeds", "--help"]).stdout
