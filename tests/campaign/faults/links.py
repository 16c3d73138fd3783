"""Links that are cut, slow, half open, or that harm what they carry."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

from tests.campaign.byte_proxy import ByteHarm
from tests.campaign.faults.base import Fault, NotPossibleError
from tests.campaign.living import RECEIVERS, Link
from tests.campaign.message_proxy import MessageHarm
from tests.campaign.namespace import NetworkNamespace

FULL_BYTES_PER_S = 100_000  # of a link that is taken for healthy; throttled ones have a hundredth
HARM_S = 8.0
STRIKE_PATIENCE_S = 90.0  # a sender that was killed has to start again before it sends
DOWN_PATIENCE_S = 90.0  # a sender gives up 40 s after a link fell silent


class LinkFault(Fault):
    """A fault of the link from its target to the next inbox."""

    targets = tuple(RECEIVERS)
    needs_sender: ClassVar[bool] = True  # whether the sender must be able to tell what its link is like

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        return frozenset({f"link {target}", target} if cls.needs_sender else {f"link {target}"})

    @property
    def link(self) -> Link:
        return self.living.links[self.target]

    def inject(self) -> None:
        self._until_s = time.monotonic() + HARM_S
        self.begin()

    def begin(self) -> None:
        """Begin to harm the link."""

    def heal(self) -> None:
        time.sleep(max(0.0, self._until_s - time.monotonic()))
        self.end()

    def end(self) -> None:
        """End the harm."""
        self.link.heal()

    def wait_link_down(self) -> None:
        """Wait until the sender says that its link is down; it can only if it runs and has something to send."""
        until_s = time.monotonic() + DOWN_PATIENCE_S
        while time.monotonic() < until_s and self.machine.is_alive and not self.told:
            status = self.machine.status
            if status.get("link_down_since_us") is not None:
                self.told = f"link down: {status.get('last_error')!s:.150}"
            time.sleep(0.3)
        if not self.told:
            is_waiting = self.machine.is_alive and self.machine.status.get("queued_bytes", 0) > 0
            assert not is_waiting, f"{self.target} has something to send and does not say that its link is down"
            self.has_struck = False
            self.told = "nothing was to be sent"


class Cut(LinkFault):
    kind = "link cut"

    def begin(self) -> None:
        self.link.bytes.cut()

    def observe(self) -> None:
        self.wait_link_down()


class HalfOpen(LinkFault):
    """Nothing passes any more, and no connection is closed."""

    kind = "link half open"

    def begin(self) -> None:
        self.link.bytes.harm = ByteHarm(holds_requests=True, holds_answers=True)

    def observe(self) -> None:
        self.wait_link_down()


class OneWay(LinkFault):
    """What is sent arrives, and no answer comes back."""

    kind = "link one way"

    def begin(self) -> None:
        self.link.bytes.harm = ByteHarm(holds_answers=True)

    def observe(self) -> None:
        self.wait_link_down()


class CountedHarm(LinkFault):
    """A fault that must have struck something that the link carries, and counts what it has struck.

    It goes on until it has, and so also while a sender that others have killed starts again.
    """

    what: ClassVar[str]
    heals_last = True

    def begin(self) -> None:
        self._before = self.count()
        self.harm_link()

    def heal(self) -> None:
        until_s = time.monotonic() + STRIKE_PATIENCE_S
        while self.count() == self._before and time.monotonic() < until_s:
            self.feed_windows(1)
            time.sleep(2.0)
        self.has_struck = self.count() > self._before
        self.told = f"{self.count() - self._before} {self.what}"
        super().heal()

    @abstractmethod
    def harm_link(self) -> None:
        """Tell the link what to do to all that it carries."""

    @abstractmethod
    def count(self) -> int:
        """Return how often the link has done so in its life."""


class SlowLink(CountedHarm):
    what = "chunks slowed"

    def count(self) -> int:
        return self.link.bytes.slowed_chunks


class Throttle(SlowLink):
    kind = "link at 1% of its bandwidth"

    def harm_link(self) -> None:
        self.link.bytes.harm = ByteHarm(bytes_per_s=FULL_BYTES_PER_S / 100)


class Delay(SlowLink):
    kind = "link with up to 1.5 s delay"

    def harm_link(self) -> None:
        self.link.bytes.harm = ByteHarm(delay_s=self.chance.uniform(0.3, 1.5))


class HarmedBytes(CountedHarm):
    what = "chunks harmed"
    needs_sender = False
    harm: ClassVar[ByteHarm]

    def harm_link(self) -> None:
        self.link.bytes.harm = replace(self.harm)

    def count(self) -> int:
        return self.link.bytes.harmed_chunks


class CorruptBytes(HarmedBytes):
    kind = "bytes corrupted"
    harm = ByteHarm(corrupted_share=0.3)


class DoubledBytes(HarmedBytes):
    kind = "bytes duplicated"
    harm = ByteHarm(doubled_share=0.3)


class SwappedBytes(HarmedBytes):
    kind = "bytes reordered"
    harm = ByteHarm(swapped_share=0.3)


class HarmedMessages(CountedHarm):
    """A fault of whole messages, over connections that are fine."""

    what = "messages harmed"
    needs_sender = False
    harm: ClassVar[MessageHarm]

    def harm_link(self) -> None:
        self.link.messages.harm = replace(self.harm)

    def count(self) -> int:
        return self.link.messages.harmed_messages


class DoubledMessages(HarmedMessages):
    kind = "messages duplicated"
    harm = MessageHarm(doubled_share=0.7)


class ReorderedMessages(HarmedMessages):
    kind = "messages reordered"
    harm = MessageHarm(late_share=0.6)


class LostMessages(HarmedMessages):
    kind = "messages and answers lost"
    harm = MessageHarm(lost_share=0.3, unanswered_share=0.3)


class ReplayedMessages(HarmedMessages):
    kind = "old messages replayed"
    harm = MessageHarm(replayed_share=0.7)


class AlteredMessages(HarmedMessages):
    kind = "messages altered"
    harm = MessageHarm(altered_share=0.4)


class Cable(LinkFault):
    """A fault of the network namespace of site c."""

    targets = ("c",)

    @property
    def cable(self) -> NetworkNamespace:
        if self.living.namespace is None:
            raise NotPossibleError("network namespaces are not permitted here")
        return self.living.namespace

    def end(self) -> None:
        self.cable.plug()


class CablePulled(Cable):
    kind = "cable of a namespace pulled"

    def begin(self) -> None:
        self.cable.pull()

    def observe(self) -> None:
        self.wait_link_down()


class CableThrottled(Cable, CountedHarm):
    kind = "cable throttled by tc tbf"
    what = "packets had to wait"

    def harm_link(self) -> None:
        if not self.cable.throttle(4):
            raise NotPossibleError("tc tbf is not permitted here")

    def count(self) -> int:
        return self.cable.count_throttled()


KINDS = (
    Cut,
    HalfOpen,
    OneWay,
    Throttle,
    Delay,
    CorruptBytes,
    DoubledBytes,
    SwappedBytes,
    DoubledMessages,
    ReorderedMessages,
    LostMessages,
    ReplayedMessages,
    AlteredMessages,
    CablePulled,
    CableThrottled,
)
