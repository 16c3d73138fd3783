"""What a data plane that works in batches knows, as a document: the events that wait, and the names of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from catchment.feeds.cloud.batch_plane import BatchPlane, EventFile, WaitingControl
from catchment.feeds.cloud.cloud_state import pack_view, unpack_view
from catchment.feeds.protocol.codec import decode, encode
from catchment.feeds.protocol.messages import UPWARD
from catchment.storage.codec import stored


@stored()
@dataclass(frozen=True)
class BatchState:
    """Routes, views at the cloud, what waits for a batch, the batch under way, and the files that are kept."""

    routes: dict[str, dict[str, float]]
    installed: list[bytes]
    newest: dict[str, int]
    last_key: dict[str, int]
    ended: dict[str, int]
    periods: list[tuple[str, str, tuple[int, ...]]]
    arrivals: int
    rows: bytes
    controls: list[tuple[int, str, bytes]]  # arrival, device and message
    fresh: EventFile | None
    files: list[EventFile]
    forgotten: int


def take_batches(plane: BatchPlane) -> BatchState:
    """Return the state of a data plane."""
    return BatchState(
        routes={feed: dict(routes) for feed, routes in plane.routes.items() if routes},
        installed=[pack_view(view) for view in plane.installed.values()],
        newest=dict(plane.newest),
        last_key=dict(plane.last_key),
        ended=dict(plane.ended),
        periods=list(plane.periods.identities()),
        arrivals=plane.arrivals,
        rows=pack_rows(plane.rows),
        controls=[(c.arrival, c.device, encode(0, c.message)) for c in plane.controls],
        fresh=plane.fresh,
        files=list(plane.files),
        forgotten=plane.forgotten,
    )


def put_batches(plane: BatchPlane, state: BatchState) -> None:
    """Give a new data plane a state."""
    plane.routes.update(state.routes)
    plane.installed.update((view.name, view) for view in map(unpack_view, state.installed))
    plane.newest.update(state.newest)
    plane.last_key.update(state.last_key)
    plane.ended = dict(state.ended)
    for identity in state.periods:
        plane.periods.first_time(identity)
    plane.arrivals = state.arrivals
    plane.rows.extend(unpack_rows(state.rows))
    plane.controls.extend(map(_unpack_control, state.controls))
    plane.fresh = state.fresh
    plane.files = list(state.files)
    plane.forgotten = state.forgotten
    plane.version += 1


def _unpack_control(kept: tuple[int, str, bytes]) -> WaitingControl:
    arrival, device, data = kept
    _, message = decode(data)
    assert isinstance(message, UPWARD)
    return WaitingControl(arrival, device, message)  # type: ignore[arg-type]


def pack_rows(rows: Iterable[Sequence[Any]]) -> bytes:
    """Return rows of plain values as bytes."""
    return json.dumps([list(row) for row in rows], separators=(",", ":")).encode()


def unpack_rows(data: bytes) -> list[tuple[Any, ...]]:
    """Return the rows of bytes."""
    return [tuple(row) for row in json.loads(data)]
