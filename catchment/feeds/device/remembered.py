"""What a device remembers, as one JSON object: written when its log is begun anew, and read when it starts again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.device.device import Device, Received
from catchment.feeds.device.publisher import RecentlySeen
from catchment.feeds.protocol.codec import from_plain, to_plain
from catchment.feeds.protocol.messages import (
    FeedEvent,
    Install,
    Instruction,
    Instructions,
    Program,
    SetUpload,
)

VERSION = 1


def remember(device: Device) -> dict[str, Any]:
    """Return what a device must know again after a restart."""
    publisher = device.publisher
    return {
        "version": VERSION,
        "boot": device.config.boot,
        "newest_us": device.newest_us,
        "told": to_plain(Instructions(tuple(_told(device)))),
        "numbers": device.numbers,
        "events": [] if publisher is None else [to_plain(event) for event in publisher.host.retained.all_events()],
        "periods": [] if publisher is None else _seen_out(publisher.periods),
        "notified": _seen_out(device.notified),
        "since_us": {} if publisher is None else dict(publisher.host.operators.since_us),
    }


def restore(device: Device, state: dict[str, Any]) -> None:
    """Give a device that was just made what it remembers."""
    if state.get("version") != VERSION:
        raise FeedError(f"the log of a device is of version {state.get('version')!r}; this catchment reads {VERSION}")
    told = from_plain(state["told"])
    assert isinstance(told, Instructions)
    device.handle(Received(told), state["newest_us"])
    device.outbox.clear()  # everything was confirmed before
    device.numbers = dict(state["numbers"])
    _seen_in(device.notified, state["notified"])
    if device.publisher is not None:
        _seen_in(device.publisher.periods, state["periods"])
        device.publisher.host.operators.since_us.update(state.get("since_us", {}))
        for plain in state["events"]:
            event = from_plain(plain)
            assert isinstance(event, FeedEvent)
            device.publisher.host.retained.put_back(event)


def _told(device: Device) -> Iterator[Instruction]:
    """Yield the instructions that would lead to what holds now."""
    if device.program is None or device.publisher is None:
        return
    yield Program(device.program)
    for feed, share in device.uploads.items():
        yield SetUpload(feed, share)
    for installed in device.publisher.host.installed.values():
        yield Install(installed.view)
    yield from device.marks


def _seen_out(seen: RecentlySeen) -> list[Any]:
    return [[view, notified, list(key)] for view, notified, key in seen.identities()]


def _seen_in(seen: RecentlySeen, identities: list[Any]) -> None:
    for view, notified, key in identities:
        seen.first_time((view, notified, tuple(key)))
