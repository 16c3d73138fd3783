"""A site under a contract: observations in, marks and standings out, on the real core and journal.

Catches: a mark that passes what is still awaited, a standing that contradicts the records, state that a crash loses.
Cannot catch: a controller that waits too long or too short; `test_slack_*` and the simulations are about that.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.errors import StorageError
from catchment.quality.contract import Contract
from catchment.site import events as site_events
from catchment.site.core import SiteCore
from catchment.site.policies.base import EARLY
from catchment.site.policies.basic import EarlyPolicy
from catchment.site.policies.registry import policy_by_name
from catchment.site.slack.query import OTHERS, QuerySlack
from catchment.site.slack.surprises import SHOWN_WINDOWS
from catchment.storage import codec
from catchment.timeline import END_OF_TIME_US, SECOND_US, ManualClock
from catchment.wire.messages import Standing, Updates
from tests.worlds.contract_site import FRAGMENT, WINDOW, ContractSite, Row, deliver, observed, plan, summed
from tests.worlds.world import Center, lifted, make_fragment


def batch_of(second: float, sources: dict[str, float], span_s: float = 0.25) -> list[Row]:
    """So much time of every source, ten records each; `sources` says how far each lags behind."""
    rows = []
    for name, lag_s in sources.items():
        for i in range(10):
            at = round((second - lag_s + i * span_s / 10) * SECOND_US)
            if at >= 0:
                rows.append((name, at, 1))
    return rows


@pytest.fixture
def here(tmp_path: Path) -> tuple[Center, ContractSite, ManualClock]:
    clock = ManualClock()
    query = CenterQuery("q", FRAGMENT, WINDOW, ("site0",), 3600 * SECOND_US, contract=Contract(0.05))
    return (
        Center(tmp_path / "center", query, clock),
        ContractSite(tmp_path / "s", "site0", FRAGMENT, "batching", clock),
        clock,
    )


def test_a_stalled_source_is_named_and_its_return_makes_its_windows_exact(
    here: tuple[Center, ContractSite, ManualClock],
) -> None:
    center, site, clock = here
    told: list[Row] = []
    held: list[Row] = []
    for step in range(190):
        second = step / 2
        rows = batch_of(second, {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}, 0.5)
        stalled = [r for r in rows if r[0] == "d" and 8.0 <= second < 75.0]
        held += stalled
        now = [r for r in rows if r not in stalled]
        if second == 75.0:
            now, held = [*held, *now], []
        site.take(now)
        told += now
        if step % 37 == 36:
            site.crash()
        clock.advance(SECOND_US // 2)
        site.tick()
        deliver(site, center)
    named = [p for p in center.tables.published if p.sources]
    assert named, "some window was let go without the source"
    assert {(name, source) for p in named for name, source, share in p.sources if share > 0.25} == {("site0", "d")}
    assert all(p.status == "on_time" and 0.0 < p.coverage < 1.0 for p in named if p.rows.num_rows)
    site.end()
    deliver(site, center)
    clock.advance(20 * SECOND_US)
    center.tick()
    assert center.tables.answer() == summed(told)
    last = {p.window.start_us: p for p in center.tables.published}
    assert {p.status for p in last.values()} <= {EXACT, FINAL}
    assert all(p.coverage == 1.0 and p.late is None for p in last.values())


def test_sources_that_have_shown_their_order_let_windows_go_exact_at_once(
    here: tuple[Center, ContractSite, ManualClock],
) -> None:
    center, site, clock = here
    for step in range(60):
        site.take(batch_of(step / 4, {"a": 0.0, "b": 0.0}))
        clock.advance(SECOND_US // 4)
        deliver(site, center)
    closed = [p for p in center.tables.published if p.rows.num_rows]
    first = [p.status for p in closed if p.revision == 1]
    shown = int(SHOWN_WINDOWS)
    assert len(first) >= 13
    assert set(first[: shown - 1]) == {ON_TIME}, "they have shown little yet"
    assert set(first[shown:]) == {EXACT}


def test_controllers_come_back_from_a_snapshot_as_they_were(tmp_path: Path) -> None:
    first, second = (
        ContractSite(tmp_path / name, "site0", FRAGMENT, "streaming", ManualClock()) for name in ("one", "two")
    )
    for step in range(40):
        rows = batch_of(step / 4, {"a": 0.0, "b": 0.3 if step % 7 else 0.0})
        for site in (first, second):
            site.take(rows)
            site.clock.advance(SECOND_US // 4)
        if step in (12, 30):
            second.host.checkpoint()
            second.crash()
    now = first.clock.now_us()
    assert second.core.contract_status(now) == first.core.contract_status(now)
    sent = [[s.pending_bytes(p.sequence)[60:] for p in s.outbox.pending()] for s in (first, second)]
    assert len(sent[0]) == len(sent[1])


def test_the_state_of_a_newer_version_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = ContractSite(tmp_path, "site0", FRAGMENT, "streaming", ManualClock())
    site.take(batch_of(1.0, {"a": 0.0, "b": 0.0}))
    this_version = codec._REGISTRY["SlackController"]
    with monkeypatch.context() as newer:
        newer.setitem(codec._REGISTRY, "SlackController", replace(this_version, version=this_version.version + 1))
        site.host.checkpoint()
    refused = f"a SlackController of version {this_version.version + 1} was written by a newer catchment"
    with pytest.raises(StorageError, match=refused):
        site.crash()


def test_a_fragment_without_a_contract_goes_by_its_streams_mark_and_one_with_by_its_controllers() -> None:
    core = SiteCore()
    other = make_fragment(WINDOW)
    core.handle(site_events.FragmentAdded(FRAGMENT, policy_by_name("batching"), slacks=(plan(),)), 0)
    core.handle(site_events.LowMarkRaised("s", 50 * SECOND_US), 0)
    (send,) = core.handle(site_events.Absorbed("q", lifted(other, [(1, "a", 1)]).partials, ((0, 1),)), 0) or (None,)
    assert send is None, "the controllers have not closed the window"
    (send,) = core.handle(site_events.LowMarkRaised("s", 50 * SECOND_US, ended=True), 0)
    standings = [m for m in send.messages if isinstance(m, Standing)]
    assert [s.complete_until_us for s in standings] == [50 * SECOND_US]


def test_a_contract_that_comes_after_the_end_of_its_stream_waits_for_nothing() -> None:
    core = SiteCore()
    core.handle(site_events.FragmentAdded(FRAGMENT, policy_by_name("batching")), 0)
    core.handle(site_events.LowMarkRaised("s", END_OF_TIME_US, ended=True), 0)
    again = replace(FRAGMENT, name="again")  # as where a view moves, or its windows are computed again
    core.handle(site_events.FragmentAdded(again, policy_by_name("batching"), slacks=(plan(),)), 0)
    partials = lifted(again, [(1, "a", 1)]).partials
    (send,) = core.handle(site_events.Absorbed("again", partials, ((0, 1),)), 0)
    assert [m.table.num_rows for m in send.messages if isinstance(m, Updates)] == [1]
    core.restore(codec.decode(codec.encode(core.snapshot())))
    core.validate()
    assert not core.pending_rows


def test_a_changed_plan_starts_fresh_and_keeps_only_how_far_it_had_come() -> None:
    slack = QuerySlack.start(plan())
    for step in range(20):
        slack.observe(observed(batch_of(step / 4, {"a": 0.0, "b": 0.0})), step * SECOND_US // 4)
    slack.end(3 * SECOND_US)
    assert slack.resume(plan()) is slack
    fresh = slack.resume(plan("fixed:1"))
    assert fresh.plan == plan("fixed:1")
    assert fresh.low_mark_us == 3 * SECOND_US
    assert fresh.controllers[0].observations.sources.names == []


def test_more_sources_than_the_bound_are_followed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchment.site.slack.query.MAX_SOURCES", 3)
    slack = QuerySlack.start(plan())
    for step in range(3):
        slack.observe(observed(batch_of(1 + step / 10, {f"s{i}": 0.0 for i in range(6)})), (step + 1) * 100_000)
    assert slack.controllers[0].observations.sources.names == ["s0", "s1", "s2", OTHERS]


def test_an_early_policy_empties_open_slices_as_often_as_asked() -> None:
    core = SiteCore()
    core.handle(site_events.FragmentAdded(FRAGMENT, EarlyPolicy(policy_by_name("batching"), 5 * SECOND_US)), 0)

    def take(now_s: int) -> Any:
        absorbed = lifted(FRAGMENT, [(1, "a", 1)])
        return core.handle(absorbed, now_s * SECOND_US)

    assert take(0) == ()
    assert take(4) == ()
    (send,) = take(5)
    assert send.rows == 1
    assert take(9) == ()
    assert len(take(10)) == 1
    assert core.fragment_status()["q"]["reasons"] == {EARLY: 2}


def test_odd_sources_are_named_however_few_the_micro_batches_of_a_busy_machine_are() -> None:
    """The first holds one record, the second a minute of everything, with a record of the next hour in it; one source
    has fallen silent before that, and one is an hour behind."""
    hour, sources = 3600, {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "behind": 3600.0}
    slack = QuerySlack.start(plan())
    closings: list[Any] = []

    def take(begin_s: int, end_s: int, extra: list[Row]) -> None:
        rows = [r for s in range(begin_s, end_s) for r in batch_of(hour + s, sources, 1.0)]
        slack.observe(observed([*rows, *extra]), end_s * SECOND_US)
        closings.extend(c for s in slack.take_standings("q") for c in s.closings if c.end_us > hour * SECOND_US)

    slack.observe(observed([("a", hour * SECOND_US, 1)]), 0)
    silent = [r for s in range(10) for r in batch_of(hour + s, {"silent": 0.0}, 1.0)]
    take(0, 64, [*silent, ("a", 2 * hour * SECOND_US, 1)])
    for begin, end in pairwise((64, 93, 130, 170, 210)):
        take(begin, end, [])
    assert len(closings) > 190
    named = {c.end_us // SECOND_US - hour: {name for name, _ in c.sources} for c in closings}
    assert all(named[end] == {"behind"} for end in range(1, 10))
    assert all(named[end] == {"behind", "silent"} for end in range(12, max(named)))
    status = slack.status(210 * SECOND_US)
    assert (status["idle"], status["behind"], status["future_records"]) == (("silent",), ("behind",), 1)
