"""The thread that lets deliveries land: those that arrive within a moment share one file, and one wait for the disk."""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from catchment.errors import CatchmentError
from catchment.receivers.landing import LandingFolder, ReceivedLines

GATHER_S = 0.1  # for which a file waits for more deliveries
RETRY_S = 1.0  # after a disk refused a file
MAX_FILE_BYTES = 16 << 20
MAX_WAITING_BYTES = 64 << 20  # in memory, of deliveries that have not landed

_log = logging.getLogger(__name__)


class NoRoomError(CatchmentError):
    """Nothing more is taken until the site has read what has landed."""


class KeyReusedError(CatchmentError):
    """A sender has given two different deliveries one name."""


@dataclass
class _Waiting:
    """A delivery that has not landed, and who waits for it: True means landed, False that it had landed before."""

    delivery: ReceivedLines
    landed: Future[bool] = field(default_factory=Future)


class LandingWriter:
    """Takes deliveries from any thread; each is confirmed when it is safe on disk.

    A file that the disk refuses is written again under another name, from memory, until the disk takes it: nothing of
    it is confirmed before. While the folder is full, deliveries are refused. With `is_patient`, those that have a key
    are taken and wait: their sender sends only so many that are not confirmed.
    """

    def __init__(self, folder: LandingFolder, what: str, *, is_patient: bool = False) -> None:
        self._folder = folder
        self._what = what
        self._is_patient = is_patient
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._by_key: dict[str, _Waiting] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._has_room = True
        self._thread = threading.Thread(target=self._run, name=f"landing {what}", daemon=True)
        self.records = 0
        self.repeated = 0  # deliveries that had landed before
        self.refused = 0
        self.problem: str | None = None  # why the disk takes nothing now

    def start(self) -> None:
        """Open the folder and begin to write."""
        self._folder.open()
        self._thread.start()

    def stop(self) -> None:
        """Let what waits land, and stop; what the disk refuses now is never confirmed."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def offer(self, delivery: ReceivedLines, *, is_key_unique: bool = False) -> Future[bool]:
        """Take a delivery. The result is True when it has landed, and False if it had landed before."""
        with self._changed:
            known = self._find(delivery, is_key_unique)
            if known is not None:
                self.repeated += 1
                return known
            if not self._may_take(delivery):
                self.refused += 1
                raise NoRoomError(f"{self._what} takes no more records now", hint="send them again later")
            waiting = _Waiting(delivery)
            self._waiting.append(waiting)
            self._waiting_bytes += len(delivery.lines)
            if delivery.key is not None:
                self._by_key[delivery.key] = waiting
            self._changed.notify_all()
            return waiting.landed

    def _may_take(self, delivery: ReceivedLines) -> bool:
        if self._is_patient and delivery.key is not None:
            return not self._stopping
        return not self._stopping and self._has_room and self._waiting_bytes <= MAX_WAITING_BYTES

    def status(self) -> dict[str, Any]:
        """Return what was received and what waits, as plain JSON."""
        return {
            "records": self.records,
            "repeated": self.repeated,
            "refused": self.refused,
            "waiting_bytes": self._folder.waiting_bytes(),
            "has_room": self._has_room,
            "problem": self.problem,
        }

    def _find(self, delivery: ReceivedLines, is_key_unique: bool) -> Future[bool] | None:
        """Return the confirmation of a delivery that is known already; the caller holds the lock."""
        if delivery.key is None:
            return None
        waiting = self._by_key.get(delivery.key)
        digest = self._folder.digest_of(delivery.key) if waiting is None else waiting.delivery.digest
        if digest is None:
            return None
        if digest != delivery.digest and is_key_unique:
            raise KeyReusedError(
                f"the key {delivery.key!r} was given to other records", hint="give each delivery a key of its own"
            )
        if digest != delivery.digest or not delivery.may_repeat:
            return None
        before: Future[bool] = Future()
        if waiting is None:
            before.set_result(False)
        else:
            waiting.landed.add_done_callback(lambda landed: _follow(before, landed))
        return before

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping, timeout=RETRY_S)
                self._has_room = self._folder.has_room()
                if self._stopping and not self._waiting:
                    return
                may_land = bool(self._waiting) and (self._has_room or self._stopping)
                self._changed.wait_for(lambda: self._stopping, timeout=GATHER_S)  # more may come, or room be made
            if may_land and not self._land_some():
                return

    def _land_some(self) -> bool:
        """Let what waits land, as far as one file holds it; return whether to go on."""
        taken: list[_Waiting] = []
        size = 0
        for waiting in tuple(self._waiting):
            size += len(waiting.delivery.lines)
            if taken and size > MAX_FILE_BYTES:
                break
            taken.append(waiting)
        while not self._try_to_land(taken):
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, timeout=RETRY_S):
                    self._abandon()
                    return False
        with self._changed:
            for waiting in taken:
                self._waiting.popleft()
                self._waiting_bytes -= len(waiting.delivery.lines)
                self.records += waiting.delivery.records
                key = waiting.delivery.key
                if key is not None and self._by_key.get(key) is waiting:
                    del self._by_key[key]
        for waiting in taken:
            waiting.landed.set_result(True)
        return True

    def _try_to_land(self, taken: list[_Waiting]) -> bool:
        try:
            self._folder.land([waiting.delivery for waiting in taken])
        except OSError as error:
            if self.problem is None:
                _log.warning("%s cannot be written, and is tried again: %s", self._what, error)
            self.problem = str(error)
            return False
        if self.problem is not None:
            _log.info("%s is written again", self._what)
        self.problem = None
        return True

    def _abandon(self) -> None:
        """Tell everybody who waits that nothing was confirmed; the caller holds the lock."""
        for waiting in self._waiting:
            waiting.landed.set_exception(NoRoomError(f"{self._what} was stopped before the records were safe"))
        self._waiting.clear()
        self._by_key.clear()


def _follow(repeated: Future[bool], first: Future[bool]) -> None:
    failure = first.exception()
    if failure is not None:
        repeated.set_exception(failure)
    else:
        repeated.set_result(False)
