"""How long a window waits for a site that is away: its freshness, and no longer however many windows wait with it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from catchment.center.events import Publish
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, ON_TIME
from catchment.timeline import ManualClock, WindowSpec
from tests.worlds.world import Center, Record, Site, deliver_some, make_fragment, naive

WINDOW = WindowSpec.tumbling(10)
FRESHNESS = 60
CHANCE = random.Random(0)


class TwoSites:
    """A center and two sites of which the second can be cut off; one record per site and window."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        fragment = make_fragment(WINDOW)
        query = CenterQuery("q", fragment, WINDOW, ("a", "b"), 10_000, FRESHNESS)
        self.center = Center(folder / "center", query, self.clock)
        self.sites = {name: Site(folder / name, name, fragment, "streaming", self.clock) for name in ("a", "b")}
        self.records: list[Record] = []
        self.passed: dict[int, int] = {}  # window start -> when the first site had passed its end

    def step(self, window_start: int, *senders: str) -> None:
        """One window later: every site reads it, some of them reach the center, and time passes."""
        for name, site in self.sites.items():
            record = (window_start + 1, name, 1)
            site.batch([record], window_start + 10)
            self.records.append(record)
            if name in senders:
                deliver_some(site, self.center, CHANCE, all_of_it=True)
        if senders:
            self.passed[window_start] = self.clock.now_us()
        self.center.consume()
        self.clock.advance(10)
        self.center.tick()

    def published_at(self) -> dict[int, int]:
        first: dict[int, int] = {}
        for published in self.center.tables.published:
            first.setdefault(published.window.start_us, published.published_us)
        return first


@pytest.mark.parametrize("crash_every", [0, 7])
def test_a_dead_site_costs_its_freshness_once_not_once_per_window(tmp_path: Path, crash_every: int) -> None:
    world = TwoSites(tmp_path)
    world.step(0, "a", "b")
    for number in range(1, 100):
        world.step(10 * number, "a")
        if crash_every and number % crash_every == 0:
            world.center.crash()
    published = world.published_at()
    waited = {start: published[start] - passed for start, passed in world.passed.items() if start in published}
    assert len(waited) >= 100 - FRESHNESS // 10 - 1, "windows wait though they have waited long enough"
    assert max(waited.values()) <= FRESHNESS + 10
    assert {p.status for p in world.center.tables.published if p.window.start_us > 0} == {ON_TIME}
    assert len(world.center.core.queries["q"].windows.state.furthest) <= FRESHNESS // 10 + 2


def test_its_return_makes_every_window_exact(tmp_path: Path) -> None:
    world = TwoSites(tmp_path)
    world.step(0, "a", "b")
    for number in range(1, 40):
        world.step(10 * number, "a")
    world.step(400, "a", "b")
    world.clock.advance(1_000_000)
    world.center.tick()
    newest = {p.window.start_us: p for p in world.center.tables.published}
    assert {p.status for p in newest.values()} == {EXACT}
    assert world.center.tables.answer() == naive(WINDOW, world.records)


def test_late_records_of_a_window_that_had_none_do_not_make_it_exact_while_a_site_is_away(
    tmp_path: Path,
) -> None:
    world = TwoSites(tmp_path)
    world.step(0, "a", "b")

    def send(name: str, at_us: int, low_mark_us: int) -> None:
        world.sites[name].batch([(at_us, name, 1)], low_mark_us)
        deliver_some(world.sites[name], world.center, CHANCE, all_of_it=True)
        world.center.consume()
        world.clock.advance(20_000_000)
        world.center.tick()

    def newest() -> dict[int, Publish]:
        return {p.window.start_us: p for p in world.center.tables.published}

    send("a", 31, 40)  # closes all windows before it, of which nobody had a record
    send("a", 15, 40)
    assert (newest()[10].status, newest()[10].missing_sites) == (ON_TIME, ("b",))
    assert newest()[10].coverage == 0.5
    send("b", 35, 40)
    assert newest()[10].status == EXACT
