"""Queries that share, come, go and move while everything runs, on the real cores and journals without Spark.

Catches: an answer that differs from the query's own fragment over all raw records, a window published that was seen
only in part, a slice taken twice or not at all at a move, and any effect of one query's coming or going on another's
revisions. Cannot catch: what Spark or the wire do; `test_submit_spark.py` runs those.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates.sketches import SketchAggregate
from catchment.errors import PlanError
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import share
from catchment.query.view_start import ViewStart
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, ManualClock
from catchment.wire.messages import Progress, Updates
from tests.worlds.live_world import LiveCenter, LiveSite, expected_answers
from tests.worlds.sharing_support import (
    SECOND,
    is_close,
    make_hits,
    make_queries,
    select,
    selects,
    size,
    size_by_sketches,
)
from tests.worlds.tiers import examples

STREAM = "hits"
HORIZON_US = 150 * SECOND  # beyond how late any record here comes
Change = tuple[str, Any]


class Town:
    """Two sites and a center, a plan of records, and changes at given steps."""

    def __init__(self, folder: Path, seed: int, policy: str, steps: int = 6) -> None:
        self.clock = ManualClock()
        self.sites = [LiveSite(folder / n, n, (STREAM,), policy, 5 * SECOND, self.clock) for n in ("us", "eu")]
        self.center = LiveCenter(folder / "center", self.clock, HORIZON_US)
        self.chance = random.Random(seed)
        rng = np.random.default_rng(seed)
        self.records = {s.name: make_hits(rng, 60).sort_by("ts") for s in self.sites}
        self.parts = {n: _disordered(t, steps, rng) for n, t in self.records.items()}
        self.steps = steps

    def run(self, deployed: Deployed, changes: dict[int, list[Change]]) -> Deployed:
        self.deploy(deployed)
        for step in range(self.steps):
            for kind, what in changes.get(step, []):
                deployed = _changed(deployed, kind, what)
                self.deploy(deployed)
            for site in self.sites:
                site.batch(STREAM, self.parts[site.name][step])
                if self.chance.random() < 0.7:  # else what it sent stays under way
                    self.center.consume(site, len(site.out))
                if self.chance.random() < 0.2:
                    site.restart()
            if self.chance.random() < 0.2:
                self.center.restart()
            self.clock.advance(SECOND)
            deployed = self.follow(deployed)
        for site in self.sites:
            site.end()
            self.center.consume(site, len(site.out))
        for site in self.sites:
            self.center.consume(site, len(site.out))
        self.center.repair(everything=True)
        return deployed

    def deploy(self, deployed: Deployed) -> None:
        self.center.deploy(deployed)
        for site in self.sites:
            site.deploy(deployed)

    def follow(self, deployed: Deployed) -> Deployed:
        """What a runner does after a move: bound what is left, end what is over."""
        newer = deployed.with_ends(self.center.core.fragment_ends()).retire(self.center.core.fragments)
        if newer is not deployed:
            self.deploy(newer)
        return newer

    @property
    def everything(self) -> pa.Table:
        return pa.concat_tables(self.records.values())


def _disordered(table: pa.Table, steps: int, rng: np.random.Generator) -> list[pa.Table]:
    """Batches in order of arrival: most records with their neighbours, some late, beyond the slack."""
    place = np.arange(table.num_rows) + rng.integers(0, 3, table.num_rows)
    place = place + (rng.random(table.num_rows) < 0.1) * rng.integers(0, 8, table.num_rows)
    batch = np.minimum(place * steps // table.num_rows, steps - 1)
    return [table.filter(pa.array(batch == n)) for n in range(steps)]


def _changed(deployed: Deployed, kind: str, what: Any) -> Deployed:
    if kind == "add":
        return deployed.add(what)
    if kind == "widen":
        return deployed.add(what, bytes_of=size_by_sketches)
    if kind == "drop":
        return deployed.drop(what)
    return deployed.move(share(deployed.sharing.queries.values(), what, size))


def check_answers(town: Town, query: SharedQuery) -> None:
    start = town.center.core.queries[query.name].sources.start_us
    assert start is not None
    found, wanted = town.center.answers(query.name), expected_answers(town.everything, query, start)
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert all(is_close(a, b) for a, b in zip(found[key], values, strict=True)), (query.name, key)


@settings(max_examples=examples(5))
@given(
    st.lists(selects(), min_size=2, max_size=4),
    st.sampled_from(list(Strength)),
    st.sampled_from(["batching", "streaming"]),
    st.integers(0, 10**6),
)
def test_live_answers_of_shared_queries_equal_their_own(
    texts: list[str], strength: Strength, policy: str, seed: int
) -> None:
    queries = make_queries(*texts)
    with tempfile.TemporaryDirectory() as folder:
        town = Town(Path(folder), seed, policy)
        town.run(deploy_first(queries, strength, size), {})
        for query in queries:
            assert town.center.core.queries[query.name].sources.start_us == START_OF_TIME_US
            check_answers(town, query)


@settings(max_examples=examples(5))
@given(
    st.lists(selects(), min_size=3, max_size=5),
    st.sampled_from(list(Strength)),
    st.sampled_from(["batching", "streaming"]),
    st.integers(0, 10**6),
    st.data(),
)
def test_a_query_that_comes_or_goes_changes_no_answer_and_no_revision_of_another(
    texts: list[str], strength: Strength, policy: str, seed: int, data: st.DataObject
) -> None:
    first, *others = make_queries(*texts)
    split = data.draw(st.integers(0, len(others) - 1))
    before, after = others[:split], others[split:]
    begin = deploy_first([first, *before], strength, size)
    changes: dict[int, list[Change]] = {}
    for query in after:
        changes.setdefault(data.draw(st.integers(0, 4)), []).append(("add", query))
    for query in before:
        changes.setdefault(data.draw(st.integers(0, 5)), []).append(("drop", query.name))
    with tempfile.TemporaryDirectory() as folder:
        alone, busy = Town(Path(folder) / "a", seed, policy), Town(Path(folder) / "b", seed, policy)
        alone.run(begin, {})
        deployed = busy.run(begin, changes)
        assert busy.center.log(first.name) == alone.center.log(first.name)
        check_answers(busy, first)
        for query in after:
            check_answers(busy, query)
        assert set(deployed.sharing.queries) == {first.name, *(q.name for q in after)}
        assert all(deployed.sharing.users(f) for f in deployed.sharing.fragments)
        for site in busy.sites:
            assert set(site.core.fragments) == set(deployed.sharing.fragments)


@settings(max_examples=examples(5))
@given(
    st.lists(selects(), min_size=2, max_size=4),
    st.sampled_from(["batching", "streaming"]),
    st.integers(0, 10**6),
    st.dictionaries(st.integers(1, 4), st.sampled_from(list(Strength)), min_size=1, max_size=2),
)
def test_answers_are_the_same_whatever_fragments_the_queries_are_moved_to(
    texts: list[str], policy: str, seed: int, moves: dict[int, Strength]
) -> None:
    queries = make_queries(*texts)
    with tempfile.TemporaryDirectory() as folder:
        town = Town(Path(folder), seed, policy)
        town.run(deploy_first(queries, Strength.NONE, size), {at: [("move", to)] for at, to in moves.items()})
        for query in queries:
            check_answers(town, query)


@settings(max_examples=examples(8))
@given(
    st.lists(selects(), min_size=2, max_size=5),
    st.sampled_from(["batching", "streaming"]),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
def test_a_query_that_widens_what_runs_leaves_no_hole_and_changes_no_answer_of_another(
    texts: list[str], policy: str, seed: int, steps: list[int]
) -> None:
    first, *others = make_queries(*texts)
    changes: dict[int, list[Change]] = {}
    for step, query in zip(sorted(steps), others, strict=False):
        changes.setdefault(step, []).append(("widen", query))
    with tempfile.TemporaryDirectory() as folder:
        town = Town(Path(folder), seed, policy)
        town.run(deploy_first([first], Strength.FULL, size_by_sketches), changes)
        assert town.center.core.queries[first.name].sources.start_us == START_OF_TIME_US
        for query in (first, *others):
            check_answers(town, query)


def test_a_widened_fragment_serves_both_and_the_old_one_is_left() -> None:
    pages = select("page, count(*) AS n", "page")
    one, other = make_queries(pages, select("user, approx_top_k(page, 2) AS top", "user"))
    deployed = deploy_first([one], Strength.FULL, size_by_sketches)
    (old,) = deployed.sharing.fragments
    wider = deployed.add(other, bytes_of=size_by_sketches)
    (new,) = (f for f in wider.sharing.fragments if f not in wider.leaving)
    assert wider.leaving == {old: None}
    assert set(wider.sharing.users(new)) == {one.name, other.name}
    assert new in wider.begun
    assert {k.sql for k in wider.sharing.fragments[new].keys} == {"`hits`.`page`", "`hits`.`user`"}
    assert not any(isinstance(a, SketchAggregate) for a in wider.sharing.fragments[new].aggregates)
    apart = deployed.add(other, bytes_of=lambda demand: float(3 ** len(demand.keys)))
    assert not apart.leaving
    assert len(apart.sharing.fragments) == 2


def test_a_query_that_begins_in_the_past_stays_with_its_fragment_when_another_one_is_submitted() -> None:
    """The center may follow both at once: it would then not know the fragment that reads the past."""
    pages = select("page, count(*) AS n", "page")
    one, other = make_queries(pages, select("user, approx_top_k(page, 2) AS top", "user"))
    (first,) = make_queries(select("user, max(ms) AS m", "user"))
    deployed = deploy_first([replace(first, name="first")], Strength.FULL, size_by_sketches)
    deployed = deployed.add(replace(one, start=ViewStart()))
    reading = deployed.derivation(one.name).fragment
    assert deployed.starts == {reading: ViewStart()}
    later = deployed.add(other, bytes_of=size_by_sketches)
    assert later.derivation(one.name).fragment == reading
    assert later.starts == deployed.starts


def test_a_fragment_that_is_being_left_may_be_wanted_again_under_another_name() -> None:
    pages, wider, users = make_queries(
        select("page, count(*) AS n", "page"),
        select("page, country, count(*) AS n", "page, country"),
        select("user, sum(bytes) AS bytes", "user"),
    )
    sizes = {pages.demand: 1.0, wider.demand: 100.0, users.demand: 10.0}
    first = deploy_first([pages], Strength.FULL, size)
    (left,) = first.sharing.fragments
    target = replace(share([wider, pages], Strength.MAX, size).drop(wider.name), strength=Strength.FULL)
    moved = first.move(target).with_ends({left: 0})
    assert moved.leaving == {left: 0}
    again = moved.add(users, "", lambda demand: sizes.get(demand, 1_000.0))
    (other,) = {again.derivation(pages.name).fragment} - {left}
    assert again.sharing.fragments[other] == again.sharing.fragments[left] == pages.demand


def test_what_is_left_by_a_move_is_bounded_then_ends(tmp_path: Path) -> None:
    queries = make_queries(select("page, sum(bytes) AS b", "page"), select("page, count(*) AS n", "page"))
    town = Town(tmp_path, 3, "batching", steps=12)
    deployed = town.run(deploy_first(queries, Strength.NONE, size), {2: [("move", Strength.MAX)]})
    for site in town.sites:
        for name, until_us in deployed.leaving.items():
            assert until_us is not None
            assert site.core.running(name).until_us <= until_us < 300 * SECOND
    assert set(deployed.leaving) == {"q0", "q1"}, "late records may still come for their windows"
    deployed = town.follow(deployed)
    assert not deployed.leaving
    (shared,) = deployed.sharing.fragments
    assert set(deployed.retired) == {"q0", "q1"}
    assert deployed.begun == (shared,)
    for site in town.sites:
        assert site.core.fragments == (shared,)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["batching", "streaming"])
def test_what_hands_over_and_what_takes_over_have_no_slice_of_a_site_in_common(
    tmp_path: Path, seed: int, policy: str
) -> None:
    queries = make_queries(
        select("page, sum(bytes) AS b", "page", window="'20 seconds'"), select("page, count(*) AS n", "page")
    )
    town = Town(tmp_path, seed, policy, steps=12)
    town.run(deploy_first(queries, Strength.NONE, size), {3: [("move", Strength.MAX)]})
    for site in town.sites:
        sent: dict[str, set[int]] = {}
        for message in (m for number in sorted(site.out) for m in site.out[number] if isinstance(m, Updates)):
            sent.setdefault(message.fragment, set()).update(message.table["slice_us"].to_pylist())
        (heir,) = sent.keys() - {"q0", "q1"}
        assert max(sent["q0"] | sent["q1"]) < min(sent[heir])
    for query in queries:
        check_answers(town, query)


def test_a_site_that_begins_later_than_others_hands_over_later(tmp_path: Path) -> None:
    """Nobody waits for it: the others have ended what they left, and no record is missing or there twice."""
    queries = make_queries(select("page, sum(bytes) AS b", "page"), select("page, count(*) AS n", "page"))
    town = Town(tmp_path, 9, "batching", steps=12)
    us, eu = town.sites
    deployed = deploy_first(queries, Strength.NONE, size)
    town.deploy(deployed)
    moved = deployed.move(share(queries, Strength.MAX, size))
    (heir,) = moved.handovers
    assert set(moved.handovers[heir]) == {"q0", "q1"}
    for step in range(12):
        if step == 3:
            town.center.deploy(moved)
            us.deploy(moved)
        if step == 9:
            assert town.center.core.fragment_ends()["q0"] == END_OF_TIME_US, "a site has not begun"
            assert moved.move(share(queries, Strength.NONE, size)) is moved, "one handover at a time"
            eu.restart()
            eu.deploy(moved)
        for site in town.sites:
            site.batch(STREAM, town.parts[site.name][step])
            town.center.consume(site, len(site.out))
    here, there = (site.core.running("q0").until_us for site in town.sites)
    ends = town.center.core.fragment_ends()
    assert here < there == ends["q0"]
    for site, until_us in ((us, here), (eu, there)):
        site.deploy(moved.with_ends(ends))
        assert site.core.running("q0").until_us == until_us, "what was not taken is another's"
        assert site.core.running(heir).from_us == until_us
        site.end()
        town.center.consume(site, len(site.out))
    town.center.repair(everything=True)
    for query in queries:
        check_answers(town, query)


def test_only_fragments_whose_queries_all_go_to_one_that_begins_hand_over() -> None:
    pages, counts, users = make_queries(
        select("page, sum(bytes) AS b", "page"),
        select("page, count(*) AS n", "page"),
        select("user, sum(bytes) AS b", "user"),
    )
    together = deploy_first([pages, counts], Strength.MAX, size)
    apart = together.move(share([pages, counts], Strength.NONE, size))
    assert apart.leaving, "one fragment was left for two"
    assert not apart.handovers
    (long,) = make_queries(select("country, sum(bytes) AS b", "country", window="'1 day'"))
    days = deploy_first([users, replace(long, name="long")], Strength.NONE, size)
    assert not days.move(share([users, replace(long, name="long")], Strength.MAX, size)).handovers, "a day is too long"


def test_a_new_query_waits_until_every_site_has_begun_it(tmp_path: Path) -> None:
    one, two = make_queries(select("page, sum(bytes) AS b", "page"), select("user, max(ms) AS m", "user"))
    town = Town(tmp_path, 5, "batching")
    us, eu = town.sites
    deployed = deploy_first([one], Strength.FULL, size)
    town.deploy(deployed)
    for site in town.sites:
        site.batch(STREAM, town.parts[site.name][0])
        town.center.consume(site, len(site.out))
    deployed = deployed.add(two)
    town.center.deploy(deployed)
    us.deploy(deployed)
    for step in (1, 2, 3):
        for site in town.sites:
            site.batch(STREAM, town.parts[site.name][step])
            town.center.consume(site, len(site.out))
    assert town.center.core.queries["q1"].sources.start_us is None
    assert not town.center.log("q1")
    assert town.center.log("q0")
    eu.deploy(deployed)
    town.center.consume(eu, len(eu.out))
    began = town.center.core.queries["q1"].sources.start_us
    assert began is not None
    assert eu.newest[STREAM] < began <= eu.newest[STREAM] + 60 * SECOND


def test_a_site_that_waits_for_late_records_says_where_a_new_fragment_begins_and_nothing_lower(tmp_path: Path) -> None:
    one, two = make_queries(select("page, sum(bytes) AS b", "page"), select("user, max(ms) AS m", "user"))
    town = Town(tmp_path, 5, "batching")
    site, deployed = town.sites[0], deploy_first([one], Strength.FULL, size)
    site.deploy(deployed)
    site.batch(STREAM, town.parts[site.name][0])
    site.deploy(deployed.add(two))
    marks = [
        m.low_mark_us
        for messages in site.out.values()
        for m in messages
        if isinstance(m, Progress) and m.fragment not in deployed.sharing.fragments
    ]
    assert site.slack_us
    assert marks == [site.newest[STREAM] + 1]


def test_the_name_of_a_dropped_query_is_not_used_again() -> None:
    one, two = make_queries(select("sum(bytes) AS b"), select("max(ms) AS m"))
    deployed = deploy_first([one, two], Strength.FULL, size).drop("q1")
    with pytest.raises(PlanError, match="'q1' was dropped, and its answers are kept"):
        deployed.add(two)
    again = deployed.add(replace(two, name="q2"))
    assert not set(again.sharing.fragments) & set(again.retired), "nor is that of its fragment"
