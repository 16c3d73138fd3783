"""A query that moves between fragments takes every record of every site once, wherever sites begin and end them.

What it has moved away from is still taken while a site that was away may send it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.center.core import CenterCore
from catchment.center.events import QueryAdded, QueryMoved
from catchment.center.fragment_sources import FragmentSource, FragmentSources, RecordCounts
from catchment.center.query import CenterQuery
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.progress.frontier import Frontier
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, WindowSpec
from catchment.wire.messages import Deferred, Delivered, Fact, Progress, Relayed, Repaired, Shed
from tests.worlds.world import lifted, make_fragment

WINDOW = WindowSpec.tumbling(10)
FRAGMENT = make_fragment(WINDOW)
MOVED_AT = 100
FINAL = 1000  # windows before it are final, without a site that is away


def test_a_source_stays_until_every_site_has_passed_it_though_its_windows_are_final() -> None:
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a", "b"), 50, None)
    old = FragmentSource("old", None, start_us=START_OF_TIME_US, until_us=MOVED_AT)
    sources = FragmentSources(query, [old, FragmentSource("new", None, start_us=MOVED_AT)])
    frontiers = {"a": Frontier(marks={"old": MOVED_AT, "new": 500}), "b": Frontier(marks={"old": 50})}
    sources.forget_final(FINAL, frontiers)
    late = lifted(FRAGMENT, [(65, "b", 1)])
    ((taken, records),) = sources.take("old", late.partials, (("b", 60, 1),))
    assert (taken.num_rows, records) == (1, (("b", 60, 1),)), "it is registered as too late, not dropped"
    frontiers["b"] = Frontier(marks={"old": MOVED_AT})
    sources.forget_final(FINAL, frontiers)
    assert sources.fragments == ("new",)


def test_a_query_that_has_not_begun_yet_says_how_far_its_sites_are() -> None:
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a",), 50, None)
    sources = FragmentSources(query, [FragmentSource("submitted", None, waits=True)])
    assert sources.newest_mark(Frontier(marks={"submitted": 40})) == 40


def test_a_site_that_counts_only_from_later_on_is_not_waited_for() -> None:
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a",), 50, None)
    old = FragmentSource("old", None, start_us=START_OF_TIME_US, until_us=MOVED_AT)
    sources = FragmentSources(query, [old, FragmentSource("new", None, start_us=MOVED_AT)])
    sources.roster.begin("joined", MOVED_AT)
    sources.forget_final(FINAL, {"a": Frontier(marks={"old": MOVED_AT}), "joined": Frontier()})
    assert sources.fragments == ("new",)


@pytest.mark.parametrize(
    ("lacking", "settled"),
    [
        (Deferred(FRAGMENT.name, "r", 7, 0.5, ("k",), ((0, 2),), is_counted=True), Delivered(FRAGMENT.name, "r", 7)),
        (Shed(FRAGMENT.name, 7, 0.5, ((0, 2),)), Repaired(FRAGMENT.name, 7)),
    ],
)
def test_a_source_stays_while_what_was_shed_or_deferred_of_it_is_on_its_way(lacking: Fact, settled: Fact) -> None:
    """Its windows are final without a site that is away, which then passes the source before it sends the rest."""
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a", "b"), 50, freshness_us=5)
    core = CenterCore()
    core.handle(QueryAdded(query), 0)

    def land(number: int, *facts: tuple[str, Fact], now_us: int) -> None:
        core.handle(Landed("r", number, relayed=tuple(Relayed(site, fact) for site, fact in facts)), now_us)
        core.handle(Ticked(), now_us)

    some = lifted(FRAGMENT, [(1, "a", 1)])
    core.handle(Gathered(FRAGMENT.name, some.partials, (("a", 0, 1),), (("a", 0),)), 0)
    land(0, ("b", lacking), ("a", Progress(FRAGMENT.name, MOVED_AT, 0)), now_us=0)
    core.handle(QueryMoved("q", Derivation("q", "new", (), (), (), (), FRAGMENT.aggregates, WINDOW), waits=True), 0)
    begun = Progress("new", MOVED_AT, 0)
    land(1, ("a", begun), ("b", begun), ("a", Progress("new", 1_000, 0)), now_us=10)
    assert 0 in core.queries["q"].windows.state.closed
    land(2, now_us=1_000)
    assert 0 not in core.queries["q"].windows.state.closed, "it is final"
    ended = Progress(FRAGMENT.name, END_OF_TIME_US, 0), Progress("new", 1_000, 0)
    land(3, *(("a", fact) for fact in ended), *(("b", fact) for fact in ended), now_us=1_000)
    assert core.fragments == {FRAGMENT.name, "new"}
    land(4, ("b", settled), now_us=1_000)
    assert core.fragments == {"new"}


def test_a_move_after_a_handover_starts_where_what_was_handed_over_has_ended() -> None:
    """Sites hand over at a slice ahead of all that was read: the one after it can begin before that."""
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a",), 50, None)
    first = FragmentSource("first", None, start_us=START_OF_TIME_US)
    sources = FragmentSources(query, [first, FragmentSource("second", None, waits=True, takes_over=True)])
    frontiers = {"a": Frontier(first_marks={"second": 300})}
    list(sources.find_starts(frontiers, {}, 0))
    sources.sources.append(FragmentSource("third", None, waits=True))
    frontiers["a"].first_marks["third"] = 260
    list(sources.find_starts(frontiers, {}, 0))
    spans = [(s.fragment, s.start_us, s.until_us) for s in sources.sources]
    assert spans[0] == ("first", START_OF_TIME_US, 300)
    assert spans[2] == ("third", 300, END_OF_TIME_US), "the first has what is before, and a slice is taken once"


def test_a_move_waits_until_it_is_known_where_every_source_before_it_ends() -> None:
    query = CenterQuery("q", FRAGMENT, WINDOW, ("a", "b"), 50, None)
    first = FragmentSource("first", None, start_us=START_OF_TIME_US)
    second = FragmentSource("second", None, waits=True, takes_over=True)
    third = FragmentSource("third", None, waits=True)
    sources = FragmentSources(query, [first, second, third])
    marks = {"second": 300, "third": 260}
    one = {"a": Frontier(first_marks=marks), "b": Frontier(first_marks={"third": 270})}
    list(sources.find_starts(one, {}, 0))
    assert sources.sources[2].start_us is None, "b has not said where it begins the second"
    both = {"a": Frontier(first_marks=marks), "b": Frontier(first_marks={"second": 400, "third": 270})}
    list(sources.find_starts(both, {}, 0))
    assert (first.until_us, third.start_us) == (400, 400)


@dataclass
class MovingQuery:
    """A query that moves between fragments while two sites read a record at every instant."""

    query: CenterQuery = field(default_factory=lambda: CenterQuery("q", FRAGMENT, WINDOW, ("a", "b"), 50, None))
    sources: FragmentSources = field(init=False)
    frontiers: dict[str, Frontier] = field(default_factory=lambda: {"a": Frontier(), "b": Frontier()})
    newest: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})  # every instant before it
    spans: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # what is computed, and where
    unsent: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    unstated: list[tuple[str, str, int]] = field(default_factory=list)
    taken: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.sources = FragmentSources(self.query, [FragmentSource("0", None, start_us=START_OF_TIME_US)])
        self.spans = {("0", site): (0, END_OF_TIME_US) for site in self.read}

    def read_on(self, site: str, instants: int) -> None:
        for instant in range(self.read[site], self.read[site] + instants):
            for (fragment, at), (begin_us, until_us) in self.spans.items():
                if at == site and begin_us <= instant < until_us:
                    self.unsent[fragment, site, instant // 10 * 10] += 1
        self.read[site] += instants

    def move(self, takes_over: bool, slices_ahead: int) -> None:
        old, new = str(len(self.sources.sources) - 1), str(len(self.sources.sources))
        self.sources.sources.append(FragmentSource(new, None, waits=True, takes_over=takes_over))
        for site, read_us in self.read.items():
            begin_us = read_us
            if takes_over:
                old_begin_us, until_us = self.spans[old, site]
                begin_us = -(-max(read_us, old_begin_us) // 10) * 10 + slices_ahead * 10
                self.spans[old, site] = old_begin_us, min(until_us, begin_us)
            self.spans[new, site] = begin_us, END_OF_TIME_US
            self.unstated.append((site, new, begin_us))

    def land(self) -> None:
        for (fragment, site, slice_us), count in self.unsent.items():
            table = pa.table({SLICE_COLUMN: pa.array([slice_us], pa.int64())})
            self._count(self.sources.take(fragment, table, ((site, slice_us, count),)))
            self.newest[fragment] = max(self.newest.get(fragment, START_OF_TIME_US), slice_us)
        self.unsent.clear()
        self._count(self.sources.find_starts(self.frontiers, self.newest, 0))

    def state_begins(self) -> None:
        for site, fragment, begin_us in self.unstated:
            self.frontiers[site].first_marks[fragment] = begin_us
        self.unstated.clear()
        self._count(self.sources.find_starts(self.frontiers, self.newest, 0))

    def _count(self, arrivals: Iterable[tuple[pa.Table, RecordCounts]]) -> None:
        for _, records in arrivals:
            for site, slice_us, count in records:
                self.taken[site, slice_us] += count


END = 400  # all is read until then, and every move is over
STEPS = st.tuples(
    st.booleans(),  # whether it takes over
    st.integers(0, 3),  # how many slices ahead it does so
    st.tuples(st.integers(0, 40), st.integers(0, 40)),  # what each site reads before
    st.booleans(),  # whether that has landed
    st.booleans(),  # whether the begins have landed before the next move; those of what takes over always have
)


@given(st.lists(STEPS, max_size=5))
def test_however_a_query_moves_every_record_is_taken_once(
    steps: list[tuple[bool, int, tuple[int, int], bool, bool]],
) -> None:
    moving = MovingQuery()
    for takes_over, slices_ahead, read, has_landed, is_stated in steps:
        for site, instants in zip(("a", "b"), read, strict=True):
            moving.read_on(site, instants)
        if has_landed:
            moving.land()
        moving.move(takes_over, slices_ahead)
        if takes_over or is_stated:
            moving.state_begins()
    for site, read_us in list(moving.read.items()):
        moving.read_on(site, END - read_us)
    moving.state_begins()
    moving.land()
    assert moving.taken == {(site, slice_us): 10 for site in ("a", "b") for slice_us in range(0, END, 10)}
