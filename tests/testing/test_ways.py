"""Links that are cut or throttled and gone around, in whole simulated deployments: the answers are the oracle's.

Catches: a segment that is lost, merged twice or merged past a relay because it took another way or two at once, or
came late over the one that was left; a sender that is stuck where another way is there. Cannot catch: what sockets and
seals do; `tests/deploy` runs those.
"""

from __future__ import annotations

from collections import Counter

import pytest

from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.features import Feature
from catchment.testing.campaigns.states import RareState
from tests.worlds.tiers import seeds

MESH = frozenset({Feature.MESH, Feature.LATE, Feature.CRASH, Feature.DOUBLED, Feature.REPLAY, Feature.STEP_BACK})


@pytest.mark.parametrize("features", [MESH, MESH | {Feature.RELAY, Feature.THROTTLE}], ids=["star", "relays"])
def test_whatever_way_segments_take_the_answers_are_those_of_the_oracle(features: frozenset[Feature]) -> None:
    seen: Counter[RareState] = Counter()
    for seed in seeds(4):
        report = run_seed(seed, Draw(only=features))
        report.assert_right()
        seen += report.seen
    assert seen[RareState.WAY_CHANGED], "links were gone around"


@pytest.mark.soak
def test_a_long_campaign_of_meshes_is_right() -> None:
    for seed in range(200_000, 200_300):
        run_seed(
            seed, Draw(only=MESH | {Feature.RELAY, Feature.THROTTLE, Feature.LOSS, Feature.POWER_CUT})
        ).assert_right()
