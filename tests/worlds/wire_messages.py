"""Messages to send; apart from the other helpers, so that a process that is killed often starts quickly."""

from __future__ import annotations

import pyarrow as pa

from catchment.wire.messages import Message, Progress, Updates


def some_messages(sequence: int) -> list[Message]:
    """The messages of a segment, different for every number."""
    table = pa.table({"slice_us": pa.array([0, 60_000_000], pa.int64()), "n": [sequence, -sequence]})
    return [
        Updates("visits", table, ((0, sequence), (60_000_000, 1))),
        Progress("visits", 60_000_000, sequence),
    ]
