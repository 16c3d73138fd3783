"""A device that survives kill -9: its core, its log, and what it has yet to send and to hand over.

What happened is handled in memory, then written to the log together with what follows from it, and only then does
anyone learn of it: a record is confirmed to the application, a message acknowledged to the broker, a message sent, a
notice handed over. So a kill at any moment leaves either all of a step or nothing, and whoever gave it gives it again.

Law: over any number of kills every record that was confirmed is sent at least once, under the same feed and number,
and the application is handed every notice under one number. A notice is handed over again, under its number, only if
the kill came between handing it over and `handled`; an application that keeps the last number it dealt with sees
each exactly once. Likewise `recorded` tells an application, after a kill, which of its records are in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.device.device import (
    Device,
    DeviceConfig,
    DeviceEvent,
    LinkDown,
    LinkUp,
    Produced,
    Received,
    SendUp,
    Tick,
    boot_number,
)
from catchment.feeds.device.device_log import DeviceLog, Entry
from catchment.feeds.device.remembered import remember, restore
from catchment.feeds.device.send_queue import SendLimits, SendQueue
from catchment.feeds.device.spool import spool_for
from catchment.feeds.language.functions import BUILT_IN, Functions
from catchment.feeds.protocol.codec import from_plain, to_plain
from catchment.feeds.protocol.messages import (
    DOWNWARD,
    Admitted,
    Confirmed,
    Downward,
    FeedEvent,
    Hello,
    Notice,
    RateReport,
    Refused,
    Upward,
)

MAX_UNHANDLED = 100_000  # notices that wait for the application; past it the oldest goes, and is counted


@dataclass(frozen=True, slots=True)
class NumberedNotice:
    """A notice for the application; numbers grow by one, and never name another notice."""

    number: int
    notice: Notice


@dataclass
class _Step:
    """What follows from events that are handled at once."""

    inputs: list[list[Any]] = field(default_factory=list)
    sends: list[Upward] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class DurableDevice:
    """One device and its log."""

    def __init__(
        self,
        log: DeviceLog,
        config: DeviceConfig,
        now_us: int,
        functions: Functions = BUILT_IN,
        limits: SendLimits | None = None,
    ) -> None:
        self.log = log
        self.queue = SendQueue(limits or SendLimits())
        self.urgent: deque[Upward] = deque()  # hellos and rates: sent first, or not at all
        self.unhandled: deque[NumberedNotice] = deque()
        self.next_notice = 0
        self.forgotten_notices = 0
        self.recorded = 0  # records that were ever recorded
        self.received_number: int | None = None  # of the last message of the cloud
        snapshot = log.found[0] if log.found else None
        boot = boot_number(now_us) if snapshot is None else snapshot["device"]["boot"]
        self.core = Device(replace(config, boot=boot), functions, spool_for(config.limits, log.path.parent))
        if snapshot is None:
            log.rewrite(self._snapshot())
        else:
            self._recover(snapshot, log.found[1:])
        log.found = []

    @property
    def is_told(self) -> bool:
        """Whether the cloud has said what to record; before that a record is nobody's."""
        return self.core.publisher is not None

    # ---- what happens

    def record(self, rows: Iterable[tuple[str, tuple[Any, ...]]], now_us: int) -> dict[int, FeedError]:
        """Record rows of streams; they are safe when this returns. Return why rows were refused, by their position."""
        refused: dict[int, FeedError] = {}
        step = _Step()
        for place, (stream, row) in enumerate(rows):
            try:
                self._handle(step, Produced(stream, row), now_us)
            except FeedError as error:  # raised before anything was changed
                refused[place] = error
            else:
                step.inputs.append(["record", stream, list(row)])
        self._commit(step, now_us)
        return refused

    def receive(self, number: int, message: Downward, now_us: int) -> None:
        """Take a message of the cloud; it may be acknowledged when this returns."""
        step = _Step()
        self._handle(step, Received(message), now_us)
        if not isinstance(message, Admitted | Refused):
            step.inputs.append(["message", number, to_plain(message)])
        self.received_number = number
        self._commit(step, now_us)

    def link_changed(self, up: bool, now_us: int) -> None:
        """Note that the broker can be reached, or no longer."""
        if not up:
            self.urgent.clear()
        self._pass_time(LinkUp() if up else LinkDown(), now_us)

    def tick(self, now_us: int) -> None:
        """Note that time has passed."""
        self._pass_time(Tick(), now_us)

    def _pass_time(self, event: DeviceEvent, now_us: int) -> None:
        step = _Step()
        self._handle(step, event, now_us)
        if step.sends:
            step.inputs.append(["tick"])  # a mark was due, and is confirmed
        self._commit(step, now_us)

    def _handle(self, step: _Step, event: DeviceEvent, now_us: int) -> None:
        for action in self.core.handle(event, now_us):
            if not isinstance(action, SendUp):
                step.notices.append(action.notice)
            elif isinstance(action.message, Hello | RateReport):
                self.urgent.append(action.message)
            else:
                step.sends.append(action.message)
        step.sends += self.core.outbox
        self.core.outbox.clear()

    def _commit(self, step: _Step, now_us: int) -> None:
        if step.inputs:
            self.log.append(
                {
                    "at_us": now_us,
                    "inputs": step.inputs,
                    "sends": [to_plain(message) for message in step.sends],
                    "notices": [to_plain(notice) for notice in step.notices],
                }
            )
        self._enact(step)
        self.recorded += sum(kind == "record" for kind, *_ in step.inputs)
        if self.log.is_due:
            self.log.rewrite(self._snapshot())

    def _enact(self, step: _Step) -> None:
        for message in step.sends:
            self.queue.push(message)
        for notice in step.notices:
            self.unhandled.append(NumberedNotice(self.next_notice, notice))
            self.next_notice += 1
            if len(self.unhandled) > MAX_UNHANDLED:
                self.unhandled.popleft()
                self.forgotten_notices += 1

    # ---- what leaves

    def take_to_send(self, now_us: int) -> Iterator[tuple[int | None, Upward]]:
        """Take messages to send now, with the number to acknowledge; hellos and rates have none, and come first."""
        if not self.core.connected:
            return
        while self.urgent:
            yield None, self.urgent.popleft()
        if self.core.refusal is None:
            yield from self.queue.take(now_us)

    def acknowledged(self, numbers: Iterable[int]) -> None:
        """Note that the broker has these messages. A power cut may forget it; then they are sent again, harmlessly."""
        known = [number for number in numbers if number in self.queue.waiting]
        if known:
            self.log.append({"acknowledged": known}, durable=False)
            for number in known:
                self.queue.acknowledge(number)

    def handled(self, number: int) -> None:
        """Note that the application has dealt with all notices up to a number."""
        if self.unhandled and self.unhandled[0].number <= number:
            self.log.append({"handled": number})
            self._forget_handled(number)

    def _forget_handled(self, number: int) -> None:
        while self.unhandled and self.unhandled[0].number <= number:
            self.unhandled.popleft()

    def close(self) -> None:
        self.log.close()

    # ---- the log

    def _snapshot(self) -> Entry:
        return {
            "device": remember(self.core),
            "recorded": self.recorded,
            "received": self.received_number,
            "next_send": self.queue.next_number,
            "waiting": [[number, to_plain(message)] for number, message in self.queue.waiting.items()],
            "next_notice": self.next_notice,
            "unhandled": [[n.number, to_plain(n.notice)] for n in self.unhandled],
        }

    def _recover(self, snapshot: Entry, entries: list[Entry]) -> None:
        restore(self.core, snapshot["device"])
        self.recorded = snapshot["recorded"]
        self.received_number = snapshot["received"]
        self.queue.waiting = {number: _upward(plain) for number, plain in snapshot["waiting"]}
        self.queue.next_number = snapshot["next_send"]
        self.next_notice = snapshot["next_notice"]
        self.unhandled.extend(NumberedNotice(number, _notice(plain)) for number, plain in snapshot["unhandled"])
        for entry in entries:
            self._replay(entry)
        self.core.reported_us = None
        self.core.produced.clear()  # what was counted before belongs to no period of this life
        if self.core.publisher is not None:
            self.core.publisher.matched.clear()

    def _replay(self, entry: Entry) -> None:
        if "acknowledged" in entry:
            for number in entry["acknowledged"]:
                self.queue.acknowledge(number)
        elif "handled" in entry:
            self._forget_handled(entry["handled"])
        else:
            for kind, *fields in entry["inputs"]:
                _REPLAY[kind](self, entry["at_us"], *fields)
            self.core.outbox.clear()  # what followed is in the entry
            sends = [_upward(plain) for plain in entry["sends"]]
            self._enact(_Step(sends=sends, notices=[_notice(plain) for plain in entry["notices"]]))

    def _replay_record(self, now_us: int, stream: str, row: list[Any]) -> None:
        self.core.handle(Produced(stream, tuple(row)), now_us)
        self.recorded += 1

    def _replay_message(self, now_us: int, number: int, plain: list[Any]) -> None:
        message = from_plain(plain)
        assert isinstance(message, DOWNWARD)
        self.core.handle(Received(message), now_us)  # type: ignore[arg-type]  # the line above says which it is
        self.received_number = number

    def _replay_tick(self, now_us: int) -> None:
        self.core.handle(Tick(), now_us)


_REPLAY: dict[str, Callable[..., None]] = {
    "record": DurableDevice._replay_record,
    "message": DurableDevice._replay_message,
    "tick": DurableDevice._replay_tick,
}


def _upward(plain: list[Any]) -> Upward:
    message = from_plain(plain)
    assert isinstance(message, FeedEvent | Notice | Confirmed)
    return message


def _notice(plain: list[Any]) -> Notice:
    notice = from_plain(plain)
    assert isinstance(notice, Notice)
    return notice
