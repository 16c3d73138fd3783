"""Joins of two streams: the laws of states over pairs, answers against every pair of raw records, and whole runs.

Catches: a pair counted twice or not at all, nulls that join, a late record that reaches one side only, a window that
closes before both streams have passed it. Cannot catch: what Spark makes of the sides' expressions, which
`test_join_spark.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import Aggregate, make_aggregate, partials
from catchment.aggregates.pair_states import can_repeat, compare, multiply, repeat
from catchment.center.events import EARLY, EXACT, FINAL, ON_TIME, Publish
from catchment.center.join import pairing
from catchment.center.join.results import JoinedTables
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.errors import AggregateError
from catchment.optimizer.choices import Strength
from catchment.optimizer.normal_form.normalize import fingerprint
from catchment.optimizer.placement.plan_json import write_plan
from catchment.optimizer.placement.planner import plan_wan
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing.deployed import Deployed, deploy_first
from catchment.optimizer.sharing.share import SharingState, share
from catchment.optimizer.sharing.statistics import fill_with_guesses, load_statistics
from catchment.query.explain import explain, explain_data
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.join import SIDES
from catchment.query.plan import QueryPlan
from catchment.timeline import ManualClock, Window
from tests.worlds.aggregate_cases import every_aggregate, tolerance
from tests.worlds.aggregate_cases import records as raw_records
from tests.worlds.join_world import (
    HORIZON_US,
    SITES,
    SPAN_S,
    Case,
    base_catalog,
    close,
    make_records,
    plans_of,
    side_queries,
)
from tests.worlds.live_world import LiveCenter, LiveRelay, LiveSite, Speaker, lowered
from tests.worlds.query_support import Golden, check_golden, make_plan, read_golden
from tests.worlds.relay_world import project_of
from tests.worlds.sharing_support import SECOND, lift_fragment
from tests.worlds.tiers import examples

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
    "comparisons of either kind": Case(
        "count(*) AS n, sum(b.bytes) AS x, max(a.ms) AS y",
        ("a.page",),
        on="a.user = b.user AND a.bytes <= b.bytes",
        where="WHERE b.page <> a.page AND b.ms BETWEEN a.ms AND a.ms + 2.0",
    ),
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
    "streams that share a site": Case(
        "count(*) AS n, sum(b.ms) AS x", ("a.page", "b.bytes"), streams=("clicks", "taps")
    ),
}
REPEATED = [
    ("count", None),
    ("count", pa.int64()),
    ("sum", pa.int64()),
    ("sum", pa.float64()),
    ("sum", pa.decimal128(9, 2)),
    ("avg", pa.int64()),
    ("avg", pa.float64()),
    ("min", pa.int64()),
    ("max", pa.string()),
    ("var_samp", pa.float64()),
    ("stddev_pop", pa.int64()),
    ("moments", pa.float64()),
    ("approx_count_distinct", pa.string()),
]


def values_of(rng: np.random.Generator, count: int, type_: pa.DataType) -> pa.Array:
    drawn = [None if i == 0 else int(i) * 3 - 20 for i in rng.integers(0, 20, count)]
    return pa.array([None if d is None else str(d) for d in drawn] if type_ == pa.string() else drawn, type_)


def same(left: list[pa.Array], right: list[pa.Array], lower: object) -> bool:
    assert callable(lower)
    found, expected = lower(left).to_pylist(), lower(right).to_pylist()
    return close(dict(enumerate(zip(found, strict=True))), dict(enumerate(zip(expected, strict=True))))


@pytest.mark.parametrize(("function", "type_"), REPEATED, ids=str)
@settings(max_examples=examples(15))
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
@settings(max_examples=examples(15))
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


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "<>"])
def test_columns_compare_as_in_spark(operator: str) -> None:
    values = [None, float("nan"), -0.0, 0.0, 1.5, float("inf"), float("-inf")]
    pairs = [(a, b) for a in values for b in values]
    left, right = (pa.array([p[i] for p in pairs], pa.float64(), from_pandas=False) for i in (0, 1))
    holds = {"<": lt, "<=": le, ">": gt, ">=": ge, "<>": ne}[operator]

    def rank(x: float) -> tuple[bool, float]:
        return (True, 0.0) if math.isnan(x) else (False, x)

    expected = [None not in (a, b) and holds(rank(a), rank(b)) for a, b in pairs]
    assert compare(left, operator, right).to_pylist() == expected


@pytest.mark.parametrize("aggregate", [a for a in every_aggregate() if can_repeat(a)], ids=lambda a: a.name)
@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_every_state_that_can_be_repeated_is_that_of_as_many_copies(aggregate: Aggregate, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = raw_records(40, seed)
    groups, times = np.sort(rng.integers(0, 6, 40)).astype(np.intp), rng.integers(0, 5, 6)
    column = None if aggregate.argument is None else given[aggregate.argument].combine_chunks()
    states = aggregate.lift(column, groups, 6)
    copies = np.repeat(np.arange(6), times)
    expected = aggregate.combine([s.take(pa.array(copies)) for s in states], copies.astype(np.intp), 6)
    found = aggregate.lower(repeat(aggregate, states, times)).to_pylist()
    for mine, other in zip(found, aggregate.lower(expected).to_pylist(), strict=True):
        assert same_repeated(aggregate, mine, other), (mine, other)


def same_repeated(aggregate: Aggregate, left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return left == right or bool(np.allclose(left, right))
    if isinstance(left, float) and isinstance(right, float):
        return bool(np.isclose(left, right, rtol=1e-9 + tolerance(aggregate), atol=1e-9))
    return bool(left == right)


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
@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_answers_are_those_over_every_pair_of_records(name: str, seed: int) -> None:
    case, rng = CASES[name], np.random.default_rng(seed)
    records = {s: make_records(rng, int(rng.integers(0, 60)), s) for s in SITES}
    join = plans_of(case.sql)["q0"].join
    assert join is not None
    given = ((s, lift_fragment(records[join.side(s).stream], join.side(s))) for s in SIDES)
    rows = pa.concat_tables([pairing.widen(join, side, table) for side, table in given])
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for window in {w for at in rows[SLICE_COLUMN].to_pylist() for w in join.left.windows[0].containing(at)}:
        starts = np.asarray(rows[SLICE_COLUMN])
        inside = rows.filter(pa.array((starts >= window.start_us) & (starts < window.end_us)))
        pairs = partials.combine(inside, join.pairing.key_names, join.pairing.aggregates)
        found |= {(window.start_us, *k): v for k, v in lowered(pairing.answer(join, pairs), join.answers).items()}
    assert close(found, case.expected(records))


def test_pairs_in_many_blocks_are_the_same_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    case, rng = CASES["counts and sums of either side, keys of both"], np.random.default_rng(3)
    join = plans_of(case.sql)["q0"].join
    assert join is not None
    sides = [
        lift_fragment(make_records(rng, 80, f.stream), f).drop_columns([SLICE_COLUMN]) for f in (join.left, join.right)
    ]
    whole = [pairing.pair(join, *(s.filter(s["user"].is_valid()) for s in sides))]
    monkeypatch.setattr(pairing, "MAX_PAIRS", 7)
    whole.append(pairing.pair(join, *(s.filter(s["user"].is_valid()) for s in sides)))
    found, expected = (lowered(w, join.answers) for w in whole)
    assert found
    assert close(found, expected)


# --- whole runs ---------------------------------------------------------------------------------------------------


class Town:
    """Three sites, three streams, a center; records come out of order, some very late. Some sites may be behind a
    hub."""

    def __init__(self, folder: Path, rng: np.random.Generator, policy: str, behind: Sequence[str] = ()) -> None:
        self.rng, self.clock, self.behind = rng, ManualClock(0), behind
        self.since_s = 0  # event times are of the `SPAN_S` seconds from then on
        names = sorted({site for sites in SITES.values() for site in sites})
        slack, streams = int(rng.integers(0, 60)) * SECOND, {n: [s for s in SITES if n in SITES[s]] for n in names}
        self.sites = {n: LiveSite(folder / n, n, streams[n], policy, slack, self.clock) for n in names}
        hops = {n: "hub" if n in behind else "center" for n in names} | {"hub": "center"}
        project = project_of(folder, hops, wait_us=int(rng.integers(0, 20)) * SECOND)
        self.hubs = [LiveRelay(project, "hub", policy, self.clock)] if behind else []
        self.center = LiveCenter(folder / "center", self.clock, HORIZON_US)
        self.given: dict[str, list[pa.Table]] = {s: [make_records(rng, 0, s)] for s in SITES}

    def deploy(self, plans: Mapping[str, QueryPlan], deployed: Deployed) -> None:
        self.center.deploy(deployed, plans)
        for role in (*self.hubs, *self.sites.values()):
            role.deploy(deployed)

    def step(self) -> None:
        """Some site reads a batch of one of its streams; the center takes some of what some site has sent."""
        self.clock.advance(int(self.rng.integers(0, 5 * SECOND)))
        site = self.sites[str(self.rng.choice(list(self.sites)))]
        self.read(site, str(self.rng.choice(site.streams)), int(self.rng.integers(1, 12)))
        for role in (site, *self.hubs):
            if self.rng.random() < 0.1:
                role.restart()
        if self.rng.random() < 0.1:
            self.center.restart(checkpoint=bool(self.rng.random() < 0.5))
        self.consume(self.sites[str(self.rng.choice(list(self.sites)))])

    def read(self, site: LiveSite, stream: str, count: int) -> None:
        records = make_records(self.rng, count, stream, self.since_s)
        self.given[stream].append(records)
        site.batch(stream, records)

    def consume(self, site: LiveSite) -> None:
        sender: Speaker = site
        for hub in self.hubs if site.name in self.behind else ():
            hub.take(site, hub.seen[site.name] + int(self.rng.integers(1, 5)))
            sender = hub
        self.center.consume(sender, self.center.seen[sender.name] + int(self.rng.integers(1, 5)))

    def finish(self) -> None:
        for site in self.sites.values():
            site.end()
        for hub in self.hubs:
            for name in self.behind:
                hub.take(self.sites[name], len(self.sites[name].out))
        for sender in (*self.hubs, *(s for n, s in self.sites.items() if n not in self.behind)):
            self.center.consume(sender, len(sender.out))
        self.center.repair(everything=True)

    @property
    def records(self) -> dict[str, pa.Table]:
        return {s: pa.concat_tables(parts) for s, parts in self.given.items()}


@settings(max_examples=examples(8))
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


@settings(max_examples=examples(4))
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(["streaming", "batching"]),
    behind=st.sampled_from([("asia",), ("eu", "asia"), ("us", "eu", "asia")]),
    name=st.sampled_from(sorted(n for n, case in CASES.items() if case.streams == ("clicks", "views"))),
)
def test_a_join_answers_the_same_when_a_side_comes_over_a_hub(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: str, behind: tuple[str, ...], name: str
) -> None:
    """`views` is born behind the hub alone, `clicks` on either side of it; the hub is restarted now and then."""
    town = Town(tmp_path_factory.mktemp("town"), np.random.default_rng(seed), policy, behind)
    plans = plans_of(CASES[name].sql)
    town.deploy(plans, deploy_first(side_queries(plans.values()), Strength.FULL, lambda demand: len(demand.keys) + 1.0))
    for _ in range(25):
        town.step()
    town.finish()
    (view,) = plans
    assert close(town.center.answers(view), CASES[name].expected(town.records))
    check_revisions(town.center, view)
    (hub,) = town.hubs
    assert hub.pipeline.finished
    assert {site.name for site in town.sites.values() if hub.seen[site.name]} == set(behind)


def check_revisions(center: LiveCenter, view: str) -> None:
    """Revisions of a window count up, its status never goes back, and in the end it is final."""
    ranks = [EARLY, ON_TIME, EXACT, FINAL]
    windows: dict[int, list[tuple[int, int]]] = {}
    for p in (p for p in center.published if p.query == view):
        windows.setdefault(p.window.start_us, []).append((p.revision, ranks.index(p.status)))
    for history in windows.values():
        assert history == sorted(history)
        assert history[-1][1] == ranks.index(FINAL)


@settings(max_examples=examples(4))
@given(seed=st.integers(0, 10**6))
def test_a_join_that_comes_during_a_run_answers_the_windows_that_both_sides_saw_whole(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    cases = [CASES["no key"], CASES["counts and sums of either side, keys of both"], CASES["a stream with itself"]]
    town = Town(tmp_path_factory.mktemp("town"), np.random.default_rng(seed), "streaming")
    plans = plans_of(*(c.sql for c in cases))
    first, *later = plans
    deployed = deploy_first(side_queries([plans[first]]), Strength.FULL, lambda demand: len(demand.keys) + 1.0)
    town.deploy({first: plans[first]}, deployed)
    for _ in range(10):
        town.step()
    for query in side_queries(plans[n] for n in later):
        deployed = deployed.add(query, "CREATE ...")
    assert set(deployed.submitted) == set(later)
    town.deploy(plans, deployed)
    town.since_s = SPAN_S  # before it there is hardly a window that a view submitted now sees whole
    for _ in range(15):
        town.step()
    for site in town.sites.values():
        for stream in site.streams:
            town.read(site, stream, 40)
    town.finish()
    for view, case in zip(plans, cases, strict=True):
        start = town.center.core.queries[view].sources.start_us
        assert start is not None
        expected = {k: v for k, v in case.expected(town.records).items() if k[0] >= start}
        assert expected, "no answer says nothing"
        assert close(town.center.answers(view), expected)
    gone = deployed.drop(first)
    assert set(gone.views) == set(later)
    assert gone.dropped == (first,)


@settings(max_examples=examples(3))
@given(seed=st.integers(0, 10**6), strength=st.sampled_from([Strength.STRICT, Strength.FULL]))
def test_a_join_whose_sides_move_to_other_fragments_answers_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, strength: Strength
) -> None:
    cases = [CASES["products"], CASES["products"], CASES["counts and sums of either side, keys of both"]]
    town = Town(tmp_path_factory.mktemp("town"), np.random.default_rng(seed), "streaming")
    plans = plans_of(*(c.sql for c in cases))
    deployed = deploy_first(side_queries(plans.values()), Strength.NONE, lambda demand: len(demand.keys) + 1.0)
    town.deploy(plans, deployed)
    for _ in range(8):
        town.step()
    deployed = deployed.move(share(deployed.sharing.queries.values(), strength, lambda demand: len(demand.keys) + 1.0))
    town.deploy(plans, deployed)
    for _ in range(12):
        town.step()
        deployed = deployed.with_ends(town.center.core.fragment_ends()).retire(town.center.core.fragments)
        town.deploy(plans, deployed)
    town.finish()
    running = town.center.core.queries
    used = {running[view].sources.newest_fragment(f"{view}.{side}") for view in plans for side in SIDES}
    assert len(used) == (4 if strength is Strength.STRICT else 2), "equal sides are one; finer ones tell coarser ones"
    for view, case in zip(plans, cases, strict=True):
        assert close(town.center.answers(view), case.expected(town.records))


# --- sharing, plans and explanations -------------------------------------------------------------------------------


def shared(*selects: str) -> SharingState:
    return share(side_queries(plans_of(*selects).values()), Strength.FULL, lambda demand: len(demand.keys) + 1.0)


JOIN = (
    "SELECT window.start, b.page, count(*) AS n, sum(a.bytes) AS x FROM clicks a JOIN views b ON a.user = b.user "
    "WHERE a.bytes > 1 AND b.ms < 5.5 AND a.page < b.page GROUP BY window(a.ts, '1 minute'), b.page"
)
TURNED = (
    "SELECT count(*) AS m, sum(c.bytes) AS bytes, v.page AS p, window.end FROM views v JOIN clicks c "
    "ON c.user = v.user AND 1 < c.bytes WHERE v.ms < 5.5 AND v.page > c.page "
    "GROUP BY v.page, window(v.ts, '60 seconds')"
)


def test_a_join_and_its_mirror_image_are_one_plan_and_share_both_sides() -> None:
    one, other = plans_of(JOIN, TURNED.replace("window.end", "window.start")).values()
    assert fingerprint(one) == fingerprint(other)
    assert len(shared(JOIN, TURNED).fragments) == 2
    assert fingerprint(plans_of(JOIN.replace("> 1", "> 2"))["q0"]) != fingerprint(one)
    assert fingerprint(plans_of(JOIN.replace("a.page <", "a.page <="))["q0"]) != fingerprint(one)
    assert fingerprint(plans_of(JOIN.replace("sum(a.bytes)", "sum(b.bytes)"))["q0"]) != fingerprint(one)


def test_a_view_of_one_stream_is_derived_from_the_side_of_a_join() -> None:
    alone = "SELECT window.start, sum(bytes) AS x FROM clicks WHERE bytes > 1 GROUP BY window(ts, '2 minutes')"
    state = shared(JOIN, alone)
    assert len(state.fragments) == 2
    assert state.derivations["q1"].fragment == state.derivations["q0.left"].fragment


def test_the_sides_of_a_stream_joined_with_itself_are_one_fragment() -> None:
    state = shared(CASES["a stream with itself"].sql.replace("max(b.bytes)", "sum(b.bytes)"))
    assert len(state.fragments) == 1


@pytest.mark.parametrize("case", read_golden("joins.sql"), ids=lambda case: case.title)
def test_a_join_has_the_plan_that_the_golden_file_shows(case: Golden) -> None:
    check_golden("joins.sql", case, make_plan(case.sql).to_text())


def test_a_planned_join_names_the_fragments_of_its_sides_and_where_they_meet() -> None:
    project = base_catalog().project
    statistics = fill_with_guesses(load_statistics(project, base_catalog()), base_catalog())
    told = write_plan(plan_wan(side_queries(plans_of(JOIN).values()), Topology.of_project(project), statistics))
    joins = {(f["stream"], j["query"], j["side"], j["at"]) for f in told["fragments"] for j in f["joins"]}
    assert joins == {("clicks", "q0", "q0.left", "center"), ("views", "q0", "q0.right", "center")}
    assert {(row["from"], row["to"]) for row in told["links"]} == {(s, "center") for s in ("us", "eu", "asia")}


def test_a_join_is_explained_by_both_its_sides() -> None:
    (plan,) = plans_of(JOIN).values()
    told = explain_data(plan, base_catalog().project)
    assert [(f["site"], f["stream"]) for f in told["fragments"]] == [
        ("us", "clicks"),
        ("eu", "clicks"),
        ("asia", "views"),
    ]
    assert told["join"]["on"] == [["left.user", "right.user"]]
    assert told["join"]["aggregates"] == {"n": "left.records, right.records times", "x": "left.x, right.records times"}
    text = explain(plan, base_catalog().project)
    assert "paired per window where left.user = right.user and left.page < right.page" in text


def test_published_sides_are_recalled_whole_and_enacting_again_writes_nothing(tmp_path: Path) -> None:
    join = plans_of(JOIN)["q0"].join
    assert join is not None
    rng, finish = np.random.default_rng(1), lambda rows: rows.append_column("retracted", [[False] * rows.num_rows])
    tables = JoinedTables(tmp_path, "q0", join.answers, finish, pairing=join.pairing)
    lifted = {s: lift_fragment(make_records(rng, 40, join.side(s).stream), join.side(s)) for s in SIDES}
    rows = pa.concat_tables([pairing.widen(join, s, t) for s, t in lifted.items()]).drop_columns([SLICE_COLUMN])
    kept = partials.combine(rows, join.pairing.key_names, join.pairing.aggregates)
    first = Publish("q0", Window(0, 60 * SECOND), 1, EXACT, 1.0, (), "", pairing.answer(join, kept), kept=kept)
    more = kept.slice(0, 3)
    second = replace(
        first,
        revision=2,
        kept=partials.combine(pa.concat_tables([more, more]), join.pairing.key_names, join.pairing.aggregates),
    )
    for number, revision in ((1, first), (2, second), (1, first), (2, second)):
        tables.publish(number, [revision])
    found = tables.recall(pa.table({WINDOW_COLUMN: pa.array([0], pa.int64())})).drop_columns([WINDOW_COLUMN])
    expected = pa.concat_tables([second.kept, kept.slice(3)])
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.select(found.column_names).to_pylist()))
    assert tables.recall(pa.table({WINDOW_COLUMN: pa.array([60 * SECOND], pa.int64())})).num_rows == 0
