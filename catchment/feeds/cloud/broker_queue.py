"""Messages that are on their way to a broker, and are kept until it has them. Pure.

They carry numbers, one more from each to the next. What the broker has confirmed is forgotten; what it has not is sent
again after a crash, under the same number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from catchment.storage.codec import stored

MAX_WAITING = 100_000  # messages that the broker has not confirmed; past it data is dropped, instructions are kept


@stored()
@dataclass(frozen=True, slots=True)
class SendDown:
    """Hand these bytes to the broker, for a device; numbers grow by one from message to message."""

    number: int
    device: str
    data: bytes


@dataclass
class BrokerQueue:
    """The messages for one broker."""

    messages: deque[SendDown] = field(default_factory=deque)
    next_number: int = 0
    dropped: int = 0  # data that was not taken at the bound; the receiver sees the gap

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= MAX_WAITING

    @property
    def first_number(self) -> int:
        """The number of the oldest message that the broker has not confirmed, or of the next one."""
        return self.messages[0].number if self.messages else self.next_number

    def add(self, device: str, data: bytes) -> SendDown:
        """Take a message for a device."""
        made = SendDown(self.next_number, device, data)
        self.next_number += 1
        self.messages.append(made)
        return made

    def forget_taken(self, before: int) -> None:
        """Forget the messages below a number: the broker has them."""
        while self.messages and self.messages[0].number < before:
            self.messages.popleft()

    def restore(self, messages: Iterable[SendDown], next_number: int, dropped: int) -> None:
        """Take a state; the queue is new."""
        self.messages.extend(messages)
        self.next_number = next_number
        self.dropped = dropped
