"""How often a process tells its status: at once where something happens, and rarely where nothing does."""

from __future__ import annotations

from catchment.deploy.processes.relay_runner import IDLE_STATUS_S, StatusCadence


def test_a_status_is_told_when_something_has_happened_and_once_a_second_otherwise() -> None:
    now_s = [100.0]
    cadence = StatusCadence(lambda: now_s[0])
    told = []
    for tick in range(40):
        activity = min(tick, 3)  # something happens at the first four ticks
        if cadence.is_due(activity):
            told.append(tick)
        now_s[0] += IDLE_STATUS_S / 4
    assert told == [0, 1, 2, 3, *range(7, 40, 4)]
