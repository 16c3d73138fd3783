"""Delivering the answers of a view: a thread per sink, which reads what was published and hands it on.

It holds nothing but a place: what is not delivered yet stays in the result tables, so a target that is away for days
costs no memory, and the center does not wait for it. A failure is told in the status, and tried again after a while.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from catchment.errors import CatchmentError
from catchment.sinks.changes import ViewChanges
from catchment.sinks.target import Place, Target
from catchment.storage.files import make_folder, read_record, write_record
from catchment.timeline import Clock

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
WAITING, DELIVERING, UP_TO_DATE, FAILING = "waiting for answers", "delivering", "up to date", "failing"

MakeTarget = Callable[[str], Target]  # from the life of the view's tables


class Delivery:
    """Delivers one view to one target. `step` does what there is to do now; `start` repeats it in a thread."""

    def __init__(self, name: str, changes: ViewChanges, make_target: MakeTarget, folder: Path, clock: Clock) -> None:
        self.name = name
        self._changes = changes
        self._make_target = make_target
        self._file = folder / f"{name}.json"
        self._clock = clock
        self._target: Target | None = None
        self._place: Place | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._state, self._error, self._since_us = WAITING, "", clock.now_us()
        self._warned_of = ""  # the failure that the log has, until all is delivered
        self._rows = self._batches = self._failures = 0
        self._looked_us = -1

    def start(self) -> None:
        """Deliver in the background until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the batch that is being delivered."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._disconnect()

    def is_done(self, since_us: int) -> bool:
        """Return whether it has looked since an instant and found nothing more, or cannot deliver now."""
        return self._looked_us >= since_us and self._state != DELIVERING

    def status(self) -> Mapping[str, Any]:
        """Return what it does, since when, and what it has delivered in this run."""
        return {
            "view": self._changes.view,
            "state": self._state,
            "since_us": self._since_us,
            "error": self._error or None,
            "rows": self._rows,
            "batches": self._batches,
            "failures": self._failures,
            "entry": self._place.entry if self._place is not None else None,
        }

    def step(self) -> bool:
        """Deliver the next batch, if there is one; return whether there was. Raises what the target raises."""
        looked_us = self._clock.now_us()
        life = self._changes.life()
        if life is None:
            self._tell(WAITING)
            self._looked_us = looked_us
            return False
        if self._target is None:
            self._target = self._make_target(life)
            self._place = self._read_place(self._target)
        batch = self._changes.since(self._place)
        if batch is None:
            self._tell(UP_TO_DATE)
            self._looked_us = looked_us
            return False
        self._tell(DELIVERING)
        self._target.write(batch)
        self._keep_place(self._target, batch.end)
        self._place = batch.end
        self._rows += batch.rows.num_rows
        self._batches += 1
        return True

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while not self._stop.is_set():
            try:
                wait_s = 0.0 if self.step() else LOOK_EVERY_S
                retry_s = FIRST_RETRY_S
            except Exception as failure:  # noqa: BLE001 - whatever a target raises must not end the center
                self._fail(failure)
                wait_s, retry_s = retry_s, min(2 * retry_s, LONGEST_RETRY_S)
            self._stop.wait(wait_s)

    def _fail(self, failure: Exception) -> None:
        self._failures += 1
        self._error = str(failure) if isinstance(failure, CatchmentError) else f"{type(failure).__name__}: {failure}"
        if self._error != self._warned_of:  # once, and not at every attempt
            _log.warning("sink %s cannot deliver for now, and tries again: %s", self.name, self._error)
            self._warned_of = self._error
        self._tell(FAILING)
        self._looked_us = self._clock.now_us()
        self._disconnect()

    def _disconnect(self) -> None:
        """Forget the target: the next attempt makes it, and asks for its place, anew."""
        close = getattr(self._target, "close", None)
        if close is not None:
            with suppress(Exception):
                close()
        self._target = None

    def _tell(self, state: str) -> None:
        if state == UP_TO_DATE and self._warned_of:
            _log.info("sink %s is up to date again", self.name)
            self._warned_of = ""
        if state != FAILING:
            self._error = ""
        if state != self._state:
            self._state, self._since_us = state, self._clock.now_us()

    def _read_place(self, target: Target) -> Place | None:
        """Return the place that the target has stored, or the one that is kept here for it."""
        own = getattr(target, "place", None)
        if own is not None:
            found: Place | None = own()
            return found
        kept = read_record(self._file)
        return None if kept is None else Place(kept["life"], kept["entry"], kept["step"])

    def _keep_place(self, target: Target, place: Place) -> None:
        if not hasattr(target, "place"):
            make_folder(self._file.parent)
            write_record(self._file, {"life": place.life, "entry": place.entry, "step": place.step})
