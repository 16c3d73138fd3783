"""Processes of catchment that tests start, kill and start again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.worlds.waiting import PATIENCE_S, wait_until


class Release(NamedTuple):
    """What Python runs to be the command `catchment`, and where it finds the package if not here."""

    program: tuple[str, ...] = ("-m", "catchment.cli")
    environment: Mapping[str, str] = MappingProxyType({})


THIS_RELEASE = Release()


class Role:
    """One command of catchment over a project, as a process; `state` is the folder that it works in.

    `before` are words that stand before the command, such as those that run it on another machine. `release` says whose
    code runs; it may be changed before the next start.
    """

    def __init__(
        self,
        folder: Path,
        *command: str,
        state: Path | None = None,
        before: Sequence[str] = (),
        release: Release = THIS_RELEASE,
    ) -> None:
        self.release = release
        self.folder = folder
        self.command = command
        self.before = tuple(before)
        self.state = state or folder / "state"
        self.log = folder / f"{'-'.join(command)}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._journal_at_start: frozenset[tuple[str, int]] = frozenset()

    def start(self) -> None:
        self._journal_at_start = self.journal()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.before, sys.executable, *self.release.program, *self.command, "--json"],
                cwd=self.folder,
                env={**os.environ, **self.release.environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9 of the process; its JVM sees that it is alone, and ends."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End the process cleanly, as a supervisor does, and see that it did not fail."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"{self.command} ended with {code}:\n{self.last_words}"

    def end(self) -> None:
        """Kill whatever is left of it, its JVM included."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def done(self) -> bool:
        """Whether it has ended by itself; it must not have failed."""
        assert self.process is not None
        code = self.process.poll()
        assert code in (None, 0), f"{self.command} ended with {code}:\n{self.last_words}"
        return code == 0

    @property
    def has_worked(self) -> bool:
        """Whether it has journalled anything since its last start."""
        return self.journal() != self._journal_at_start

    @property
    def last_words(self) -> str:
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    def journal(self) -> frozenset[tuple[str, int]]:
        """Return the names and sizes of what it has journalled."""
        try:
            return frozenset((f.name, f.stat().st_size) for f in self.state.glob("journal/*"))
        except FileNotFoundError:  # a checkpoint took away an older file while we looked
            return self.journal()


@contextmanager
def running(roles: Iterable[Role]) -> Iterator[None]:
    """Start roles; in the end nothing of them is left."""
    started = list(roles)
    try:
        for role in started:
            role.start()
        yield
    finally:
        for role in started:
            role.end()


def kill_in_turn(
    victims: Sequence[Role], kills: int, chance: random.Random, *, meanwhile: Callable[[], object] = lambda: None
) -> int:
    """Kill roles one after another, each while it works, and start them again; how many kills there were.

    A kill waits for the state that its victim works, and then for a random part of a second, so that it strikes at any
    point of a batch; `meanwhile` gives it work. A role that has ended cannot be killed any more.
    """
    done = 0
    for victim in islice(cycle(victims), kills):
        wait_until(
            lambda victim=victim: victim.done or victim.has_worked,  # type: ignore[misc]
            f"{victim.command} to work, before kill {done + 1} of {kills}",
            act=meanwhile,
            state=lambda: {role.command: role.last_words[-1000:] for role in victims},
        )
        strike_s = time.monotonic() + chance.uniform(0.0, 1.0)
        while time.monotonic() < strike_s:
            meanwhile()
            time.sleep(0.02)
        if not victim.done:
            victim.kill()
            victim.start()
            done += 1
    return done


def wait_until_done(roles: Iterable[Role]) -> None:
    """Wait until all roles have ended by themselves."""
    waited_for = list(roles)
    wait_until(
        lambda: all(role.done for role in waited_for),
        "every role to end by itself",
        state=lambda: {role.command: role.last_words[-1000:] for role in waited_for if not role.done},
        pause_s=0.2,
    )
