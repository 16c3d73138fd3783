"""Order, contract and repair on short traces; docs/measurements/order.md has the claims for full ones, by command."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from catchment.cli.commands import simulate_order
from catchment.errors import CatchmentError, SimulationError
from catchment.quality.contract import Contract, Measure
from catchment.sim.order.generated_traces import LIKE, generate
from catchment.sim.order.imputation import parse_simulated_slack
from catchment.sim.order.plot import course
from catchment.sim.order.recorded_traces import read_recorded_trace
from catchment.sim.order.simulate import Question, Simulation, simulate
from catchment.sim.order.trace import ArrivalTrace, write_trace
from catchment.timeline import SECOND_US, WindowSpec

WINDOW = WindowSpec(SECOND_US // 2, SECOND_US // 10)
TUPLES = 40_000
RAW = ("mp-k-slack", "pd", "adaptive", "fixed:0.3")


@cache
def game(like: str, seed: int, name: str, controllers: tuple[str, ...] = RAW) -> Simulation:
    trace = generate(LIKE[like].shorten(TUPLES), seed)
    question = Question(WINDOW, Measure.parse(name), Contract(0.05), step_us=20_000)
    return simulate(trace, question, [parse_simulated_slack(c) for c in controllers])


def figures(simulation: Simulation) -> dict[str, dict[str, float]]:
    return {c["name"]: c for c in simulation.figures()["controllers"]}


@pytest.mark.parametrize(("like", "seed"), [("game1", 0), ("game2", 1)])
def test_ours_holds_the_contract_and_waits_far_less_than_the_others(like: str, seed: int) -> None:
    by_name = figures(game(like, seed, "sum"))
    ours = by_name["adaptive"]
    assert ours["violations"] <= 0.05
    assert ours["mean_latency_s"] <= 0.3 * by_name["mp-k-slack"]["mean_latency_s"]
    assert ours["mean_latency_s"] <= by_name["pd"]["mean_latency_s"]


def test_nobody_who_publishes_what_is_in_and_keeps_the_contract_is_faster_than_the_clairvoyant() -> None:
    for like, seed in (("game1", 0), ("game2", 1)):
        done = game(like, seed, "sum", (*RAW, "fixed:60"))  # the last one waits for everything
        keeping = [run for run in done.runs if run.violated.mean() <= 0.05]
        flawless = [run for run in done.runs if not run.violated.any()]
        assert keeping
        assert flawless
        assert min(float(run.latency_s.mean()) for run in keeping) >= done.oracle.latency_s - 1e-9
        assert min(float(run.latency_s.mean()) for run in flawless) >= done.oracle.strict_latency_s - 1e-9


@pytest.mark.parametrize("name", ["count", "avg", "median"])
def test_the_contract_is_held_for_other_aggregates_too(name: str) -> None:
    ours = figures(game("game2", 1, name, ("adaptive", "adaptive:imputed")))
    for run in ours.values():
        assert run["violations"] <= 0.05
        assert run["final_exact"]


def test_every_controller_ends_with_the_batch_answer_and_the_sooner_it_closed_the_more_it_repairs() -> None:
    by_name = figures(game("game1", 0, "sum"))
    assert all(run["final_exact"] for run in by_name.values())
    assert by_name["adaptive"]["repaired_windows"] > by_name["mp-k-slack"]["repaired_windows"]


def test_the_published_bound_is_missed_no_more_often_than_stated() -> None:
    assert figures(game("game1", 0, "sum"))["adaptive"]["bound_misses"] <= 0.05


def test_accuracy_rises_to_one_with_repair_and_stays_below_without() -> None:
    done = game("game2", 1, "sum")
    ours = next(run for run in done.runs if run.name == "adaptive")
    line = course(done, ours, samples=12)
    assert line.repaired[-1] == pytest.approx(1.0, abs=1e-12)
    assert line.unrepaired[-1] < 1.0
    assert (line.repaired >= line.unrepaired - 1e-12).all()


def test_sources_that_are_not_in_order_in_themselves_are_waited_for_as_recent_windows_needed() -> None:
    """Like departures reported at landing: long, heavy-tailed delays of every single record."""
    rng = np.random.default_rng(3)
    event = np.sort(rng.integers(0, 250 * SECOND_US, 15_000))
    arrival = event + (rng.gamma(2.0, 1.0, len(event)) * SECOND_US).astype(np.int64)
    order = np.argsort(arrival, kind="stable")
    source = rng.integers(0, 6, len(event)).astype(np.int32)[order]
    names = tuple("abcdef")
    trace = ArrivalTrace(event[order], arrival[order], rng.gamma(3, 1, len(event)), source, names, name="shuffled")
    question = Question(WindowSpec(4 * SECOND_US, SECOND_US), Measure("sum"), Contract(0.05), step_us=SECOND_US // 5)
    done = simulate(trace, question, [parse_simulated_slack(n) for n in ("mp-k-slack", "adaptive")])
    by_name = figures(done)
    assert by_name["adaptive"]["violations"] <= 0.05
    assert by_name["adaptive"]["mean_latency_s"] <= 0.6 * by_name["mp-k-slack"]["mean_latency_s"]
    assert by_name["adaptive"]["final_exact"]


def test_with_keys_the_answers_of_every_key_are_judged_too() -> None:
    plain = generate(LIKE["game1"].shorten(3_000), 2)
    keyed = ArrivalTrace(
        plain.event_us, plain.arrival_us, plain.value, plain.source, plain.sources, plain.source, plain.sources
    )
    question = Question(WINDOW, Measure("sum"), Contract(0.05), step_us=20_000)
    done = simulate(keyed, question, [parse_simulated_slack("fixed:0")])
    off = []
    for end, closed in zip(done.windows.ends_us.tolist(), done.runs[0].replay.closed_at_us.tolist(), strict=True):
        inside = (keyed.event_us < end) & (keyed.event_us >= end - WINDOW.size_us)
        for key in np.unique(keyed.source[inside]):
            mine = inside & (keyed.source == key)
            held = mine & (-(-keyed.arrival_us // 20_000) * 20_000 <= closed)
            off.append(keyed.value[mine & ~held].sum() >= 0.05 * keyed.value[mine].sum())
    assert 0.0 < np.mean(off) < 1.0
    assert done.figures()["controllers"][0]["keyed_violations"] == pytest.approx(np.mean(off))


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    simulate_order.register(app)
    return app


def test_the_commands_make_a_trace_and_simulate_it(command: typer.Typer, tmp_path: Path) -> None:
    trace, plot = tmp_path / "t.parquet", tmp_path / "accuracy.png"
    made = CliRunner().invoke(command, ["trace", str(trace), "--like", "game1", "--tuples", "4000", "--json"])
    assert made.exit_code == 0
    assert json.loads(made.stdout)["late_share"] == pytest.approx(0.5758, abs=0.005)
    options = ["--window", "0.5", "--slide", "0.1", "--controllers", "adaptive,fixed:0.2", "--step", "0.02"]
    shown = CliRunner().invoke(command, ["order", str(trace), *options, "--plot", str(plot), "--json"])
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    assert [c["name"] for c in answer["controllers"]] == ["adaptive", "fixed:0.2"]
    wanted = {
        "name",
        "mean_slack_s",
        "mean_latency_s",
        "p95_latency_s",
        "violations",
        "late_records",
        "repaired_windows",
        "final_exact",
    }
    assert wanted <= set(answer["controllers"][0])
    assert answer["oracle_latency_s"] >= 0
    assert plot.stat().st_size > 1000
    table = CliRunner().invoke(command, ["order", str(trace), *options])
    assert "adaptive" in table.stdout
    assert "exact" in table.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "0"], "--window is a positive number"),
        (["--window", "1000000"], "no window of"),
        (["--window", "1", "--slide", "2"], "longer than the window"),
        (["--window", "1", "--aggregate", "mode"], "no measure"),
        (["--window", "1", "--controllers", "hope"], "no slack controller"),
        (["--window", "1", "--controllers", ","], "no controller was named"),
        (["--window", "1", "--max-error", "2"], "max_error"),
        (["--window", "1", "--step", "1e-6"], "micro-batches"),
        (["--window", "1", "--plot", "t.nonsense"], "cannot write the plot"),
    ],
)
def test_wrong_options_are_errors_that_say_what_is_possible(
    command: typer.Typer, tmp_path: Path, options: list[str], message: str
) -> None:
    trace = tmp_path / "t.csv"
    write_trace(generate(LIKE["game1"].shorten(1500), 0), trace)
    done = CliRunner().invoke(command, ["order", str(trace), "--controllers", "fixed:1", *options])
    assert isinstance(done.exception, CatchmentError)
    assert message in str(done.exception)


def test_an_unknown_trace_or_missing_data_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="no measured stream"):
        read_recorded_trace("tides", tmp_path)
    with pytest.raises(SimulationError, match="CATCHMENT_DATA"):
        read_recorded_trace("flights", tmp_path)
    with pytest.raises(SimulationError, match="positive speed"):
        read_recorded_trace("github", tmp_path, speed=0)
