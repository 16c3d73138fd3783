"""Sums that do not fit, found only while partials are merged: the view is suspended alone, and nothing stops.

Catches: a center, relay or site that stops on such a sum, now or at its next start; a window that is called exact
without its records; other windows that change. Cannot catch: what the command line says of it.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate, partials
from catchment.center.events import AnswersResumed
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, SUSPENDED
from catchment.errors import AggregateError
from catchment.timeline import ManualClock, WindowSpec
from tests.worlds.suspension_world import SuspendableSite
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, deliver_some, make_fragment, naive

TEN = WindowSpec.tumbling(10)
BIG = 2**62
LARGEST = 2**63 - 1


def world(folder: Path, window: WindowSpec = TEN, sites: int = 2) -> tuple[Center, list[Site]]:
    clock = ManualClock()
    fragment = make_fragment(window)
    names = tuple(f"site{i}" for i in range(sites))
    center = Center(folder / "center", CenterQuery("q", fragment, window, names, 10_000), clock)
    return center, [SuspendableSite(folder / n, n, fragment, "batching", clock) for n in names]


def deliver(center: Center, *sites: Site) -> None:
    for site in sites:
        deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()


def reason(center: Center) -> str | None:
    suspended = center.core.queries["q"].windows.state.unfinished.suspended
    return None if suspended is None else suspended.reason


def restart(center: Center) -> None:
    center.host.checkpoint()
    center.crash()


@pytest.mark.parametrize("at_once", [True, False], ids=["in one entry", "in two entries"])
def test_a_window_whose_sum_does_not_fit_suspends_its_view_and_the_center_goes_on(
    tmp_path: Path, at_once: bool
) -> None:
    center, (a, b) = world(tmp_path)
    for site in (a, b):
        site.batch([(1, "x", BIG), (2, "y", 1)], 10)
        if not at_once:
            deliver(center, site)
    deliver(center, a, b)
    (published,) = center.tables.published
    assert (published.status, published.coverage, published.rows.num_rows) == (SUSPENDED, 0.0, 0)
    assert published.missing_sites == ("site0", "site1")
    assert published.reason == "not answered: a sum of integers does not fit into 64 bits"
    assert reason(center) == "a sum of integers does not fit into 64 bits, over all sites"
    restart(center)
    for site in (a, b):
        site.batch([(11, "x", 5)], 20)
    deliver(center, a, b)
    assert not center.tables.published[-1].is_finished, "the view is suspended until it is resumed"
    center.host.submit("resume", [AnswersResumed("q")])
    for site in (a, b):
        site.batch([(21, "x", 5)], 30)
    deliver(center, a, b)
    assert reason(center) is None
    assert center.tables.published[-1].status == EXACT
    assert center.tables.answer() == {(10, "x"): (2, 10), (20, "x"): (2, 10)}


def test_late_records_with_which_a_sum_does_not_fit_are_registered_for_good(tmp_path: Path) -> None:
    center, (a, b) = world(tmp_path)
    for site in (a, b):
        site.batch([(1, "x", BIG // 2)], 10)
    deliver(center, a, b)
    a.batch([(2, "x", BIG)], 12)
    deliver(center, a)
    center.clock.advance(60_000_000)
    center.tick()
    assert center.tables.answer() == {(0, "x"): (2, BIG)}, "what was published stays"
    (expired,) = center.tables.expired
    assert expired.rows.num_rows == 1
    last = center.tables.published[-1]
    assert last.status == SUSPENDED
    assert last.coverage == pytest.approx(2 / 3)
    assert last.reason == "late records are not merged: a sum of integers does not fit into 64 bits"
    restart(center)
    a.batch([(3, "x", 1)], 13)
    deliver(center, a)
    center.clock.advance(60_000_000)
    center.tick()
    assert center.tables.answer() == {(0, "x"): (2, BIG)}
    assert len(center.tables.expired) == 2


def test_a_site_whose_batches_do_not_fit_together_sends_them_apart(tmp_path: Path) -> None:
    center, (a, b) = world(tmp_path)
    for _ in range(3):
        a.batch([(1, "x", BIG), (2, "y", 1)], 3)
    a.host.checkpoint()
    a.crash()
    a.batch([], 10)
    b.batch([(1, "y", 1)], 10)
    deliver(center, a, b)
    assert center.tables.published[-1].status == SUSPENDED
    assert reason(center)


records = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from("ab"), st.sampled_from([1, -5, BIG, -BIG, LARGEST])), max_size=20
)


@settings(max_examples=examples(60))
@given(data=records, window=st.sampled_from([TEN, WindowSpec(10, 5)]), seed=st.integers(0, 10_000))
def test_a_window_is_answered_exactly_if_all_its_sums_fit(data: list[Record], window: WindowSpec, seed: int) -> None:
    """The oracle adds without a bound; only windows of which a sum is beyond 64 bits are not answered."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        center, sites = world(Path(folder), window)
        for record in data:
            chance.choice(sites).batch([record], -100)
            if chance.random() < 0.3:
                deliver_some(chance.choice(sites), center, chance)
                center.consume()
            if chance.random() < 0.1:
                restart(center)
        for site in sites:
            site.batch([], 1_000)
        deliver(center, *sites)
        expected = naive(window, data)
        failed = {start for (start, _), (_, total) in expected.items() if not -LARGEST - 1 <= total <= LARGEST}
        assert center.tables.answer() == {p: row for p, row in expected.items() if p[0] not in failed}
        assert {p.window.start_us for p in center.tables.published if p.coverage == 0.0} == failed
        assert bool(failed) == bool(reason(center))


def test_partials_that_do_not_fit_together_stay_as_they_are() -> None:
    total = (make_aggregate("sum", "v", pa.int64(), name="total"),)
    table = pa.table({"k": ["x", "x", "y", "y"], "total__sum": pa.array([BIG, BIG, 1, 2], pa.int64())})
    table = table.rename_columns(["k", total[0].states[0].name])
    with pytest.raises(AggregateError):
        partials.combine(table, ["k"], total)
    assert partials.combine_fitting(table, ["k"], total).num_rows == 4
    assert partials.combine_fitting(table.slice(2), ["k"], total).num_rows == 1
