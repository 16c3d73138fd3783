"""A center whose rows lie in shards says what the plain one says, revision by revision.

Catches: rows that are lost, counted twice or merged into another group between segments and shards, parts that are
removed too early, another status, coverage or bound. Cannot catch: what Spark or Delta do wrong;
`test_sharded_tables.py` and `tests/e2e/test_sharded_center.py` run those.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.core import CenterCore
from catchment.center.events import AnswersSuspended, Publish, QueryAdded, QueryDropped, UnfinishedRevision
from catchment.center.query import CenterQuery
from catchment.center.shards.parts import Part, make_parts
from catchment.center.statuses import SUSPENDED
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.messages import Progress
from tests.worlds.sharded_world import ShardedWorldCenter, told
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, make_fragment, naive

windows = st.sampled_from([WindowSpec.tumbling(10), WindowSpec(10, 5), WindowSpec(12, 5), WindowSpec(30, 10, 3)])
records = st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abcdefgh"), st.integers(-5, 50)), max_size=60)


def deliver(site: Site, centers: tuple[Center, ...], chance: random.Random, all_of_it: bool = False) -> None:
    """Some pending segments, in any order, some twice, to every center alike."""
    pending = [p.sequence for p in site.outbox.pending()]
    chance.shuffle(pending)
    for sequence in pending:
        if all_of_it or chance.random() < 0.6:
            for _ in range(chance.choice([1, 1, 2])):
                for center in centers:
                    center.inbox.accept(site.pending_bytes(sequence))
            if all_of_it or chance.random() < 0.8:
                site.outbox.ack(sequence)


@settings(max_examples=examples(8))
@given(
    data=records,
    window=windows,
    sites=st.sampled_from([1, 3]),
    policy=st.sampled_from(["streaming", "batching", "spillway"]),
    slack=st.sampled_from([0, 7, 100]),
    horizon=st.sampled_from([20, 10_000]),
    freshness=st.sampled_from([None, 3]),
    early=st.sampled_from([None, 2]),
    shards=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 10_000),
)
def test_shards_say_what_one_center_says(
    data: list[Record],
    window: WindowSpec,
    sites: int,
    policy: str,
    slack: int,
    horizon: int,
    freshness: int | None,
    early: int | None,
    shards: int,
    seed: int,
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock()
        fragment = make_fragment(window)
        names = tuple(f"site{i}" for i in range(sites))
        query = CenterQuery("q", fragment, window, names, horizon, freshness, early_us=early)
        plain = Center(Path(folder) / "plain", query, clock)
        sharded = ShardedWorldCenter(Path(folder) / "sharded", query, clock)
        sharded.divide(shards)
        all_sites = [Site(Path(folder) / n, n, fragment, policy, clock) for n in names]
        newest = dict.fromkeys(range(sites), -(10**6))
        is_whole = horizon == 10_000
        for start in range(0, len(data), 5):
            number = chance.randrange(sites)
            batch = data[start : start + 5]
            newest[number] = max([newest[number], *(ts for ts, _, _ in batch)])
            all_sites[number].batch(batch, newest[number] - slack)
            clock.advance(1)
            deliver(chance.choice(all_sites), (plain, sharded), chance)
            if chance.random() < 0.5:
                plain.consume()
                sharded.consume(discard=chance.random() < 0.5)
            if chance.random() < 0.2:
                sharded.crash()
            if chance.random() < 0.2:
                sharded.host.checkpoint()
                sharded.keeper.remove_unused()
            if chance.random() < 0.2:
                sharded.divide(chance.choice([1, 2, 5]))
            if chance.random() < 0.05:
                is_whole = False  # it begins anew, behind what has come
                for center in (plain, sharded):
                    center.host.submit("deploy", [QueryDropped("q"), QueryAdded(query)])
        for site in all_sites:
            site.batch([], END_OF_TIME_US)
            deliver(site, (plain, sharded), chance, all_of_it=True)
        plain.consume()
        sharded.consume()
        assert [told(p) for p in sharded.tables.published] == [told(p) for p in plain.tables.published]
        late = [(e.window, e.rows.num_rows) for e in sharded.tables.expired]
        assert late == [(e.window, e.rows.num_rows) for e in plain.tables.expired]
        if is_whole:
            assert sharded.tables.answer() == naive(window, data)


def test_the_driver_holds_no_more_for_many_groups_than_for_few(tmp_path: Path) -> None:
    """What is journalled and written down of open windows does not grow with their groups."""
    sizes = {}
    for groups in (10, 20_000):
        clock = ManualClock()
        window = WindowSpec.tumbling(1_000)
        fragment = make_fragment(window)
        folder = tmp_path / str(groups)
        center = ShardedWorldCenter(folder / "center", CenterQuery("q", fragment, window, ("a",), 1_000), clock)
        site = Site(folder / "site", "a", fragment, "streaming", clock)
        for batch in range(3):
            site.batch([(batch, f"group{n}", n) for n in range(groups)], batch)
            deliver(site, (center,), random.Random(0), all_of_it=True)
            center.consume()
        center.host.checkpoint()
        assert center.core.queries["q"].windows.open.first_window() is not None, "the window is open"
        sizes[groups] = sum(file.stat().st_size for file in (folder / "center" / "journal").iterdir())
    assert sizes[20_000] < 2 * sizes[10]


def test_parts_that_nothing_names_are_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    window = WindowSpec.tumbling(10)
    fragment = make_fragment(window)
    center = ShardedWorldCenter(tmp_path / "center", CenterQuery("q", fragment, window, ("a",), 1_000), clock)
    site = Site(tmp_path / "site", "a", fragment, "streaming", clock)
    site.batch([(1, "a", 1), (11, "a", 2)], 9)
    deliver(site, (center,), random.Random(0), all_of_it=True)
    center.consume()
    site.batch([], 10)
    deliver(site, (center,), random.Random(0), all_of_it=True)
    center.consume()
    center.host.checkpoint()
    center.keeper.remove_unused()
    assert list((tmp_path / "center" / "parts").rglob("*.arrow")), "the second window is open"
    site.batch([], END_OF_TIME_US)
    deliver(site, (center,), random.Random(0), all_of_it=True)
    center.consume()
    center.host.checkpoint()
    center.keeper.remove_unused()
    assert not list((tmp_path / "center" / "parts").rglob("*.arrow"))


def test_the_parts_of_a_slice_that_stays_open_are_folded(tmp_path: Path) -> None:
    clock = ManualClock()
    window = WindowSpec.tumbling(1_000)
    fragment = make_fragment(window)
    center = ShardedWorldCenter(tmp_path / "center", CenterQuery("q", fragment, window, ("a",), 10_000), clock)
    site = Site(tmp_path / "site", "a", fragment, "streaming", clock)
    data: list[Record] = []
    for batch in range(70):
        mine: list[Record] = [(batch, key, batch) for key in "abcdefgh"]
        data += mine
        site.batch(mine, batch)
        deliver(site, (center,), random.Random(0), all_of_it=True)
        center.consume()
    held = center.core.queries["q"].windows.state.slices[0]
    assert sum(table.num_rows for table in held) < 20, "one part per shard, and those of the runs since"
    center.crash()
    site.batch([], END_OF_TIME_US)
    deliver(site, (center,), random.Random(0), all_of_it=True)
    center.consume()
    assert center.tables.answer() == naive(window, data)


def test_a_window_whose_sum_does_not_fit_is_given_up_when_tasks_say_so() -> None:
    window = WindowSpec.tumbling(10)
    core = CenterCore()
    core.handle(QueryAdded(CenterQuery("q", make_fragment(window), window, ("a",), 1_000)), 0)
    part = make_parts([(0, Part("q", "file", 0, (4,)))])
    landed = Landed("a", 0, (("q", 4),), (Progress("q", 10, 4),))
    (closed,) = core.handle_all([Gathered("q", part, (("a", 0, 4),)), landed, Ticked()], 0)
    assert isinstance(closed, Publish)
    overflowing = replace(UnfinishedRevision.of(closed), overflows=True)
    (told,) = core.handle_all([AnswersSuspended("q", (overflowing,), "total does not fit")], 1)
    assert isinstance(told, Publish)
    assert (told.status, told.missing_sites, told.coverage) == (SUSPENDED, ("a",), 0.0)
    assert core.unfinished["q"].suspended is not None
    assert not core.unfinished["q"].windows, "it is not finished when the view is resumed"
    core.validate()
