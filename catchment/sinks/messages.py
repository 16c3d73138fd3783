"""Rows as JSON messages, for systems that take bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator

from catchment.center.results.plain_json import to_plain_json
from catchment.sinks.target import DELETED, OPERATION, UPSERTED, ChangeBatch

Message = tuple[bytes, bytes | None]


def make_messages(batch: ChangeBatch) -> Iterator[Message]:
    """Yield the key and the value of each row; the value of a deleted row is None where rows are upserted."""
    for row in batch.rows.to_pylist():
        key = _encode(batch.key_of(row))
        operation = row[OPERATION]
        if operation == UPSERTED:
            del row[OPERATION]
        is_tombstone = operation == DELETED and not batch.is_changelog
        yield key, None if is_tombstone else _encode(row)


def _encode(value: dict[str, object]) -> bytes:
    return json.dumps(to_plain_json(value), separators=(",", ":"), ensure_ascii=False).encode()
