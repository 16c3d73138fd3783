"""A fragment that is suspended at a site, without Spark: what the windows of its views say, and those of others.

Catches: a window that is called exact though a site has skipped records of it, a lost or doubled count of these, marks
that stand still, facts that depend on their order. Cannot catch: how Spark finds the failing fragment
(`tests/spark/test_isolation.py`).
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, SUSPENDED
from catchment.shedding.debts import BatchRepaired, BatchShed, FragmentSample
from catchment.shedding.sampler import Sampler
from catchment.site import suspension
from catchment.site.suspension import RecordsQuarantined, find_window_beyond
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from tests.worlds.suspension_world import SettingAsideSite, SuspendableSite
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, deliver_some, make_fragment, naive

TEN = WindowSpec.tumbling(10)


def world(
    folder: Path, sites: int = 2, window: WindowSpec = TEN, horizon: int = 1000
) -> tuple[Center, list[SuspendableSite], ManualClock]:
    clock = ManualClock()
    fragment = make_fragment(window)
    names = tuple(f"site{i}" for i in range(sites))
    center = Center(folder / "center", CenterQuery("q", fragment, window, names, horizon), clock)
    return center, [SuspendableSite(folder / n, n, fragment, "batching", clock) for n in names], clock


def deliver(center: Center, *sites: SuspendableSite) -> None:
    for site in sites:
        deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()


def test_a_window_that_lacks_skipped_records_is_suspended_and_says_how_much_is_in(tmp_path: Path) -> None:
    center, (a, b), _ = world(tmp_path)
    a.poison([(1, "a", 5), (2, "a", 6), (3, "b", 7)], 10)
    b.batch([(1, "a", 1)], 10)
    deliver(center, a, b)
    (published,) = center.tables.published
    assert (published.status, published.coverage, published.missing_sites) == (SUSPENDED, 0.25, ("site0",))
    assert published.reason == "closed while suspended at site0"
    assert center.tables.answer() == {(0, "a"): (1, 1)}
    (suspended,) = center.core.suspensions("q").values()
    assert (suspended.reason, suspended.batch, suspended.from_us) == ("the value 'x' is not a number", 0, 0)
    assert suspended.expression == "CAST(t AS INT)"
    assert suspended.record == "part0.json row 7: x"


def test_a_window_of_which_everything_was_skipped_is_published_without_rows(tmp_path: Path) -> None:
    center, (a,), _ = world(tmp_path, sites=1)
    a.poison([(1, "a", 5)], 20)
    deliver(center, a)
    (published,) = center.tables.published
    assert (published.status, published.coverage, published.rows.num_rows) == (SUSPENDED, 0.0, 0)


def test_a_suspended_window_is_never_called_exact_or_final(tmp_path: Path) -> None:
    center, (a, b), _ = world(tmp_path, horizon=20)
    a.poison([(1, "a", 5)], 10)
    b.batch([(1, "a", 1)], 10)
    deliver(center, a, b)
    a.resume()
    for site in (a, b):
        site.batch([(11, "a", 1)], 100)
    deliver(center, a, b)
    by_window = {p.window.start_us: p.status for p in center.tables.published}
    assert by_window == {0: SUSPENDED, 10: FINAL}
    assert center.core.suspensions("q") == {}
    assert not center.core.queries["q"].windows.state.skipped, "a window that is forgotten forgets what it lacks"


def test_a_window_that_was_exact_becomes_suspended_when_late_records_of_it_are_skipped(tmp_path: Path) -> None:
    center, (a, b), _ = world(tmp_path)
    for site in (a, b):
        site.batch([(1, "a", 5)], 10)
    deliver(center, a, b)
    assert center.tables.published[-1].status == EXACT
    a.poison([(2, "a", 5), (12, "a", 5)], 15)
    deliver(center, a)
    last = center.tables.published[-1]
    assert (last.status, last.revision, last.rows.num_rows, last.window.start_us) == (SUSPENDED, 1, 0, 0)
    assert last.coverage == pytest.approx(2 / 3)


def test_a_blocked_link_holds_back_what_was_skipped_and_loses_none_of_it(tmp_path: Path) -> None:
    center, (a, b), _ = world(tmp_path)
    a.block(True)
    a.poison([(1, "a", 5)], 3)
    a.poison([(2, "a", 5)], 10)
    assert not a.outbox.pending()
    a.block(False)
    b.batch([(1, "a", 1)], 10)
    deliver(center, a, b)
    assert center.tables.published[-1].coverage == pytest.approx(1 / 3)


def test_an_account_is_given_of_every_skipped_record(tmp_path: Path) -> None:
    _, (a, _), _ = world(tmp_path)
    a.poison([(1, "a", 5), (25, "a", 6)], 10)
    status = a.core.fragment_status()["q"]
    assert (status["skipped_records"], status["suspended"]["missed_us"]) == (2, (0, 20))
    a.crash()
    assert a.core.fragment_status()["q"] == status, "it is journalled"
    a.resume()
    status = a.core.fragment_status()["q"]
    assert (status["skipped_records"], status["suspended"]) == (2, None)


records = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("ab"), st.integers(0, 9)), max_size=40)


@settings(max_examples=examples(40))
@given(data=records, window=st.sampled_from([TEN, WindowSpec(10, 5)]), seed=st.integers(0, 10_000))
def test_whatever_the_order_and_the_crashes_every_window_holds_what_was_taken_and_counts_what_was_not(
    data: list[Record], window: WindowSpec, seed: int
) -> None:
    """The oracle: the naive answer over the records of batches that were not skipped, and the number of the others."""
    chance = random.Random(seed)
    taken: list[Record] = []
    skipped: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        center, sites, clock = world(Path(folder), 3, window, horizon=10_000)
        newest = dict.fromkeys(range(3), -1)
        for start in range(0, len(data), 4):
            number = chance.randrange(3)
            site = sites[number]
            batch = data[start : start + 4]
            newest[number] = max(newest[number], *(ts for ts, _, _ in batch))
            if site.is_suspended and chance.random() < 0.4:
                site.resume()
            if site.is_suspended or chance.random() < 0.3:
                site.poison(batch, newest[number])
                skipped += batch
            else:
                site.batch(batch, newest[number])
                taken += batch
            clock.advance(1)
            deliver_some(chance.choice(sites), center, chance)
            if chance.random() < 0.5:
                center.consume(discard=chance.random() < 0.5)
            if chance.random() < 0.2:
                roles: list[Center | SuspendableSite] = [center, *sites]
                chance.choice(roles).crash()
        for site in sites:
            site.batch([], END_OF_TIME_US)
            deliver_some(site, center, chance, all_of_it=True)
        center.consume()
        assert center.tables.answer() == naive(window, taken)
        lacking = {start for start, _ in naive(window, skipped)}
        last = {p.window.start_us: p for p in center.tables.published}
        assert {start for start, p in last.items() if p.status == SUSPENDED} == lacking
        assert all(p.status == FINAL for start, p in last.items() if start not in lacking)
        for start in lacking:
            inside = [r for r in (*taken, *skipped) if start <= r[0] < start + window.size_us]
            there = sum(start <= ts < start + window.size_us for ts, _, _ in taken)
            assert last[start].coverage == pytest.approx(there / len(inside))


@settings(max_examples=examples(20))
@given(data=records, window=st.sampled_from([TEN, WindowSpec(10, 5)]), seed=st.integers(0, 10_000))
def test_what_was_skipped_is_read_from_history_after_a_resumption_and_the_end_is_as_if_nothing_had_failed(
    data: list[Record], window: WindowSpec, seed: int
) -> None:
    """The oracle: the naive answer over all records but those of batches on which the fragment fails in history too."""
    chance = random.Random(seed)
    taken: list[Record] = []
    lost: list[list[Record]] = []
    with tempfile.TemporaryDirectory() as folder:
        center, sites, clock = world(Path(folder), 3, window, horizon=10_000)
        newest = dict.fromkeys(range(3), -1)
        history: dict[int, dict[int, list[Record]]] = {number: {} for number in newest}
        failing: dict[int, set[int]] = {number: set() for number in newest}

        def read_some(number: int, everything: bool = False) -> None:
            while sites[number].core.backfills and (everything or chance.random() < 0.5):
                sites[number].read_past(history[number], failing[number])

        for start in range(0, len(data), 4):
            number = chance.randrange(3)
            site = sites[number]
            batch = data[start : start + 4]
            newest[number] = max(newest[number], *(ts for ts, _, _ in batch))
            if site.is_suspended and chance.random() < 0.4:
                site.resume_from_history(newest[number])
            if not site.is_suspended:
                read_some(number)
            history[number][site.batches] = batch
            fails_again = site.is_suspended or chance.random() < 0.3
            if fails_again and chance.random() < 0.3:
                failing[number].add(site.batches)
                lost.append(batch)
            else:
                taken += batch
            (site.poison if fails_again else site.batch)(batch, newest[number])
            clock.advance(1)
            deliver_some(chance.choice(sites), center, chance)
            if chance.random() < 0.5:
                center.consume(discard=chance.random() < 0.5)
            if chance.random() < 0.2:
                roles: list[Center | SuspendableSite] = [center, *sites]
                chance.choice(roles).crash()
        for number, site in enumerate(sites):
            if site.is_suspended:
                site.resume_from_history(newest[number])
            read_some(number, everything=True)
            site.batch([], END_OF_TIME_US)
            deliver_some(site, center, chance, all_of_it=True)
        center.consume()
        center.consume()
        assert center.tables.answer() == naive(window, taken)
        last = {p.window.start_us: p for p in center.tables.published}
        spans = [(min(ts for ts, _, _ in batch), max(ts for ts, _, _ in batch)) for batch in lost]
        for start, published in last.items():
            is_hurt = any(low < start + window.size_us and start <= high for low, high in spans)
            assert (published.status in (EXACT, FINAL) and not published.missing_sites) == (not is_hurt)
        assert {start for start, _ in naive(window, [r for batch in lost for r in batch])} <= last.keys()


# --- records that are set aside ---------------------------------------------------------------------------------


@given(
    known=st.dictionaries(st.integers(0, 20).map(lambda n: 5 * n), st.integers(0, 5)),
    fresh=st.dictionaries(st.integers(0, 20).map(lambda n: 5 * n), st.integers(1, 5)),
    spec=st.sampled_from([TEN, WindowSpec(10, 5), WindowSpec(30, 10)]),
    max_errors=st.integers(0, 12),
)
def test_a_window_is_beyond_its_budget_if_a_count_by_hand_says_so(
    known: dict[int, int], fresh: dict[int, int], spec: WindowSpec, max_errors: int
) -> None:
    totals: dict[int, int] = {}
    for slice_us in known.keys() | fresh.keys():
        for window in spec.containing(slice_us):
            count = known.get(slice_us, 0) + fresh.get(slice_us, 0)
            totals[window.start_us] = totals.get(window.start_us, 0) + count
    touched = {window.start_us for slice_us in fresh for window in spec.containing(slice_us)}
    beyond = {start_us for start_us in touched if totals[start_us] > max_errors}
    found = find_window_beyond([spec], known, fresh, max_errors)
    assert (found is None) == (not beyond)
    assert found is None or found.start_us in beyond


def test_what_was_set_aside_is_counted_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (a, _), _ = world(tmp_path)
    monkeypatch.setattr(suspension, "MAX_ERROR_SLICES", 2)
    a.host.submit("s", [RecordsQuarantined("q", 0, ((0, 1), (10, 2), (20, 3)))], batch=0)
    assert a.core.errors_of("q") == {10: 2, 20: 3}
    a.crash()
    assert a.core.fragment_status()["q"]["quarantined_records"] == 6


@settings(max_examples=examples(40))
@given(data=records, window=st.sampled_from([TEN, WindowSpec(10, 5)]), seed=st.integers(0, 10_000))
def test_records_that_were_set_aside_and_are_tried_again_count_once_wherever_the_site_crashes(
    data: list[Record], window: WindowSpec, seed: int
) -> None:
    """The oracle: the naive answer over all records but those that still fail, which are the ones in quarantine."""
    chance = random.Random(seed)
    data = [(ts, key, 10 * number + value) for number, (ts, key, value) in enumerate(data)]  # each is another one
    failing = {record for record in data if chance.random() < 0.4}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clock = ManualClock()
        fragment = make_fragment(window)
        center = Center(folder / "center", CenterQuery("q", fragment, window, ("site",), 10_000), clock)
        site = SettingAsideSite(folder / "site", "site", fragment, "batching", clock)
        site.quarantine = {}
        newest = -1
        for start in range(0, len(data), 4):
            batch = data[start : start + 4]
            newest = max(newest, *(ts for ts, _, _ in batch))
            site.batch_setting_aside(batch, newest, failing)
            failing -= {record for record in failing if chance.random() < 0.2}  # what was wrong is corrected
            if chance.random() < 0.4:
                site.begin_retry()
            while site.core.retries and chance.random() < 0.7:
                site.retry_some(failing, chance.randint(1, 3), lambda when: chance.random() < 0.2)
            clock.advance(1)
            deliver_some(site, center, chance)
            if chance.random() < 0.5:
                center.consume(discard=chance.random() < 0.5)
            if chance.random() < 0.2:
                crashing: list[Center | SettingAsideSite] = [center, site]
                chance.choice(crashing).crash()
        while site.core.retries:
            site.retry_some(failing, 2, lambda when: chance.random() < 0.2)
        site.begin_retry()
        while site.core.retries:
            site.retry_some(failing, 2, lambda when: chance.random() < 0.2)
        site.forget_tried()
        left = {record for kept in site.quarantine.values() for record in kept}
        assert sum(map(len, site.quarantine.values())) == len(left) == len(failing)
        assert left == failing, "what fails stays in quarantine, and nothing else does"
        site.batch([], END_OF_TIME_US)
        deliver_some(site, center, chance, all_of_it=True)
        center.consume()
        assert center.tables.answer() == naive(window, [record for record in data if record not in failing])
        last = {p.window.start_us: p for p in center.tables.published}
        assert all(p.status in (EXACT, FINAL) for p in last.values())
        status = site.core.fragment_status()["q"]
        assert status["quarantined_records"] == len(failing)
        assert sum(site.core.errors_of("q").values()) == len(failing)
        assert (status["account"]["quarantined"], status["account"]["unaccounted"]) == (len(failing), 0)


def test_a_record_that_is_tried_again_after_the_repair_horizon_is_registered_and_not_merged(tmp_path: Path) -> None:
    clock = ManualClock()
    fragment = make_fragment(TEN)
    center = Center(tmp_path / "center", CenterQuery("q", fragment, TEN, ("site",), 20), clock)
    site = SettingAsideSite(tmp_path / "site", "site", fragment, "batching", clock)
    site.quarantine = {}
    site.batch_setting_aside([(1, "a", 5), (2, "a", 7)], 10, {(2, "a", 7)})
    site.batch_setting_aside([(95, "a", 1), (96, "b", 2)], 100, {(96, "b", 2)})
    deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()
    site.begin_retry()
    site.retry_some((), 5, lambda when: False)
    site.batch([], END_OF_TIME_US)
    deliver_some(site, center, random.Random(0), all_of_it=True)
    center.consume()
    center.consume()
    assert center.tables.answer() == {(0, "a"): (1, 5), (90, "a"): (1, 1), (90, "b"): (1, 2)}
    assert [row for expired in center.tables.expired for row in expired.rows.to_pylist()], "it is registered as late"
    assert not site.quarantine


def test_a_try_waits_while_the_fragment_is_owed_the_rest_of_a_batch_that_the_try_takes(tmp_path: Path) -> None:
    """The repair of that batch may set records aside: behind the try, they would count as tried, and be removed."""
    site = SettingAsideSite(tmp_path, "site", make_fragment(TEN), "batching", ManualClock())
    site.quarantine = {}
    owed = FragmentSample("q", Sampler(0.5), ((0, 1),))
    site.host.submit("s", [BatchShed("s", 0, (owed,))], batch=0)
    site.batches = 1
    site.batch_setting_aside([(1, "a", 5)], 10, {(1, "a", 5)})
    site.begin_retry()
    assert (site.core.retries, site.core.ready_retries) == (("q",), ())
    site.host.submit("repair", [BatchRepaired("s", 0, ("q",))])
    assert site.core.ready_retries == ("q",)
    site.host.submit("s", [BatchShed("s", 2, (owed,))], batch=2)
    assert site.core.ready_retries == ("q",), "what is owed of later batches is none of its business"


def test_what_a_suspended_fragment_reads_of_the_past_begins_with_the_first_batch_that_it_has_skipped(
    tmp_path: Path,
) -> None:
    """A repair may find an old record on which the fragment fails; the batches since then are in."""
    _, (a, _), _ = world(tmp_path)
    for number in range(3):
        a.batch([(number, "a", 1)], number)
    why = suspension.FragmentSuspended("s", 0, "q", 0, "fails on a record that was shed of batch 0")
    a.host.submit("repair", [why])
    assert a.core.skipped_from("q") is None
    a.poison([(4, "a", 1)], 4)
    assert a.core.skipped_from("q") == 3
    a.resume()
    a.poison([(5, "a", 1)], 5)
    assert a.core.skipped_from("q") == 4
