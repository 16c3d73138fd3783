"""A query that begins while a site is away begins with the others, names the site, and keeps little while it waits."""

from __future__ import annotations

import random

import pytest

from catchment.center import fragment_sources
from catchment.center.core import CenterCore
from catchment.center.events import Publish, QueryAdded, Recalled
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.storage.codec import decode, encode
from catchment.timeline import END_OF_TIME_US, WindowSpec
from catchment.wire.messages import Progress
from tests.worlds.world import Tables, lifted, make_fragment

WINDOW = WindowSpec.tumbling(10)
FRAGMENT = make_fragment(WINDOW)
FRESHNESS = 50


class Sites:
    """Two sites that have begun the fragment of a new query, or not yet; one record per site and window."""

    def __init__(self, freshness: int | None = FRESHNESS, horizon: int = 100_000) -> None:
        self.core = CenterCore()
        query = CenterQuery("q", FRAGMENT, WINDOW, ("a", "b"), horizon, freshness)
        self.core.handle(QueryAdded(query, waits=True), 0)
        self.sent: dict[str, tuple[int, int]] = {"a": (0, 0), "b": (0, 0)}  # segments, rows
        self.published: list[Publish] = []
        self.now = 0

    def send(self, site: str, times: list[int], mark: int) -> None:
        absorbed = lifted(FRAGMENT, [(ts, site, 1) for ts in times])
        number, rows = self.sent[site]
        rows += absorbed.partials.num_rows
        self.sent[site] = number + 1, rows
        records = tuple((site, slice_us, n) for slice_us, n in absorbed.records)
        updates = (("q", absorbed.partials.num_rows),)
        landed = Landed(site, number, updates, (Progress("q", mark, rows),))
        self.handle(Gathered("q", absorbed.partials, records), landed, Ticked())

    def handle(self, *events: Gathered | Landed | Recalled | Ticked) -> None:
        self.published += [a for a in self.core.handle_all(events, self.now) if isinstance(a, Publish)]

    def restart(self) -> None:
        state = decode(encode(self.core.snapshot()))
        self.core = CenterCore()
        self.core.restore(state)

    def newest(self) -> dict[int, Publish]:
        return {p.window.start_us: p for p in self.published}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_query_begins_with_the_others_and_names_the_site_that_is_away(restarts: bool) -> None:
    sites = Sites()
    for start in range(100, 300, 10):  # `a` begins at 103: the first window that it sees whole starts at 110
        sites.send("a", [start + 5], max(103, start))
        sites.now += 10
        if restarts:
            sites.restart()
    sites.handle(Ticked())
    first = min(sites.newest())
    assert first == 110
    assert {(p.status, p.missing_sites) for p in sites.published} == {(ON_TIME, ("b",))}
    sites.send("b", [258, 265, 275], 257)  # `b` comes back, and has begun at 257
    sites.send("b", [285], 290)
    sites.send("a", [300], END_OF_TIME_US)
    sites.send("b", [], END_OF_TIME_US)
    for repair in list(sites.core.repairs(sites.now, everything=True)):
        assert repair.windows, "what came late is repaired as ever"
    newest = sites.newest()
    whole = {start for start, p in newest.items() if not p.missing_sites}
    assert {start for start in newest if start not in whole} == set(range(110, 260, 10))
    assert EXACT not in {p.status for p in sites.published if p.window.start_us < 260}
    assert {newest[start].status for start in (280, 290) if start in newest} <= {EXACT, FINAL}


def test_a_window_whose_first_records_come_late_names_the_site_that_began_in_it() -> None:
    sites = Sites(horizon=100)
    sites.send("a", [], 103)
    sites.now += FRESHNESS  # it begins at 110, without `b`
    sites.send("a", [125], 140)
    sites.send("b", [], 117)  # `b` has begun in the middle of the first window, of which nobody has a record yet
    sites.send("b", [], 140)
    assert min(sites.newest()) == 120
    sites.send("a", [115], 150)  # late, and waits for its repair while the horizon passes
    sites.send("a", [], 400)
    sites.send("b", [], 400)
    for repair in list(sites.core.repairs(sites.now, everything=True)):
        nothing = Tables(FRAGMENT).recall(repair.wanted)  # nothing of the window was published before
        sites.handle(Recalled("q", repair.windows, nothing, repair.reason), Ticked())
    assert 110 in sites.newest()
    assert all(p.missing_sites == ("b",) for p in sites.published if p.window.start_us == 110)
    assert sites.newest()[120].status == FINAL


def test_without_freshness_a_query_waits_for_every_site_and_begins_where_all_have_begun() -> None:
    sites = Sites(freshness=None)
    for start in range(100, 200, 10):
        sites.send("a", [start + 5], max(103, start))
        sites.now += 1000
    assert sites.published == []
    sites.send("b", [161], 141)
    sites.send("b", [], 190)
    assert min(sites.newest()) == 150
    assert {p.missing_sites for p in sites.published} == {()}


def test_what_waits_for_a_site_is_bounded_and_the_query_begins_after_what_was_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fragment_sources, "MAX_WAITING_BYTES", 2_000)
    sites = Sites(freshness=None)
    chance = random.Random(0)
    for start in range(100, 2000, 10):
        sites.send("a", [start + chance.randrange(10)], start)
        (source,) = sites.core.queries["q"].sources.parts[0].sources
        assert sum(table.nbytes for table, _ in source.waiting) <= 2_000
        if start % 300 == 0:
            sites.restart()
    sites.send("b", [], 110)
    sites.send("b", [], 2000)
    sites.send("a", [], 2000)
    starts = sorted(sites.newest())
    assert starts[0] > 1000
    assert starts == list(range(starts[0], 2000, 10)), "from where it begins on nothing is passed over"
    assert {p.status for p in sites.newest().values()} == {EXACT}
    assert {sum(p.rows["n__count"].to_pylist()) for p in sites.published if p.rows.num_rows} == {1}


def test_what_is_usual_is_what_a_window_held_when_it_closed_with_and_without_a_restart() -> None:
    usual = []
    for restarts in (False, True):
        sites = Sites()
        for site in ("a", "b"):
            sites.send(site, [], 100)
        for site in ("a", "b"):
            sites.send(site, [105], 120)
        if restarts:
            sites.restart()
        sites.send("a", [106, 107], 125)  # late, for the window that is closed
        usual.append(sites.core.queries["q"].windows.state.usual)
    assert usual == [{"a": 1, "b": 1}] * 2
