"""Processes that die, stand still, or are stopped."""

from __future__ import annotations

import os
import signal
import time

from catchment.deploy.reports.role_status import SILENT
from catchment.timeline import SystemClock
from tests.campaign.faults.base import Fault
from tests.campaign.living import ALL, CENTER, ROLES, SITES

BEYOND_TIMEOUTS_S = 42.0  # a sender asks after 10 s of silence, and gives up 30 s later


class Kill(Fault):
    """kill -9 of a role while it works."""

    kind = "kill -9"
    targets = ROLES

    def inject(self) -> None:
        self.pause(0.0, 1.5)
        self.machine.kill()

    def heal(self) -> None:
        self.machine.start()


class KillTwice(Fault):
    """kill -9 of a role, and again while it recovers."""

    kind = "kill -9 in recovery"
    targets = ROLES

    def inject(self) -> None:
        self.machine.kill()
        self.machine.start()
        self.pause(1.0, 9.0)
        self.machine.kill()

    def heal(self) -> None:
        self.machine.start()


class KillJava(Fault):
    """kill -9 of the JVM of a role; its Python process lives on at first."""

    kind = "kill -9 of the JVM"
    targets = (CENTER, *SITES)

    def inject(self) -> None:
        java = self.machine.java_pid()
        self.has_struck = java is not None
        if java is not None:
            os.kill(java, signal.SIGKILL)

    def observe(self) -> None:
        if self.has_struck and self.target != CENTER:  # the center merges without its JVM
            self.wait_told("a process that ended, or a reader that does not read", self._find_dead)

    def _find_dead(self) -> str:
        code = self.machine.exit_code
        if code is not None:
            return f"exit code {code}"
        readers = self.machine.status.get("streams", {}).values()
        return next((r["state"] for r in readers if r["state"] in ("retrying", "failed", "stalled")), "")

    def heal(self) -> None:
        self.machine.terminate()
        self.machine.start()


class Terminate(Fault):
    """A graceful stop, as for an upgrade."""

    kind = "SIGTERM"
    targets = ROLES

    def inject(self) -> None:
        self.pause(0.0, 1.0)
        os.kill(self.machine.pid, signal.SIGTERM)
        assert self.machine.wait_until_ended(120.0), f"{self.target} did not stop"
        assert self.machine.exit_code == 0, f"{self.target} ended with {self.machine.exit_code}"
        self.told = "exit code 0"

    def heal(self) -> None:
        self.machine.start()


class Freeze(Fault):
    """SIGSTOP of a role and its JVM, for longer than every time-out."""

    kind = "SIGSTOP beyond every time-out"
    targets = ROLES

    def inject(self) -> None:
        self._since_s = time.monotonic()
        self.machine.signal_all(signal.SIGSTOP)

    def observe(self) -> None:
        self.wait_told("a role that is silent", self._find_silent)

    def _find_silent(self) -> str:
        status = self.living.status()
        roles = {**status.sites, **status.relays, CENTER: status.center}
        state = roles[self.target].state(SystemClock().now_us())
        return state if state == SILENT else ""

    def heal(self) -> None:
        time.sleep(max(0.0, self._since_s + BEYOND_TIMEOUTS_S - time.monotonic()))
        self.machine.signal_all(signal.SIGCONT)


class PowerCut(Fault):
    """kill -9 of all roles at one moment."""

    kind = "kill -9 of everything"
    targets = (ALL,)

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        return frozenset(ROLES)

    def inject(self) -> None:
        self.pause(0.0, 1.5)
        for machine in self.living.machines.values():
            if machine.is_alive:
                os.kill(machine.pid, signal.SIGKILL)
        for machine in self.living.machines.values():
            machine.kill()

    def heal(self) -> None:
        for machine in self.living.machines.values():
            if machine.is_wanted:
                machine.start()


KINDS = (Kill, KillTwice, KillJava, Terminate, Freeze, PowerCut)
