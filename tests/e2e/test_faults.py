"""A short piece of the fault campaign (`make faults`): some faults in a living deployment change no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.campaign import Campaign, read_results, settle
from tests.campaign.living import Living
from tests.campaign.schedule import Drawn

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.soak]

FAULTS = [Drawn("kill -9", "c", 1), Drawn("wrong modification time", "c", 2), Drawn("late records", "c", 3)]


def test_faults_in_a_living_deployment_change_no_answer(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, tmp_path / "results.jsonl", seed=1)
    deployment = Living(tmp_path / "p", 1, sites=("c",), with_namespace=False, with_small_disks=False)
    with deployment.running() as living:
        settle(living)
        campaign.run_round(living, 0, FAULTS)
    results = read_results(tmp_path / "results.jsonl")
    assert [(r.kind, r.outcome, r.problem) for r in results] == [(d.kind, "held", "") for d in FAULTS]
