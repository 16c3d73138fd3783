"""A frontier that segments are tried on: the one it was copied from learns nothing of them before they are in."""

from __future__ import annotations

import dataclasses

from catchment.progress.events import Landed
from catchment.progress.frontier import Frontier
from catchment.storage.codec import encode
from catchment.timeline import WindowSpec
from catchment.wire.messages import Backfilled, Backfilling, Progress, QueryMark, Resumed, Standing, Suspended
from tests.worlds.world import make_fragment

FRAGMENT = make_fragment(WindowSpec.tumbling(10)).name


def landed(sequence: int, **facts: object) -> Landed:
    return Landed("a", sequence, **facts)  # type: ignore[arg-type]


def test_what_is_tried_on_a_copy_changes_nothing_of_the_original() -> None:
    frontier = Frontier()
    known = (Suspended(FRAGMENT, 1, 0, "a division by zero"),)
    begun = (Backfilling(FRAGMENT, 0, 20),)
    standing = (Standing(FRAGMENT, "q", 10),)
    marks = (Progress(FRAGMENT, 10, 0), QueryMark(FRAGMENT, "q", 15))
    frontier.add(landed(0, suspensions=known, backfills=begun, standings=standing, progress=marks))
    assert all(getattr(frontier, f.name) for f in dataclasses.fields(frontier) if f.name not in NOT_YET)
    before = encode(frontier)
    trial = frontier.copy_for_trial()
    trial.add(landed(2, updates=((FRAGMENT, 1),)))
    further = (Progress(FRAGMENT, 30, 0), QueryMark(FRAGMENT, "q", 40))
    over = (Backfilled(FRAGMENT, ((0, 5),)),)
    resumed = (Resumed(FRAGMENT),)
    trial.add(
        landed(1, suspensions=resumed, backfills=over, standings=(Standing(FRAGMENT, "q", 30),), progress=further)
    )
    assert not trial.suspended
    assert not trial.backfilling
    assert trial.lost
    assert trial.mark(FRAGMENT) == 30
    assert encode(frontier) == before


NOT_YET = {"ahead", "rows", "closings", "lost"}  # what the first segment leaves empty
