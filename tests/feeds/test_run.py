"""Whole runs of a fleet in virtual time, and the commands about them.

Catches: traffic that is not what the placement says, notices lost when rates change, answers without their keys.
Cannot catch: what only sockets and processes do; `test_feeds_live.py` has those.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from catchment.cli.main import app
from catchment.errors import CatchmentError, FeedError
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.view_graph import generate_views
from catchment.feeds.runs.measured_run import FeedRun, RunOptions
from catchment.feeds.runs.traffic import WAYS
from catchment.feeds.runs.workload import WorldChoice
from catchment.sim.nearby_world import open_world

EXAMPLE = Path(__file__).parents[2] / "examples" / "nearby_friends"


def measured_run(
    strategy: str, seconds: int, change_at_s: int | None = None, users: int = 60, patience: float = 2.0
) -> dict[str, Any]:
    world = open_world(EXAMPLE, WorldChoice(users=users))
    graph = generate_views(world.program, world.read_reference())
    router = Router(compile_feeds(world.program))
    cloud = Cloud(graph, router, world.feed_rates, ReoptimizeRule(world.costs, patience))
    run = FeedRun(graph, world, cloud, RunOptions(seconds, strategy, change_at_s))
    run.deploy()
    run.play()
    return run.report()


def test_a_run_sends_what_was_predicted_and_less_than_all_at_the_cloud() -> None:
    ours, cloud = measured_run("ours", 300), measured_run("cloud", 300)
    for run in (ours, cloud):
        (phase,) = run["phases"]
        assert all(phase["off"][way] < 0.05 for way in WAYS), phase
        assert (run["lost"], run["invented"], run["doubled"]) == (0, 0, 0)
        assert run["expected"] == ours["notices"] > 0
    totals = [sum(r["phases"][0]["measured"][w] for w in ("messages_up", "messages_down")) for r in (ours, cloud)]
    assert totals[0] < totals[1]
    assert ours["views_on_devices"] > 0 == cloud["views_on_devices"]


def test_when_rates_change_views_are_placed_anew_and_no_notification_is_lost() -> None:
    run = measured_run("ours", 220, change_at_s=40, users=30, patience=0.2)  # so that the rule acts within the run
    assert run["redeployments"] >= 1
    assert run["views_moved"] > 0 == run["moves_unfinished"]
    assert (run["lost"], run["invented"], run["doubled"]) == (0, 0, 0)
    assert run["expected"] > 0
    after = run["phases"][-1]
    assert after["phase"] == "after"
    assert after["redeployed"] == 0, "the phase had two placements, and one prediction cannot be right"
    assert all(after["off"][way] < 0.05 for way in WAYS), after


def call(*words: object) -> Any:
    done = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_run_command_answers_with_both_strategies_and_their_traffic() -> None:
    answer = json.loads(call("feeds", "run", EXAMPLE, "--users", 20, "--seconds", 12, "--json"))
    assert [r["strategy"] for r in answer["runs"]] == ["ours", "cloud"]
    for run in answer["runs"]:
        assert set(run["phases"][0]["measured"]) == set(WAYS)
        assert run["lost"] == 0
    shown = call("feeds", "run", EXAMPLE, "--users", 20, "--seconds", 12)
    assert "all at the cloud sends" in shown
    assert "naive recomputation" in shown


def test_the_explain_command_says_who_would_compute_what() -> None:
    answer = json.loads(call("feeds", "explain", EXAMPLE, "--users", 40, "--json"))
    ours, cloud = answer["strategies"]["ours"], answer["strategies"]["cloud"]
    assert ours["cost"] < cloud["cost"]
    assert ours["views_at_cloud"] + ours["views_on_devices"] == answer["views"] == cloud["views_at_cloud"]
    dear = json.loads(call("feeds", "explain", EXAMPLE, "--users", 40, "--download-cost", 50, "--json"))
    assert dear["strategies"]["ours"]["views_on_devices"] < ours["views_on_devices"]
    assert "at cloud" in call("feeds", "explain", EXAMPLE, "--users", 40)
    (view,) = answer["feed_views"]
    assert view["views"] == answer["views"]
    assert view["notifies"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nowhere"], "there is no feeds.sql"),
        (["run", EXAMPLE, "--users", "1"], "needs 2 users"),
        (["run", EXAMPLE, "--seconds", "20", "--change-at", "30"], "cannot change at second 30"),
        (["run", EXAMPLE, "--mqtt", "host:port"], "cannot read 'host:port' as a broker"),
        (["devices", EXAMPLE, "--mqtt", "127.0.0.1", "--part", "3/2"], "cannot read '3/2' as a part"),
        (["devices", EXAMPLE, "--mqtt", "127.0.0.1", "--users", "2", "--part", "3/3"], "is empty"),
        (["cloud", EXAMPLE, "--mqtt", "127.0.0.1", "--strategy", "both"], "one cloud follows one strategy"),
    ],
)
def test_a_wrong_command_is_refused_with_a_reason(words: list[object], says: str) -> None:
    with pytest.raises(CatchmentError, match=says):
        CliRunner().invoke(app, ["feeds", *map(str, words)], catch_exceptions=False)


@pytest.mark.parametrize(
    "options", [{"strategy": "moon"}, {"seconds": 3}, {"seconds": 30, "change_at_s": 2}, {"change_at_s": 60}]
)
def test_a_run_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(FeedError):
        RunOptions(**options)
