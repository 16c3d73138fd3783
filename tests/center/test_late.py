"""Repairs, statuses and early answers at the center, on the real hosts and boxes, against recomputation from records.

Catches: late records that are lost, doubled or left out of a status; repairs that come too early, too often or never.
Cannot catch: what a site believes it lacks being wrong; `test_slack_*` and `test_order_site.py` are about that.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from catchment.aggregates.partials import lift
from catchment.center.query import CenterQuery, RepairRule
from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME
from catchment.progress.events import Gathered
from catchment.quality.contract import Contract
from catchment.quality.merge_sites import SiteEstimate
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.messages import Closing, Standing
from tests.worlds.world import Center, Site, deliver_some, make_fragment, naive

WINDOW = WindowSpec.tumbling(10)
RULE = RepairRule(spread_us=25, max_records=100, max_age_us=50)
CHANCE = random.Random(0)


def world(folder: Path, sites: int = 1, **options: object) -> tuple[Center, list[Site], ManualClock]:
    clock, fragment = ManualClock(), make_fragment(WINDOW)
    names = tuple(f"site{i}" for i in range(sites))
    query = replace(CenterQuery("q", fragment, WINDOW, names, 1000, None), repair=RULE)
    center = Center(folder / "center", replace(query, **options), clock)  # type: ignore[arg-type]
    return center, [Site(folder / n, n, fragment, "streaming", clock) for n in names], clock


def send(site: Site, center: Center, records: list[tuple[int, str, int]], mark: int) -> None:
    site.batch(records, mark)
    deliver_some(site, center, CHANCE, all_of_it=True)
    center.consume()


def make_late(value: int) -> pa.Table:
    """Return the partials of one record of the first slice."""
    raw = pa.table({"slice_us": [0], "k": ["a"], "v": [value]})
    of = make_fragment(WINDOW)
    return lift(raw, ("slice_us", *of.key_names), of.aggregates, {"n": None, "total": "v"})


def stand(site: Site, center: Center, standing: Standing) -> None:
    """A site says how its windows stand, in a segment of its own."""
    site.outbox.append(site.host.enacted, [standing])
    site.host.enacted += 1
    deliver_some(site, center, CHANCE, all_of_it=True)
    center.consume()


def test_late_records_that_a_query_does_not_take_are_not_outstanding(tmp_path: Path) -> None:
    """A shared fragment counts records that the condition of one of its queries leaves out: nothing waits for them."""
    center, (site,), _ = world(tmp_path)
    send(site, center, [(1, "a", 1), (15, "a", 1)], 20)
    nothing = make_fragment(WINDOW).schema.empty_table()
    center.host.submit("inbox", [Gathered("q", nothing, (("site0", 0, 1),))])
    assert center.core.queries["q"].windows.state.late_records == 1
    assert center.core.outstanding == 0


def test_late_records_that_a_query_does_not_take_leave_its_windows_whole_after_their_repair_too(tmp_path: Path) -> None:
    center, (site,), _ = world(tmp_path)
    send(site, center, [(1, "a", 1), (15, "a", 1)], 20)
    state = center.core.queries["q"].windows.state
    state.final_us = 10  # the horizon has passed the first window, which is about to be final
    nothing = make_fragment(WINDOW).schema.empty_table()
    center.host.submit("inbox", [Gathered("q", nothing, (("site0", 0, 1),))])
    assert (state.closed[0].status, state.closed[0].coverage, state.closed[0].lateness) == (EXACT, 1.0, None)
    late = make_late(2)
    center.host.submit("inbox", [Gathered("q", late, ())])
    assert (state.closed[0].status, state.closed[0].coverage) == (ON_TIME, 0.5), "now a record of it has come"


def test_late_records_wait_and_are_repaired_together_when_the_first_has_waited_long_enough(tmp_path: Path) -> None:
    center, (site,), clock = world(tmp_path)
    send(site, center, [(1, "a", 1), (15, "a", 1)], 20)
    before = len(center.tables.published)
    for value in (2, 3, 4):
        send(site, center, [(2, "a", value)], 20)
        clock.advance(10)
        center.tick()
    assert len(center.tables.published) == before
    assert center.core.outstanding == 3
    center.crash()
    clock.advance(20)
    center.tick()
    (repaired,) = center.tables.published[before:]
    assert (repaired.revision, repaired.status) == (2, EXACT)
    assert repaired.reason == "late: 3 records in 1 row; late records have waited 5e-05 s"
    assert center.tables.answer()[0, "a"] == (4, 10)
    assert center.core.outstanding == 0


@pytest.mark.parametrize(
    ("late", "why"), [([(1, "a", 1), (31, "b", 1)], "span more than"), ([(1, "a", 1)] * 100, "100 late records")]
)
def test_a_repair_is_due_at_once_when_late_records_are_far_apart_or_many(
    tmp_path: Path, late: list[tuple[int, str, int]], why: str
) -> None:
    center, (site,), _ = world(tmp_path)
    data = [(ts, "a", 1) for ts in range(0, 40, 5)]
    send(site, center, data, 40)
    send(site, center, late, 40)
    assert why in center.tables.published[-1].reason
    assert center.tables.answer() == naive(WINDOW, [*data, *late])


def test_a_repair_costs_what_was_late_not_what_is_published(tmp_path: Path) -> None:
    center, (site,), clock = world(tmp_path)
    send(site, center, [(1, f"k{i}", 1) for i in range(500)], 10)
    send(site, center, [(2, "k7", 5)], 10)
    (due,) = center.core.repairs(clock.now_us() + RULE.max_age_us)
    assert due.wanted.to_pylist() == [{"window_start_us": 0, "k": "k7"}]
    clock.advance(RULE.max_age_us)
    center.tick()
    assert center.tables.published[-1].rows.num_rows == 1
    assert center.tables.answer()[0, "k7"] == (2, 6)


def test_when_one_of_two_missing_sites_catches_up_the_window_says_so(tmp_path: Path) -> None:
    center, (a, b, c), clock = world(tmp_path, 3, freshness_us=5)
    for site in (a, b, c):
        send(site, center, [(1, "a", 1)], 10)
    send(a, center, [(11, "a", 1)], 20)
    clock.advance(5)
    center.tick()
    both = center.tables.published[-1]
    assert (both.status, both.missing_sites) == (ON_TIME, ("site1", "site2"))
    assert both.coverage == pytest.approx(1 / 3)
    send(b, center, [], 20)
    one = center.tables.published[-1]
    assert (one.status, one.missing_sites) == (ON_TIME, ("site2",))
    assert one.coverage == pytest.approx(1 / 2)
    assert one.reason == "a missing site has passed its end"
    send(c, center, [(12, "a", 1)], 20)
    assert (center.tables.published[-1].status, center.tables.published[-1].missing_sites) == (EXACT, ())
    assert center.tables.answer()[10, "a"] == (2, 2)


def test_a_window_let_go_under_a_contract_says_what_it_lacks_until_nothing_more_is_expected(tmp_path: Path) -> None:
    center, (a, b), _ = world(tmp_path, 2, contract=Contract(0.05))
    parts = {a: SiteEstimate(0.8, 0.3, 4, 40), b: SiteEstimate(1.0, 0.0, 5, 60)}
    for site, part in parts.items():
        send(site, center, [(i, "a", int(part.total / part.count)) for i in range(int(part.count))], 5)
        owing = (("phone 7", 0.25),) if part.coverage < 1 else ()
        closing = Closing(10, "budget", (SiteEstimate(part.coverage, part.bound, part.count, 0), part), owing)
        stand(site, center, Standing("q", "q", 10 if site is b else 0, (closing,)))
        send(site, center, [], 10)
    closed = center.tables.published[-1]
    assert (closed.status, closed.missing_sites, closed.reason) == (ON_TIME, (), "closed under its contract (budget)")
    assert closed.coverage == pytest.approx(9 / 10)
    # Site a has 4 records that sum to 40, and is off by at most 0.3 of its whole: it lacks at most 3/7 of what it has.
    late = closed.late
    assert late is not None
    assert late.records == pytest.approx(12 / 7)
    assert late.received == 9
    assert late.of("n").error == pytest.approx((12 / 7) / (9 + 12 / 7))
    assert late.of("total").amount == pytest.approx(120 / 7)
    assert late.of("total").error == pytest.approx((120 / 7) / (100 + 120 / 7))
    assert closed.sources == (("site0", "phone 7", 0.25),)
    center.crash()
    send(a, center, [(9, "a", 10)], 10)
    stand(a, center, Standing("q", "q", 10))
    done = center.tables.published[-1]
    assert (done.status, done.coverage, done.late, done.sources, done.revision) == (EXACT, 1.0, None, (), 2)
    assert center.tables.answer() == {(0, "a"): (10, 110)}


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_complete_site_has_stated_counts_while_another_one_is_awaited(tmp_path: Path, restarts: bool) -> None:
    """Also when windows are assessed again, after a restart or because a site states something of another window."""
    center, (a, b), _ = world(tmp_path, 2, contract=Contract(0.05))
    for site, part in {a: SiteEstimate(0.8, 0.3, 4, 4), b: SiteEstimate(1.0, 0.0, 5, 5)}.items():
        send(site, center, [(i, "a", 1) for i in range(int(part.count))], 5)
        stand(site, center, Standing("q", "q", 10 if site is b else 0, (Closing(10, "budget", (part, part)),)))
        send(site, center, [], 10)
    known = center.core.queries["q"].windows.state.closed[0].late
    assert known is not None
    assert known.received == 9
    if restarts:
        center.host.checkpoint()
        center.crash()
    nothing = SiteEstimate(1.0, 0.0, 0, 0)
    stand(a, center, Standing("q", "q", 0, (Closing(20, "covered", (nothing, nothing)),)))
    assert center.core.queries["q"].windows.state.closed[0].late == known
    stand(a, center, Standing("q", "q", 10))
    assert center.tables.published[-1].status == EXACT
    kept = {site: frontier.closings["q"] for site, frontier in center.core.frontiers.items()}
    assert [list(closings) for closings in kept.values()] == [[20], []], "those of windows that nobody awaits are gone"


def test_early_answers_come_as_often_as_asked_and_the_window_counts_its_revisions_on(tmp_path: Path) -> None:
    center, (site,), clock = world(tmp_path, early_us=5)
    for number in range(20):
        send(site, center, [(10 * number + i, "a", 1) for i in range(8)], 10 * number + 10)
    early = [p for p in center.tables.published if p.status == EARLY]
    assert not early, "a window that opens and closes in one batch is never told early"
    send(site, center, [(200, "a", 1), (201, "a", 1)], 201)
    clock.advance(5)
    center.tick()
    first = center.tables.published[-1]
    assert (first.status, first.revision, first.coverage) == (EARLY, 1, 0.25)
    assert first.late is not None
    assert (first.late.records, first.late.received) == (6.0, 2.0)
    assert [first.late.of(c).error for c in ("n", "total")] == [0.75, 0.75]
    told = len(center.tables.published)
    clock.advance(5)
    center.tick()
    assert len(center.tables.published) == told, "nothing has changed"
    clock.advance(5)
    send(site, center, [(202, "a", 5)], 202)
    center.crash()
    send(site, center, [], 210)
    second, last = center.tables.published[told:]
    assert (second.status, second.revision) == (EARLY, 2)
    assert (last.status, last.revision, last.coverage, last.late) == (EXACT, 3, 1.0, None)
    assert center.tables.answer()[200, "a"] == (3, 7)


def test_without_repair_late_records_are_registered_and_counted_and_never_merged(tmp_path: Path) -> None:
    center, (site,), clock = world(tmp_path, repair=None)
    send(site, center, [(1, "a", 1), (2, "a", 1), (3, "b", 1)], 10)
    assert center.tables.published[-1].status == ON_TIME
    send(site, center, [(4, "a", 9)], 10)
    clock.advance(1000)
    center.tick()
    (registered,) = center.tables.expired
    assert registered.rows["total__sum"].to_pylist() == [9]
    word = center.tables.published[-1]
    assert (word.status, word.coverage, word.revision) == (ON_TIME, 0.75, 1)
    assert center.tables.answer()[0, "a"] == (2, 2)
    assert (
        center.core.queries["q"].windows.state.late_records,
        center.core.queries["q"].windows.state.unmerged_records,
    ) == (1, 1)


def test_beyond_the_horizon_late_records_are_counted_and_what_was_registered_before_is_repaired(tmp_path: Path) -> None:
    center, (site,), _ = world(tmp_path, repair_horizon_us=20)
    send(site, center, [(1, "a", 1)], 10)
    send(site, center, [(2, "a", 2)], 10)
    send(site, center, [(35, "a", 1)], 36)  # the horizon passes the first window
    assert center.tables.answer()[0, "a"] == (2, 3)
    assert [p.status for p in center.tables.published if p.window.start_us == 0][-1] == FINAL
    send(site, center, [(3, "a", 4)], 36)
    assert center.tables.answer()[0, "a"] == (2, 3)
    assert center.core.queries["q"].windows.state.unmerged_records == 1
    send(site, center, [], END_OF_TIME_US)
    assert len(center.tables.expired) == 1
