"""What reads a stream, micro-batch by micro-batch: a Structured Streaming query, or a loop over the files of a folder.

Files are read in a loop of our own. Spark's file source knows files by path and modification time, in a log of its own
that grows without end; here the journal entry of a batch says which files it has read, so what was read and what
followed from it are one commit, and no second record can disagree with it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from catchment.files.watch import FilePiece, FolderLook
from catchment.vectorised.scan_ahead import MAX_AHEAD

MAX_FILES_PER_BATCH = 256
STOP_CHECK_S = 0.2  # how often whatever a batch waits for is told to end, while its reader is told to stop
ARRIVAL_CHECK_S = 0.1  # how often a folder is looked at that is read once, and into which more is on the way
_log = logging.getLogger(__name__)


class Reading(Protocol):
    """The reader of one stream as it runs."""

    @property
    def is_active(self) -> bool:
        """Whether it may read more."""

    def failure(self) -> BaseException | None:
        """Return why it has stopped, unless it has come to an end or was told to."""

    def sign(self) -> tuple[object, bool]:
        """Return what it shows of itself, which changes while it works, and whether it waits for records."""

    def end_offset(self) -> Any:
        """Return up to where it has read, if its source has offsets."""

    def stop(self) -> None:
        """Stop it, and wait until it has stopped; a batch that is not committed does not count."""


@dataclass(frozen=True)
class QueryReading:
    """A Structured Streaming query; `on_stop` is called, again and again, while it is told to stop."""

    query: StreamingQuery
    on_stop: Callable[[], None] = lambda: None

    @property
    def is_active(self) -> bool:
        return bool(self.query.isActive)

    def failure(self) -> BaseException | None:
        failure: BaseException | None = self.query.exception()
        return failure

    def sign(self) -> tuple[object, bool]:
        shown = self.query.status
        progress = self.query.lastProgress
        batch = None if progress is None else (progress["batchId"], progress["timestamp"])
        return (shown["message"], batch), not shown["isTriggerActive"]

    def end_offset(self) -> Any:
        progress = self.query.lastProgress
        if progress is None:
            return None
        offset = progress["sources"][0]["endOffset"]
        return json.loads(offset) if isinstance(offset, str) else offset

    def stop(self) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="stop") as threads:
            stopped = threads.submit(self.query.stop)  # which waits for the batch that is being read
            while not wait([stopped], timeout=STOP_CHECK_S).done:
                self.on_stop()
            stopped.result()


class FileReading:
    """A thread that looks at a folder and reads what is new: at every trigger, or once what is there now."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        look: Callable[[], FolderLook],
        read: Callable[[Sequence[FilePiece], Sequence[Sequence[FilePiece]]], None],
        interval_s: float | None,
        is_arriving: Callable[[], bool] = lambda: False,
        on_stop: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._name = name
        self._look = look
        self._read = read
        self._interval_s = interval_s  # None: once
        self._is_arriving = is_arriving  # whether, with once, more may come into the folder
        self._on_stop = on_stop  # called, again and again, while it is told to stop: whatever it waits for is to end
        self._on_end = on_end  # called by the thread when it reads no more
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._is_waiting = False
        self._steps = 0
        self._group = f"{name}-{id(self)}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def failure(self) -> BaseException | None:
        return None if self.is_active else self._failure  # until then, passes ahead may be under way

    def sign(self) -> tuple[object, bool]:
        return self._steps, self._is_waiting

    def end_offset(self) -> Any:
        return None

    def stop(self) -> None:
        self._stopping.set()
        while self._thread.is_alive():
            self._spark.sparkContext.cancelJobGroup(self._group)  # again: a batch may begin another job
            self._on_stop()
            self._thread.join(timeout=STOP_CHECK_S)

    def _run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, f"reads {self._name}", interruptOnCancel=True)
            while not self._stopping.is_set():
                began = time.monotonic()
                is_arriving = self._is_arriving()  # before the look, which sees all that has come by then
                look = self._look()
                self._read_all(look.pieces)
                if look.has_more:
                    continue
                if self._interval_s is None and not is_arriving:
                    return
                self._is_waiting = True
                interval_s = ARRIVAL_CHECK_S if self._interval_s is None else self._interval_s
                self._stopping.wait(max(0.0, began + interval_s - time.monotonic()))
                self._is_waiting = False
        except BaseException as failure:  # noqa: BLE001 - whoever watches this reader decides what follows
            if self._stopping.is_set():
                _log.debug("%s was stopped in the middle of a batch", self._name, exc_info=failure)
            else:
                self._failure = failure
        finally:
            self._on_end()

    def _read_all(self, pieces: Sequence[FilePiece]) -> None:
        batches = [pieces[i : i + MAX_FILES_PER_BATCH] for i in range(0, len(pieces), MAX_FILES_PER_BATCH)]
        for number, batch in enumerate(batches):
            if self._stopping.is_set():
                return
            self._steps += 1
            self._read(batch, batches[number + 1 : number + 1 + MAX_AHEAD])
