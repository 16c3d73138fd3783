"""Which segment is sent next: the share of the backlog, the window of the far side, and pauses."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.timeline import ManualClock
from catchment.wire.sending.dispatch import Dispatch, SendOrder
from catchment.wire.sending.outbox import Outbox, Pending
from catchment.wire.sending.uplink import LinkError
from tests.worlds.tiers import examples
from tests.worlds.wire_support import store


class Waiting(list[Pending]):
    """Segments that wait, in a list: first_pending by its definition."""

    def first_pending(self, start: int = 0, excluding: Collection[int] = ()) -> Pending | None:
        return next((p for p in self if p.sequence >= start and p.sequence not in excluding), None)


def pending(sizes: list[int]) -> list[Pending]:
    return [Pending(number, Path("x"), size) for number, size in enumerate(sizes)]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=40), st.data(), st.sampled_from([0.1, 0.25, 0.5, 1.0]))
@settings(max_examples=examples(100))
def test_the_backlog_keeps_to_its_share_while_fresh_segments_wait(
    sizes: list[int], data: st.DataObject, share: float
) -> None:
    backlog_end = data.draw(st.integers(1, len(sizes)))
    order, waiting = SendOrder(ahead_segments=1000, backlog_share=share), Waiting(pending(sizes))
    order.note_reconnected(backlog_end)
    sent: list[Pending] = []
    while waiting:
        chosen = order.choose(waiting, ())
        assert chosen is not None
        if chosen.sequence < backlog_end and waiting[-1].sequence >= backlog_end:
            before = sum(p.size_bytes for p in sent if p.sequence < backlog_end)
            assert before <= share * sum(p.size_bytes for p in sent)
        sent.append(chosen)
        waiting.remove(chosen)
    for kind in (
        [p for p in sent if p.sequence < backlog_end],
        [p for p in sent if p.sequence >= backlog_end],
    ):
        assert kind == sorted(kind)
    assert sorted(sent) == pending(sizes)


def test_nothing_is_sent_that_the_window_of_the_far_side_would_refuse() -> None:
    order = SendOrder(ahead_segments=3)
    order.note_reconnected(2)
    waiting = Waiting(pending([1] * 6))
    chosen = [order.choose(waiting, taken) for taken in ({0}, {0, 1}, {0, 1, 2})]
    assert [c.sequence if c else None for c in chosen] == [2, 2, None]
    assert order.choose(Waiting(), ()) is None
    with pytest.raises(WireError, match="share"):
        SendOrder(3, backlog_share=0.0)


def test_a_pause_ends_when_the_clock_is_set_back(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    clock = ManualClock(10**12)
    dispatch = Dispatch(outbox, SendOrder(1000), clock)
    store(outbox, range(2))
    first = dispatch.claim()
    assert first is not None
    dispatch.give_back(first)
    dispatch.pause(LinkError("full"), 5.0)
    assert dispatch.claim() is None
    clock.advance(5_000_000)
    again = dispatch.claim()
    assert again == first
    dispatch.give_back(again)
    dispatch.hold(again, LinkError("refused"), 5.0)
    second = dispatch.claim()
    assert second is not None
    assert second.sequence == 1
    clock.advance(-(10**11))
    third = dispatch.claim()
    assert third is not None
    assert third.sequence == 0
