"""Old batches of raw records: removed when they are too old or take too much room, unless something still needs them.

Works on a folder with one folder per batch (`batch=N`), whoever writes them, or per run of batches that were compacted
(`catchment.storage.compacted_batches`), which goes as a whole. The number grows with time. A folder is renamed before
it is deleted, so that a reader finds a batch whole or not at all, also after a crash.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from catchment.errors import StorageError
from catchment.storage.compacted_batches import PREFIX, REMOVED_PREFIX, RUN_PREFIX, read_run, run_bytes
from catchment.timeline import Clock
from catchment.units import SECOND_US

KEEP_NEWEST = 10  # batches that are never removed: they may be written, replayed or sampled now
SCAN_EVERY_US = 60 * SECOND_US
MAX_REMOVALS = 50  # per call, so that a call is short


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch, or a run of batches, by the number of the first."""

    size_bytes: int
    written_us: int
    numbers: tuple[int, ...]
    name: str


@dataclass
class BatchRetention:
    """Keeps the batches of one folder within its limits; None is no limit."""

    folder: Path
    clock: Clock
    keep_us: int | None = None
    max_bytes: int | None = None
    note: Callable[[Mapping[int, Path]], None] = lambda batches: None  # is told of batches that are about to be removed
    forget: Callable[[Path], bool] = lambda folder: True  # removes what of it is elsewhere; asked again if it cannot
    removed_batches: int = field(default=0, init=False)
    removed_bytes: int = field(default=0, init=False)
    _batches: dict[int, _Batch] = field(default_factory=dict, init=False)
    _scanned_us: int | None = field(default=None, init=False)
    _size_bytes: int = field(default=0, init=False)
    _beyond: deque[int] = field(default_factory=deque, init=False)

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches that were there at the last scan and were not removed since."""
        return self._size_bytes

    def __len__(self) -> int:
        return sum(len(batch.numbers) for batch in self._batches.values())

    def tidy(self, needed: Container[int] = ()) -> int:
        """Remove some of what is beyond the limits, oldest first, but nothing that is needed; return how many."""
        now_us = self.clock.now_us()
        if self._scanned_us is None or now_us - self._scanned_us >= SCAN_EVERY_US:
            self._scanned_us = now_us
            self._scan()
            self._beyond = deque(self._find_beyond(now_us))
        chosen: list[int] = []
        while self._beyond and len(chosen) < MAX_REMOVALS:
            number = self._beyond.popleft()
            if number in self._batches and not any(n in needed for n in self._batches[number].numbers):
                chosen.append(number)
        if chosen:
            held = [self._batches[number] for number in chosen]
            self.note({number: self.folder / batch.name for batch in held for number in batch.numbers})
        return sum(self._remove(number) for number in chosen)

    def _find_beyond(self, now_us: int) -> Iterator[int]:
        """Yield the batches that are beyond the limits, oldest first."""
        excess_bytes = 0 if self.max_bytes is None else self._size_bytes - self.max_bytes
        for number in self._settled():
            batch = self._batches[number]
            is_old = self.keep_us is not None and now_us - batch.written_us > self.keep_us
            if not is_old and excess_bytes <= 0:
                return
            yield number
            excess_bytes -= batch.size_bytes

    def _settled(self) -> list[int]:
        """Return the batches and runs that have none of the newest batches in them, oldest first."""
        newest = set(sorted(n for batch in self._batches.values() for n in batch.numbers)[-KEEP_NEWEST:])
        return [n for n in sorted(self._batches) if newest.isdisjoint(self._batches[n].numbers)]

    def _scan(self) -> None:
        """Find new batches; those that are known do not change, but for the newest ones."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        for name in names:
            if name.startswith(REMOVED_PREFIX) and self.forget(self.folder / name):
                shutil.rmtree(self.folder / name, ignore_errors=True)
        known = {self._batches[n].name: self._batches[n] for n in self._settled()}
        found: dict[int, _Batch] = {}
        runs = [name for name in names if name.startswith(RUN_PREFIX)]
        for name in [*runs, *(name for name in names if _is_batch(name))]:  # a batch counts before a run that holds it
            batch = known.get(name) or _measure(self.folder / name)
            if batch is not None:
                found[batch.numbers[0]] = batch
        self._batches = found
        self._size_bytes = sum(batch.size_bytes for batch in found.values())

    def _remove(self, number: int) -> int:
        """Remove a batch, or a run; return how many batches are gone."""
        batch = self._batches.pop(number)
        self._size_bytes -= batch.size_bytes
        aside = self.folder / f"{REMOVED_PREFIX}{number}"
        try:
            os.replace(self.folder / batch.name, aside)
        except FileNotFoundError:  # somebody else removed it
            return 0
        if self.forget(aside):
            shutil.rmtree(aside, ignore_errors=True)
        self.removed_batches += len(batch.numbers)
        self.removed_bytes += batch.size_bytes
        return len(batch.numbers)


def newest_batches(folder: Path, count: int) -> list[Path]:
    """Return the folders of the newest batches, the newest first; some may be written or removed just now."""
    names = os.listdir(folder) if folder.is_dir() else []
    numbers = sorted((int(name.removeprefix(PREFIX)) for name in names if _is_batch(name)), reverse=True)
    return [folder / f"{PREFIX}{number}" for number in numbers[:count]]


def _is_batch(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).isdigit()


def _describe_run(path: Path) -> tuple[tuple[int, ...], int]:
    """Return which batches a run holds, and when the newest was written; by its name, if its manifest is damaged."""
    try:
        run = read_run(path)
    except StorageError:
        first, _, end = path.name.removeprefix(RUN_PREFIX).partition("-")
        return tuple(range(int(first), int(end))), path.stat().st_mtime_ns // 1_000
    return ((), 0) if run is None else (tuple(sorted(run.batches)), run.written_us)


def _measure(path: Path) -> _Batch | None:
    """Return what a batch or a run takes; None if it is not there, or nobody knows what it holds."""
    if path.name.startswith(RUN_PREFIX):
        numbers, written_us = _describe_run(path)
        return _Batch(run_bytes(path), written_us, numbers, path.name) if numbers else None
    try:
        with os.scandir(path) as entries:
            found = [entry.stat() for entry in entries]
        number = int(path.name.removeprefix(PREFIX))
        return _Batch(sum(f.st_size for f in found), path.stat().st_mtime_ns // 1_000, (number,), path.name)
    except FileNotFoundError:  # it is being replaced
        return None
