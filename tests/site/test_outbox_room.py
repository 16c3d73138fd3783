"""An outbox keeps its bound however much the cache holds when its link is free again, and everything still arrives.

Catches: a commit that empties the cache into an outbox with little room; partials, marks or facts that are lost, sent
twice or early because a commit was cut; a site or a fragment that never goes on. Cannot catch: what a relay states of
its sites (`tests/relay/test_core.py`), nor rows that grow when they are compressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates.content_bytes import content_bytes
from catchment.progress.events import Ticked
from catchment.shedding.debts import BatchRepaired, BatchShed, FragmentSample
from catchment.shedding.sampler import Sampler
from catchment.site.backfill import PastAbsorbed, PastBatches
from catchment.site.core import SiteCore
from catchment.site.events import Action, FragmentAdded, LinkMeasured, LowMarkRaised
from catchment.site.outbox_writer import OutboxWriter
from catchment.site.policies.registry import policy_by_name
from catchment.timeline import END_OF_TIME_US
from catchment.wire.messages import Backfilled, Progress, Repaired, Shed, Updates
from catchment.wire.sending.link_meter import LinkCounters
from catchment.wire.sending.outbox import Outbox
from tests.worlds.site_support import WINDOW_US, Received, absorbed, drive, fragment, recomputed
from tests.worlds.tiers import examples

F = fragment()
OUTBOX_MAX = 3_000
FACT_BYTES = 200  # more than a frame with a mark has
SLICES = 150
LONG_KEY = "a key that is long enough for its update to be larger than the room that is left " * 3


def started(*names: str) -> SiteCore:
    core = SiteCore()
    for name in names or ("f",):
        core.handle(FragmentAdded(fragment(name), policy_by_name("batching")), 0)
    return core


def room(room_bytes: int, queued_bytes: int = 100, blocked: bool = False) -> LinkMeasured:
    return LinkMeasured(None, queued_bytes, blocked, room_bytes=room_bytes)


def messages(actions: Iterable[Action]) -> list[object]:
    return [m for action in actions for m in action.messages]


def rows_of(actions: Iterable[Action]) -> int:
    return sum(m.rows for m in messages(actions) if isinstance(m, Updates))


def hold(core: SiteCore, slices: int, keys: Sequence[str] = ("a", "b"), names: Sequence[str] = ("f",)) -> list[tuple]:  # type: ignore[type-arg]
    """Let a core take in records of many slices while its link is blocked; return them."""
    core.handle(room(0, OUTBOX_MAX, blocked=True), 1)
    records = [(n * WINDOW_US, key, n) for n in range(slices) for key in keys]
    for name in names:
        assert core.handle(absorbed(fragment(name), records), 2) == ()
    assert core.handle(LowMarkRaised("s", slices * WINDOW_US), 3) == ()
    return records


def test_the_first_commit_after_a_long_absence_keeps_within_the_bound_of_the_outbox(tmp_path: Path) -> None:
    core, far = started(), Received(F)
    outbox = Outbox(tmp_path, "eu", "center", OUTBOX_MAX)
    writer = OutboxWriter(outbox)
    records = hold(core, SLICES)
    number, commits, most = 0, 0, 0
    is_at_bound = False
    while core.pending_rows or core.is_waiting(4 + commits):
        commits += 1
        measured = writer.measure(LinkCounters())
        actions = core.handle_all([measured, Ticked()], 4 + commits)
        core.validate()
        far.take(actions)
        for action in actions:
            updates = [m for m in action.messages if isinstance(m, Updates)]
            number += writer.append(number, updates, [m for m in action.messages if not isinstance(m, Updates)])
        most = max(most, outbox.size_bytes)
        if core.is_blocked("") and not rows_of(actions):
            is_at_bound = True
            outbox.ack_below(outbox.lowest_unacked + 1)  # the link carries a segment from time to time
        assert commits < 1_000, "it does not go on"
    assert is_at_bound
    assert OUTBOX_MAX / 2 < most <= OUTBOX_MAX + FACT_BYTES
    assert number < 2 * SLICES / 10, "segments do not become smaller and smaller"
    assert dict(far.totals) == recomputed(F, records)
    assert far.mark_us == SLICES * WINDOW_US


def test_what_does_not_fit_stays_and_merges_until_there_is_room() -> None:
    core, far = started(), Received(F)
    records = hold(core, 20)
    drive(core, [(room(200), 4)], far)
    assert 0 < far.rows < 20
    assert core.is_waiting(5), "the link must be measured again, or the rest stays here"
    late = [(19 * WINDOW_US, "a", 7)]
    drive(core, [(absorbed(F, late), 5)], far)
    drive(core, [(room(10_000), 6)], far)
    assert far.rows == 40, "of a key that waited one update leaves"
    assert dict(far.totals) == recomputed(F, [*records, *late])
    assert not core.is_waiting(7)


def test_the_earliest_slices_leave_first_and_the_mark_follows_them() -> None:
    core, far = started(), Received(F)
    hold(core, 20)
    marks = []
    for at in range(4, 12):
        drive(core, [(room(200), at)], far)
        marks.append(far.mark_us)
    assert marks == sorted(set(marks)), "every commit states how far it has come"
    assert max(slice_us for slice_us, _ in far.totals) <= marks[-1]


def test_an_update_larger_than_the_outbox_leaves_alone() -> None:
    core, far = started(), Received(F)
    records = hold(core, 1, [LONG_KEY, LONG_KEY + "b", LONG_KEY + "c"])
    for at, rows in enumerate((1, 2, 3), 4):
        drive(core, [(room(200), at)], far)
        assert far.rows == rows - 1, "it waits until nothing else is in the outbox"
        drive(core, [(room(200, queued_bytes=0), at)], far)
        assert far.rows == rows
    assert dict(far.totals) == recomputed(F, records)


def test_no_fragment_waits_for_ever_where_others_fill_the_room() -> None:
    core = started("f", "g")
    hold(core, 30, names=("f", "g"))
    sent: dict[str, int] = {"f": 0, "g": 0}
    for at in range(4, 60):
        core.handle(absorbed(F, [(10_000 + at, str(at), 1)]), at)
        for message in messages(core.handle_all([LowMarkRaised("s", 20_000 + at), room(150)], at)):
            if isinstance(message, Updates):
                sent[message.fragment] += message.rows
    assert sent["g"] == 60
    assert sent["f"] > 60


def test_room_that_was_used_is_not_used_again_before_it_is_measured() -> None:
    core = started()
    hold(core, 20)
    core.handle(room(10_000), 4)
    left = [core.handle_all([absorbed(F, [(n, str(m), 1) for m in range(20)])], 5 + n) for n in range(60)]
    sent = sum(content_bytes(m.table) for actions in left for m in messages(actions) if isinstance(m, Updates))
    assert 5_000 < sent < 10_000
    assert core.pending_rows


def test_that_something_was_repaired_is_stated_after_all_of_it_has_left() -> None:
    core = started()
    hold(core, 20)
    shed = BatchShed("s", 1, (FragmentSample("f", Sampler(0.5), ((0, 2),)),))
    rest = absorbed(F, [(0, str(n), 1) for n in range(20)])
    first = messages(core.handle_all([shed, rest, BatchRepaired("s", 1, ("f",)), room(200)], 4))
    assert [type(m) for m in first if not isinstance(m, Updates | Progress)] == [Shed]
    said: list[object] = []
    at = 5
    while not any(isinstance(m, Repaired) for m in said):
        assert rows_of(core.handle(Ticked(), at)) == 0
        said = messages(core.handle(room(400), at))
        at += 1
    assert core.pending_rows == 0


def test_that_the_past_was_sent_is_stated_after_all_of_it_has_left() -> None:
    core = SiteCore()
    past = PastBatches(first=0, end=1, from_us=0, until_us=100)
    core.handle(FragmentAdded(F, policy_by_name("batching"), begin_us=100, past=past), 0)
    core.handle(LowMarkRaised("s", 200), 1)
    rows = absorbed(F, [(n * WINDOW_US, str(k), 1) for n in range(10) for k in range(10)])
    at, sent, said = 2, 0, False
    actions = core.handle_all([PastAbsorbed("f", 0, 1, rows.partials, rows.records), room(300)], at)
    while not said:
        sent += rows_of(actions)
        said = any(isinstance(m, Backfilled) for m in messages(actions))
        assert not said or sent == 100
        at += 1
        actions = core.handle(room(300), at)


@settings(max_examples=examples(60))
@given(
    batches=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(0, 99), st.sampled_from(["a", "b", LONG_KEY]), st.integers(-5, 5)), max_size=9
            ),
            st.integers(0, 110),
            st.integers(0, 400),
        ),
        max_size=25,
    ),
    policy=st.sampled_from(["batching", "streaming", "spillway"]),
)
def test_whatever_room_there_is_everything_arrives_once_and_no_mark_is_early(
    batches: list[tuple[list[tuple[int, str, int]], int, int]], policy: str
) -> None:
    core, far = SiteCore(), Received(F)
    core.handle(FragmentAdded(F, policy_by_name(policy)), 0)
    for at, (records, mark_us, room_bytes) in enumerate(batches, 1):
        drive(core, [(room(room_bytes, blocked=room_bytes == 0), at)], far)
        drive(core, [(absorbed(F, records), at), (LowMarkRaised("s", mark_us), at)], far)
    drive(core, [(LowMarkRaised("s", END_OF_TIME_US), 100)], far)
    at = 101
    while core.pending_rows or core.is_waiting(at):
        before = core.pending_rows
        drive(core, [(room(1, queued_bytes=0), at)], far)
        assert core.pending_rows < before or not before, "each commit lets an update go at least"
        at += 1
    assert dict(far.totals) == recomputed(F, [record for records, _, _ in batches for record in records])
    assert far.mark_us == END_OF_TIME_US
