"""Processes that are upgraded one by one, in any order, while others are still of the release before.

A process of the previous release is this code, told to read and write the previous version of frames only; so the
campaign is about what crosses links and waits on disks, not about what the earlier code did.
"""

from __future__ import annotations

import pytest

from catchment.testing import Feature
from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.states import RareState
from tests.worlds.tiers import seeds

FAULTS = frozenset({Feature.CRASH, Feature.POWER_CUT, Feature.LOSS, Feature.DOUBLED, Feature.REPLAY, Feature.ROT})


@pytest.mark.parametrize("seed", seeds(3))
def test_answers_are_right_while_sites_relays_and_the_center_are_upgraded_one_by_one(seed: int) -> None:
    report = run_seed(seed, Draw(only=FAULTS | {Feature.UPGRADE, Feature.RELAY, Feature.LATE}))
    report.assert_right()
    assert report.seen[RareState.VERSIONS_MIXED], "some link carried both versions"
