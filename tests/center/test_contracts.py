"""Contracts from the sources of three sites to the center's tables, without Spark: site cores, wire, center core.

Truth is recomputed from the raw records. Catches: bounds that are missed more often than they say, parts that are each
kept and together are not, odd sources that hold windows open, lose records or go unnamed. Cannot catch: what Spark
observes wrongly (`tests/spark/test_contracts.py`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from catchment.center.events import Publish
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.quality.contract import Contract, per_site_contract, watched_quantities
from catchment.site.events import FragmentAdded
from catchment.site.policies.registry import policy_by_name
from catchment.site.slack import SlackPlan
from catchment.timeline import SECOND_US, ManualClock
from tests.worlds.contract_site import FRAGMENT, WINDOW, ContractSite, Row, deliver, summed
from tests.worlds.world import Center

CONTRACT = Contract(0.05, 0.9)
STEP_US = SECOND_US // 2
HOUR_US = 3600 * SECOND_US
MAX_AHEAD_US = 60 * SECOND_US

Arrives = Callable[[int], int]  # event time -> arrival


class PartSite(ContractSite):
    """A site that keeps its part of a contract that three sites keep together."""

    sites = 3

    def open(self) -> None:
        part, watched = per_site_contract(CONTRACT, watched_quantities(FRAGMENT.aggregates), self.sites)
        slack = SlackPlan("q", "adaptive", WINDOW, watched, part, MAX_AHEAD_US)
        self.open_with(FragmentAdded(self.fragment, policy_by_name(self.policy), slacks=(slack,)))


@dataclass
class Three:
    """Three sites and a center; `told` is every record that a site was given."""

    folder: Path
    begin_us: int = 0
    told: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.clock.advance(self.begin_us)
        names = tuple(f"site{i}" for i in range(3))
        query = CenterQuery("q", FRAGMENT, WINDOW, names, 10 * HOUR_US, contract=CONTRACT)
        self.center = Center(self.folder / "center", query, self.clock)
        self.sites = [PartSite(self.folder / n, n, FRAGMENT, "batching", self.clock) for n in names]

    def run(self, arriving: list[list[tuple[int, Row]]], until_us: int) -> None:
        """Give each site its records (arrival, row) as they come, until a moment."""
        queues = [deque(sorted(mine, key=lambda item: item[0])) for mine in arriving]
        while self.clock.now_us() < until_us:
            self.clock.advance(STEP_US)
            for site, queue in zip(self.sites, queues, strict=True):
                now = []
                while queue and queue[0][0] <= self.clock.now_us():
                    now.append(queue.popleft()[1])
                self.told += now
                site.take(now) if now else site.tick()
            if self.clock.now_us() % (2 * SECOND_US) == 0:
                self.bring()

    def bring(self) -> None:
        for site in self.sites:
            deliver(site, self.center)
        self.center.tick()

    def end(self) -> None:
        for site in self.sites:
            site.end()
        self.bring()
        self.clock.advance(20 * SECOND_US)
        self.center.tick()

    def first(self) -> dict[int, Publish]:
        """The first answer of each window."""
        return {p.window.start_us: p for p in reversed(self.center.tables.published) if p.rows.num_rows}

    def last(self) -> dict[int, Publish]:
        return {p.window.start_us: p for p in self.center.tables.published}


def records(name: str, until_us: int, arrives: Arrives, chance: random.Random) -> Iterator[tuple[int, Row]]:
    """Ten records a second of one source, in its own order."""
    came = 0
    for at in range(0, until_us, SECOND_US // 10):
        came = max(came, arrives(at))
        yield came, (name, at, chance.randrange(1, 10))


def stalling(chance: random.Random, until_us: int) -> Arrives:
    """Now and then everything is held back for a second or several."""
    begins = sorted(chance.randrange(until_us) for _ in range(until_us // (12 * SECOND_US)))
    stalls = [(begin, begin + round(min(chance.paretovariate(1.5), 6.0) * SECOND_US)) for begin in begins]
    return lambda at: max([end for begin, end in stalls if begin <= at < end], default=at) + 10_000


def total(published: Publish) -> tuple[int, int]:
    rows = published.rows.to_pylist()
    return sum(r["n__count"] for r in rows), sum(r["total__sum"] for r in rows)


def test_joined_answers_keep_the_contract_and_their_bounds_and_end_exact(tmp_path: Path) -> None:
    chance, until = random.Random(1), 90 * SECOND_US
    arriving = [
        [r for i in range(5) for r in records(f"d{site}{i}", until, stalling(chance, until), chance)]
        for site in range(3)
    ]
    three = Three(tmp_path)
    three.run(arriving, until)
    truth: dict[int, list[int]] = {}
    for _, (_, at, value) in (item for mine in arriving for item in mine):
        known = truth.setdefault(at // SECOND_US * SECOND_US, [0, 0])
        known[0], known[1] = known[0] + 1, known[1] + value
    first, violated, missed = three.first(), 0, 0
    for start, published in first.items():
        off = [abs(got - want) / want for got, want in zip(total(published), truth[start], strict=True)]
        bounds = {c.column: c.error for c in published.late.columns} if published.late else {}
        violated += max(off) >= CONTRACT.max_error
        missed += any(e > (bounds.get(c) or 0.0) + 1e-12 for c, e in zip(("n", "total"), off, strict=True))
    assert len(first) > 75
    assert sum(p.status == ON_TIME for p in first.values()) > 3, "some windows were let go before they were whole"
    assert violated <= CONTRACT.delta * len(first)
    assert missed <= CONTRACT.delta * len(first)
    three.end()
    assert three.center.tables.answer() == summed(three.told)
    assert {p.status for p in three.last().values()} <= {EXACT, FINAL}


def test_odd_sources_hold_no_window_lose_no_record_and_are_named(tmp_path: Path) -> None:
    """One falls silent, one stops in the middle of a window, one is an hour behind, one sends a record of tomorrow."""
    chance, until = random.Random(3), 130 * SECOND_US
    plain: Arrives = lambda at: at + 10_000  # noqa: E731
    steady = [[r for i in range(4) for r in records(f"d{site}{i}", until, plain, chance)] for site in range(3)]
    steady[0] += records("silent", 20 * SECOND_US, plain, chance)
    steady[1] += records("stopped", 25 * SECOND_US + SECOND_US // 2, plain, chance)
    begin = 2 * HOUR_US
    arriving = [[(begin + came, (name, begin + at, v)) for came, (name, at, v) in mine] for mine in steady]
    behind = list(records("behind", until, plain, chance))
    arriving[2] += [(begin + came, (name, begin - HOUR_US + at, v)) for came, (name, at, v) in behind]
    arriving[2].append((begin + 50 * SECOND_US, ("d20", begin + 24 * HOUR_US, 7)))
    three = Three(tmp_path, begin)
    three.run(arriving, begin + until)
    first = three.first()
    live = range(begin, begin + until - 8 * SECOND_US, SECOND_US)
    assert set(live) <= set(first), "every window has closed"
    waits = {s: first[s].published_us - s - SECOND_US for s in live}
    assert max(waits.values()) <= 63 * SECOND_US, "none waited longer than the longest wait"
    assert max(waits[s] for s in live[-30:]) <= 3 * SECOND_US, "in the end nobody is waited for"
    named = {source for p in three.center.tables.published for _, source, _ in p.sources}
    assert {"silent", "stopped", "behind"} <= named
    assert not named - {"silent", "stopped", "behind"} - {f"d{s}{i}" for s in range(3) for i in range(4)}
    late = [first[s] for s in live[-30:]]
    assert all({"silent", "stopped", "behind"} <= {n for _, n, _ in p.sources} for p in late)
    assert all(p.status == ON_TIME and p.coverage < 1.0 for p in late)
    assert three.sites[2].core.contract_status(three.clock.now_us())["q"]["future_records"] == 1
    three.end()
    assert three.center.tables.answer() == summed(three.told)
    assert (begin + 24 * HOUR_US, "d20") in three.center.tables.answer()
    assert len(three.told) == sum(map(len, arriving))
    assert {p.status for p in three.last().values()} <= {EXACT, FINAL}
