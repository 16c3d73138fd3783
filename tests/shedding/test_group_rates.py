"""Rates by group: small groups are kept, each row has the bound of its own group, and a repair finds what was left out.

Catches: a group that is sampled at another's rate, a bound that ignores the group or trusts it too much, rates that
do not survive a restart or the wire. Cannot catch: what Spark samples; `test_one_pass.py` compares that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from catchment.aggregates import make_aggregate, partials
from catchment.aggregates.shed_terms import terms_in, with_terms
from catchment.center.windows.outstanding import Outstanding
from catchment.errors import ConfigError
from catchment.shedding.debts import BatchShed, FragmentSample, ShedDebts
from catchment.shedding.places import SamplingRule
from catchment.shedding.sampler import GroupRates, Sampler, Selection, Side
from catchment.shedding.terms import add_terms, scale_answers
from catchment.site.lifting import Lift, Lifter
from catchment.storage.codec import decode, encode
from catchment.timeline import WindowSpec
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.frames.limits import MAX_STRATA
from catchment.wire.messages import Repaired, Segment, Shed

RATES = GroupRates("`s`.`k`", ((1, 0.05), (2, 0.4), (3, 1.0)))
WINDOW = WindowSpec(10, 10)


def test_a_group_that_is_not_named_and_null_have_rate_one() -> None:
    keys = pa.array([3, 1, None, 9, 2], pa.int32())
    assert RATES.of(keys).tolist() == [1.0, 0.05, 1.0, 1.0, 0.4]
    assert GroupRates("k", (("a", 0.5),)).of(pa.array(["b", "a", None])).tolist() == [1.0, 0.5, 1.0]
    assert RATES.lowest == 0.05


@pytest.mark.parametrize("rates", [(), ((1, 0.0),), ((1, 1.5),), tuple((i, 0.5) for i in range(MAX_STRATA + 1))])
def test_no_groups_too_many_and_impossible_rates_are_refused(rates: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ConfigError):
        GroupRates("k", rates)


def sampled(keys: np.ndarray, seed: int) -> tuple[dict[int, tuple[float, float]], dict[int, int]]:
    """Scaled counts and bounds of one sample by group, and how many records of each were left out."""
    rule = SamplingRule("s", ("row",), seed)
    aggregates = with_terms((make_aggregate("count", None, None, name="n"),))
    moments = tuple(m for t in terms_in(aggregates) if (m := t.moments) is not None)
    given = ((("key", "k"),), (aggregates[0], *moments), (None, None), None)
    sampler = Sampler(0.5, groups=replace(RATES, key="k"))
    lifts = [Lift(*given, Selection(sampler, side)) for side in (Side.KEPT, Side.LEFT)]
    lifter = Lifter(lifts, "place")
    places = rule.places([pa.array(np.arange(len(keys)))]).astype(np.int64)
    lifter.add(pa.record_batch({"k": pa.array(keys), "place": places}))
    kept, left = (table for _, table, _ in lifter.results())
    rates = RATES.of(partials.one_array(kept["key"]))
    full = add_terms(kept, aggregates, kept["n__count"], rates)
    values, errors = scale_answers(full, aggregates[0], 0.05, rates)
    found = dict(zip(kept["key"].to_pylist(), zip(values.to_pylist(), errors.tolist(), strict=True), strict=True))
    return found, {row["key"]: row["n__count"] for row in left.to_pylist()}


def test_each_group_has_a_bound_of_its_own_that_holds_and_small_groups_are_exact() -> None:
    sizes = {1: 20_000, 2: 1_500, 3: 60, 4: 7}
    keys = np.repeat(list(sizes), list(sizes.values())).astype(np.int32)
    misses, trials = dict.fromkeys(sizes, 0), 100
    for seed in range(trials):
        found, left = sampled(keys, seed)
        for group, size in sizes.items():
            value, error = found[group]
            misses[group] += abs(value - size) > error * size
            assert left.get(group, 0) + round(value if group > 2 else 0) <= size
        assert found[3] == (60, 0.0)
        assert found[4] == (7, 0.0)
        assert found[2][1] < 0.25, "were it bounded by the lowest rate of all, it would be far more"
        assert found[1][1] < 0.15
    assert max(misses.values()) <= 0.05 * trials


def test_what_the_center_is_told_of_groups_is_the_lowest_rate_of_each_over_batches() -> None:
    outstanding = Outstanding(WINDOW, by_group=True)
    outstanding.add_shed("a", Shed("f", 1, 0.05, ((0, 10),), (("1", 0.05), ("2", 0.4))))
    assert outstanding.group_rates(0) == (1.0, (("1", 0.05), ("2", 0.4)))
    outstanding.add_shed("b", Shed("f", 1, 0.1, ((0, 10),), (("2", 0.1), ("5", 0.9))))
    assert outstanding.group_rates(0) == (1.0, (("1", 0.05), ("2", 0.1), ("5", 0.9)))
    outstanding.add_shed("b", Shed("f", 2, 0.3, ((0, 10),)))  # all groups alike
    assert outstanding.group_rates(0) == (0.3, (("1", 0.05), ("2", 0.1), ("5", 0.3)))
    again = replace(outstanding, batches=decode(encode(outstanding.batches)))
    assert again.group_rates(0) == outstanding.group_rates(0)
    for site, batch in (("a", 1), ("b", 1)):
        outstanding.settle_repaired(site, Repaired("f", batch))
    assert outstanding.group_rates(0) is None
    assert outstanding.lowest_rate(0) == 0.3


def test_a_query_whose_rows_are_not_the_groups_takes_the_lowest_rate_of_all() -> None:
    outstanding = Outstanding(WINDOW)
    outstanding.add_shed("a", Shed("f", 1, 0.05, ((0, 10),), (("1", 0.05),)))
    assert outstanding.group_rates(0) is None
    assert outstanding.lowest_rate(0) == 0.05


def test_rates_of_groups_and_limits_survive_the_journal_a_snapshot_and_the_wire() -> None:
    sampler = Sampler(0.3, (("`s`.`v`", 70.5),), RATES)
    event = BatchShed("s", 3, (FragmentSample("f", sampler, ((0, 9),)),), (0, 50))
    assert decode(encode(event)) == event
    debts = ShedDebts()
    facts = tuple(debts.add(event))
    assert facts == (Shed("f", 3, 0.05, ((0, 9),), (("1", 0.05), ("2", 0.4), ("3", 1.0))),)
    assert decode(encode(debts)) == debts
    assert dict(debts.of("s")[0].samplers) == {"f": sampler}
    segment = Segment("a", "epoch", 1, facts)
    assert tuple(decode_segment(encode_segment(segment).data).shed()) == facts
