"""The outbox writer appends what the core of a site or a relay sends, and measures the link for its policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from catchment.project.site_orders import SiteOrders
from catchment.site.events import LinkMeasured
from catchment.wire.frames.segmenting import segments_of
from catchment.wire.messages import Message, Updates
from catchment.wire.sending.link_meter import LinkCounters, WireSizes
from catchment.wire.sending.outbox import Outbox


def needs_new_life(outbox: Outbox, orders: SiteOrders) -> bool:
    """Return whether the site or relay of an outbox was ordered to be healed since the outbox began."""
    return orders.is_healed(outbox.origin) and outbox.life < orders.lives[outbox.origin]


class OutboxWriter:
    """Appends messages to an outbox, and learns from them what rows and frames cost on the wire.

    `on_append`, if given, is told of every segment that is appended for the first time, with the updates in it.
    """

    def __init__(
        self,
        outbox: Outbox,
        on_append: Callable[[int, Sequence[Updates]], None] | None = None,
        sink: str = "",  # the exit whose outbox it is; none: that towards the center
    ) -> None:
        self._outbox = outbox
        self._sink = sink
        self._on_append = on_append
        self._sizes = WireSizes()
        self.appended_bytes = 0  # of all segments that this process has appended

    def append(self, number: int, updates: Iterable[Updates], facts: Sequence[Message]) -> int:
        """Append segments of the updates, none too large for the wire, then of the facts; return how many.

        They are numbered from `number` on; appending a number again changes nothing. Numbers of a former life of the
        outbox are passed over: nothing that it held is sent any more.
        """
        segments = segments_of(updates, facts, self._outbox.limits)
        for offset, messages in enumerate(segments):
            sequence = number + offset - self._outbox.first
            if sequence < 0:
                continue
            stored = self._outbox.append(sequence, messages)
            self._sizes.note(messages, stored)
            self.appended_bytes += 0 if stored is None else stored.size_bytes
            if self._on_append is not None and stored is not None:
                self._on_append(sequence, [m for m in messages if isinstance(m, Updates)])
        return len(segments)

    def measure(self, counters: LinkCounters) -> LinkMeasured:
        """Return the state of the link as a site core wants to know it."""
        return LinkMeasured(
            counters.goodput_bytes_per_s,
            self._outbox.size_bytes,
            self._outbox.full,
            self._sizes.ratio,
            self._sizes.frame_bytes,
            self._sink,
            self._outbox.room_bytes,
        )
