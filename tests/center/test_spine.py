"""The spine without Spark: whatever the order, the duplicates and the crashes, the answer is the oracle's.

Catches: anything lost or counted twice between a record's partial and its window, wrong closing, wrong revisions.
Cannot catch: what Spark, sockets or Delta do wrong; `test_pipelines.py` and `test_kill.py` run those.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.events import QueryAdded
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.errors import CenterError, WireError
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, assert_well_published, deliver_some, make_fragment, naive

windows = st.sampled_from([WindowSpec.tumbling(10), WindowSpec(10, 5), WindowSpec(12, 5), WindowSpec(30, 10, 3)])
records = st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abc"), st.integers(-5, 50)), max_size=60)


def world(
    folder: Path, window: WindowSpec, sites: int, policy: str, horizon: int, freshness: int | None = None
) -> tuple[Center, list[Site], ManualClock]:
    clock = ManualClock()
    fragment = make_fragment(window)
    names = tuple(f"site{i}" for i in range(sites))
    center = Center(folder / "center", CenterQuery("q", fragment, window, names, horizon, freshness), clock)
    return center, [Site(folder / n, n, fragment, policy, clock) for n in names], clock


@settings(max_examples=examples(60))
@given(
    data=records,
    window=windows,
    sites=st.sampled_from([1, 3, 8]),
    policy=st.sampled_from(["streaming", "batching", "spillway"]),
    slack=st.sampled_from([0, 7, 100]),
    seed=st.integers(0, 10_000),
)
def test_any_order_duplicates_and_crashes_give_the_answer_of_the_oracle(
    data: list[Record], window: WindowSpec, sites: int, policy: str, slack: int, seed: int
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        center, all_sites, clock = world(Path(folder), window, sites, policy, horizon=10_000)
        newest = dict.fromkeys(range(sites), -(10**6))
        for start in range(0, len(data), 5):
            number = chance.randrange(sites)
            batch = data[start : start + 5]  # event times in no order at all: most of it is late
            newest[number] = max([newest[number], *(ts for ts, _, _ in batch)])
            all_sites[number].batch(batch, newest[number] - slack)
            clock.advance(1)
            deliver_some(chance.choice(all_sites), center, chance)
            if chance.random() < 0.5:
                center.consume(discard=chance.random() < 0.5)
            if chance.random() < 0.2:
                roles: list[Center | Site] = [center, *all_sites]
                chance.choice(roles).crash()
        for site in all_sites:
            site.batch([], END_OF_TIME_US)
            deliver_some(site, center, chance, all_of_it=True)
        center.consume()
        assert center.tables.answer() == naive(window, data)
        assert_well_published(center)


def test_a_window_closes_when_every_site_has_passed_its_end(tmp_path: Path) -> None:
    center, (a, b), _ = world(tmp_path, WindowSpec.tumbling(10), 2, "batching", 1000)
    a.batch([(1, "a", 5)], 10)
    b.batch([(2, "a", 7)], 9)
    for site in (a, b):
        deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()
    assert center.tables.published == []
    b.batch([], 10)
    deliver_some(b, center, random.Random(0), all_of_it=True)
    center.consume()
    (published,) = center.tables.published
    assert (published.status, published.coverage, published.missing_sites) == (EXACT, 1.0, ())
    assert center.tables.answer() == {(0, "a"): (2, 12)}


def test_a_missing_site_is_named_and_its_return_makes_the_window_exact(tmp_path: Path) -> None:
    center, (a, b), clock = world(tmp_path, WindowSpec.tumbling(10), 2, "batching", 1000, freshness=50)
    for site, value in ((a, 5), (b, 7)):
        site.batch([(1, "a", value)], 10)
        deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()
    a.batch([(11, "a", 1)], 20)
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    clock.advance(49)
    center.tick()
    assert len(center.tables.published) == 1, "the freshness wish has not run out"
    clock.advance(1)
    center.tick()
    second = center.tables.published[-1]
    assert (second.status, second.missing_sites) == (ON_TIME, ("site1",))
    assert second.coverage == pytest.approx(0.5)  # one record is in; the other site had one in the window before
    b.batch([(12, "a", 3)], 20)
    deliver_some(b, center, random.Random(0), all_of_it=True)
    center.consume()
    third = center.tables.published[-1]
    assert (third.status, third.revision, third.coverage, third.missing_sites) == (EXACT, 2, 1.0, ())
    assert center.tables.answer()[10, "a"] == (2, 4)


def test_a_missing_site_with_nothing_to_add_changes_the_status_only(tmp_path: Path) -> None:
    center, (a, b), clock = world(tmp_path, WindowSpec.tumbling(10), 2, "batching", 1000, freshness=5)
    a.batch([(1, "a", 5)], 10)
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    clock.advance(5)
    center.tick()
    b.batch([], 10)
    deliver_some(b, center, random.Random(0), all_of_it=True)
    center.consume()
    first, second = center.tables.published
    assert (first.status, first.missing_sites, first.coverage) == (ON_TIME, ("site1",), 0.5)
    assert (second.status, second.revision, second.rows.num_rows) == (EXACT, 1, 0)


def test_what_comes_after_the_horizon_is_registered_not_merged(tmp_path: Path) -> None:
    center, (a,), _ = world(tmp_path, WindowSpec.tumbling(10), 1, "streaming", horizon=20)
    a.batch([(1, "a", 5)], 40)
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    assert center.tables.published[-1].status == FINAL
    a.batch([(2, "a", 1), (45, "a", 2)], 46)
    deliver_some(a, center, random.Random(0), all_of_it=True)
    center.consume()
    (expired,) = center.tables.expired
    assert expired.window.start_us == 0
    assert expired.rows["total__sum"].to_pylist() == [1]
    assert center.tables.answer()[0, "a"] == (1, 5)


def test_a_mark_counts_only_when_every_segment_before_it_is_in(tmp_path: Path) -> None:
    center, (a,), _ = world(tmp_path, WindowSpec.tumbling(10), 1, "streaming", 1000)
    a.batch([(1, "a", 5)], 5)
    a.batch([(2, "a", 6)], 10)
    first, second = (p.sequence for p in a.outbox.pending())
    center.inbox.accept(a.pending_bytes(second))
    center.consume()
    assert center.tables.published == [], "the first segment is still on its way"
    center.inbox.accept(a.pending_bytes(first))
    center.consume()
    assert center.tables.answer() == {(0, "a"): (2, 11)}


def test_a_site_whose_state_was_replaced_is_refused(tmp_path: Path) -> None:
    center, (a,), clock = world(tmp_path, WindowSpec.tumbling(10), 1, "streaming", 1000)
    a.batch([(1, "a", 5)], 10)
    deliver_some(a, center, random.Random(0), all_of_it=True)
    other = Site(tmp_path / "elsewhere", "site0", a.fragment, "streaming", clock)
    other.batch([(1, "a", 5)], 10)
    with pytest.raises(WireError, match="state folder of 'site0' was replaced"):
        center.inbox.accept(other.pending_bytes(0))


def test_a_query_is_added_once(tmp_path: Path) -> None:
    center, _, _ = world(tmp_path, WindowSpec.tumbling(10), 1, "streaming", 1000)
    with pytest.raises(CenterError, match="already running"):
        center.core.handle(QueryAdded(center.query), 0)
