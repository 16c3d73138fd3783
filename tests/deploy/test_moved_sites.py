"""The center moves sites to other routes by what they say of themselves, and people do by command.

The clock and what sites say are given; what is deployed afterwards is looked at, and what `explain` says of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from catchment.center.core import CenterCore
from catchment.cli.main import app
from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import CHECK_EVERY_US, FIRST_CHECK_US, Rebalancer
from catchment.deploy.reports.role_files import REPORTED_AT, STATUS_FILE
from catchment.deploy.routes.measured_routes import LEAST_BYTES, SILENT_US
from catchment.deploy.routes.route_mover import HOLD_US
from catchment.deploy.sites import move_site
from catchment.deploy.store import DeploymentStore
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import ConfigError
from catchment.serve.explanation import explain_deployment
from catchment.serve.explanation_text import explanation_text

SQL = """CREATE STREAM hits (ts TIMESTAMP) WITH (event_time = 'ts', sites = 'a,b', path = 'data/{site}');
CREATE MATERIALIZED VIEW n AS SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '1 minute');"""
LINKS = [("a", "near", 10), ("b", "near", 10), ("a", "far", 2), ("b", "far", 2), ("near", "center", 10)]
LINKS += [("far", "center", 10), ("a", "b", 10), ("near", "far", 1)]
MAX_CHECKS = 30


def write_project(folder: Path, defaults: str = "") -> Path:
    sites = "".join(f"[sites.{site}]\n" for site in ("center", "near", "far", "a", "b"))
    links = "".join(f'[[links]]\nfrom = "{a}"\nto = "{b}"\nbandwidth = "{mb} MB/s"\n' for a, b, mb in LINKS)
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(f'[project]\nname = "p"\ncenter = "center"\n{sites}{links}{defaults}')
    (folder / "queries" / "q.sql").write_text(SQL)
    return folder


def tell(folder: Path, site: str, now_us: int, **more: Any) -> None:
    """Let a site say something of itself."""
    told = {
        "newest_event_us": now_us,
        "goodput_bytes_per_s": 1e7,
        "round_trip_s": 0.001,
        "bytes_sent": LEAST_BYTES,
        "connected": True,
        "queued_bytes": 0,
        REPORTED_AT: now_us,
        **more,
    }
    path = folder / "state" / "sites" / site / STATUS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told))


def run_center(folder: Path, *, silent: str = "", **told: Any) -> tuple[Deployment, int | None]:
    """Let the center check again and again while `a` tells something; return what is deployed, and after how long."""
    deployment = Deployment.load(folder)
    watcher = DeploymentWatcher(deployment)
    watcher.begin()
    rebalancer = Rebalancer(watcher)
    version = watcher.version
    for check in range(MAX_CHECKS):
        now_us = 10**15 + check * CHECK_EVERY_US
        tell(folder, "a", now_us, **told)
        tell(folder, "b", now_us - (2 * SILENT_US if silent == "b" else 0))
        rebalancer.step(CenterCore(), now_us)
        if watcher.store.version > version:
            return Deployment.load(folder), check * CHECK_EVERY_US
    return deployment, None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"goodput_bytes_per_s": 1e5}, "the link a -> near is slow"),
        ({"connected": False, "queued_bytes": 1}, "the link a -> near is down"),
    ],
    ids=["slow", "down"],
)
def test_a_link_as_measured_moves_its_site_and_explain_says_when_and_why(
    tmp_path: Path, told: dict[str, Any], reason: str
) -> None:
    deployment, after_us = run_center(write_project(tmp_path), **told)
    assert after_us == FIRST_CHECK_US + HOLD_US
    assert dict(deployment.deployed.hops) == {"a": "far"}
    assert deployment.routes.hops["b"] == "near", "its link is as declared"
    (fragment,) = deployment.deployed.lasting.fragments
    old = deployment.deployed.handovers[fragment]
    assert [plan.exit_name for plan in deployment.fragments_at("a") if plan.fragment.name == fragment] == [">far"]
    assert {plan.exit_name for plan in deployment.fragments_at("a") if plan.fragment.name in old} == {""}
    answer = explain_deployment(deployment)
    (move,) = answer["moves"]
    assert (move["site"], move["from"], move["to"]) == ("a", ["a", "near", "center"], ["a", "far", "center"])
    assert move["reason"] == reason
    assert move["predicted_s"] < move["predicted_before_s"] / 2
    assert f"to a -> far -> center: {reason}" in explanation_text(answer).replace("\n    ", " ")


@pytest.mark.parametrize(
    ("defaults", "silent", "told"),
    [
        ("", "", {"goodput_bytes_per_s": 3e6}),
        ("", "b", {"goodput_bytes_per_s": 1e5}),
        ("", "", {"goodput_bytes_per_s": 1e5, "bytes_sent": LEAST_BYTES - 1}),
        ("[defaults]\nreroute = false\n", "", {"goodput_bytes_per_s": 1e5}),
    ],
    ids=["it is not much slower", "a site is away", "little was sent", "it is turned off"],
)
def test_nobody_is_moved_where_it_does_not_pay_or_cannot_be_begun(
    tmp_path: Path, defaults: str, silent: str, told: dict[str, Any]
) -> None:
    assert run_center(write_project(tmp_path, defaults), silent=silent, **told)[1] is None


def test_a_person_moves_a_site_and_it_is_shown(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    result = CliRunner().invoke(app, ["sites", "move", "a", "--to", "far", "-p", str(folder)])
    assert result.exit_code == 0, result.output
    assert "goes by a -> far -> center" in " ".join(result.output.split())
    deployment = Deployment.load(folder)
    assert dict(deployment.deployed.hops) == {"a": "far"}
    assert deployment.routings.hubs == ("far", "near")
    assert "it was asked for" in explanation_text(explain_deployment(deployment))


@pytest.mark.parametrize(
    ("site", "to", "match"),
    [
        ("a", "center", "there is no link from site 'a' to site 'center'"),
        ("a", "near", "sends to 'near' already"),
        ("a", "b", "has streams of its own"),
        ("nobody", "far", "is no site that computes"),
    ],
)
def test_a_move_that_is_not_possible_is_refused_by_name(tmp_path: Path, site: str, to: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        move_site(write_project(tmp_path), site, to)


def test_a_second_move_waits_for_the_first_and_a_circle_is_refused(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    move_site(folder, "near", "far")
    with pytest.raises(ConfigError, match="a move before it is not over"):
        move_site(folder, "a", "far")
    text = (folder / "catchment.toml").read_text()
    (folder / "catchment.toml").write_text(text + '[[links]]\nfrom = "far"\nto = "near"\nlatency = "9 s"\n')
    with pytest.raises(ConfigError, match="does not reach 'center'"):
        move_site(folder, "far", "near")


def test_the_link_to_which_a_site_was_moved_must_stay(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    move_site(folder, "a", "far")
    text = (folder / "catchment.toml").read_text()
    (folder / "catchment.toml").write_text(text.replace('from = "a"\nto = "far"', 'from = "b"\nto = "a"'))
    with pytest.raises(ConfigError, match="there is no link from site 'a' to site 'far'"):
        Deployment.load(folder)
    assert DeploymentStore(folder / "state").version > 1


def test_a_hub_that_listens_and_has_links_stands_by(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    assert Deployment.load(folder).standby_hubs == ()
    text = (folder / "catchment.toml").read_text()
    (folder / "catchment.toml").write_text(text.replace("[sites.far]", '[sites.far]\nlisten = "127.0.0.1:9"'))
    assert Deployment.load(folder).standby_hubs == ("far",)
