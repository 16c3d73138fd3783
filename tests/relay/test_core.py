"""Relays without Spark: what comes over other sites gives the answers of the oracle, and is said of the right site.

Catches: partials or counts lost, doubled or booked to another site on the way; marks that run ahead of what they speak
of; statements that a crash repeats or loses. Cannot catch: what sockets do; `test_relay_spark.py` runs those.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.statuses import EXACT, ON_TIME
from catchment.errors import WireError
from catchment.relay.core import RelayCore
from catchment.site.events import LinkMeasured
from catchment.timeline import END_OF_TIME_US, WindowSpec
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import (
    Closing,
    Counted,
    LookedUp,
    Progress,
    Relayed,
    Repaired,
    Resumed,
    Segment,
    Shed,
    Skipped,
    Standing,
    Suspended,
    SuspensionFact,
)
from catchment.wire.receiving.inbox import Inbox
from tests.worlds.relay_world import PAIR, Tree
from tests.worlds.tiers import examples
from tests.worlds.world import Record, assert_well_published, naive

TREES = [
    PAIR,
    {"a": "hub", "b": "hub", "c": "center", "hub": "center"},
    {"a": "near", "b": "far", "c": "far", "far": "near", "near": "center"},
    {"a": "one", "one": "two", "two": "three", "three": "center"},
    {"a": "x", "b": "x", "c": "y", "d": "y", "x": "top", "y": "top", "top": "center"},
]
windows = st.sampled_from([WindowSpec.tumbling(10), WindowSpec(10, 5), WindowSpec(12, 5), WindowSpec(30, 10, 3)])
records = st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abc"), st.integers(-5, 50)), max_size=30)
policies = st.sampled_from(["streaming", "batching", "spillway"])


@settings(max_examples=examples(12))
@given(
    records,
    windows,
    st.sampled_from(TREES),
    policies,
    st.sampled_from([0, 7, 100]),
    st.sampled_from([0, 3, 10**6]),
    st.integers(0, 10_000),
)
def test_over_any_tree_any_order_duplicates_and_crashes_give_the_answer_of_the_oracle(
    data: list[Record], window: WindowSpec, hops: dict[str, str], policy: str, slack: int, wait: int, seed: int
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), hops, window, policy, wait_us=wait)
        newest = dict.fromkeys(tree.origins, -(10**6))
        for start in range(0, len(data), 5):
            name = chance.choice(tree.origins)
            batch = data[start : start + 5]
            newest[name] = max([newest[name], *(ts for ts, _, _ in batch)])
            tree.sites[name].batch(batch, newest[name] - slack)
            tree.clock.advance(1)
            for sender in chance.sample(list(hops), 2):
                tree.deliver(sender, chance)
            for relay in tree.relays.values():
                if chance.random() < 0.5:
                    relay.consume()
            if chance.random() < 0.5:
                tree.center.consume(discard=chance.random() < 0.5)
            if chance.random() < 0.3:
                chance.choice(tree.roles).crash()
        for site in tree.sites.values():
            site.batch([], END_OF_TIME_US)
        tree.settle()
        assert tree.center.tables.answer() == naive(window, data)
        assert_well_published(tree.center)
        assert all(relay.pipeline.finished for relay in tree.relays.values())


@settings(max_examples=examples(8))
@given(records, windows, st.sampled_from(TREES), policies, st.sampled_from([0, 2, 10**6]), st.integers(0, 10_000))
def test_where_no_record_is_late_no_window_is_published_before_all_of_it_is_in(
    data: list[Record], window: WindowSpec, hops: dict[str, str], policy: str, wait: int, seed: int
) -> None:
    """A mark that ran ahead of its partials would close a window too soon, and be followed by a repair."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), hops, window, policy, wait_us=wait)
        per_site: dict[str, list[Record]] = {name: [] for name in tree.origins}
        for record in sorted(data):
            per_site[chance.choice(tree.origins)].append(record)
        while any(per_site.values()):
            name = chance.choice([n for n, rest in per_site.items() if rest])
            batch, per_site[name] = per_site[name][:3], per_site[name][3:]
            tree.sites[name].batch(batch, batch[-1][0])
            tree.clock.advance(1)
            for sender in hops:
                tree.deliver(sender, chance)
            for relay in tree.relays.values():
                relay.consume()
            tree.center.consume()
        for site in tree.sites.values():
            site.batch([], END_OF_TIME_US)
        tree.settle()
        assert tree.center.tables.answer() == naive(window, data)
        assert {p.revision for p in tree.center.tables.published} <= {1}


