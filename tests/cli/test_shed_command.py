"""`catchment shed`: the document it reads and writes, and what it says of a plan that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from catchment.cli.commands.shed import register
from catchment.errors import PlanError
from catchment.shedding.plan_json import read_forest, write_plan
from catchment.shedding.planner import shed_load

EXAMPLE = Path(__file__).parents[2] / "examples" / "shed" / "plan.json"
Plan = dict[str, Any]


def small_plan() -> Plan:
    return {
        "capacity": 1.0,
        "delta": 0.01,
        "streams": [{"name": "S", "rate": 1000}],
        "operators": [
            {"name": "A", "input": "S", "selectivity": 1.0, "seconds_per_tuple": 0.001},
            {"name": "B", "input": "A", "selectivity": 0.5, "seconds_per_tuple": 0.001},
        ],
        "queries": [
            {"name": "q1", "input": "A", "aggregate": "COUNT", "window_tuples": 10000},
            {"name": "q2", "input": "B", "aggregate": "SUM", "window_tuples": 5000, "mean": 10, "std": 5},
        ],
    }


def run(*arguments: str) -> Any:
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)  # with one command alone, typer drops its name
    return CliRunner().invoke(app, ["shed", *arguments])


def written(path: Path, plan: object) -> str:
    path.write_text(json.dumps(plan))
    return str(path)


def test_the_json_has_exactly_the_documented_keys(tmp_path: Path) -> None:
    answer = json.loads(run(written(tmp_path / "p.json", small_plan()), "--json").stdout)
    assert set(answer) == {"max_error", "load_before", "load_after", "samplers", "effective_rates", "errors"}
    assert all(set(sampler) == {"before", "rate"} for sampler in answer["samplers"])
    assert set(answer["effective_rates"]) == set(answer["errors"]) == {"q1", "q2"}
    assert answer["load_before"] == pytest.approx(2.0)
    assert answer["load_after"] == pytest.approx(1.0)
    assert answer["max_error"] == pytest.approx(max(answer["errors"].values()))


def test_the_example_plan_runs_and_keeps_its_contract() -> None:
    answer = json.loads(run(str(EXAMPLE), "--json").stdout)
    contracts = {q["name"]: q["max_error"] for q in json.loads(EXAMPLE.read_text())["queries"] if "max_error" in q}
    assert contracts
    assert all(answer["errors"][name] <= allowed * (1 + 1e-12) for name, allowed in contracts.items())


def test_a_person_sees_the_tree_with_its_samplers_and_a_table(tmp_path: Path) -> None:
    shown = run(str(EXAMPLE)).stdout
    assert "sample" in shown
    assert "parse" in shown
    assert "proved" in shown
    assert "nothing is shed" in run(str(EXAMPLE), "--capacity", "1000").stdout


def test_capacity_may_be_given_on_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", small_plan())
    assert json.loads(run(path, "--capacity", "0.25", "--json").stdout)["load_after"] == pytest.approx(0.25)
    assert json.loads(run(path, "--capacity", "2", "--json").stdout)["samplers"] == []


def test_strata_add_a_rate_a_group_to_their_samplers(tmp_path: Path) -> None:
    plan = small_plan()
    plan["streams"][0]["strata"] = [{"name": "eu", "share": 0.9}, {"name": "us", "share": 0.1}]
    plan["queries"][0] |= {"groups": [{"name": "eu", "window_tuples": 9000}, {"name": "us", "window_tuples": 1000}]}
    answer = json.loads(run(written(tmp_path / "p.json", plan), "--json").stdout)
    assert any(set(s) == {"before", "rate", "rates"} and set(s["rates"]) == {"eu", "us"} for s in answer["samplers"])


def test_an_error_that_nothing_bounds_is_null(tmp_path: Path) -> None:
    plan = small_plan() | {"capacity": 0.0001}
    plan["queries"][1] = {
        "name": "q2",
        "input": "B",
        "aggregate": "avg",
        "window_tuples": 5,
        "mean": 1,
        "std": 9,
    }
    answer = json.loads(run(written(tmp_path / "p.json", plan), "--json").stdout)
    assert answer["errors"]["q2"] is None
    assert answer["max_error"] is None


def change(path: str, value: object) -> Callable[[Plan], None]:
    """Set the value at 'queries.0.input' and the like."""

    def apply(plan: Plan) -> None:
        *way, last = path.split(".")
        place: Any = plan
        for step in way:
            place = place[int(step) if step.isdigit() else step]
        place[last] = value

    return apply


def drop(path: str) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        *way, last = path.split(".")
        place: Any = plan
        for step in way:
            place = place[int(step) if step.isdigit() else step]
        del place[last]

    return apply


@pytest.mark.parametrize(
    ("fault", "where", "message"),
    [
        (change("operators.0.input", "B"), "operator", "feed on each other: A <- B <- A"),
        (change("operators.0.input", "A"), "operator 'A'", "feed on each other: A <- A"),
        (change("streams.0.rate", -5), "stream 'S'", "rate is a number of at least 0, not -5"),
        (change("streams.0.rate", "fast"), "stream 'S'", "'rate' is a number, not a text"),
        (change("queries.0.input", ""), "query 'q1'", "it reads nothing"),
        (drop("queries.0.input"), "query 'q1'", "it reads nothing"),
        (change("queries.0.input", None), "query 'q1'", "it reads nothing"),
        (change("queries.0.input", "Z"), "query 'q1'", "input 'Z' is not known"),
        (change("queries.0.input", "q2"), "query 'q1'", "input 'q2' is not known"),
        (change("operators.1.input", "Z"), "operator 'B'", "input 'Z' is not known"),
        (change("capacity", 0), "bad.json", "capacity is a number above 0"),
        (change("capacity", -1), "bad.json", "capacity is a number above 0"),
        (drop("capacity"), "bad.json", "'capacity' is missing"),
        (change("delta", 1.5), "bad.json", "delta is a chance between 0 and 1"),
        (change("operators.0.selectivity", -0.1), "operator 'A'", "selectivity is a number of at least 0"),
        (change("operators.0.seconds_per_tuple", -1), "operator 'A'", "seconds_per_tuple is a number"),
        (change("queries.1.std", -1), "query 'q2'", "std is at least 0"),
        (change("queries.1.window_tuples", -1), "query 'q2'", "finite number of records"),
        (drop("queries.1.mean"), "query 'q2'", "'mean' is missing"),
        (change("queries.1.aggregate", "mood"), "query 'q2'", "no bound is known for the aggregate 'mood'"),
        (drop("queries.1.aggregate"), "query 'q2'", "'aggregate' is missing"),
        (change("queries.1.max_eror", 0.1), "query 'q2'", "the key 'max_eror' is not known"),
        (change("queries.1.max_error", 0), "query 'q2'", "max_error is above 0"),
        (change("queries.1.weight", 0), "query 'q2'", "weight is a number above 0"),
        (change("queries.1.mass", 0), "query 'q2'", "mass"),
        (change("queries.1.value_range", [0]), "query 'q2'", "list of two numbers"),
        (change("queries.1.name", "q1"), "query 'q1'", "the name 'q1' is used twice"),
        (change("streams.0.name", ""), "bad.json", "has no name"),
        (change("queries", []), "bad.json", "there are no queries"),
        (change("queries", {}), "bad.json", "'queries' is a list"),
        (change("queries", ["q"]), "query number 1", "expected a JSON object"),
        (change("streams.0.strata", [{"name": "eu", "share": 0.5}]), "stream 'S'", "add up to 0.5"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_its_place(
    fault: Callable[[Plan], None], where: str, message: str
) -> None:
    plan = small_plan()
    fault(plan)
    if message == "mass":
        plan["queries"][1]["groups"] = [{"name": "g", "window_tuples": 5, "mean": 1, "std": 1}]
    with pytest.raises(PlanError) as raised:
        shed_load(read_forest(plan, "bad.json"))
    assert message in str(raised.value)
    assert where in str(raised.value)


def test_the_law_is_chosen_by_name_and_is_hoeffdings_unless_another_is(tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", small_plan())
    answers = {law: json.loads(run(path, *law, "--json").stdout) for law in ((), *_laws("hoeffding", "variance"))}
    assert answers[()] == answers["--law", "hoeffding"]
    by_variance = answers["--law", "variance"]
    assert by_variance["load_after"] == pytest.approx(1.0)
    assert by_variance["max_error"] < answers[()]["max_error"], "what is expected is less than what is promised"
    assert (
        json.loads(run(written(tmp_path / "v.json", small_plan() | {"law": "variance"}), "--json").stdout)
        == by_variance
    )
    assert "chance of about" in " ".join(run(path, "--law", "variance").stdout.split())
    with pytest.raises(PlanError, match="the law 'chance' is not known"):
        read_forest(small_plan() | {"law": "chance"}, "p.json")


def _laws(*names: str) -> list[tuple[str, str]]:
    return [("--law", name) for name in names]


def test_readers_that_pick_leave_load_to_others(tmp_path: Path) -> None:
    plan = small_plan()
    plan["operators"].append({"name": "C", "input": "A", "selectivity": 1.0, "seconds_per_tuple": 0.0, "picks": 0.02})
    plan["queries"].append({"name": "q3", "input": "C", "aggregate": "COUNT", "window_tuples": 200})
    errors = {}
    for picks in (1.0, 0.02):
        plan["operators"][-1]["picks"] = picks
        answer = json.loads(run(written(tmp_path / "p.json", plan), "--json").stdout)
        assert answer["load_after"] == pytest.approx(1.0)
        errors[picks] = answer["max_error"]
    assert errors[0.02] < errors[1.0] / 2
    plan["operators"][-1]["picks"] = 1.5
    with pytest.raises(PlanError, match="share between 0 and 1"):
        read_forest(plan, "p.json")


def test_a_group_that_is_no_stratum_is_refused() -> None:
    plan = small_plan()
    plan["streams"][0]["strata"] = [{"name": "eu", "share": 1.0}]
    plan["queries"][0]["groups"] = [{"name": "asia", "window_tuples": 5}]
    with pytest.raises(PlanError, match="its group 'asia' is no stratum"):
        read_forest(plan, "bad.json")


@pytest.mark.parametrize(("content", "message"), [("{", "not JSON"), (None, "cannot be read")])
def test_a_file_that_is_no_plan_is_an_error_with_its_path(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    result = run(str(path))
    assert isinstance(result.exception, PlanError)
    assert message in str(result.exception)
    assert str(path) in str(result.exception)


def test_the_help_shows_examples() -> None:
    shown = run("--help").stdout
    assert "catchment shed examples/shed/plan.json" in shown
    assert "--json" in shown


def test_a_written_plan_is_plain_json() -> None:
    document = write_plan(shed_load(read_forest(small_plan(), "plan")))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
