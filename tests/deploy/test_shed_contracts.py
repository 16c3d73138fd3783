"""A contract on a stream that may be shed: what its sites wait for, and what its samplers keep.

Catches: a contract that is silently dropped, or promised twice over where lateness and sampling share it. Cannot
catch: how well the joined answers keep it; `tests/center/test_late_and_shed.py` does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.quality.contract import Contract
from tests.worlds.projects import write_project

STREAM = """
CREATE STREAM readings (ts TIMESTAMP, device STRING, value BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', source = 'device', shed = SHED, {connector});
CREATE MATERIALIZED VIEW totals WITH (OPTIONS) AS
  SELECT window.start, count(*) AS n, sum(value) AS total FROM readings GROUP BY window(ts, '1 second');
"""


def deployment(folder: Path, options: str, shed: bool = True) -> Deployment:
    queries = STREAM.replace("OPTIONS", options).replace("SHED", str(shed).lower())
    return Deployment.load(write_project(folder, ["a", "b"], {"a": [], "b": []}, queries=queries))


def test_a_contract_on_a_shed_stream_has_slack_controllers_and_samplers_that_share_it(tmp_path: Path) -> None:
    plans = deployment(tmp_path / "p", "max_error = 0.1, confidence = 0.9")
    (query,) = plans.center_queries
    assert query.contract == Contract(0.1, 0.9)
    (plan,) = plans.fragments_at("a")
    (slack,) = plan.slacks
    assert slack.controller == "adaptive"
    assert slack.contract.max_error == pytest.approx(0.05)
    assert slack.contract.delta == pytest.approx(0.05 / 2), "half of the chance, and half of that for each of two sites"
    assert [(w.measure.name, w.columns) for w in slack.watched] == [("count", ("n",)), ("sum", ("total",))]
    assert plan.shed.max_error == pytest.approx(0.05)
    assert plan.shed.confidence == pytest.approx(0.95)


def test_where_nothing_is_shed_the_sites_have_the_whole_contract(tmp_path: Path) -> None:
    (plan,) = deployment(tmp_path / "p", "max_error = 0.1, confidence = 0.9", shed=False).fragments_at("a")
    assert plan.slacks[0].contract.max_error == 0.1
    assert plan.slacks[0].contract.delta == pytest.approx(0.1 / 2)


def test_a_slack_may_be_chosen_on_a_shed_stream(tmp_path: Path) -> None:
    (plan,) = deployment(tmp_path / "p", "slack = 'fixed:2 s'").fragments_at("a")
    assert plan.slacks[0].controller == "fixed:2 s"


def test_without_a_contract_a_shed_stream_has_no_controllers_and_its_samplers_the_whole_chance(tmp_path: Path) -> None:
    (plan,) = deployment(tmp_path / "p", "weight = 2").fragments_at("a")
    assert not plan.slacks
    assert (plan.shed.max_error, plan.shed.confidence) == (None, 0.95)
