"""Claims about the site core, each checked against a naive recomputation from the raw records.

The random runs catch lost, doubled or early-announced partials under any interleaving of batches, marks,
blocked links and restarts; they cannot catch a policy that is merely wasteful.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import SiteError
from catchment.progress.events import Ticked
from catchment.site.core import CacheLimits, SiteCore
from catchment.site.events import (
    Absorbed,
    Event,
    FragmentAdded,
    FragmentBounded,
    FragmentDropped,
    LinkMeasured,
    LowMarkRaised,
    Send,
)
from catchment.site.policies.base import Moment, Proposal, SliceView
from catchment.site.policies.registry import policy_by_name, policy_names
from catchment.storage.codec import decode, encode, stored
from catchment.timeline import END_OF_TIME_US, WindowSpec
from catchment.wire.messages import LookedUp, Progress, Updates
from tests.worlds.site_support import WINDOW_US, Received, absorbed, drive, fragment, recomputed
from tests.worlds.tiers import examples

F = fragment()


def started(policy: str = "batching", limits: CacheLimits | None = None) -> SiteCore:
    core = SiteCore(limits)
    core.handle(FragmentAdded(F, policy_by_name(policy)), 0)
    return core


def rows_of(actions: tuple[object, ...]) -> int:
    return sum(a.rows for a in actions)  # type: ignore[attr-defined]


def messages_of(actions: tuple[object, ...], kind: type) -> list:  # type: ignore[type-arg]
    return [m for a in actions for m in a.messages if isinstance(m, kind)]  # type: ignore[attr-defined]


def test_streaming_sends_every_partial_with_the_batch_that_brought_it() -> None:
    core = started("streaming")
    assert rows_of(core.handle(absorbed(F, [(1, "a", 1), (2, "a", 1), (3, "b", 1)]), 3)) == 2
    assert rows_of(core.handle(absorbed(F, [(4, "a", 1)]), 4)) == 1
    assert core.pending_rows == 0


def test_batching_sends_each_key_once_when_its_slice_is_due() -> None:
    core = started()
    core.handle(absorbed(F, [(1, "a", 1), (3, "b", 1)]), 3)
    core.handle(absorbed(F, [(4, "a", 5)]), 4)
    assert core.handle(LowMarkRaised("s", 9), 9)[0].rows == 0
    (update,) = messages_of(core.handle(LowMarkRaised("s", 10), 10), Updates)
    assert sorted(zip(update.table["k"].to_pylist(), update.table["total__sum"].to_pylist(), strict=True)) == [
        ("a", 6),
        ("b", 1),
    ]
    assert update.records == ((0, 3),)


def test_a_mark_waits_for_the_slice_that_is_still_pending() -> None:
    core = started()
    core.handle(absorbed(F, [(12, "a", 1)]), 3)
    (progress,) = messages_of(core.handle(LowMarkRaised("s", 15), 15), Progress)
    assert progress == Progress("f", 10, 0)
    (progress,) = messages_of(core.handle(LowMarkRaised("s", 25), 25), Progress)
    assert progress == Progress("f", 25, 1)


def test_an_idle_site_announces_each_rise_of_the_low_mark_and_nothing_else() -> None:
    core = started()
    for mark in (5, 30, 31):
        assert core.handle(LowMarkRaised("s", mark), mark)[0].messages == (Progress("f", mark, 0),)
    assert core.handle(LowMarkRaised("s", 31), 32) == ()
    assert core.handle(LowMarkRaised("s", 7), 33) == ()
    assert core.handle(Ticked(), 34) == ()


@pytest.mark.parametrize("policy", policy_names())
def test_late_partials_leave_at_once_in_a_message_of_their_own(policy: str) -> None:
    core = started(policy)
    core.handle(LowMarkRaised("s", 25), 25)
    updates = messages_of(core.handle(absorbed(F, [(3, "a", 1)]), 26), Updates)
    assert [u.table["slice_us"].to_pylist() for u in updates] == [[0]]
    assert updates[0].records == ((0, 1),)


def test_a_blocked_link_holds_everything_and_merges_it_in_the_cache() -> None:
    core = started("streaming")
    core.handle(LinkMeasured(None, 10, blocked=True), 0)
    for at in range(1, 8):
        assert core.handle(absorbed(F, [(at, "a", 1)]), at) == ()
    assert core.handle(LowMarkRaised("s", 20), 20) == ()
    (update,) = messages_of(core.handle(LinkMeasured(None, 0, blocked=False), 21), Updates)
    assert update.rows == 1
    assert update.table["n__count"].to_pylist() == [7]


def test_a_mark_that_a_blocked_link_held_back_leaves_when_the_link_is_free_though_no_row_waits() -> None:
    core = started("streaming")
    core.handle(LinkMeasured(None, 10, blocked=True), 0)
    assert core.handle(LowMarkRaised("s", 20), 20) == ()
    assert core.pending_rows == 0
    assert core.is_waiting(21), "the link must be measured again, or the mark stays here"
    (progress,) = messages_of(core.handle(LinkMeasured(None, 0, blocked=False), 21), Progress)
    assert progress.low_mark_us == 20
    assert not core.is_waiting(22)


def test_at_its_bound_the_cache_sends_the_least_recently_touched_keys_first() -> None:
    core = started(limits=CacheLimits(max_rows=4))
    for at, key in enumerate("abc"):
        core.handle(absorbed(F, [(at, key, 1)]), at)
    (update,) = messages_of(core.handle(absorbed(F, [(3, "d", 1)]), 3), Updates)
    assert update.table["k"].to_pylist() == ["a"]
    assert not core.full


def test_a_full_cache_behind_a_blocked_link_says_so_and_loses_nothing() -> None:
    core, far = started(limits=CacheLimits(max_rows=2)), Received(F)
    records = [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
    drive(core, [(LinkMeasured(None, 1, True), 0), (absorbed(F, records), 1)], far)
    assert core.full
    drive(core, [(LinkMeasured(None, 0, False), 2), (LowMarkRaised("s", END_OF_TIME_US), 3)], far)
    assert not core.full
    assert dict(far.totals) == recomputed(F, records)


def test_a_dropped_fragment_is_forgotten_with_what_was_pending() -> None:
    core = started()
    core.handle(absorbed(F, [(1, "a", 1)]), 1)
    core.handle(FragmentDropped("f"), 2)
    assert core.handle(LowMarkRaised("s", END_OF_TIME_US), 3) == ()
    with pytest.raises(SiteError, match="no fragment 'f'"):
        core.handle(absorbed(F, [(1, "a", 1)]), 4)


def test_what_waits_of_records_ahead_of_the_clock_goes_to_the_fragment_that_takes_over() -> None:
    core, far = started(), Received(F)
    heir = fragment("heir")
    records = [(1, "a", 1), (2, "b", 2), (7000, "a", 3), (7001, "b", 4), (7011, "b", 5)]
    core.handle(absorbed(F, records), 1)
    core.handle_all(
        [FragmentAdded(heir, policy_by_name("batching"), begin_us=10, from_us=10), FragmentBounded("f", 10, "heir")], 2
    )
    core.validate()
    sent = messages_of(core.handle(LowMarkRaised("s", END_OF_TIME_US), 3), Updates)
    assert {name: sum(m.rows for m in sent if m.fragment == name) for name in ("f", "heir")} == {"f": 2, "heir": 3}
    assert sum((m.records for m in sent if m.fragment == "heir"), ()) == ((7000, 2), (7010, 1))
    far.take([Send(tuple(m for m in sent))])
    assert dict(far.totals) == recomputed(F, records)


def test_whoever_takes_over_records_ahead_of_the_clock_says_in_which_version_of_a_table_they_were_looked_up() -> None:
    core = started()
    core.handle_all([absorbed(F, [(1, "a", 1), (7000, "a", 3)]), LookedUp("f", "t", "v1", (0, 7000))], 1)
    added = FragmentAdded(fragment("heir"), policy_by_name("batching"), begin_us=10, from_us=10)
    begun = core.handle_all([added, FragmentBounded("f", 10, "heir")], 2)
    stated = messages_of((*begun, *core.handle(LowMarkRaised("s", END_OF_TIME_US), 3)), LookedUp)
    assert LookedUp("heir", "t", "v1", (7000,)) in stated


def test_a_fragment_that_computes_something_else_does_not_get_what_waits() -> None:
    core = started()
    other = fragment("heir", windows=(WindowSpec.tumbling(2 * WINDOW_US),))
    core.handle(absorbed(F, [(7000, "a", 3)]), 1)
    added = FragmentAdded(other, policy_by_name("batching"), begin_us=20, from_us=20)
    core.handle_all([added, FragmentBounded("f", 20, "heir")], 2)
    (update,) = messages_of(core.handle(LowMarkRaised("s", END_OF_TIME_US), 3), Updates)
    assert update.fragment == "f"


def test_partials_that_are_not_grouped_are_refused() -> None:
    event = absorbed(F, [(1, "a", 1)])
    twice = Absorbed("f", pa.concat_tables([event.partials, event.partials]))
    with pytest.raises(SiteError, match="twice"):
        started().handle(twice, 1)


def test_an_unknown_policy_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(SiteError, match="batching"):
        policy_by_name("eagerish")


@stored()
@dataclass(frozen=True)
class Saboteur:
    """Proposes slots that do not exist, are not pending, or twice."""

    name: str = "saboteur"

    def build(self) -> Saboteur:
        return self

    def propose(self, view: SliceView, moment: Moment) -> Proposal:
        return Proposal(np.array([-1, 0, 0, 10**9, *view.slots().tolist(), 0]))

    def close(self, view: SliceView, moment: Moment) -> None:
        return None


def interleavings() -> st.SearchStrategy[list[tuple[str, object]]]:
    link = st.tuples(st.booleans(), st.integers(0, 500), st.sampled_from([None, 5.0, 1e6]))
    record = st.tuples(st.integers(0, 39), st.sampled_from("abcde"), st.integers(-5, 5))
    return st.lists(
        st.one_of(
            st.tuples(st.just("batch"), st.lists(record, max_size=6)),
            st.tuples(st.just("mark"), st.integers(0, 45)),
            st.tuples(st.just("link"), link),
            st.tuples(st.just("tick"), st.none()),
            st.tuples(st.just("restart"), st.none()),
        ),
        max_size=25,
    )


def event_of(kind: str, value: Any) -> Event:
    match kind:
        case "batch":
            return absorbed(F, value)
        case "mark":
            return LowMarkRaised("s", value)
        case "link":
            blocked, queued, goodput = value
            return LinkMeasured(goodput, queued, blocked)
        case _:
            return Ticked()


def restarted(core: SiteCore, policy: object) -> SiteCore:
    fresh = SiteCore(core.limits)
    fresh.handle(FragmentAdded(F, policy), 0)  # type: ignore[arg-type]
    fresh.restore(decode(encode(core.snapshot())))
    return fresh


def test_slots_that_a_policy_must_not_propose_stay_and_are_counted() -> None:
    core = SiteCore()
    core.handle(FragmentAdded(F, Saboteur()), 0)
    core.handle(absorbed(F, [(1, "a", 1)]), 1)
    core.handle(absorbed(F, [(12, "b", 1)]), 2)
    core.validate()
    assert core.fragment_status()["f"]["updates"] == 2
    assert core.fragment_status()["f"]["refused"] > 0


def test_an_entry_states_one_progress_per_fragment_after_everything_else() -> None:
    core = SiteCore()
    added = FragmentAdded(F, policy_by_name("batching"), begin_us=11)
    entry = (added, absorbed(F, [(12, "a", 1)]), LowMarkRaised("s", 25))
    (send,) = core.handle_all(entry, 1)
    assert [type(m) for m in send.messages] == [Updates, Progress]
    assert send.messages[-1] == Progress("f", 25, 1)
    (send,) = SiteCore().handle_all((added, LowMarkRaised("s", 5)), 1)
    assert send.messages == (Progress("f", 11, 0),), "where a fragment begins is stated, though the mark is behind it"


def test_a_policy_that_was_changed_between_two_lives_starts_fresh_and_loses_nothing() -> None:
    core = started("spillway")
    core.handle(absorbed(F, [(1, "a", 1)]), 1)
    again = restarted(core, policy_by_name("streaming"))
    assert again.running("f").policy == policy_by_name("streaming")
    assert rows_of(again.handle(Ticked(), 2)) == 1
    again.validate()


@pytest.mark.parametrize("policy", [*map(policy_by_name, policy_names()), Saboteur()], ids=lambda p: p.name)
@settings(max_examples=examples(60))
@given(steps=interleavings(), max_rows=st.sampled_from([3, 10_000]))
def test_whatever_happens_everything_arrives_once_and_no_mark_is_early(
    policy: object, steps: list[tuple[str, Any]], max_rows: int
) -> None:
    core, far = SiteCore(CacheLimits(max_rows=max_rows)), Received(F)
    core.handle(FragmentAdded(F, policy), 0)  # type: ignore[arg-type]
    raw: list[tuple[int, str, int]] = []
    for at, (kind, value) in enumerate(steps, 1):
        if kind == "restart":
            core = restarted(core, policy)
            continue
        raw += value if kind == "batch" else []
        drive(core, [(event_of(kind, value), at)], far)
    drive(core, [(LinkMeasured(None, 0, False), 99), (LowMarkRaised("s", END_OF_TIME_US), 100)], far)
    assert dict(far.totals) == recomputed(F, raw)
    assert far.records == {
        s: n for s in range(0, 40, WINDOW_US) if (n := sum(s <= t < s + WINDOW_US for t, _, _ in raw))
    }
    assert far.mark_us == END_OF_TIME_US
    assert core.pending_rows == 0


@settings(max_examples=examples(40))
@given(steps=interleavings())
@pytest.mark.parametrize("policy", policy_names())
def test_a_restored_core_goes_on_exactly_like_the_one_that_was_saved(policy: str, steps: list[tuple[str, Any]]) -> None:
    core = started(policy)
    for at, (kind, value) in enumerate(steps):
        twin = restarted(core, policy_by_name(policy))
        event = event_of(kind, value)
        assert twin.handle(event, at) == core.handle(event, at)
        twin.validate()


def test_slices_of_a_sliding_window_leave_one_by_one() -> None:
    sliding = fragment(windows=(WindowSpec(20, 5),))
    core, far = SiteCore(), Received(sliding)
    core.handle(FragmentAdded(sliding, policy_by_name("batching")), 0)
    records = [(t, "ab"[t % 2], t) for t in range(30)]
    drive(core, [(absorbed(sliding, records), 1), (LowMarkRaised("s", 12), 2)], far)
    assert set(far.totals) == {(s, k) for s in (0, 5) for k in "ab"}
    drive(core, [(LowMarkRaised("s", END_OF_TIME_US), 3)], far)
    assert dict(far.totals) == recomputed(sliding, records)
