"""The start of Structured Streaming queries, their offsets, and their failures.

Spark gives the Python side of a source ten seconds to come up, and no setting changes that. On a busy machine it can be
too little, so queries are started one after another, and what failed for that reason alone is started again, `STARTS`
times at most: a start on a busy machine is slow, and does not fail.
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from catchment.errors import CatchmentError, EngineError
from catchment.files.watch import FileChangedError
from catchment.site.events import Event
from catchment.storage.files import sync_files
from catchment.storage.free_space import DiskFullError, write_last_words

STARTS = 60  # attempts of ten seconds each: ten minutes in which a machine may be too busy
POLL_S = 0.05  # how often a starting query is checked
FAILURE_FILE = "failure.txt"
MAX_FAILURE_CHARACTERS = 200_000  # of Spark's output that are kept
_DISK_FULL = ("No space left on device", "Disk quota exceeded", DiskFullError.__name__)
_TOO_SLOW = ("failed to connect back", "waiting for the Python worker to connect back")

_OUTAGE_STATES = ("08", "58", "KD001")  # classes of SQLSTATE: connections, the system; and files that are not there
_OUTAGE_WORDS = (
    "[PATH_NOT_FOUND]",
    "[FAILED_READ_FILE",
    "java.io.FileNotFoundException",
    "java.io.IOException",
    "java.net.",
    "AccessDenied",
    "AccessControlException",
    "Connection refused",
    "no answer from ",  # a broker of Kafka
    "No such file or directory",
    "[Errno ",  # an OSError of Python, such as of a source that the project brings
)

T = TypeVar("T")
_log = logging.getLogger(__name__)


def start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query and wait until its sources are up."""

    def start() -> StreamingQuery:
        query = writer.start()
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(POLL_S)
        failure = query.exception()
        if failure is not None:
            raise failure
        return query

    return retry_slow_start("a stream", start)


def retry_slow_start(what: str, start: Callable[[], T]) -> T:
    """Start something that needs a Python worker, and start it again where Spark did not wait for the worker."""
    for attempt in range(1, STARTS + 1):
        try:
            return start()
        except (PySparkException, Py4JError) as failure:
            if not is_slow_worker(failure):
                raise EngineError(f"{what} could not be started: {reason_of(str(failure))}") from failure
            _log.warning("the machine is busy: starting %s again (attempt %d of %d)", what, attempt + 1, STARTS)
    raise EngineError(
        f"{what} could not be started: in {STARTS} attempts no Python process came up within the ten seconds of Spark",
        hint="the machine has far more work than it can do: stop other work on it, or run fewer sites per machine",
    )


def is_slow_worker(failure: BaseException) -> bool:
    """Return whether something failed only because a Python worker did not come up in the time that Spark gives it."""
    return any(words in str(failure) for words in _TOO_SLOW)


def is_outage(failure: BaseException) -> bool:
    """Return whether something failed because what it needs is away: a file, a host, or the right to use it.

    A file that is not as it was when it was read is away as well, until somebody puts it right.
    """
    if isinstance(failure, OSError | FileChangedError):
        return True
    text = str(failure)
    return any(state.startswith(_OUTAGE_STATES) for state in re.findall(r"SQLSTATE: (\w{5})", text)) or any(
        words in text for words in _OUTAGE_WORDS
    )


def is_hopeless(failure: BaseException) -> bool:
    """Return whether trying again cannot help: somebody has to change what is read, or how it is declared."""
    return "[USER_RAISED_EXCEPTION]" in str(failure)


def make_offsets_durable(checkpoint: Path, batch: int) -> Sequence[Event]:
    """Force Spark's record of what a batch reads to the disk, before the batch is committed.

    Spark itself does not: after a power cut it could plan a batch of the same number over more records, and those would
    be skipped with it. A checkpoint that is not a local folder is left to its file system. No event follows from it.
    """
    sync_files([checkpoint / "offsets" / str(batch), *checkpoint.glob(f"sources/*/{batch}")])
    return ()


def refuse_lost_checkpoint(checkpoint: Path, committed: int | None) -> None:
    """Refuse a stream whose checkpoint was lost, or is older than the batches that were committed from it.

    Spark would count its batches from an earlier number: those up to the committed one would be skipped as known,
    though they hold other records, and what was read before would be read again.
    """
    if committed is None:
        return
    planned = [int(path.name) for path in checkpoint.glob("offsets/*") if path.name.isdigit()]
    newest = max(planned, default=None)
    if newest is None or newest < committed:
        there = "nothing" if newest is None else f"batch {newest}"
        raise EngineError(
            f"the checkpoint knows of {there}, but its batch {committed} was committed: "
            "it was lost or is an older copy",
            where=str(checkpoint),
            hint="restore the site's whole state folder from one copy; nothing was read and nothing was changed",
        )


def refuse_older_journal(checkpoint: Path, committed: int | None) -> None:
    """Refuse a stream of which Spark has ended a batch that is not in the journal.

    Spark ends a batch after it was committed, and does not replay it then: the records of a batch that the journal has
    lost would be lost silently.
    """
    ended = max((int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()), default=-1)
    if ended > (-1 if committed is None else committed):
        knows = "no batch" if committed is None else f"batch {committed}"
        raise EngineError(
            f"the journal knows of {knows}, but Spark has ended batch {ended}: it was lost or is an older copy",
            where=str(checkpoint),
            hint="restore the site's whole state folder from one copy; nothing was read and nothing was changed",
        )


def rows_of_batch(checkpoint: Path, batch: int) -> tuple[int, int] | None:
    """Return the rows [start, end) that Spark has planned for a batch, if its offsets are row numbers and known."""
    end = _row_offset(checkpoint, batch)
    start = 0 if batch == 0 else _row_offset(checkpoint, batch - 1)
    return None if start is None or end is None else (start, end)


def _row_offset(checkpoint: Path, batch: int) -> int | None:
    offset = offset_of_batch(checkpoint, batch)
    return None if offset is None or "row" not in offset else int(offset["row"])


def offset_of_batch(checkpoint: Path, batch: int) -> Mapping[str, Any] | None:
    """Return the offset at which Spark has planned a batch to end, if it is a document and known."""
    try:
        text = (checkpoint / "offsets" / str(batch)).read_text()
    except FileNotFoundError:  # not planned yet, or so long ago that Spark has removed it
        return None
    offset = json.loads(text.rstrip().rsplit("\n", 1)[-1])
    return offset if isinstance(offset, dict) else None


def stopped_error(what: str, failure: BaseException, folder: Path) -> CatchmentError:
    """Return the error of a stream that has stopped: its reason in one line, and where the rest is."""
    path = folder / FAILURE_FILE
    output = "".join(traceback.format_exception(failure))
    kept = write_last_words(path, output[:MAX_FAILURE_CHARACTERS])
    if any(words in str(failure) for words in _DISK_FULL):
        hint = "make room and start again: everything that was acknowledged is on disk"
        return DiskFullError(f"{what} stopped: the disk is full", where=str(folder), hint=hint)
    where_output_is = f"the full output of Spark is in {path}" if kept else None
    return EngineError(f"{what} stopped: {reason_of(str(failure))}", hint=where_output_is)


def reason_of(failure: str) -> str:
    """Return the root cause: Spark reports it last, after the stacks that it passed."""
    raised = re.findall(r"^(?:Caused by: |: )?[\w.]+(?:Exception|Error): (.+)$", failure, re.MULTILINE)
    first = failure.strip().partition("\n")[0]
    return re.sub(r" SQLSTATE: \w+$", "", (raised or [first])[-1])
