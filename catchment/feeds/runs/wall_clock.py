"""Runs that keep to the wall clock: a live run waits for each instant, and keeps carrying messages meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from catchment.feeds.protocol.mqtt import MqttBus
from catchment.feeds.runs.local_run import LocalRun, carry_until_quiet

IDLE_S = 0.005  # how long a live run sleeps when nothing is under way


def pace(run: LocalRun, speed: float = 1.0, idle: Callable[[float], None] = time.sleep) -> None:
    """Make a run wait for the wall clock; at speed 10, ten seconds of the run take one."""
    began_s = time.monotonic()
    began_us = run.now_us

    def wait(instant_us: int) -> None:
        due_s = began_s + (instant_us - began_us) / 1e6 / speed
        while (left_s := due_s - time.monotonic()) > 0:
            run.now_us = max(run.now_us, began_us + int((time.monotonic() - began_s) * speed * 1e6))
            run.carry(run)
            idle(min(IDLE_S, left_s))

    run.before_step = wait


def carry_over_mqtt(bus: MqttBus) -> Callable[[LocalRun], None]:
    """Carry messages through a broker: let sockets work, tell devices of their links, hand over what came."""

    def carry(run: LocalRun) -> None:
        bus.poll()
        for name, up in list(bus.devices.changes()):
            run.fleet.link_changed(name, up, run.now_us)
        carry_until_quiet(run)

    return carry
