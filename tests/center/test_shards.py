"""A center whose rows lie in shards says what the plain one says, revision by revision.

Catches: rows that are lost, counted twice or merged into another group between segments and shards, parts that are
removed too early, another status, coverage or bound. Cannot catch: what Spark or Delta do wrong;
`test_sharded_tables.py` and `tests/e2e/test_sharded_center.py` run those.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.query import CenterQuery
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
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


@settings(max_examples=examples(15))
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
        for site in all_sites:
            site.batch([], END_OF_TIME_US)
            deliver(site, (plain, sharded), chance, all_of_it=True)
        plain.consume()
        sharded.consume()
        assert [told(p) for p in sharded.tables.published] == [told(p) for p in plain.tables.published]
        late = [(e.window, e.rows.num_rows) for e in sharded.tables.expired]
        assert late == [(e.window, e.rows.num_rows) for e in plain.tables.expired]
        if horizon == 10_000:
            assert sharded.tables.answer() == naive(window, data)
