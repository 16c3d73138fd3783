"""Instructions on their way to devices: gathered into few messages, and kept until they are confirmed. Pure.

Every instruction that changes what a device does has a token; the device confirms it, and only then does the cloud
rely on it. A device that has not yet said hello is told nothing: everything that holds for it is said when it does.

The program may change. A device is told the new one before the first instruction that may need it, and no sooner: a
view of one user does not reach the devices of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from catchment.feeds.cloud.router import Deliver
from catchment.feeds.protocol.messages import (
    Install,
    Instruction,
    Instructions,
    Mark,
    Program,
    SetRoute,
    SetUpload,
    Uninstall,
)

MAX_BATCH = 500  # instructions in one message, which keeps it well below the codec's bound

Confirmable = SetUpload | Install | Uninstall | Mark | SetRoute


@dataclass
class PendingInstruction:
    """An instruction that a device has not yet confirmed, and the views whose moves wait for it."""

    device: str
    message: Confirmable
    views: set[str] = field(default_factory=set)


class InstructionQueue:
    """What is to be said to each device, and what devices have yet to confirm."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.revision = 0  # of the program
        self.told: dict[str, int] = {}  # the revision that each device knows
        self.boots: dict[str, int] = {}  # boot number of each device that has said hello
        self.pending: dict[int, PendingInstruction] = {}
        self.queued: dict[str, list[Instruction]] = {}
        self.sent = 0
        self.next_token = 1  # 0 asks for no confirmation

    def new_token(self) -> int:
        self.next_token += 1
        return self.next_token - 1

    def ask(self, device: str, message: Confirmable) -> None:
        """Tell a device something that it is to confirm."""
        self.pending[message.token] = PendingInstruction(device, message)
        self.tell(device, message)

    def tell(self, device: str, message: Instruction) -> None:
        """Tell a device something, if it has said hello."""
        if device not in self.boots:
            return
        if isinstance(message, Install | SetUpload | SetRoute) and message.token:
            self._tell_program(device)
        self._queue(device, message)

    def _tell_program(self, device: str) -> None:
        if self.told.get(device) != self.revision:
            self.told[device] = self.revision
            self._queue(device, self.program)

    def _queue(self, device: str, message: Instruction) -> None:
        self.sent += 1
        self.queued.setdefault(device, []).append(message)

    def follow_program(self, program: Program) -> None:
        """Tell devices another program from now on, each when it needs it."""
        self.program = program
        self.revision += 1

    def confirm(self, device: str, token: int) -> PendingInstruction | None:
        """Return the instruction that a device confirms by this token; None unless it awaits this confirmation."""
        pending = self.pending.get(token)
        if pending is None or pending.device != device:
            return None
        return self.pending.pop(token)

    def greet(self, device: str, boot: int) -> bool:
        """Note that a device said hello; return whether it remembers nothing of what it was told."""
        is_new = self.boots.get(device) != boot
        self.boots[device] = boot
        if is_new:
            self.told.pop(device, None)
            self._tell_program(device)
        return is_new

    def forget(self, device: str) -> None:
        """Forget a device that has left for good, and what it has yet to confirm."""
        self.boots.pop(device, None)
        self.told.pop(device, None)
        self.queued.pop(device, None)
        for token in [token for token, pending in self.pending.items() if pending.device == device]:
            del self.pending[token]

    def tell_pending(self, device: str) -> None:
        """Tell a device again what it has yet to confirm."""
        for pending in [p for p in self.pending.values() if p.device == device]:
            self.tell(device, pending.message)

    def take(self) -> Iterator[Deliver]:
        """Take out what is queued: one message per device, or a few where there is very much to tell."""
        queued = self.queued
        self.queued = {}
        for device, items in queued.items():
            for at in range(0, len(items), MAX_BATCH):
                yield Deliver(device, Instructions(tuple(items[at : at + MAX_BATCH])))
