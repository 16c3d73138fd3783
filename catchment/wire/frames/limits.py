"""Bounds of the wire, checked before anything is parsed or stored."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from catchment.errors import WireError

MAX_STRATA = 1000  # groups that one sampler may name with rates of their own


@dataclass(frozen=True, slots=True)
class WireLimits:
    """The limits of a receiver; a segment beyond them is refused and counted, never cut.

    A site that might exceed `frame_bytes` or `rows` splits what it sends into several segments. `ahead_segments` is how
    far ahead of the lowest missing number an inbox takes segments of one origin: it bounds the memory of what was seen,
    and a sender never goes beyond it. `inbox_bytes` is how much an inbox holds that is not consumed: at the bound it
    refuses for the time being, and the segments wait in the senders' outboxes. What one origin has there, and how many
    calls and bytes per second one peer may make, is bounded too, so that no site can shut out the others.
    """

    frame_bytes: int = 64 * 2**20
    raw_bytes: int = 512 * 2**20  # all tables of one segment, decompressed
    header_bytes: int = 8 * 2**20
    rows: int = 4_000_000
    messages: int = 4096
    slices: int = 100_000  # items of one message: slices with counts, closings, sources of a closing
    name_bytes: int = 256
    origins: int = 1024
    ahead_segments: int = 65_536
    inbox_bytes: int = 4 * 2**30
    origin_bytes: int = 2**30  # of `inbox_bytes`, what one origin may take
    peer_calls_per_s: int = 2_000
    peer_bytes_per_s: int = 512 * 2**20

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) < 1:
                raise WireError(f"the limit {limit.name} must be at least 1, not {getattr(self, limit.name)}")


DEFAULT_LIMITS = WireLimits()
RECORD_LIMITS = replace(DEFAULT_LIMITS, ahead_segments=256)  # of records, which wait for those before them
