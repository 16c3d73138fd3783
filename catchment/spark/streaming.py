"""Starting a Structured Streaming query and seeing it through its start.

Spark gives a Python source ten seconds to come up. On a busy machine that can be too little, so queries are started
one after another, and one that failed for that reason alone is started again, `STARTS` times at most.
"""

from __future__ import annotations

import time

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from catchment.errors import EngineError

STARTS = 6
POLL_S = 0.05
_TOO_SLOW = "failed to connect back"


def start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query and wait until its sources are up."""
    for _ in range(STARTS):
        query = writer.start()
        failure = _failure_at_start(query)
        if failure is None:
            return query
        if _TOO_SLOW not in failure:
            break
    raise EngineError(f"a stream could not be started: {failure}")


def _failure_at_start(query: StreamingQuery) -> str | None:
    while query.isActive and query.status["message"] == "Initializing sources":
        time.sleep(POLL_S)
    failure = query.exception()
    return None if failure is None else str(failure)
