"""The director of the demo plays one scene after another, each as far as what it waits for has happened.

A scene is a generator. It acts, and yields a `Wait` for a state that the system has to reach; the director resumes it
with True once that is so. Nothing depends on the speed of the machine: a wait that takes longer than the limit is said
to be skipped, the scene is resumed with False, and the demo goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

LIMIT_S = 180.0  # how long any one state may take: far longer than on a machine that is merely busy


@dataclass(frozen=True)
class Wait:
    """A wait until something holds; `what` says in words what is awaited."""

    until: Callable[[], bool]
    what: str


Scene = Generator[Wait, bool, None]
Say = Callable[[str], None]


class Director:
    """Plays scenes in order, one step at a time."""

    def __init__(
        self,
        scenes: Iterable[Scene],
        say: Say,
        limit_s: float = LIMIT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scenes = iter(scenes)
        self._say = say
        self._limit_s = limit_s
        self._now_s = now_s
        self._scene: Scene | None = None
        self._wait: Wait | None = None
        self._since_s = 0.0
        self.finished = False
        self.skipped: list[str] = []

    def step(self) -> None:
        """Go on as far as possible without waiting."""
        while not self.finished and self._go_on():
            pass

    def _go_on(self) -> bool:
        """Resume the scene if what it waits for has happened, or has taken too long; return whether it was resumed."""
        if self._scene is None:
            self._scene = next(self._scenes, None)
            self.finished = self._scene is None
            return self._resume(None)
        assert self._wait is not None
        if self._wait.until():
            return self._resume(True)
        if self._now_s() - self._since_s <= self._limit_s:
            return False
        self.skipped.append(self._wait.what)
        self._say(f"skipped: {self._wait.what} took more than {self._limit_s:.0f} s; the demo goes on")
        return self._resume(False)

    def _resume(self, reached: bool | None) -> bool:
        if self._scene is None:
            return False
        try:
            self._wait = next(self._scene) if reached is None else self._scene.send(reached)
            self._since_s = self._now_s()
        except StopIteration:
            self._scene = None
        return True
