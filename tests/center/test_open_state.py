"""The bound of what the center holds for open windows: who is held back, and that it always goes on.

Catches: a center that holds more and more, senders that are held back though a window waits for them, a deadlock.
Cannot catch: sockets and real time. Generated deployments have tiny bounds too (`tests/testing/test_simulation.py`).
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from catchment.center.open_state import OpenState, find_unneeded, measure
from catchment.center.query import CenterQuery
from catchment.project.routes import Routes
from catchment.project.routings import Routings
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.sending.uplink import RefusedError
from tests.worlds.tiers import seeds
from tests.worlds.world import Center, Record, Site, assert_well_published, make_fragment, naive

TEN = WindowSpec.tumbling(10)
STAR = Routings.only(Routes("center", {"site0": "center", "site1": "center"}))


def world(folder: Path, sites: int = 2) -> tuple[Center, list[Site], ManualClock]:
    clock = ManualClock()
    fragment = make_fragment(TEN)
    names = tuple(f"site{i}" for i in range(sites))
    center = Center(folder / "center", CenterQuery("q", fragment, TEN, names, 10), clock)
    return center, [Site(folder / n, n, fragment, "streaming", clock) for n in names], clock


def send(site: Site, center: Center) -> bool:
    """Send what waits, in order, until something is refused; return whether anything was taken."""
    taken = False
    for pending in list(site.outbox.pending()):
        try:
            center.inbox.accept(site.pending_bytes(pending.sequence))
        except RefusedError as refusal:
            if refusal.reason == "full":
                break
            raise
        site.outbox.ack(pending.sequence)
        taken = True
    center.consume()
    return taken


def test_a_site_that_is_ahead_of_the_oldest_window_is_held_back_and_the_one_that_is_behind_is_not(
    tmp_path: Path,
) -> None:
    center, (a, b), clock = world(tmp_path)
    state = OpenState(center.core, STAR, clock, limit_bytes=1)
    for number in range(5):
        a.batch([(10 * number, "k", 1)], 10 * number + 10)
    send(a, center)
    assert state.follow()
    assert state.held_back == {"site0"}
    center.inbox.hold_back(dict.fromkeys(state.held_back, state.reason()))
    a.batch([(60, "k", 1)], 70)
    assert not send(a, center)
    b.batch([(1, "k", 1)], 50)
    assert send(b, center)
    clock.advance(2_000_000)
    assert state.follow()
    assert (state.held_back, state.size_bytes, state.times_held) == (frozenset(), 0, 1)
    center.inbox.hold_back({})
    assert send(a, center)


def test_a_relay_is_taken_while_any_site_behind_it_is_needed(tmp_path: Path) -> None:
    center, (a, b, c), _ = world(tmp_path, 3)
    routes = Routes("center", {"site0": "relay", "site1": "relay", "relay": "center", "site2": "center"})
    for site, mark in ((a, 100), (b, 5), (c, 100)):
        site.batch([(1, "k", 1), (50, "k", 1)], mark)
        send(site, center)
    assert measure(center.core) > 0
    assert find_unneeded(center.core, Routings.only(routes)) == {"site2"}


@pytest.mark.parametrize("seed", seeds(4))
def test_under_any_bound_and_order_everything_is_answered(seed: int) -> None:
    """Sites send at will, also far ahead of each other; the center takes what it may, and nothing is ever stuck."""
    chance = random.Random(seed)
    limit_bytes = chance.choice([1, 200, 1_000])
    with tempfile.TemporaryDirectory() as folder:
        center, sites, clock = world(Path(folder), chance.choice([2, 3]))
        routes = Routes("center", {site.name: "center" for site in sites})
        state = OpenState(center.core, Routings.only(routes), clock, limit_bytes)
        records: list[Record] = []
        for site in sites:
            for number in range(20):
                mine = [(10 * number + chance.randrange(10), chance.choice("ab"), 1) for _ in range(3)]
                records += mine
                site.batch(mine, 10 * number + chance.choice([0, 5, 10]))
            site.batch([], END_OF_TIME_US)
        idle = 0
        while any(site.outbox.pending() for site in sites):
            site = chance.choice(sites)
            idle = 0 if send(site, center) else idle + 1
            assert idle < 200, f"all are held back: {state.status()}"
            clock.advance(2_000_000)
            state.follow()
            center.inbox.hold_back(dict.fromkeys(state.held_back, state.reason()))
            center.tick()
        center.tick()
        assert center.tables.answer() == naive(TEN, records)
        assert_well_published(center)
        assert state.times_held or limit_bytes == 1_000
