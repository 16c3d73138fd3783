"""Worlds that stop in the middle of their work and are gone on with, perhaps by a later version of catchment.

What a world does is written down in plain values beside the state of its roles: the records of every step, how far it
has come, and what was published, which the tables in memory of these worlds would forget. So a folder says everything
about itself, and changes to the code that makes worlds do not change the worlds that were made before.
"""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from catchment.center.core import CenterCore
from catchment.center.events import Publish
from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME
from catchment.storage.codec import decode, encode
from catchment.storage.host import Host
from catchment.timeline import ManualClock, Window
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox

NOTES_FILE = "world.bin"

STATUSES = (EARLY, ON_TIME, EXACT, FINAL)

Notes = dict[str, Any]


class StoppedWorld(ABC):
    """One kind of world: a script of steps, roles that take them, and an oracle of the answers."""

    checkpoint_step = 4  # after which every role writes a snapshot

    def __init__(self, folder: Path, notes: Notes) -> None:
        self.folder = folder
        self.script: list[Any] = notes["script"]
        self.step: int = notes["step"]
        self.clock = ManualClock(notes["now_us"])
        self.chance = random.Random(self.step)
        self.open(notes)

    @classmethod
    def run_to_the_middle(cls, folder: Path) -> None:
        """Run a new world until everything that a stop should find is there, and stop it."""
        folder.mkdir(parents=True, exist_ok=True)
        world = cls(folder, {"script": cls.write_script(), "step": 0, "now_us": 0, "published": [], "done": []})
        while world.step < len(world.script) * 2 // 3:
            world.take_step()
            if world.step > world.checkpoint_step and not list(world.find_lacking()):
                (folder / NOTES_FILE).write_bytes(encode(world.write_notes()))
                return
            world.consume()
            if world.step == world.checkpoint_step:
                world.checkpoint()
        raise AssertionError(f"{cls.__name__} was never in the middle: it lacks {list(world.find_lacking())}")

    @classmethod
    def go_on(cls, folder: Path) -> None:
        """Take a stopped world up, run it to its end, and check that nothing was lost and nothing came twice."""
        world = cls(folder, decode((folder / NOTES_FILE).read_bytes()))
        stopped_at = world.step
        while world.step < len(world.script):
            world.take_step()
            world.consume()
            if world.step == stopped_at + 1:  # what is written now holds parts of both versions
                world.checkpoint()
                world.restart()
        world.finish()
        world.check()

    def take_step(self) -> None:
        self.take(self.script[self.step])
        self.step += 1

    def checkpoint(self) -> None:
        for host in self.hosts:
            host.checkpoint()

    def find_lacking(self) -> Iterator[str]:
        """Yield what a stop should find and would not."""
        for host in self.hosts:
            if not 0 < host.journal.base < host.next_sequence:
                yield f"a snapshot, and entries after it, in {host.journal.folder}"
        if not any(outbox.pending() for outbox in self.outboxes):
            yield "segments in an outbox"
        for inbox, position in self.inboxes:
            if inbox.last_position < position:
                yield f"landed segments in {inbox.folder}"
        windows = [running.windows.state for running in self.center_core.queries.values()]
        if not any(state.slices for state in windows):
            yield "open windows"
        if not any(state.late for state in windows):
            yield "late records that wait"

    def write_notes(self) -> Notes:
        """Return everything that the state of the roles does not hold."""
        return {
            "script": self.script,
            "step": self.step,
            "now_us": self.clock.now_us(),
            "published": [_publish_as_values(p) for p in self.published],
            "done": sorted(self.done),
        }

    @classmethod
    @abstractmethod
    def write_script(cls) -> list[Any]:
        """Return what happens at each step, as plain values."""

    @abstractmethod
    def open(self, notes: Notes) -> None:
        """Bring every role up from its folder."""

    @abstractmethod
    def take(self, step: Any) -> None:
        """Give the sites the records of a step, and let some of what they send land."""

    @abstractmethod
    def consume(self) -> None:
        """Let those with an inbox take what has landed."""

    @abstractmethod
    def restart(self) -> None:
        """Bring every role up again from what it has written."""

    @abstractmethod
    def finish(self) -> None:
        """End the streams, and let everything arrive."""

    @abstractmethod
    def check(self) -> None:
        """Compare the answers with those from all records."""

    @property
    @abstractmethod
    def hosts(self) -> Sequence[Host[Any, Any]]: ...

    @property
    @abstractmethod
    def outboxes(self) -> Sequence[Outbox]: ...

    @property
    @abstractmethod
    def inboxes(self) -> Sequence[tuple[Inbox, int]]:
        """Every inbox, and the first position that its consumer has not taken."""

    @property
    @abstractmethod
    def center_core(self) -> CenterCore: ...

    @property
    @abstractmethod
    def published(self) -> list[Publish]: ...

    @property
    @abstractmethod
    def done(self) -> set[int]:
        """The numbers of what the center has enacted."""


def read_published(notes: Notes) -> list[Publish]:
    """Return what was published before a stop."""
    names = {f.name for f in dataclasses.fields(Publish)}
    return [
        Publish(window=Window(*values["window"]), **{n: v for n, v in values.items() if n in names - {"window"}})
        for values in notes["published"]
    ]


def check_published(published: Iterable[Publish]) -> None:
    """Check that no revision of a window was published twice, and that its status never went back."""
    windows: dict[tuple[str, int], list[Publish]] = {}
    for p in published:
        windows.setdefault((p.query, p.window.start_us), []).append(p)
    for history in windows.values():
        assert history[0].revision == 1, history
        for before, after in pairwise(history):
            better = STATUSES.index(after.status) - STATUSES.index(before.status)
            assert better >= 0, history
            assert after.revision == before.revision + 1 or (after.revision == before.revision and better), history


def _publish_as_values(published: Publish) -> dict[str, Any]:
    values = {f.name: getattr(published, f.name) for f in dataclasses.fields(Publish)}
    return {**values, "window": (published.window.start_us, published.window.end_us)}
