"""A forwarder hands the segments of others on to the next site of their way, and the answer of the end back.

It keeps nothing: a call is answered when the end has answered, and what a crash interrupts is sent again by its origin.
So exactly once follows from the numbers between the ends alone.

What it checks before it hands anything on: the way is one that the project allows, this site is on it, and the caller
has proved to be the site before it. The last site of the way checks the same, and that the first one has sealed what it
says (`catchment.keys.seals`); then it takes it as if the origin had called. A forwarder needs no trust for that: it
could only do what a bad network can.

Bounds: `MAX_FORWARDED` calls and `MAX_FORWARDED_BYTES` under way; beyond them a call fails, and is sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from catchment.errors import CatchmentError, WireError
from catchment.project.ways import Way
from catchment.timeline import SystemClock
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.receiving.grpc_server import TakeEnvelope
from catchment.wire.receiving.refusals import Refusals
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.shaper import Shaper
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError, RefusedError
from catchment.wire.ways.envelope import Envelope, seal_answer

if TYPE_CHECKING:  # it loads cryptography, which senders of a light site do not need
    from catchment.keys.seals import SealCheck, Sealer

MAX_FORWARDED = 8  # calls under way; fewer than a server has workers, so that others are answered meanwhile
MAX_FORWARDED_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Hop:
    """The link from a forwarder to the next site of some ways."""

    open: Callable[[], GrpcUplink]
    shaper: Shaper


@dataclass
class ForwardCounters:
    """What was forwarded over one link."""

    bytes_sent: int = 0
    calls: int = 0
    failed: int = 0


class Forwarder:
    """Answers the envelopes that reach one site; may be used from any thread."""

    def __init__(
        self,
        site: str,
        check_way: Callable[[Sequence[str]], Way],
        make_hop: Callable[[str], Hop],
        sealer: Sealer,
        seals: SealCheck,
    ) -> None:
        self._site = site
        self._check_way = check_way
        self._make_hop = make_hop
        self._sealer = sealer
        self._seals = seals
        self._lock = threading.Lock()
        self._hops: dict[str, Hop] = {}
        self._open: dict[str, GrpcUplink] = {}
        self._counters: dict[str, ForwardCounters] = {}
        self._calls = 0
        self._bytes = 0

    def answer(self, data: bytes, peer: str | None, take: TakeEnvelope) -> bytes:
        """Hand an envelope on, or open it if its way ends here; `take` answers what it holds."""
        try:
            envelope = Envelope.decode(data)
            place = self._check(envelope, peer)
            if place < len(envelope.way) - 1:
                return self._hand_on(envelope.way[place + 1], data)
            self._seals.check(envelope.way[0], envelope.sealed_text, envelope.seal)
        except RefusedError:
            raise
        except CatchmentError as error:
            raise RefusedError("wrong_site", error.message, where=self._site, hint=error.hint) from error
        return seal_answer(envelope, take(envelope.call, envelope.body, envelope.way[0]), self._sealer)

    def status(self) -> dict[str, dict[str, int]]:
        """Return what was forwarded, by the site that it went to."""
        with self._lock:
            return {
                to: {"bytes_sent": c.bytes_sent, "calls": c.calls, "failed": c.failed}
                for to, c in self._counters.items()
            }

    def close(self) -> None:
        """Let no call wait any longer."""
        with self._lock:
            hops = list(self._hops.values())
            uplinks = list(self._open.values())
            self._open.clear()
        for hop in hops:
            hop.shaper.release()
        for uplink in uplinks:
            uplink.close()

    def _check(self, envelope: Envelope, peer: str | None) -> int:
        """Return the place of this site on the way of an envelope, which must have come from the site before it."""
        way = self._check_way(envelope.way)
        if self._site not in way[1:]:
            raise WireError(f"{self._site!r} is not on the way {' -> '.join(way)}")
        place = way.index(self._site)
        if peer != way[place - 1]:
            raise WireError(f"{peer!r} calls, but the way {' -> '.join(way)} comes from {way[place - 1]!r}")
        return place

    def _hand_on(self, to: str, data: bytes) -> bytes:
        self._begin(to, len(data))
        try:
            hop = self._hop(to)
            hop.shaper.transmit(len(data))
            hop.shaper.travel()
            answer = self._uplink(to).forward(data)
            hop.shaper.travel()
            return answer
        except (LinkError, RefusedError) as error:
            self._note_failure(to)
            raise RefusedError("closed", f"{self._site!r} cannot reach {to!r}: {error.message}") from error
        finally:
            self._end(len(data))

    def _begin(self, to: str, size_bytes: int) -> None:
        with self._lock:
            if self._calls >= MAX_FORWARDED or (self._calls and self._bytes + size_bytes > MAX_FORWARDED_BYTES):
                raise RefusedError("full", f"{self._site!r} forwards {self._calls} calls; send again later")
            self._calls += 1
            self._bytes += size_bytes
            counters = self._counters.setdefault(to, ForwardCounters())
            counters.calls += 1
            counters.bytes_sent += size_bytes

    def _end(self, size_bytes: int) -> None:
        with self._lock:
            self._calls -= 1
            self._bytes -= size_bytes

    def _hop(self, to: str) -> Hop:
        with self._lock:
            if to not in self._hops:
                self._hops[to] = self._make_hop(to)
            return self._hops[to]

    def _uplink(self, to: str) -> GrpcUplink:
        with self._lock:
            if to not in self._open:
                self._open[to] = self._hops[to].open()
            return self._open[to]

    def _note_failure(self, to: str) -> None:
        """Connect anew for the next call: the next site may have moved, or keys may have been replaced."""
        with self._lock:
            self._counters[to].failed += 1
            uplink = self._open.pop(to, None)
        if uplink is not None:
            uplink.close()


class NoInbox:
    """The receiver of a site that takes no segments itself, and only forwards those of others."""

    def __init__(self, site: str, limits: WireLimits = DEFAULT_LIMITS) -> None:
        self.site = site
        self.limits = limits
        self._refusals = Refusals(SystemClock())
        self._lock = threading.Lock()

    def greet(self, introduction: Introduction, *, peer: str | None = None) -> Greeting:
        raise self._refuse_segments(introduction.origin)

    def accept(self, data: bytes, *, peer: str | None = None) -> int:
        raise self._refuse_segments(peer)

    def refuse(self, reason: str, message: str, hint: str | None = None, origin: str | None = None) -> RefusedError:
        error = RefusedError(reason, message, where=self.site, hint=hint)
        with self._lock:
            self._refusals.note(origin, reason, message, retryable=error.retryable)
        return error

    def status(self) -> dict[str, Any]:
        """Return what was refused, by site and reason."""
        with self._lock:
            return self._refusals.status()

    def _refuse_segments(self, origin: str | None) -> RefusedError:
        hint = "run every site from the same links"
        return self.refuse("unfit", f"{self.site!r} only forwards; it takes no segments", hint, origin)
