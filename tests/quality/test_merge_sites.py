"""What a window lacks, from what its sites say: joined bounds against brute force, watched quantities, and the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate
from catchment.errors import QualityError, WireError
from catchment.quality.contract import Contract, Measure, WatchedQuantity, per_site_contract, watched_quantities
from catchment.quality.merge_sites import SiteEstimate, expected_count, whole_bound
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.frames.header import pack_fact
from catchment.wire.messages import Closing, Segment, Standing
from tests.worlds.tiers import examples
from tests.worlds.wire_support import forged

SITES = st.lists(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12), min_size=1, max_size=4)


def halves(site: list[tuple[int, bool]]) -> tuple[list[int], list[int]]:
    """The values of a site that are in, at least one, and all of them."""
    inside = [v for v, is_in in site if is_in] or [site[0][0]]
    return inside, [v for v, _ in site]


def off(name: str, held: list[int], whole: list[int]) -> float:
    """The relative error of an answer over what is in; of a median, in rank by the missing share."""
    truth, got = {
        "sum": (sum(whole), sum(held)),
        "count": (len(whole), len(held)),
        "avg": (sum(whole) / len(whole), sum(held) / len(held)),
        "quantile": (2 * len(whole), len(whole) + len(held)),
    }[name]
    return abs(got - truth) / truth


@settings(max_examples=examples(300))
@given(sites=SITES, name=st.sampled_from(["sum", "count", "avg"]))
def test_the_joined_bound_holds_if_the_bound_of_every_site_does(sites: list[list[tuple[int, bool]]], name: str) -> None:
    """Each site states its true coverage (of a sum: the share of its total), and the error of its own answer."""
    parts: list[Any] = []
    held: list[Any] = []
    whole: list[Any] = []
    for inside, every in map(halves, sites):
        share = sum(inside) / sum(every) if name == "sum" else len(inside) / len(every)
        parts.append(SiteEstimate(share, off(name, inside, every), len(inside), sum(inside)))
        held, whole = held + inside, whole + every
    bound = whole_bound(Measure(name), parts)
    assert bound is not None
    assert off(name, held, whole) <= bound + 1e-9
    if all(p.coverage == 1.0 for p in parts):
        assert bound == 0.0


def test_the_bound_of_an_average_tells_what_shifts_between_sites_that_are_each_right() -> None:
    """Each average is right; one site lacks half its records: together they are off, and the bound says so."""
    dear, cheap = SiteEstimate(0.5, 0.0, 50, 5000.0), SiteEstimate(1.0, 0.0, 100, 100.0)
    got, truth = 5100.0 / 150, 10_100.0 / 200
    assert whole_bound(Measure("avg"), [dear, cheap]) == pytest.approx(abs(got - truth) / truth)
    assert whole_bound(Measure("avg"), [SiteEstimate(0.5, 0.0, 50, 50.0), cheap]) == pytest.approx(0.0)


@settings(max_examples=examples(300))
@given(sites=SITES, name=st.sampled_from(["sum", "count", "avg", "quantile"]), error=st.floats(0.02, 0.6))
def test_if_every_site_keeps_its_part_of_the_contract_the_joined_answer_keeps_the_whole(
    sites: list[list[tuple[int, bool]]], name: str, error: float
) -> None:
    watched = (WatchedQuantity(Measure(name), "v", ("x",)),)
    part, watches = per_site_contract(Contract(error), watched, len(sites))
    split = [halves(site) for site in sites]
    kept = all(off(m.measure.name, held, whole) < part.max_error for held, whole in split for m in watches)
    if kept:
        assert off(name, [v for held, _ in split for v in held], [v for _, whole in split for v in whole]) < error


def test_sites_that_keep_an_average_each_for_itself_would_not_keep_it_together() -> None:
    """Why the sums and counts behind an average are watched too, where there are several sites."""
    dear, cheap = ([100] * 5, [100] * 10), ([1] * 10, [1] * 10)
    assert off("avg", *dear) == off("avg", *cheap) == 0.0
    assert off("avg", dear[0] + cheap[0], dear[1] + cheap[1]) > 0.3
    _, watches = per_site_contract(Contract(0.05), (WatchedQuantity(Measure("avg"), "v", ("x",)),), 2)
    assert [(str(m.measure), m.columns) for m in watches] == [("avg", ("x",)), ("sum", ()), ("count", ())]
    assert any(off(m.measure.name, *dear) >= 0.05 for m in watches)


@settings(max_examples=examples(100))
@given(misses=st.lists(st.sets(st.integers(0, 199)), min_size=1, max_size=5), delta=st.floats(0.01, 0.3))
def test_the_misses_of_sites_add_up_to_no_more_than_the_contract_allows(misses: list[set[int]], delta: float) -> None:
    """A window is off only if one of its parts is; each site keeps to its share of the allowed windows."""
    part, _ = per_site_contract(Contract(0.05, 1.0 - delta), (), len(misses))
    kept = [sorted(mine)[: int(part.delta * 200)] for mine in misses]
    assert len(set().union(*kept)) <= delta * 200 + 1e-9


def test_an_unknown_part_makes_the_whole_unknown_and_nothing_missing_makes_it_exact() -> None:
    known, unknown = SiteEstimate(0.5, 0.1, 5, 10), SiteEstimate(0.9, None, 9, 9)
    assert whole_bound(Measure("sum"), [known, unknown]) is None
    assert whole_bound(Measure("sum"), [SiteEstimate(1.0, 0.0, 3, 0)]) == 0.0
    assert expected_count([known, unknown]) == 20
    with pytest.raises(QualityError, match="coverage from 0 to 1"):
        SiteEstimate(1.5, 0.0, 1, 1)


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
    watched = {m.columns: (str(m.measure), m.bounded) for m in watched_quantities(aggregates)}
    assert watched == {
        ("n",): ("count", True),
        ("total",): ("sum", True),
        ("mean",): ("avg", True),
        ("high", "low"): ("count", False),
        ("p90",): ("quantile:0.9", True),
        ("known",): ("sum", True),
    }


BY_BUDGET = Closing(40, "budget", (SiteEstimate(0.5, 0.25, 4, 8.5), SiteEstimate(1.0, None, 4, 4)), (("phone 7", 0.5),))
STANDING = Standing("f", "q", 50, (BY_BUDGET, Closing(50, "covered", (SiteEstimate(1.0, 0.0, 1, 1),))))


def test_a_standing_crosses_the_wire_as_it_was() -> None:
    segment = Segment("eu", "e1", 3, (STANDING, Standing("f", "q", 60)))
    assert decode_segment(encode_segment(segment).data) == segment


@pytest.mark.parametrize(
    "change",
    [
        {3: "soon"},
        {3: 2**63},
        {4: "none"},
        {2: ""},
        {4: [[40, "budget", [[2.0, 0.1, 1, 1]], []]]},
        {4: [[40, "budget", [[0.5, -1, 1, 1]], []]]},
        {4: [[40, "budget", [[0.5, 0.1, 1]], []]]},
        {4: [[40, "budget", [], [["phone", 2.0]]]]},
        {4: [[40, 7, [], []]]},
        {4: [[40, "budget", [], []]] * 100_001},
    ],
)
def test_a_standing_that_is_not_one_is_refused(change: dict[int, Any]) -> None:
    entry = msgspec.msgpack.decode(msgspec.msgpack.encode(pack_fact(STANDING)))
    assert decode_segment(forged(["eu", "e1", 3, [entry]])).messages == (STANDING,)
    for place, value in change.items():
        entry[place] = value
    with pytest.raises(WireError, match="header"):
        decode_segment(forged(["eu", "e1", 3, [entry]]))


def test_a_standing_names_its_fragment_and_its_query() -> None:
    with pytest.raises(WireError, match="names fragment"):
        Standing("", "q", 0)
