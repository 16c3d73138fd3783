"""A site that stays away: what is kept for it is bounded, windows end without it and name it, and a tick stays cheap.

Catches: state that grows with the length of an outage, work per tick that grows with what is kept, windows that are
called complete though a site is missing. Cannot catch: memory of tables outside the core.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from catchment.center.events import Publish
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.instants import SortedInstants
from catchment.center.windows.state import WindowsState
from catchment.timeline import ManualClock, WindowSpec
from tests.worlds.world import Center, Record, Site, deliver_some, make_fragment, naive

FRESHNESS = 30
HORIZON = 200
CHANCE = random.Random(0)


class Outage:
    """A center, a site `a` that sends window after window, and a site `b` that is away."""

    def __init__(self, folder: Path, window: WindowSpec, horizon: int = HORIZON) -> None:
        self.clock = ManualClock()
        self.window = window
        fragment = make_fragment(window)
        query = CenterQuery("q", fragment, window, ("a", "b"), horizon, FRESHNESS)
        self.center = Center(folder / "center", query, self.clock)
        self.sites = {name: Site(folder / name, name, fragment, "streaming", self.clock) for name in ("a", "b")}
        self.records: dict[str, list[Record]] = {"a": [], "b": []}

    def step(self, number: int, *senders: str) -> None:
        """Ten microseconds later: every site reads a record, and some reach the center."""
        for name, site in self.sites.items():
            record = (10 * number + 1, name, 1)
            site.batch([record], 10 * number + 10)
            self.records[name].append(record)
            if name in senders:
                deliver_some(site, self.center, CHANCE, all_of_it=True)
        self.center.consume()
        self.clock.advance(10)
        self.center.tick()

    @property
    def state(self) -> WindowsState:
        return self.center.core.queries["q"].windows.state

    def newest(self) -> dict[int, Publish]:
        return {p.window.start_us: p for p in self.center.tables.published}


@pytest.mark.parametrize("window", [WindowSpec.tumbling(10), WindowSpec(30, 10)])
@pytest.mark.parametrize("crash_every", [0, 7])
def test_what_is_kept_for_a_site_that_is_away_does_not_grow(
    tmp_path: Path, window: WindowSpec, crash_every: int
) -> None:
    world = Outage(tmp_path, window)
    world.step(0, "a", "b")
    kept = []
    for number in range(1, 120):
        world.step(number, "a")
        kept.append((len(world.state.closed), len(world.state.records), len(world.state.slices)))
        if crash_every and number % crash_every == 0:
            world.center.crash()
    windows_in_horizon = HORIZON // 10
    assert max(closed for closed, _, _ in kept) <= windows_in_horizon + 3
    assert max(records for _, records, _ in kept) <= FRESHNESS // 10 + window.size_us // 10 + 2
    newest = world.newest()
    finals = [p for p in newest.values() if p.status == FINAL]
    assert len(finals) > 80
    assert {p.missing_sites for p in finals if p.window.start_us >= 10} == {("b",)}
    assert max(p.coverage for p in finals if p.window.start_us >= 10) < 1.0
    assert EXACT not in {p.status for p in newest.values() if p.window.start_us >= 10}


def test_what_a_site_brings_after_the_horizon_is_registered_counted_and_named(tmp_path: Path) -> None:
    world = Outage(tmp_path, WindowSpec.tumbling(10))
    world.step(0, "a", "b")
    for number in range(1, 60):
        world.step(number, "a")
    final = {start for start, p in world.newest().items() if p.status == FINAL and start > 0}
    assert final
    before = {place: value for place, value in world.center.tables.answer().items() if place[0] in final}
    world.step(60, "a", "b")
    world.clock.advance(20_000_000)
    world.center.tick()
    newest = world.newest()
    answer = world.center.tables.answer()
    assert {place: value for place, value in answer.items() if place[0] in final} == before
    assert {p.window.start_us for p in world.center.tables.expired} == final
    assert world.state.unmerged_of_sites == {"b": len(final)}
    everything = naive(world.window, [*world.records["a"], *world.records["b"]])
    repaired = {start for start in newest if start not in final}
    assert {p.status for start, p in newest.items() if start in repaired} <= {EXACT, FINAL}
    assert {k: v for k, v in answer.items() if k[0] in repaired} == {
        k: v for k, v in everything.items() if k[0] in repaired
    }


def test_windows_end_without_a_site_though_nothing_lands_any_more(tmp_path: Path) -> None:
    """The clock alone makes the horizon pass; and once that is published, a tick has nothing to do again."""
    world = Outage(tmp_path, WindowSpec.tumbling(10))
    world.step(0, "a", "b")
    world.sites["a"].batch([(10 * number + 1, "a", 1) for number in range(1, 40)], 400)
    deliver_some(world.sites["a"], world.center, CHANCE, all_of_it=True)
    world.center.consume()
    world.clock.advance(FRESHNESS)
    world.center.tick()
    passed = {start for start in world.newest() if 0 < start <= 400 - HORIZON - 10}
    assert {world.newest()[start].status for start in passed} == {ON_TIME}
    assert not world.center.core.is_waiting(world.clock.now_us())
    world.clock.advance(HORIZON)
    assert world.center.core.is_waiting(world.clock.now_us())
    world.center.tick()
    assert {(world.newest()[start].status, world.newest()[start].missing_sites) for start in passed} == {
        (FINAL, ("b",))
    }
    assert not world.center.core.is_waiting(world.clock.now_us())


def test_a_replay_that_runs_ahead_in_event_time_does_not_end_windows_without_a_slow_site(tmp_path: Path) -> None:
    """Event time may fly: only a horizon by the clock as well makes a window final without a site."""
    world = Outage(tmp_path, WindowSpec.tumbling(10))
    world.sites["b"].batch([(5, "b", 1)], 10)
    for number in range(100):
        world.sites["a"].batch([(10 * number + 1, "a", 1)], 10 * number + 10)
    deliver_some(world.sites["a"], world.center, CHANCE, all_of_it=True)
    world.center.consume()
    world.clock.advance(FRESHNESS)
    world.center.tick()
    assert {p.status for p in world.newest().values()} == {ON_TIME}
    world.sites["b"].batch([], 1000)
    deliver_some(world.sites["b"], world.center, CHANCE, all_of_it=True)
    world.center.consume()
    world.center.tick()
    assert world.center.tables.answer()[0, "b"] == (1, 1)
    assert {p.status for p in world.newest().values()} <= {EXACT, FINAL}
    assert {p.missing_sites for p in world.newest().values()} == {()}


@pytest.mark.parametrize("horizon", [100, 10_000])
def test_a_tick_costs_what_has_changed_however_much_is_kept(
    tmp_path: Path, horizon: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Outage(tmp_path, WindowSpec.tumbling(10), horizon)
    world.step(0, "a", "b")
    for number in range(1, 60):
        world.step(number, "a")
    assessed = []
    assess = ClosedWindow.assess

    def counting(self: ClosedWindow, *given: object) -> None:
        assessed.append(self)
        assess(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ClosedWindow, "assess", counting)
    for number in range(60, 70):
        world.step(number, "a")
    assert len(assessed) <= 10, "only the windows that close are assessed"


def test_instants_are_found_in_order() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        known: set[int] = set()
        instants = SortedInstants()
        for _ in range(200):
            at = chance.randrange(40)
            if chance.random() < 0.6:
                known.add(at)
                instants.add(at)
            else:
                known.discard(at)
                instants.discard(at)
            low, high = sorted((chance.randrange(-5, 45), chance.randrange(-5, 45)))
            assert list(instants) == sorted(known)
            assert len(instants) == len(known)
            assert (at in instants) == (at in known)
            assert instants.before(high) == sorted(k for k in known if k < high)
            assert instants.between(low, high) == sorted(k for k in known if low <= k < high)
