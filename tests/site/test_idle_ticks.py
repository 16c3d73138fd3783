"""How often an idle site asks its policy. Catches: journal entries for nothing; a policy that is never asked again."""

from __future__ import annotations

from itertools import pairwise

from catchment.site.idle_ticks import MAX_WAIT_US, IdleTicks
from catchment.timeline import ManualClock

TICK_US = 250_000


def test_a_site_that_lets_nothing_go_is_asked_less_and_less_often_but_never_given_up() -> None:
    clock = ManualClock()
    ticks = IdleTicks(clock)
    asked = []
    for _ in range(400):  # 100 s of ticks
        if ticks.is_due():
            asked.append(clock.now_us())
            ticks.note(False)
        clock.advance(TICK_US)
    waits = [after - before for before, after in pairwise(asked)]
    assert waits[:4] == [250_000, 500_000, 1_000_000, 1_000_000]
    assert set(waits[3:]) == {MAX_WAIT_US}


def test_what_leaves_or_comes_makes_the_next_tick_due_at_once() -> None:
    ticks = IdleTicks(ManualClock())
    for _ in range(5):
        ticks.note(False)
    assert not ticks.is_due()
    ticks.note(True)
    assert ticks.is_due()
    ticks.note(False)
    assert not ticks.is_due()
    ticks.reset()
    assert ticks.is_due()
    ticks.note(False)
    ticks.note_acked(3)
    assert ticks.is_due(), "the link has taken something"
    ticks.note(False)
    ticks.note_acked(3)
    assert not ticks.is_due()
