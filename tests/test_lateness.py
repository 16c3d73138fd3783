"""What a window lacks, from what its sites say: joined bounds against brute force, watched quantities, and the wire."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate
from catchment.errors import QualityError, WireError
from catchment.quality.coverage import Measure
from catchment.quality.lateness import Estimate, expected_count, whole_bound
from catchment.quality.measured import measured
from catchment.wire.codec import decode_segment, encode_segment
from catchment.wire.limits import DEFAULT_LIMITS
from catchment.wire.messages import Closing, Segment, Standing
from catchment.wire.standing_codec import check_standing, pack_standing

SITES = st.lists(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12), min_size=1, max_size=4)


@settings(deadline=None, max_examples=200)
@given(sites=SITES, name=st.sampled_from(["sum", "count", "avg"]))
def test_the_joined_bound_holds_if_the_bound_of_every_site_does(sites: list[list[tuple[int, bool]]], name: str) -> None:
    """Each site states its true coverage, and the error of its own answer as its bound."""
    parts, held, whole = [], [], []
    for site in sites:
        inside = [v for v, is_in in site if is_in] or [site[0][0]]
        every = [v for v, is_in in site if is_in] + [v for v, is_in in site if not is_in]
        every = every if any(is_in for _, is_in in site) else [v for v, _ in site]
        answers = {"sum": sum, "count": len, "avg": lambda vs: sum(vs) / len(vs)}
        own, truth = answers[name](inside), answers[name](every)
        total_share = sum(inside) / sum(every)
        share = len(inside) / len(every) if name != "sum" else total_share
        parts.append(Estimate(share, abs(own - truth) / truth, len(inside), sum(inside)))
        held += inside
        whole += every
    if name == "avg":
        return _check_average(parts, held, whole)
    got, truth = (sum(held), sum(whole)) if name == "sum" else (len(held), len(whole))
    bound = whole_bound(Measure(name), parts)
    assert bound is not None
    assert abs(got - truth) / truth <= bound + 1e-9
    return None


def _check_average(parts: list[Estimate], held: list[int], whole: list[int]) -> None:
    """An average is joined from its parts and from what shifts between sites; neither may be left out."""
    bound = whole_bound(Measure("avg"), parts)
    assert bound is not None
    assert bound >= 0.0
    if all(p.coverage == 1.0 for p in parts):
        assert bound == 0.0
        assert held == whole


def test_an_unknown_part_makes_the_whole_unknown_and_nothing_missing_makes_it_exact() -> None:
    known, unknown = Estimate(0.5, 0.1, 5, 10), Estimate(0.9, None, 9, 9)
    assert whole_bound(Measure("sum"), [known, unknown]) is None
    assert whole_bound(Measure("sum"), [Estimate(1.0, 0.0, 3, 0)]) == 0.0
    assert expected_count([known, unknown]) == 20
    with pytest.raises(QualityError, match="coverage from 0 to 1"):
        Estimate(1.5, 0.0, 1, 1)


def test_each_quantity_is_watched_once_and_what_no_coverage_bounds_by_the_share_of_records() -> None:
    number = pa.float64()
    aggregates = [
        make_aggregate("count", None, None, name="n"),
        make_aggregate("sum", "v", number, name="total"),
        make_aggregate("avg", "v", number, name="mean"),
        make_aggregate("max", "v", number, name="high"),
        make_aggregate("min", "v", number, name="low"),
        make_aggregate("percentile_approx", "v", number, (0.9,), name="p90"),
        make_aggregate("count", "v", number, name="known"),
    ]
    watched = {m.columns: (str(m.measure), m.bounded) for m in measured(aggregates)}
    assert watched == {
        ("n",): ("count", True), ("total",): ("sum", True), ("mean",): ("avg", True), ("high", "low"): ("count", False),
        ("p90",): ("quantile:0.9", True), ("known",): ("sum", True),
    }  # fmt: skip


STANDING = Standing("f", "q", 50, (
    Closing(40, "budget", (Estimate(0.5, 0.25, 4, 8.5), Estimate(1.0, None, 4, 4)), (("phone 7", 0.5),)),
    Closing(50, "covered", (Estimate(1.0, 0.0, 1, 1),)),
))  # fmt: skip


def test_a_standing_crosses_the_wire_as_it_was() -> None:
    segment = Segment("eu", "e1", 3, (STANDING, Standing("f", "q", 60)))
    assert decode_segment(encode_segment(segment)) == segment


@pytest.mark.parametrize(
    "change",
    [
        {3: "soon"}, {3: 2**63}, {4: "none"}, {2: ""}, {4: [[40, "budget", [[2.0, 0.1, 1, 1]], []]]},
        {4: [[40, "budget", [[0.5, -1, 1, 1]], []]]}, {4: [[40, "budget", [[0.5, 0.1, 1]], []]]},
        {4: [[40, "budget", [], [["phone", 2.0]]]]}, {4: [[40, 7, [], []]]}, {4: [[40, "budget", [], []]] * 100_001},
    ],
)  # fmt: skip
def test_a_standing_that_is_not_one_is_refused(change: dict[int, Any]) -> None:
    entry = json.loads(json.dumps(pack_standing(STANDING)))
    assert check_standing(entry, DEFAULT_LIMITS)
    for place, value in change.items():
        entry[place] = value
    assert not check_standing(entry, DEFAULT_LIMITS)


def test_a_standing_names_its_fragment_and_its_query() -> None:
    with pytest.raises(WireError, match="names fragment"):
        Standing("", "q", 0)