def test_partials_of_one_key_from_several_sites_go_on_as_one(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10))
    for value, site in enumerate(tree.sites.values()):
        site.batch([(1, "k", value), (2, "l", 5)], 10)
    tree.settle()
    core = tree.relays["hub"].pipeline.core
    assert (core.rows_in, core.rows_out) == (4, 2)
    assert tree.center.tables.answer() == {(0, "k"): (2, 1), (0, "l"): (2, 10)}


def test_the_slower_site_is_waited_for_and_then_no_longer(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), wait_us=50)
    tree.sites["a"].batch([(1, "k", 1)], 10)
    tree.settle()
    hub = tree.relays["hub"].pipeline
    assert hub.core.rows_out == 0
    tree.clock.advance(49)
    tree.settle()
    assert hub.core.rows_out == 0
    tree.clock.advance(1)
    tree.settle()
    assert hub.core.rows_out == 1


def test_a_slice_of_a_site_that_has_ended_waits_no_longer_than_the_wait_for_one_that_is_dead(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), wait_us=50)
    tree.sites["b"].batch([], 5)
    tree.sites["a"].batch([(31, "k", 1)], END_OF_TIME_US)
    tree.settle()
    hub = tree.relays["hub"].pipeline
    assert hub.core.rows_out == 0
    tree.clock.advance(50)
    tree.settle()
    assert hub.core.rows_out == 1
    assert hub.drained


def test_what_a_blocked_link_held_back_at_a_relay_leaves_when_it_is_free() -> None:
    core = RelayCore(0)
    core.handle(LinkMeasured(None, 10, blocked=True), 0)
    assert core.is_waiting(1), "the link must be measured again, or facts stay here"
    core.handle(LinkMeasured(None, 0, blocked=False), 1)
    assert not core.is_waiting(2)


def test_the_site_that_is_missing_is_named_not_the_relay(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), wait_us=5, freshness=50)
    tree.sites["a"].batch([(1, "k", 1)], 10)
    tree.settle()
    for step in (5, 50):
        tree.clock.advance(step)
        tree.settle()
        tree.center.tick()
    (published,) = tree.center.tables.published
    assert (published.status, published.missing_sites) == (ON_TIME, ("b",))
    tree.sites["b"].batch([(2, "k", 7)], 10)
    tree.settle()
    last = tree.center.tables.published[-1]
    assert (last.status, last.missing_sites, last.coverage) == (EXACT, (), 1.0)
    assert tree.center.tables.answer() == {(0, "k"): (2, 8)}


def test_raw_records_are_counted_under_their_own_site(tmp_path: Path) -> None:
    tree = Tree(tmp_path, TREES[4], WindowSpec.tumbling(10))
    chance = random.Random(3)
    born = Counter[tuple[str, int]]()
    counted = Counter[tuple[str, int]]()
    for name, site in tree.sites.items():
        mine = [(chance.randrange(30), chance.choice("xyz"), 1) for _ in range(chance.randrange(1, 9))]
        born.update((name, ts // 10 * 10) for ts, _, _ in mine)
        site.batch(mine, END_OF_TIME_US)
    tree.settle()
    for relayed in tree.heard:
        if isinstance(relayed.fact, Counted):
            counted.update({(relayed.origin, s): n for s, n in relayed.fact.records})
    assert counted == born


def test_where_a_site_began_a_fragment_is_passed_on_as_it_was_said(tmp_path: Path) -> None:
    """The first mark of a fragment that was begun during a run is where it begins, whatever waits at the relay."""
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10))
    for name, begin in (("a", 7), ("b", 23)):
        tree.sites[name].state(Progress("q", begin, 0))
        tree.sites[name].batch([(begin + 1, "k", 1)], begin + 4)
    tree.settle()
    firsts: dict[str, int] = {}
    for relayed in tree.heard:
        if isinstance(relayed.fact, Progress):
            firsts.setdefault(relayed.origin, relayed.fact.low_mark_us)
    assert firsts == {"a": 7, "b": 23}


def test_what_was_shed_is_known_at_once_and_repaired_only_when_the_rest_has_left(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), wait_us=10**6)
    site, shed, repaired = tree.sites["a"], Shed("q", 4, 0.5, ((0, 3),)), Repaired("q", 4)
    site.state(shed)
    site.batch([(1, "k", 1)], 10)
    site.state(repaired)
    tree.settle()
    assert Relayed("a", shed) in tree.heard
    assert Relayed("a", repaired) not in tree.heard, "its partials wait for site b"
    tree.sites["b"].batch([], 10)
    tree.settle()
    assert tree.heard.count(Relayed("a", shed)) == tree.heard.count(Relayed("a", repaired)) == 1
    assert tree.relays["hub"].pipeline.drained


