"""Joins of two streams: the laws of states over pairs, answers against every pair of raw records, and whole runs.

Catches: a pair counted twice or not at all, nulls that join, a late record that reaches one side only, a window that
closes before both streams have passed it. Cannot catch: what Spark makes of the sides' expressions, which
`test_join_spark.py` does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_world import (
    SITES,
    Case,
    EdgeSite,
    JoinCenter,
    close,
    lowered,
    make_records,
    plans_of,
    side_queries,
)
from sharing_support import SECOND, lift_fragment

from catchment import partials
from catchment.aggregates import make_aggregate
from catchment.aggregates.repeat import can_repeat, multiply, repeat
from catchment.center import pairing
from catchment.center.events import EXACT, FINAL, ON_TIME
from catchment.errors import AggregateError
from catchment.optimizer.live import deploy_first
from catchment.optimizer.share import Strength
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import ManualClock

CASES = {
    "counts and sums of either side, keys of both": Case(
        "count(*) AS n, sum(a.bytes) AS x, avg(b.ms) AS y, min(a.page) AS low, max(b.ms) AS high", ("a.page", "b.bytes")
    ),
    "no key": Case("count(*) AS n, count(a.page) AS pages, sum(b.ms) AS ms"),
    "the join key as a key, of a sliding window": Case(
        "count(*) AS n, sum(b.bytes) AS x", ("a.user",), window=(90, 30)
    ),
    "several equalities, one of them in WHERE, and conditions": Case(
        "count(*) AS n, sum(a.ms) AS x",
        ("b.page",),
        on="a.user = b.user AND a.bytes > 0",
        where="WHERE b.page = a.page AND b.bytes >= 0",
    ),
    "an equality of expressions": Case("count(*) AS n", ("a.user",), on="abs(a.user) % 3 = b.user % 3"),
    "products": Case("sum(a.bytes * b.bytes) AS p, avg(a.ms * b.ms) AS q, sum(2 * b.ms * a.bytes) AS r", ("a.page",)),
    "filters of either side": Case(
        "count(*) FILTER (WHERE a.bytes > 0 AND b.page = 'a') AS n, sum(a.bytes) FILTER (WHERE b.ms > 0) AS x, "
        "min(b.ms) FILTER (WHERE a.page = 'b') AS low",
        ("b.user",),
    ),
    "spreads": Case("var_pop(a.ms) AS v, stddev_samp(b.bytes) AS s", ("b.page",)),
    "distinct values": Case(
        "approx_count_distinct(b.page) AS d, approx_count_distinct(a.user) FILTER (WHERE b.bytes > 0) AS u",
        ("a.page",),
        oracle="count(DISTINCT b.page), count(DISTINCT a.user) FILTER (WHERE b.bytes > 0)",
    ),
    "a stream with itself": Case(
        "count(*) AS n, sum(a.bytes) AS x, max(b.bytes) AS y", ("a.page",), streams=("clicks", "clicks")
    ),
    "streams that share a site": Case("count(*) AS n, sum(b.ms) AS x", ("a.page", "b.bytes"), streams=("clicks", "taps")),
}
REPEATED = [
    ("count", None), ("count", pa.int64()), ("sum", pa.int64()), ("sum", pa.float64()), ("sum", pa.decimal128(9, 2)),
    ("avg", pa.int64()), ("avg", pa.float64()), ("min", pa.int64()), ("max", pa.string()), ("var_samp", pa.float64()),
    ("stddev_pop", pa.int64()), ("moments", pa.float64()), ("approx_count_distinct", pa.string()),
]  # fmt: skip


def values_of(rng: np.random.Generator, count: int, type_: pa.DataType) -> pa.Array:
    drawn = [None if i == 0 else int(i) * 3 - 20 for i in rng.integers(0, 20, count)]
    return pa.array([None if d is None else str(d) for d in drawn] if type_ == pa.string() else drawn, type_)


def same(left: list[pa.Array], right: list[pa.Array], lower: object) -> bool:
    assert callable(lower)
    found, expected = lower(left).to_pylist(), lower(right).to_pylist()
    return close(dict(enumerate(zip(found, strict=True))), dict(enumerate(zip(expected, strict=True))))


@pytest.mark.parametrize(("function", "type_"), REPEATED, ids=str)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_a_repeated_state_is_that_of_as_many_copies(function: str, type_: pa.DataType | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    aggregate = make_aggregate(function, "x" if type_ else None, type_, name="r")
    groups, times = np.sort(rng.integers(0, 6, 30)).astype(np.intp), rng.integers(0, 5, 6)
    states = aggregate.lift(values_of(rng, 30, type_) if type_ else None, groups, 6)
    copies = np.repeat(np.arange(6), times)
    expected = aggregate.combine([s.take(pa.array(copies)) for s in states], copies.astype(np.intp), 6)
    found = repeat(aggregate, states, times)
    assert [f.type for f in found] == [s.type for s in aggregate.states]
    if function == "moments":  # lists compare value by value
        flat = [np.nan_to_num(np.array(aggregate.lower(s).flatten())) for s in (found, expected)]
        assert np.allclose(*flat)
    else:
        assert same(found, expected, aggregate.lower)


@pytest.mark.parametrize("function", ["sum", "avg"])
@pytest.mark.parametrize("type_", [pa.int64(), pa.float64()], ids=str)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_a_product_of_states_is_the_state_of_products(function: str, type_: pa.DataType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    aggregate = make_aggregate(function, "x", type_, name="r")
    sides = [values_of(rng, int(rng.integers(0, 6)), type_) for _ in range(2)]
    zeros = [np.zeros(len(s), dtype=np.intp) for s in sides]
    found = multiply(aggregate, *(aggregate.lift(s, z, 1) for s, z in zip(sides, zeros, strict=True)))
    products = [None if None in (x, y) else x * y for x in sides[0].to_pylist() for y in sides[1].to_pylist()]
    expected = aggregate.lift(pa.array(products, type_), np.zeros(len(products), dtype=np.intp), 1)
    assert same(found, expected, aggregate.lower)


def test_sketches_of_ranks_and_of_frequencies_have_no_law_of_repetition() -> None:
    for function, parameters in (("percentile_approx", (0.5,)), ("approx_top_k", (3,))):
        assert not can_repeat(make_aggregate(function, "x", pa.int64(), parameters, name="r"))


def test_a_count_of_pairs_that_does_not_fit_is_an_error() -> None:
    count = make_aggregate("count", None, None, name="n")
    with pytest.raises(AggregateError, match="64 bits"):
        repeat(count, [pa.array([2**40])], np.array([2**40]))
    decimal = make_aggregate("sum", "x", pa.decimal128(38, 2), name="d")
    with pytest.raises(AggregateError, match="38 digits"):
        repeat(decimal, [pa.array([10**30], pa.decimal128(38, 2))], np.array([10**9]))


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 10**6))
def test_answers_are_those_over_every_pair_of_records(name: str, seed: int) -> None:
    case, rng = CASES[name], np.random.default_rng(seed)
    records = {s: make_records(rng, int(rng.integers(0, 60)), s) for s in SITES}
    join = plans_of(case.sql)["q0"].join
    assert join is not None
    sides = zip(("left", "right"), (join.left, join.right), strict=True)
    rows = pa.concat_tables([pairing.widen(join, s, lift_fragment(records[f.stream], f)) for s, f in sides])
    found = {}
    for window in {w for at in rows[SLICE_COLUMN].to_pylist() for w in join.left.windows[0].containing(at)}:
        starts = np.asarray(rows[SLICE_COLUMN])
        inside = rows.filter(pa.array((starts >= window.start_us) & (starts < window.end_us)))
        pairs = partials.combine(inside, join.pairing.key_names, join.pairing.aggregates)
        found |= {(window.start_us, *k): v for k, v in lowered(pairing.answer(join, pairs), join).items()}
    assert close(found, case.expected(records))


def test_pairs_in_many_blocks_are_the_same_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    case, rng = CASES["counts and sums of either side, keys of both"], np.random.default_rng(3)
    join = plans_of(case.sql)["q0"].join
    assert join is not None
    sides = [lift_fragment(make_records(rng, 80, f.stream), f).drop_columns([SLICE_COLUMN]) for f in (join.left, join.right)]
    whole = [pairing.pair(join, *(s.filter(s["user"].is_valid()) for s in sides))]
    monkeypatch.setattr(pairing, "MAX_PAIRS", 7)
    whole.append(pairing.pair(join, *(s.filter(s["user"].is_valid()) for s in sides)))
    found, expected = (lowered(w, join) for w in whole)
    assert found
    assert close(found, expected)


# --- whole runs ---------------------------------------------------------------------------------------------------


class Town:
    """Three sites, three streams, a center; records come out of order, some very late."""

    def __init__(self, folder: Path, rng: np.random.Generator, policy: str) -> None:
        self.rng, self.policy, self.clock = rng, policy, ManualClock(0)
        names = sorted({site for sites in SITES.values() for site in sites})
        slack = int(rng.integers(0, 60)) * SECOND
        self.sites = {n: EdgeSite(folder / n, n, slack, self.clock) for n in names}
        self.center = JoinCenter(folder / "center", list(self.sites.values()), self.clock)
        self.given: dict[str, list[pa.Table]] = {s: [make_records(rng, 0, s)] for s in SITES}

    def deploy(self, plans, deployed) -> None:  # type: ignore[no-untyped-def]
        self.center.deploy(plans, deployed)
        for site in self.sites.values():
            site.deploy(deployed, self.policy)

    def step(self) -> None:
        """Some site reads a batch of one of its streams; the center takes some of what some site has sent."""
        self.clock.advance(int(self.rng.integers(0, 5 * SECOND)))
        site = self.sites[str(self.rng.choice(list(self.sites)))]
        stream = str(self.rng.choice(site.streams))
        records = make_records(self.rng, int(self.rng.integers(1, 12)), stream)
        self.given[stream].append(records)
        site.batch(stream, records)
        if self.rng.random() < 0.1:
            site.restart()
        if self.rng.random() < 0.1:
            self.center.restart(checkpoint=bool(self.rng.random() < 0.5))
        self.consume(self.sites[str(self.rng.choice(list(self.sites)))])

    def consume(self, site: EdgeSite) -> None:
        self.center.consume(site, self.center.seen[site.name] + int(self.rng.integers(1, 5)))

    def finish(self) -> None:
        for site in self.sites.values():
            site.end()
        for site in self.sites.values():
            self.center.consume(site, len(site.out))
        self.center.repair(everything=True)

    @property
    def records(self) -> dict[str, pa.Table]:
        return {s: pa.concat_tables(parts) for s, parts in self.given.items()}


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(["streaming", "batching"]), data=st.data())
def test_a_run_ends_with_the_answers_over_every_pair(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: str, data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(CASES)), min_size=1, max_size=3, unique=True))
    strength = data.draw(st.sampled_from(list(Strength)))
    town = Town(tmp_path_factory.mktemp("town"), np.random.default_rng(seed), policy)
    plans = plans_of(*(CASES[n].sql for n in names))
    town.deploy(plans, deploy_first(side_queries(plans.values()), strength, lambda demand: len(demand.keys) + 1.0))
    for _ in range(25):
        town.step()
    town.finish()
    for view, name in zip(plans, names, strict=True):
        assert close(town.center.answers(view), CASES[name].expected(town.records))
        check_revisions(town.center, view)


def check_revisions(center: JoinCenter, view: str) -> None:
    """Revisions of a window count up, its status never goes back, and in the end it is final."""
    ranks = [ON_TIME, EXACT, FINAL]
    windows: dict[int, list[tuple[int, int]]] = {}
    for p in (p for p in center.published if p.query == view):
        windows.setdefault(p.window.start_us, []).append((p.revision, ranks.index(p.status)))
    for history in windows.values():
        assert history == sorted(history)
        assert history[-1][1] == ranks.index(FINAL)
