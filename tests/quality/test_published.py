"""The composed bound of each law against its brute-force worst case, and against samples, sketches and late records.

Catches: a composition that is too small at a corner, a chance that is spent twice, kinds that claim too much. Cannot
catch: terms that are wrong to begin with; `tests/center/test_late_and_shed.py` runs everything that makes them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate
from catchment.quality.laws import BoundLaw, distinct_error, law_of, rank_error, sketch_bound
from catchment.quality.published import BoundTerms, bound_at
from tests.worlds.tiers import examples

DELTA = 0.05


def terms(law: BoundLaw, size: float, late: float = 0.0, **more: object) -> BoundTerms:
    return BoundTerms(law, np.array([size]), np.array([late]), **more)  # type: ignore[arg-type]


def error_of(given_terms: BoundTerms, delta: float = DELTA) -> float:
    (error,) = given_terms.errors(delta)
    return float(error)


@settings(max_examples=examples(200))
@given(
    value=st.floats(1, 1e6),
    width=st.floats(0, 0.9),
    late=st.floats(0, 1e6),
    law=st.sampled_from([BoundLaw.COUNT, BoundLaw.SUM]),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_a_total_that_lacks_records_and_is_sampled_is_never_further_off_than_composed(
    value: float, width: float, late: float, law: BoundLaw, sign: float
) -> None:
    """Every truth that the two statements allow: received within the width of the value, and up to `late` more."""
    if law is BoundLaw.COUNT:
        sign = 1.0
    half = width * value
    square = half**2 / (2 * np.log(2 / (DELTA / 2)))  # the term of a sum whose half width this is
    sampled = np.array([[square]]) if law is BoundLaw.SUM and half else None
    if law is BoundLaw.COUNT:
        half = 0.0
    stated = error_of(terms(law, sign * value, late, late_delta=DELTA / 2, sampled=sampled))
    if not late and half:  # nothing is late: sampling has all of delta
        half = np.sqrt(2 * np.log(2 / DELTA) * square)
    for received in (value - half, value, value + half):
        for missing in (0.0, late / 2, late):
            truth = received + missing
            assert abs(value - truth) / truth <= stated * (1 + 1e-9) + 1e-12


@settings(max_examples=examples(200))
@given(value=st.floats(-1e6, 1e6), late=st.floats(0, 1e6))
def test_a_total_that_rows_come_to_and_are_taken_from_is_never_further_off_than_composed(
    value: float, late: float
) -> None:
    """Every truth from `late` below the value to `late` above it."""
    stated = error_of(terms(BoundLaw.TWO_SIDED, value, late, late_delta=DELTA))
    for truth in np.linspace(value - late, value + late, 21):
        if value != truth:
            assert stated == np.inf or abs(value - truth) <= abs(truth) * stated * (1 + 1e-9) + 1e-12
    assert (stated == np.inf) == (late > 0.0 and abs(value) <= late), "it may be nothing in the end"


def test_the_chance_is_shared_and_a_confidence_beyond_that_of_what_is_late_is_unknown() -> None:
    sampled = np.array([[400.0]])
    both = terms(BoundLaw.SUM, 1000.0, 50.0, late_delta=0.03, sampled=sampled)
    alone = terms(BoundLaw.SUM, 1000.0, 0.0, late_delta=0.03, sampled=sampled)
    assert error_of(both, 0.05) > error_of(both, 0.2)
    assert error_of(both, 0.031) < np.inf
    assert error_of(both, 0.03) == np.inf, "nothing is left for the sample"
    assert error_of(both, 0.01) == np.inf, "what is late is known at 97% only"
    assert error_of(alone, 0.01) < np.inf, "nothing is late"
    late = terms(BoundLaw.COUNT, 1000.0, 50.0, late_delta=0.05)
    assert error_of(late, 0.05) == pytest.approx(50 / 1050)
    assert error_of(late, 0.04) == np.inf


def test_kinds_say_what_a_bound_rests_on() -> None:
    one = np.array([[1.0, 1.0, 0.5]])
    cases = {
        "exact": terms(BoundLaw.COUNT, 9.0),
        "proved": terms(BoundLaw.COUNT, 100.0, sampled=one),
        "estimated": terms(BoundLaw.SUM, 100.0, sampled=np.array([[1.0]])),
        "estimated rank": terms(BoundLaw.QUANTILE, 1.0, sketch=np.array([0.013])),
        "proved share": terms(BoundLaw.TOP, 1.0, sketch=np.array([0.01])),
        "unknown": terms(BoundLaw.UNBOUNDED, 1.0, 3.0),
    }
    for kind, given_terms in cases.items():
        assert given_terms.kinds(given_terms.errors(DELTA)).to_pylist() == [kind]
    counted = terms(BoundLaw.COUNT, 100.0, 5.0, late_delta=0.0, late_counted=True)
    assert counted.kinds(counted.errors(DELTA)).to_pylist() == ["proved"], "registered records were counted"
    believed = terms(BoundLaw.COUNT, 100.0, 5.0, late_delta=DELTA)
    assert believed.kinds(believed.errors(DELTA)).to_pylist() == ["estimated"]
    awaited = terms(BoundLaw.COUNT, 100.0, is_awaited=True)
    assert error_of(awaited, DELTA) == 0.0
    assert awaited.kinds(awaited.errors(DELTA)).to_pylist() == ["estimated"], "nothing is expected, and more may come"


@pytest.mark.parametrize("law", [BoundLaw.DISTINCT, BoundLaw.QUANTILE, BoundLaw.TOP, BoundLaw.UNBOUNDED])
def test_a_row_whose_sketch_is_still_exact_is_exact_beside_one_that_is_estimated(law: BoundLaw) -> None:
    mixed = BoundTerms(law, np.array([10.0, 5_000.0]), np.zeros(2), sketch=np.array([0.0, 0.01]))
    alone = terms(law, 5_000.0, sketch=np.array([0.01]))
    errors = mixed.errors(DELTA)
    assert errors[0] == 0.0
    assert errors[1] == error_of(alone)
    assert mixed.kinds(errors).to_pylist() == ["exact", *alone.kinds(alone.errors(DELTA)).to_pylist()]
    stored = mixed.to_arrow()
    assert stored[0].as_py() is None
    assert stored[1].as_py() == alone.to_arrow()[0].as_py()


def test_terms_that_travel_with_a_row_give_its_bound_again_at_any_confidence() -> None:
    given_terms = BoundTerms(
        BoundLaw.COUNT,
        np.array([50.0, 80.0, 10.0]),
        np.array([0.0, 4.0, np.inf]),
        0.02,
        sampled=np.array([[30.0, 30.0, 0.5], [np.nan] * 3, [30.0, 30.0, 0.5]]),
    )
    stored, stated = given_terms.to_arrow(), pa.array([None, None, None], pa.float64())
    for delta in (0.01, 0.05, 0.2):
        wanted = [None if np.isinf(e) else float(e) for e in given_terms.errors(delta)]
        assert bound_at(stored, stated, delta).to_pylist() == wanted
    whole = BoundTerms.whole(BoundLaw.SUM, 0.0, 2)
    assert whole.to_arrow().null_count == 2, "exact rows carry nothing"
    assert bound_at(whole.to_arrow(), pa.array([0.0, 0.0]), 0.01).to_pylist() == [0.0, 0.0]


@pytest.mark.parametrize("delta", [0.2, 0.05])
@pytest.mark.parametrize("many", [False, True])
def test_ranks_of_a_kll_sketch_are_further_off_no_more_often_than_stated(delta: float, many: bool) -> None:
    wanted = ("0.1", "0.5", "0.9") if many else "0.5"
    aggregate = make_aggregate("percentile_approx", "v", pa.float64(), (wanted, "20"), name="p")
    stated, missed, trials = rank_error(aggregate.sketch_error, delta), 0, 120
    for seed in range(trials):
        values = np.random.default_rng(seed).permutation(4000).astype(float)
        (found,) = aggregate.lower(aggregate.lift(pa.array(values), np.zeros(4000, np.intp), 1)).to_pylist()
        answers = found if many else [found]
        ranks = [(value + 1) / 4000 for value in answers]
        asked = [0.1, 0.5, 0.9] if many else [0.5]
        missed += max(abs(r - q) for r, q in zip(ranks, asked, strict=True)) > stated + 1 / 4000
    assert missed <= delta * trials


@pytest.mark.parametrize("delta", [0.2, 0.05, 0.01])
def test_distinct_counts_are_further_off_about_as_often_as_stated(delta: float) -> None:
    aggregate = make_aggregate("approx_count_distinct", "v", pa.int64(), ("8",), name="d")
    stated, trials = distinct_error(aggregate.sketch_error, delta), 300
    starts = np.arange(trials) * 3000
    found = [
        aggregate.lower(aggregate.lift(pa.array(np.arange(s, s + 3000)), np.zeros(3000, np.intp), 1))[0].as_py()
        for s in starts
    ]
    missed = np.mean(np.abs(np.array(found) / 3000 - 1) > stated)
    assert missed <= delta + 3 * np.sqrt(delta * (1 - delta) / trials)


@settings(max_examples=examples(100))
@given(seed=st.integers(0, 10_000), lacking=st.integers(0, 30), rank=st.floats(0.05, 0.95))
def test_missing_records_move_distinct_counts_ranks_and_shares_by_no_more_than_stated(
    seed: int, lacking: int, rank: float
) -> None:
    """Without a sketch's own error, which is tested above: the exact statistics of what is in against those of all."""
    chance = np.random.default_rng(seed)
    values = chance.integers(0, 40, 100)
    held = values[lacking:]
    share = lacking / 100
    if len(set(held)):
        off = abs(len(set(held)) - len(set(values))) / len(set(values))
        distinct = terms(BoundLaw.DISTINCT, float(len(set(held))), float(lacking), late_delta=DELTA)
        assert off <= error_of(distinct) + 1e-12
    answer = np.quantile(held, rank, method="inverted_cdf")
    below, up_to = float(np.mean(values < answer)), float(np.mean(values <= answer))
    off_rank = max(below - rank, rank - up_to, 0.0)
    stated = error_of(terms(BoundLaw.QUANTILE, 1.0, max(rank, 1 - rank) * share, late_delta=DELTA))
    assert off_rank <= stated + 1 / len(held)
    most = float(np.mean(values > held.max()))
    assert most <= error_of(terms(BoundLaw.EXTREME, 1.0, share, late_delta=DELTA)) + 1e-12
    counts = [abs(int((values == v).sum()) - int((held == v).sum())) for v in set(values)]
    assert max(counts) / 100 <= error_of(terms(BoundLaw.TOP, 1.0, share, late_delta=DELTA)) + 1e-12


def test_every_aggregate_has_a_law_and_a_complete_sketch_the_error_of_its_library() -> None:
    names = {"sum": "sum", "avg": "avg", "min": "extreme", "stddev_samp": "unbounded", "moments": "unbounded"}
    for function, law in names.items():
        aggregate = make_aggregate(function, "v", pa.int64(), name="x")
        assert law_of(aggregate) == law
        assert sketch_bound(law_of(aggregate), aggregate.sketch_error, DELTA) == 0.0
    top = make_aggregate("approx_top_k", "v", pa.int64(), ("2", "10"), name="t")
    assert sketch_bound(BoundLaw.TOP, top.sketch_error, DELTA) == top.sketch_error > 0.0
