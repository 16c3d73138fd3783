"""Partials of several rates, merged as partials are, give the scaled answer and the bound of the records
behind them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from catchment.aggregates import Aggregate, make_aggregate
from catchment.aggregates.partials import combine as merge
from catchment.errors import QualityError
from catchment.quality.combine import RateClass, combine
from catchment.quality.kinds import Guarantee
from catchment.quality.shed_partials import SHED_RATE, companions, scaled_answers
from catchment.shedding.places import SamplingRule

KEYS = ("slice_us", "country")
COUNT = make_aggregate("count", None, None, name="n")
SUM = make_aggregate("sum", "bytes", pa.float64(), name="bytes")
AVERAGE = make_aggregate("avg", "bytes", pa.float64(), name="mean_bytes")
SPREAD = make_aggregate("stddev_samp", "bytes", pa.float64(), name="sd")
SUM_OF_WHOLE = make_aggregate("sum", "hits", pa.int64(), name="hits")
ALL = (COUNT, SUM, AVERAGE, SPREAD, SUM_OF_WHOLE)


def lifted(aggregates: tuple[Aggregate, ...], values: np.ndarray, groups: np.ndarray, size: int) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for aggregate in aggregates:
        numbers = pa.array(values if aggregate.argument_type == pa.float64() else values.astype(np.int64))
        states = aggregate.lift(None if aggregate.argument is None else numbers, groups, size)
        columns |= {s.name: a for s, a in zip(aggregate.states, states, strict=True)}
    return columns


class World:
    """Three sites that shed differently, each sampling its own records by hash."""

    def __init__(self, seed: int, rates: tuple[float, ...] = (0.4, 0.7, 1.0), per_site: int = 3_000) -> None:
        r = np.random.default_rng(seed)
        self.countries = np.array(["de", "fr", "it"])
        self.values, self.groups, tables = [], [], []
        for site, rate in enumerate(rates):
            values, groups = r.lognormal(2, 0.5, per_site), r.integers(0, 3, per_site).astype(np.intp)
            rule = SamplingRule(f"site-{site}", ("row",), seed)
            kept = rule.keep([pa.array(np.arange(per_site))], rate)
            for part in (kept & (np.arange(per_site) % 2 == 0), kept & (np.arange(per_site) % 2 == 1)):
                tables.append(self._partials(values[part], groups[part], rate))
            self.values.append(values)
            self.groups.append(groups)
        aggregates = (*ALL, *companions(ALL))
        self.partials = merge(pa.concat_tables(tables), (*KEYS, SHED_RATE), aggregates)
        self.lowest = min(rates)

    def _partials(self, values: np.ndarray, groups: np.ndarray, rate: float) -> pa.Table:
        keys = {
            "slice_us": pa.array([0] * 3),
            "country": pa.array(self.countries),
            SHED_RATE: pa.array([rate] * 3),
        }
        return pa.table(keys | lifted((*ALL, *companions(ALL)), values, groups, 3))

    def truth(self, aggregate: Aggregate) -> np.ndarray:
        values, groups = np.concatenate(self.values), np.concatenate(self.groups)
        numbers = np.trunc(values) if aggregate is SUM_OF_WHOLE else values
        laws = {"count": len, "sum": np.sum, "avg": np.mean, "stddev_samp": lambda x: np.std(x, ddof=1)}
        return np.array([laws[aggregate.function](numbers[groups == g]) for g in range(3)])


def test_sums_and_averages_carry_a_spread_and_nothing_else_does() -> None:
    assert [spread.name for spread in companions(ALL)] == ["bytes__shed", "mean_bytes__shed", "hits__shed"]


def test_partials_of_one_rate_merge_and_those_of_different_rates_stay_apart() -> None:
    assert World(1).partials.num_rows == 3 * 3
    assert World(1, (0.5, 0.5, 0.5)).partials.num_rows == 3


@pytest.mark.parametrize("aggregate", ALL, ids=lambda a: a.function + "_" + a.name)
def test_the_scaled_answer_is_within_its_bound_of_the_truth(aggregate: Aggregate) -> None:
    delta, missed, answered = 0.05, 0, 0
    for seed in range(15):
        world = World(seed)
        limits = (0.0, float(np.concatenate(world.values).max()))
        groups, answers = scaled_answers(world.partials, KEYS, aggregate, delta, limits, world.lowest)
        order = np.searchsorted(world.countries, groups["country"].to_pylist())
        off = np.abs(answers.values - world.truth(aggregate)[order])
        missed, answered = missed + int((off > answers.half_widths).sum()), answered + len(off)
        assert (off < 0.2 * world.truth(aggregate)[order]).all()
        expected = Guarantee.ESTIMATE if aggregate is SPREAD else Guarantee.PROVED
        assert answers.guarantee is expected
    assert missed <= delta * answered


def test_nothing_shed_is_exact_and_equal_to_the_plain_answer() -> None:
    world = World(4, (1.0, 1.0, 1.0))
    for aggregate in ALL:
        groups, answers = scaled_answers(world.partials, KEYS, aggregate, 0.05)
        order = np.searchsorted(world.countries, groups["country"].to_pylist())
        assert answers.whole.all()
        assert not answers.half_widths.any()
        np.testing.assert_allclose(answers.values, world.truth(aggregate)[order], rtol=1e-12)


def test_a_group_alone_has_the_answer_of_its_rate_classes() -> None:
    world = World(5)
    groups, answers = scaled_answers(world.partials, KEYS, SUM, 0.05, (0.0, 200.0), world.lowest)
    for i, country in enumerate(groups["country"].to_pylist()):
        rows = [r for r in world.partials.to_pylist() if r["country"] == country]
        classes = [
            RateClass(r[SHED_RATE], r["bytes__shed__n"], r["bytes__shed__mean"], r["bytes__shed__m2"]) for r in rows
        ]
        value, stated = combine("sum", classes, 0.05, (0.0, 200.0), world.lowest)
        assert value == pytest.approx(answers.values[i])
        assert stated.half_width == pytest.approx(answers.half_widths[i])


def test_a_sketch_is_not_scaled() -> None:
    with pytest.raises(QualityError, match="cannot be scaled from a sample"):
        scaled_answers(World(6).partials, KEYS, make_aggregate("max", "bytes", pa.float64(), name="m"), 0.05)
