"""Windows that are computed again: which of two answers stands, and what is counted of the other.

Catches: an answer that stands because of records that it does not have, records that are counted as left out though
nobody has more of them. Cannot catch: how a deployment comes to compute again; `tests/testing/test_heal.py` does that.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from catchment.center.core import CenterCore
from catchment.center.events import Expired, Publish, QueryAdded, QueryMoved, QueryRenewed
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.center.windows.closed import SiteMarks
from catchment.center.windows.query_windows import QueryWindows
from catchment.center.windows.renewed import FORMER_STANDS, renew_windows
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.events import Landed, PartialsDeferred, Ticked
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import END_OF_TIME_US, SECOND_US, START_OF_TIME_US, WindowSpec
from catchment.wire.messages import Progress, Shed
from tests.worlds.world import lifted, make_fragment

WINDOW = WindowSpec.tumbling(10)
QUERY = CenterQuery("q", make_fragment(WINDOW), WINDOW, ("a", "b"), 1_000, 5, early_us=1)
MOVED = Derivation("q", "moved", (), (), (), (), QUERY.fragment.aggregates, WINDOW)
ROWS = pa.schema([f for f in QUERY.fragment.schema if f.name != SLICE_COLUMN])
NO_ROWS = ROWS.insert(0, pa.field("window_start_us", pa.int64())).empty_table()


class RenewedQuery:
    """The windows of one query over sites a and b, of which the one at 0 is looked at."""

    def __init__(self) -> None:
        self.windows = QueryWindows(QUERY)
        self.now_us = 0
        self.published: list[Publish] = []
        self.expired: list[Expired] = []
        self.marks = dict.fromkeys(QUERY.sites, START_OF_TIME_US)

    def send(self, site: str, records: int, at_us: int = 1) -> None:
        absorbed = lifted(QUERY.fragment, [(at_us, site, 1)] * records)
        counted = tuple((site, slice_us, count) for slice_us, count in absorbed.records)
        self.windows.merge(absorbed.partials, counted, self.now_us)
        self.settle()

    def settle(self) -> None:
        self.now_us += 5
        marks = SiteMarks(self.marks, self.marks, {}, max(self.marks.values()))
        actions = list(self.windows.settle(marks, self.now_us))
        self.published += [a for a in actions if isinstance(a, Publish)]
        self.expired += [a for a in actions if isinstance(a, Expired)]
        for reason, starts in self.windows.late.due(marks, self.now_us).items():
            repaired = self.windows.late.repair(starts, NO_ROWS, reason, marks, self.now_us)
            self.published += [a for a in repaired if isinstance(a, Publish)]

    def renew(self) -> None:
        state = renew_windows(QUERY, self.windows.state, START_OF_TIME_US, QUERY.sites, self.now_us)
        self.windows = QueryWindows(QUERY, state)
        self.marks = dict.fromkeys(QUERY.sites, START_OF_TIME_US)

    def pass_end(self, *sites: str, mark_us: int = 10) -> None:
        """Let sites pass the end of the window, and time pass until it is closed without the others."""
        self.marks.update(dict.fromkeys(sites, mark_us))
        self.settle()
        self.settle()

    def wait(self) -> None:
        """Let time pass until late records are merged."""
        self.now_us += 10 * SECOND_US
        self.settle()

    def of_window(self) -> list[Publish]:
        """Every answer that was published of the window."""
        return [p for p in self.published if p.window.start_us == 0 and p.has_answer]

    def rows(self) -> dict[str, int]:
        """What a reader sees: records by site."""
        shown: dict[str, int] = {}
        for publish in self.of_window():
            if publish.replaces:
                shown.clear()
            shown |= {row["k"]: row["n__count"] for row in publish.rows.to_pylist()}
        return shown


def test_an_answer_stands_only_for_the_records_that_it_has() -> None:
    query = RenewedQuery()
    query.send("a", 5)  # an early answer
    query.renew()
    query.send("a", 1)
    query.pass_end("a")
    assert query.rows() == {"a": 1}, "it is closed before all came again"
    query.renew()
    query.send("a", 4)
    query.pass_end("a", "b", mark_us=END_OF_TIME_US)
    assert query.rows() == {"a": 4}, "it has more records than the one that stood, though less than there were once"
    assert query.published[-1].missing_sites == ("a",), "it lacks one that it had before"


def test_an_answer_with_more_records_stands_and_nothing_of_the_other_is_counted_as_left_out() -> None:
    query = RenewedQuery()
    query.send("a", 3)
    query.pass_end("a")
    query.renew()
    query.send("a", 2)
    query.pass_end("a", "b", mark_us=END_OF_TIME_US)
    assert query.rows() == {"a": 3}
    known = query.windows.state.closed.get(0)
    assert known is None or known.unmerged == 0


def test_what_is_exact_replaces_whatever_stood() -> None:
    query = RenewedQuery()
    query.send("a", 3)
    query.pass_end("a")
    query.renew()
    query.send("a", 3)
    query.send("b", 1)
    query.pass_end("a", "b")
    assert query.rows() == {"a": 3, "b": 1}
    assert query.published[-1].status == EXACT


def test_an_early_answer_is_replaced_by_what_comes_after_its_window_has_closed() -> None:
    query = RenewedQuery()
    query.send("a", 5)  # an early answer
    query.renew()
    query.send("a", 1, at_us=15)
    query.pass_end("a", mark_us=20)  # the window closes with the next one, and had nothing again by then
    query.send("a", 4)
    query.wait()
    assert query.rows() == {"a": 4}
    assert [p.revision for p in query.of_window()] == [1, 2]
    assert query.of_window()[-1].missing_sites == ("a", "b")
    query.renew()
    query.send("a", 5)
    query.send("b", 1)
    query.pass_end("a", "b", mark_us=20)
    assert query.rows() == {"a": 5, "b": 1}
    assert [p.revision for p in query.of_window()] == [1, 2, 3]
    assert query.of_window()[-1].status == EXACT


def test_an_exact_answer_that_stands_is_not_called_exact_once_a_site_has_more_records_than_it() -> None:
    query = RenewedQuery()
    query.send("a", 2)
    query.send("b", 3)
    query.pass_end("a", "b")
    assert query.published[-1].status == EXACT
    query.renew()
    query.send("a", 3)  # one of them came late
    query.pass_end("a", "b", mark_us=END_OF_TIME_US)  # and nobody has the records of b any more
    assert query.rows() == {"a": 2, "b": 3}
    assert (query.published[-1].status, query.published[-1].coverage) == (ON_TIME, 5 / 6)


def test_beside_a_site_that_is_away_a_better_answer_does_not_wait_for_it() -> None:
    query = RenewedQuery()
    query.send("a", 2)
    query.pass_end("a")
    assert query.published[-1].missing_sites == ("b",)
    query.renew()
    query.send("a", 3)
    query.pass_end("a")
    query.wait()
    assert query.rows() == {"a": 3}
    assert query.published[-1].missing_sites == ("b",)


def test_a_query_that_has_not_begun_waits_for_nothing_of_its_former_fragment() -> None:
    """Nobody repairs what was shed of a fragment, or brings what was deferred of it, once it is no longer run."""
    core = CenterCore()
    core.handle(QueryAdded(QUERY, waits=True), 0)
    former = QUERY.source_fragment
    core.handle(Landed("a", 0, shed=(Shed(former, 0, 0.5, ((0, 3),)),)), 0)
    core.handle(PartialsDeferred(former, 0, 0.5, ("k",), ((0, 2),), is_counted=True), 0)
    assert core.queries["q"].windows.outstanding.lacks_records(0)
    renewed = replace(QUERY, fragment=replace(QUERY.fragment, name="again"), renewal=1)
    core.handle(QueryRenewed(renewed), 0)
    assert not core.queries["q"].has_begun
    assert not core.queries["q"].windows.outstanding.lacks_records(0)


def test_a_query_that_moves_after_it_was_computed_again_has_lost_nothing() -> None:
    core = CenterCore()
    core.handle(QueryAdded(QUERY, waits=False), 0)
    core.handle(QueryRenewed(replace(QUERY, fragment=replace(QUERY.fragment, name="again"), renewal=1)), 0)
    core.handle(QueryMoved("q", MOVED, waits=True, takes_over=True), 0)
    for number, (fragment, begin_us) in enumerate((("again", START_OF_TIME_US), ("moved", 50))):
        for site in QUERY.sites:
            core.handle(Landed(site, number, progress=(Progress(fragment, begin_us, 0),)), 0)
    core.handle(Ticked(), 0)
    assert core.queries["q"].sources.start_us == START_OF_TIME_US
    assert core.queries["q"].site_marks(core.frontiers).lost == ()


def stand_for_good() -> RenewedQuery:
    """A query whose window has two records of a and none of b; that answer stands, and is final."""
    query = RenewedQuery()
    query.send("a", 2)
    query.pass_end("a", "b")
    assert query.published[-1].status == EXACT
    query.renew()
    query.now_us += 2 * QUERY.repair_horizon_us
    query.pass_end("b", mark_us=2 * QUERY.repair_horizon_us)  # nothing is heard of a until the horizon has passed
    assert query.published[-1].status == FINAL
    assert query.rows() == {"a": 2}
    return query


def test_what_comes_for_a_final_answer_that_stands_and_is_not_in_it_is_registered_as_too_late() -> None:
    query = stand_for_good()
    query.send("b", 3)
    assert [e.rows.to_pylist()[0]["n__count"] for e in query.expired] == [3]
    query.send("a", 2)
    assert len(query.expired) == 1, "the answer has them"
    query.send("a", 1)
    assert len(query.expired) == 2
    assert query.windows.state.unmerged_of_sites == {"a": 1, "b": 3}


def test_what_comes_in_one_batch_with_what_a_final_answer_has_is_counted_as_not_merged() -> None:
    query = stand_for_good()
    query.send("a", 3)
    assert not query.expired
    assert query.windows.state.unmerged_of_sites == {"a": 1}


def test_partials_of_several_slices_of_a_shared_fragment_are_not_registered_if_a_final_answer_has_some() -> None:
    query = stand_for_good()
    sent = lifted(QUERY.fragment, [(1, "b", 1)] * 3 + [(7, "a", 1)] * 2)
    query.windows.merge(sent.partials, (("b", 0, 3), ("a", 5, 2)), query.now_us)  # counted by slices of 5 us
    query.settle()
    assert not query.expired, "the answer has the records of a"
    assert query.windows.state.unmerged_of_sites == {"b": 3}
    query.send("b", 1)
    assert [e.rows.to_pylist()[0]["n__count"] for e in query.expired] == [1], "what comes now is in no answer"


def test_partials_whose_records_are_counted_in_a_later_slice_of_a_shared_fragment_are_registered_as_too_late() -> None:
    query = stand_for_good()
    sent = lifted(QUERY.fragment, [(7, "b", 1)] * 3)
    query.windows.merge(sent.partials, (("b", 5, 3),), query.now_us)
    query.settle()
    assert [e.rows.to_pylist()[0]["n__count"] for e in query.expired] == [3]
    assert query.windows.state.unmerged_of_sites == {"b": 3}


def test_a_former_answer_that_stands_because_nothing_came_again_in_time_says_so_and_names_what_it_lacks() -> None:
    query = RenewedQuery()
    query.windows.outstanding.add_shed("a", Shed(QUERY.fragment.name, 0, 0.5, ((0, 2),)))
    query.send("a", 2)
    query.pass_end("a")
    assert query.published[-1].missing_sites == ("b",)
    query.renew()
    query.now_us += 2 * QUERY.repair_horizon_us
    query.pass_end("b", mark_us=2 * QUERY.repair_horizon_us)
    assert not query.windows.state.closed
    last = query.published[-1]
    assert (last.status, last.reason, last.missing_sites) == (ON_TIME, FORMER_STANDS, ("a", "b"))
