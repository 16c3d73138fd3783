"""Sites join, retire and are replaced while windows are open, in any order, with crashes and late records.

The oracle recomputes every window from the raw records of every life of every site, whose keys are the names of the
sites. Catches: anything counted twice or lost at a boundary, windows that are called complete though a life ended
before it had sent all of them, windows that wait for a site that does not count. Cannot catch: what sites behind relays
do; their boundaries are refused.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.events import Publish, SiteJoined, SiteReplaced, SiteRetired
from catchment.center.query import CenterQuery
from catchment.center.roster import Roster, Stay
from catchment.center.roster_changes import RosterChanges
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.errors import WireError
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.messages import Repaired, Shed
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, deliver_some, make_fragment

SLACK = 4
RANKS = [ON_TIME, EXACT, FINAL]


@dataclass
class Life:
    """One life of a site: what it read, and how far it had promised to be when it read it."""

    site: Site
    read: list[tuple[Record, int]] = field(default_factory=list)
    newest: int = -(10**6)

    @property
    def mark(self) -> int:
        return self.newest - SLACK

    def read_records(self, records: Sequence[Record]) -> None:
        self.read += [(record, self.mark) for record in records]
        self.newest = max([self.newest, *(ts for ts, _, _ in records)])
        self.site.batch(records, self.mark)


class Region:
    """A center and sites that come and go; every site keeps all the records that were ever born there."""

    def __init__(self, folder: Path, window: WindowSpec, names: Sequence[str], freshness: int | None = 20) -> None:
        self.folder, self.window, self.clock = folder, window, ManualClock()
        self.fragment = make_fragment(window)
        query = CenterQuery("q", self.fragment, window, tuple(names), 100_000, freshness)
        self.center = Center(folder / "center", query, self.clock)
        self.born: dict[str, list[Record]] = {}
        self.lives: dict[str, list[Life]] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> Life:
        """A new life of a site reads again all that was ever born there."""
        lives = self.lives.setdefault(name, [])
        folder = self.folder / f"{name}-{len(lives)}"
        lives.append(Life(Site(folder, name, self.fragment, "streaming", self.clock)))
        lives[-1].read_records(self.born.setdefault(name, []))
        return lives[-1]

    @property
    def present(self) -> list[str]:
        return list(self.center.core.queries["q"].sites)

    def stays(self, name: str) -> list[Stay]:
        (part,) = self.center.core.queries["q"].sources.parts
        return list(part.roster.stays.get(name, ()))

    def bear(self, name: str, times: Sequence[int]) -> None:
        records = [(ts, name, 1) for ts in times]
        self.born[name] += records
        self.lives[name][-1].read_records(records)

    def deliver(self, name: str, chance: random.Random, all_of_it: bool = False) -> None:
        if name in self.present:
            deliver_some(self.lives[name][-1].site, self.center, chance, all_of_it)

    def join(self, name: str, from_us: int | None = None, crash: bool = False) -> None:
        self.center.change_roster(SiteJoined(("q",), name, from_us), crash)
        self.start(name)

    def retire(self, name: str, until_us: int | None = None, crash: bool = False) -> None:
        self.center.change_roster(SiteRetired(("q",), name, until_us), crash)

    def replace(self, name: str, from_us: int | None = None, crash: bool = False) -> None:
        self.center.change_roster(SiteReplaced(name, len(self.lives[name]), from_us), crash)
        self.start(name)

    def finish(self) -> None:
        """Every site that counts sends all that it has."""
        for name in self.present:
            self.lives[name][-1].site.batch([], END_OF_TIME_US)
            deliver_some(self.lives[name][-1].site, self.center, random.Random(0), all_of_it=True)
        self.center.consume()
        for _ in range(2):
            self.clock.advance(20_000_000)
            self.center.tick()

    def newest(self) -> dict[int, Publish]:
        return {p.window.start_us: p for p in self.center.tables.published}


def count(window: WindowSpec, records: Sequence[Record], start: int) -> int:
    return sum(start <= ts < start + window.size_us for ts, _, _ in records)


def check(region: Region, stays: dict[str, list[Stay]], lives: dict[str, list[Life]]) -> None:
    """`stays` as they were before the end, when all of them are forgotten; `lives` match them one by one."""
    answer = region.center.tables.answer()
    slicing = region.fragment.slicing
    for start, published in region.newest().items():
        window = published.window
        missing = set()
        for name, known in stays.items():
            assert all(a.until_us <= b.from_us for a, b in pairwise(known)), "no instant counts in two lives of a site"
            least = most = 0
            for stay, life in zip(known, lives[name], strict=True):
                inside = [(r, mark) for r, mark in life.read if stay.from_us <= slicing.start_of(r[0]) < stay.until_us]
                most += count(region.window, [r for r, _ in inside], start)
                if stay.passed_us is None:
                    least += count(region.window, [r for r, _ in inside], start)
                else:
                    on_time = [r for r, mark in inside if r[0] >= mark and r[0] < stay.passed_us]
                    least += count(region.window, on_time, start)
                    if max(stay.passed_us, stay.from_us) < min(window.end_us, stay.until_us) and stay.until_us > start:
                        missing.add(name)
            found = answer.get((start, name), (0, 0))[0]
            assert least <= found <= most, (start, name, least, found, most, known)
        assert set(published.missing_sites) == missing, (start, stays)
    for start, all_published in by_window(region).items():
        ranks = [RANKS.index(p.status) for p in all_published]
        assert ranks == sorted(ranks), (start, all_published)
        if region.newest()[start].missing_sites:
            assert EXACT not in {p.status for p in all_published}, "a window was called exact and then lacked a site"


def by_window(region: Region) -> dict[int, list[Publish]]:
    found: dict[int, list[Publish]] = {}
    for published in region.center.tables.published:
        found.setdefault(published.window.start_us, []).append(published)
    return found


@settings(max_examples=examples(20))
@given(
    window=st.sampled_from([WindowSpec.tumbling(10), WindowSpec(10, 5), WindowSpec(12, 5), WindowSpec(30, 10, 3)]),
    seed=st.integers(0, 10**6),
)
def test_every_window_holds_what_counts_of_every_site_once_and_names_the_rest(window: WindowSpec, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        region = Region(Path(folder), window, ["a", "b"])
        lives = {name: list(known) for name, known in region.lives.items()}  # those that counted at some time
        now = 0
        for _ in range(20):
            now += chance.randrange(8)
            for name in region.lives:
                if chance.random() < 0.6:
                    region.bear(name, [max(0, now - chance.choice([0, 0, 1, 2, 5, 25])) for _ in range(3)])
                if chance.random() < 0.6:
                    region.deliver(name, chance)
            region.clock.advance(chance.randrange(15))
            if chance.random() < 0.7:
                region.center.consume(discard=chance.random() < 0.7)
            region.center.tick()
            at = chance.choice([None, None, now, now - 20, now + 15])
            crash = chance.random() < 0.3
            action = chance.choice(["", "", "", "join", "retire", "replace", "crash", "site crash"])
            if action == "join" and len(region.lives) < 5:
                name = f"new{len(region.lives)}"
                region.join(name, at, crash)
                lives[name] = list(region.lives[name])
            elif action == "retire" and len(region.present) > 1:
                name = chance.choice(region.present)
                stays_before = len(region.stays(name))
                region.retire(name, at, crash)
                if len(region.stays(name)) < stays_before:
                    del lives[name][-1]  # it never counted
            elif action == "replace":
                name = chance.choice(region.present)
                stays_before = len(region.stays(name))
                region.replace(name, at, crash)
                if len(region.stays(name)) == stays_before:
                    del lives[name][-1]  # it never counted
                lives[name].append(region.lives[name][-1])
            elif action == "crash":
                region.center.crash()
            elif action == "site crash":
                chance.choice(list(region.lives.values()))[-1].site.crash()
        stays = {name: region.stays(name) for name in lives}
        region.finish()
        check(region, stays, {name: lives[name][-len(known) :] if known else [] for name, known in stays.items()})


@settings(max_examples=examples(4))
@given(
    window=st.sampled_from([WindowSpec.tumbling(10), WindowSpec(12, 5), WindowSpec(30, 10, 3)]),
    seed=st.integers(0, 10**6),
)
def test_a_site_that_is_retired_when_it_has_come_so_far_is_missing_in_no_window_before(
    window: WindowSpec, seed: int
) -> None:
    chance = random.Random(seed)
    after = chance.randrange(25)
    with tempfile.TemporaryDirectory() as folder:
        region = Region(Path(folder), window, ["a", "b"])
        lives = {name: list(known) for name, known in region.lives.items()}
        now = 0
        for _ in range(15):
            now += chance.randrange(6)
            for name in ("a", "b"):
                if chance.random() < 0.6:
                    region.bear(name, [max(0, now - chance.choice([0, 0, 1, 2, 25])) for _ in range(3)])
                if chance.random() < 0.6:
                    region.deliver(name, chance)
            region.clock.advance(chance.randrange(15))
            region.center.consume()
            region.center.tick()
            core = region.center.core
            rosters = RosterChanges(core.queries, core.frontiers, core.sites)
            if "a" in region.present and rosters.has_completed("a", after):
                region.retire("a", after, crash=chance.random() < 0.3)
        stays = {name: region.stays(name) for name in lives}
        is_retired = "a" not in region.present
        region.finish()
        check(region, stays, {name: lives[name][-len(known) :] if known else [] for name, known in stays.items()})
        assert not is_retired or not [
            published
            for published in region.newest().values()
            if published.window.end_us <= after and "a" in published.missing_sites
        ]


def test_a_site_has_not_completed_windows_while_something_that_it_shed_is_to_come(tmp_path: Path) -> None:
    region = two_sites(tmp_path)
    core = region.center.core
    rosters = RosterChanges(core.queries, core.frontiers, core.sites)
    assert rosters.has_completed("a", 30)
    assert not rosters.has_completed("a", 70)
    assert not rosters.has_completed("nobody", 0)
    outstanding = core.queries["q"].windows.outstanding
    outstanding.add_shed("a", Shed("q", 3, 0.5, ((20, 4),)))
    assert not rosters.has_completed("a", 30)
    assert rosters.has_completed("a", 20)
    outstanding.settle_repaired("a", Repaired("q", 3))
    assert rosters.has_completed("a", 30)


def test_a_site_that_is_replaced_twice_counts_no_record_twice(tmp_path: Path) -> None:
    region = two_sites(tmp_path)
    region.replace("a", from_us=100)
    region.replace("a", from_us=10)  # the first life counts until 100, and has sent what it read after 10
    assert [(s.from_us, s.until_us) for s in region.stays("a")] == [(START_OF_TIME_US, 100), (100, END_OF_TIME_US)]
    region.bear("a", [105])
    region.finish()
    assert region.center.tables.answer()[20, "a"][0] == 1


def two_sites(folder: Path) -> Region:
    """Both have passed 30; `b` has then sent one more record without passing it, and is silent."""
    region = Region(folder, WindowSpec.tumbling(10), ["a", "b"])
    chance = random.Random(0)
    for at in (5, 15, 25, 34):
        for name in ("a", "b"):
            region.bear(name, [at])
            region.deliver(name, chance, all_of_it=True)
    region.center.consume()
    for at in (45, 55, 65):
        region.bear("a", [at])
    region.deliver("a", chance, all_of_it=True)
    region.center.consume()
    region.clock.advance(20)
    region.center.tick()
    return region


def test_a_retired_site_holds_up_nothing_from_the_stated_window_on(tmp_path: Path) -> None:
    region = two_sites(tmp_path)
    assert {start: p.missing_sites for start, p in region.newest().items()}[40] == ("b",)
    region.retire("b", until_us=40)
    region.bear("a", [100_200])
    region.deliver("a", random.Random(0), all_of_it=True)
    region.center.consume()
    region.center.tick()
    newest = region.newest()
    assert (newest[30].status, newest[30].missing_sites) == (FINAL, ("b",)), "it had sent a part of this window"
    assert {newest[start].status for start in (40, 50)} == {FINAL}
    assert {newest[start].missing_sites for start in (0, 40, 50)} == {()}
    assert not region.stays("b"), "nothing of it is kept when its windows are final"


def test_a_site_that_retires_without_a_stated_window_is_missing_in_all_that_it_did_not_complete(tmp_path: Path) -> None:
    region = two_sites(tmp_path)
    region.retire("b")
    region.finish()
    missing = {start: p.missing_sites for start, p in region.newest().items()}
    assert missing == {0: (), 10: (), 20: (), 30: ("b",), 40: ("b",), 50: ("b",), 60: ("b",)}


def test_an_added_site_counts_from_its_boundary_on_and_what_it_had_before_is_left_out(
    tmp_path: Path,
) -> None:
    region = two_sites(tmp_path)
    region.born["c"] = [(ts, "c", 1) for ts in (5, 45, 66, 71, 82)]
    region.join("c")
    (stay,) = region.stays("c")
    assert stay.from_us == 70, "behind all that was heard"
    region.deliver("c", random.Random(0), all_of_it=True)
    region.finish()
    answer = region.center.tables.answer()
    assert {start for start, name in answer if name == "c"} == {70, 80}
    assert region.center.core.sites.left_out == {"c": 3}
    assert {p.missing_sites for p in region.newest().values()} == {()}


def test_a_site_does_not_join_windows_that_are_closed(tmp_path: Path) -> None:
    region = two_sites(tmp_path)
    region.join("c", from_us=0)
    (stay,) = region.stays("c")
    assert stay.from_us == region.center.core.queries["q"].windows.state.closed_us


def test_a_replaced_site_counts_nothing_twice_and_its_former_life_is_refused(tmp_path: Path) -> None:
    region = two_sites(tmp_path)
    before = region.center.tables.answer()
    former = region.lives["b"][-1]
    former.read_records([(47, "b", 1)])
    region.born["b"] += [(47, "b", 1), (49, "b", 1)]
    region.replace("b", from_us=31)  # asked for too early: a record of 34 was merged
    assert [stay.from_us for stay in region.stays("b")][1] == 40
    region.deliver("b", random.Random(0), all_of_it=True)
    sequence = former.site.outbox.pending()[0].sequence
    with pytest.raises(WireError, match="has ended"):
        region.center.inbox.accept(former.site.pending_bytes(sequence))
    region.finish()
    answer = region.center.tables.answer()
    assert {place: answer[place] for place in before} == before
    assert answer[40, "b"] == (2, 2), "the new life brings what the former one had not sent"
    missing = {start: p.missing_sites for start, p in region.newest().items()}
    assert missing == {0: (), 10: (), 20: (), 30: ("b",), 40: (), 50: (), 60: ()}
    assert region.newest()[30].status == FINAL


def test_a_roster_says_what_is_lost_of_a_life_that_ended() -> None:
    roster = Roster.of(["a"])
    roster.end("a", until_us=40, passed_us=25)
    roster.begin("a", 40)
    assert list(roster.lost()) == [("a", 25, 40)]
    roster.forget_final(40)
    assert roster.stays == {"a": [Stay(40)]}
    roster.end("a", until_us=40, passed_us=START_OF_TIME_US)
    assert roster.stays == {}, "a life without event times leaves nothing"