def test_that_a_fragment_is_suspended_is_passed_on_before_any_mark_that_covers_what_it_skipped(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), wait_us=10**6)
    site = tree.sites["a"]
    facts: list[SuspensionFact] = [Suspended("q", 4, 0, "not a number"), Skipped("q", 4, ((0, 3),)), Resumed("q")]
    site.state(*facts)
    site.batch([], 10)
    tree.sites["b"].batch([(1, "k", 1)], 10)
    tree.settle()
    heard = [h.fact for h in tree.heard if isinstance(h, Relayed) and h.origin == "a"]
    assert [fact for fact in heard if fact in facts] == facts
    marks = [place for place, fact in enumerate(heard) if isinstance(fact, Progress)]
    assert heard.index(facts[1]) < min(marks)


def test_in_which_version_records_were_looked_up_is_passed_on_before_any_mark_that_covers_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), wait_us=10**6)
    fact = LookedUp("q", "tiers", "3f2a", (0,))
    tree.sites["a"].state(fact)
    for site in tree.sites.values():
        site.batch([], 10)
    tree.settle()
    heard = [h.fact for h in tree.heard if isinstance(h, Relayed) and h.origin == "a"]
    assert heard.count(fact) == 1
    assert heard.index(fact) < min(place for place, told in enumerate(heard) if isinstance(told, Progress))


def test_how_windows_were_let_go_is_passed_on_and_that_they_are_over_when_they_have_left(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), wait_us=10**6)
    site, closing = tree.sites["a"], Closing(10, "slack", ())
    site.batch([(1, "k", 1)], 10)
    site.state(Standing("q", "view", 10, (closing,)))
    tree.settle()
    first, *more = _standings(tree)
    assert first.closings == (closing,)
    assert all(standing.complete_until_us < 10 and not standing.closings for standing in more)
    tree.sites["b"].batch([], 10)
    tree.settle()
    assert _standings(tree)[-1] == Standing("q", "view", 10)


def _standings(tree: Tree) -> list[Standing]:
    return [relayed.fact for relayed in tree.heard if isinstance(relayed.fact, Standing)]


def test_a_site_speaks_for_those_behind_it_alone(tmp_path: Path) -> None:
    tree = Tree(tmp_path, TREES[1], WindowSpec.tumbling(10))
    tree.center.inbox = Inbox(tmp_path / "checked", admit=tree.admission.check)

    def stating(origin: str, sequence: int) -> bytes:
        return encode_segment(Segment("hub", "life", sequence, (Relayed(origin, Progress("q", 5, 0)),))).data

    assert tree.center.inbox.accept(stating("a", 0)) == 0
    with pytest.raises(WireError, match="states facts of 'c', whose route to the center is not through it"):
        tree.center.inbox.accept(stating("c", 1))
    with pytest.raises(WireError, match="states facts of 'b'"):
        tree.relays["hub"].inbox.accept(encode_segment(Segment("a", "life", 0, (Relayed("b", Repaired("q", 1)),))).data)


def test_poison_of_one_site_blocks_that_site_at_the_relay_and_nobody_else(tmp_path: Path) -> None:
    tree = Tree(tmp_path, PAIR, WindowSpec.tumbling(10), freshness=100)
    for name in ("a", "b"):
        tree.sites[name].batch([(1, "k", 1)], 10)
    tree.settle()
    hub = tree.relays["hub"]
    tree.sites["b"].state(Progress("q", 20, 99))  # 99 updates were never sent
    tree.sites["a"].batch([(11, "k", 5)], 20)
    tree.deliver("a", random.Random(0), all_of_it=True)
    tree.deliver("b", random.Random(0), all_of_it=True)
    for _ in range(3):
        hub.consume()
        hub.crash()
        (told,) = hub.pipeline.status()["blocked"].values()
        assert told["segment"] == 1
        assert "'b' states 99 updates of 'q' up to segment 1, but 1 are in" in told["reason"]
    tree.clock.advance(51)  # the relay waits no longer
    hub.consume()
    tree.deliver("hub", random.Random(0), all_of_it=True)
    tree.center.consume()
    tree.clock.advance(100)
    tree.center.tick()
    published = tree.center.tables.published[-1]
    assert (published.window.start_us, published.missing_sites) == (10, ("b",))
    assert tree.center.tables.answer()[10, "k"] == (1, 5)
