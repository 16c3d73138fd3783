"""Joins of two streams: answers against every pair of raw records, and whole runs.

Catches: a pair counted twice or not at all, nulls that join, a late record that reaches one side only, a window that
closes before both streams have passed it. Cannot catch: what Spark makes of the sides' expressions, which
`tests/spark/test_join.py` does. The laws of states over pairs are in `tests/aggregates/test_pair_states.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import partials
from catchment.center.events import Publish
from catchment.center.join import pairing
from catchment.center.join.results import JoinedTables
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import share
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.join import SIDES
from catchment.query.plan import QueryPlan
from catchment.timeline import ManualClock, Window
from tests.worlds.join_world import (
    CASES,
    HORIZON_US,
    JOIN,
    SITES,
    SPAN_S,
    close,
    make_records,
    plans_of,
    side_queries,
)
from tests.worlds.live_world import LiveCenter, LiveRelay, LiveSite, Speaker, lowered
from tests.worlds.relay_world import project_of
from tests.worlds.sharing_support import SECOND, lift_fragment
from tests.worlds.tiers import examples


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_answers_are_those_over_every_pair_of_records(name: str, seed: int) -> None:
    case, rng = CASES[name], np.random.default_rng(seed)
    records = {s: make_records(rng, int(rng.integers(0, 60)), s) for s in SITES}
    join = plans_of(case.sql)["q0"].join
    assert join is not None
    given = ((place, lift_fragment(records[f.stream], f)) for place, f in join.streams.items())
    rows = pa.concat_tables([pairing.widen(join, place, table) for place, table in given])
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for window in {w for at in rows[SLICE_COLUMN].to_pylist() for w in join.right.windows[0].containing(at)}:
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
        lift_fragment(make_records(rng, 80, f.stream), f).drop_columns([SLICE_COLUMN])
        for f in (join.side(side) for side in SIDES)
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
        roles: list[LiveSite | LiveRelay] = [*self.hubs, *self.sites.values()]
        for role in roles:
            role.deploy(deployed)

    def step(self) -> None:
        """Some site reads a batch of one of its streams; the center takes some of what some site has sent."""
        self.clock.advance(int(self.rng.integers(0, 5 * SECOND)))
        site = self.sites[str(self.rng.choice(list(self.sites)))]
        self.read(site, str(self.rng.choice(site.streams)), int(self.rng.integers(1, 12)))
        roles: list[LiveSite | LiveRelay] = [site, *self.hubs]
        for role in roles:
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
        direct = [s for n, s in self.sites.items() if n not in self.behind]
        senders: list[Speaker] = [*self.hubs, *direct]
        for sender in senders:
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
