"""What a site learns of its streams while it reduces them: rates, selectivities, distinct keys; and of its link.

Plain counts and sketches, no clock of its own. Groups and distinct values of a key are counted over the life of the
process (`GroupCount`, about 3% off). A rate is that of the last `RATE_SPAN_US` of the clock. The rate of a stream is
per second of its event time: how many records a slice holds does not depend on how fast a log is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catchment.aggregates.hashing import can_hash, hash_rows
from catchment.aggregates.partials import one_array
from catchment.errors import CatchmentError
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.site.events import Absorbed
from catchment.wire.sending.link_meter import LinkCounters

RATE_SPAN_US = 60_000_000  # readings older than this are dropped, but for one
MAX_READINGS = 600
KEPT_HASHES = 1_024


@dataclass
class RecentRate:
    """How fast a running total has grown lately, by the clock or by another time that is noted with it."""

    readings: deque[tuple[int, int, float]] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))

    def note(self, total: float, now_us: int, at_us: int | None = None) -> None:
        self.readings.append((now_us, now_us if at_us is None else at_us, total))
        while len(self.readings) > 2 and now_us - self.readings[1][0] > RATE_SPAN_US:
            self.readings.popleft()

    @property
    def total(self) -> float:
        """The newest total; 0 before the first."""
        return self.readings[-1][2] if self.readings else 0.0

    @property
    def per_s(self) -> float | None:
        """The rate per second; None until there are two readings."""
        if not self.readings:
            return None
        _, first_us, first_total = self.readings[0]
        _, last_us, last_total = self.readings[-1]
        if last_us <= first_us:
            return None
        return (last_total - first_total) / (last_us - first_us) * 1e6


@dataclass
class GroupCount:
    """About how many distinct groups there were: of their hashes the `KEPT_HASHES` smallest are kept.

    Exact below that; then the k-th smallest of n evenly spread hashes is at about k / n of their range (Bar-Yossef et
    al., RANDOM 2002), which is about 3 % off.
    """

    smallest: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def add_rows(self, groups: pa.Table) -> None:
        """Count the rows of a table, each a group; nothing where a column of it has no hash."""
        try:
            hashes = hash_rows([one_array(column) for column in groups.columns])
        except CatchmentError:
            return
        self.smallest = _smallest_distinct(np.concatenate([self.smallest, self._below_largest(hashes)]))

    def _below_largest(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the hashes that may be among the smallest: of a large batch few are."""
        return hashes if self.smallest.size < KEPT_HASHES else hashes[hashes < self.smallest[-1]]

    @property
    def estimate(self) -> float:
        if self.smallest.size < KEPT_HASHES:
            return float(self.smallest.size)
        return (KEPT_HASHES - 1) / ((float(self.smallest[-1]) + 1.0) / 2.0**64)


def _hashable(values: pa.Table) -> pa.Table:
    """Return the values as texts where they have no hash, such as truth values and long decimals."""
    texts = [pa.field(f.name, f.type if can_hash(f.type) else pa.string()) for f in values.schema]
    try:
        return values.cast(pa.schema(texts))
    except pa.ArrowException:
        return values


def _smallest_distinct(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the `KEPT_HASHES` smallest distinct hashes, in order.

    Only those below a limit are sorted, which about four times as many as are wanted fall below if all are distinct:
    to sort a million hashes, or to put them into a hash table, takes longer than to aggregate their records.
    """
    wanted = 4 * KEPT_HASHES
    if hashes.size > 2 * wanted:
        few = np.unique(hashes[hashes < np.uint64(2**64 // hashes.size * wanted)])
        if few.size >= KEPT_HASHES:
            return few[:KEPT_HASHES]
    return np.unique(hashes)[:KEPT_HASHES]


@dataclass
class FragmentMeter:
    """Records read for one fragment, those that passed its filter, and the distinct values of each key."""

    read: int = 0
    passed: int = 0
    distinct: dict[str, GroupCount] = field(default_factory=dict)  # by key
    groups: GroupCount = field(default_factory=GroupCount)

    def note(self, fragment: Fragment, event: Absorbed, rows: int) -> None:
        self.read += rows
        self.passed += sum(count for _, count in event.records)
        self.groups.add_rows(event.partials.select([SLICE_COLUMN, *fragment.key_names]))
        for key in fragment.keys:
            self.distinct.setdefault(key.sql, GroupCount()).add_rows(_hashable(event.partials.select([key.name])))

    def statistics(self, sent_bytes: int) -> dict[str, Any]:
        """Return what the planner wants to know, as plain JSON."""
        return {
            "rows": self.read,
            "groups": self.groups.estimate,
            "bytes": sent_bytes,
            "selectivity": self.passed / self.read if self.read else None,
            "distinct": {sql: count.estimate for sql, count in self.distinct.items()},
        }


@dataclass
class SiteMeter:
    """Meters of all streams, fragments and the link of a site."""

    rows: dict[str, int] = field(default_factory=dict)  # by stream
    rates: dict[str, RecentRate] = field(default_factory=dict)  # by stream
    batches: dict[str, RecentRate] = field(default_factory=dict)  # by stream
    fragments: dict[str, FragmentMeter] = field(default_factory=dict)
    sent: RecentRate = field(default_factory=RecentRate)  # bytes that the link carried
    asked: RecentRate = field(default_factory=RecentRate)  # bytes that it was asked to carry
    fragment_bytes: Mapping[str, int] = field(default_factory=dict)
    link_down_since_us: int | None = None
    queued_since_us: int | None = None  # when something began to wait that has waited ever since

    def note_batch(
        self,
        stream: str,
        rows: int,
        fragments: Iterable[Fragment],
        events: Iterable[object],
        now_us: int,
        span_us: tuple[int, int] | None,
    ) -> None:
        """Note a reduced micro-batch; `span_us` is its oldest event time and the newest of the stream so far."""
        before = self.rows.get(stream, 0)
        self.rows[stream] = before + rows
        if span_us is not None:
            oldest_us, newest_us = span_us
            rate = self.rates.setdefault(stream, RecentRate())
            if not rate.readings:
                rate.note(before, now_us, oldest_us)
            rate.note(self.rows[stream], now_us, newest_us)
            batches = self.batches.setdefault(stream, RecentRate())
            batches.note(batches.total + 1, now_us, newest_us)
        absorbed = {e.fragment: e for e in events if isinstance(e, Absorbed)}
        for fragment in fragments:
            if fragment.name in absorbed:
                meter = self.fragments.setdefault(fragment.name, FragmentMeter())
                meter.note(fragment, absorbed[fragment.name], rows)

    def note_link(self, counters: LinkCounters, queued_bytes: int, now_us: int) -> None:
        """Note what the sender counts; what waits was asked of the link too."""
        self.sent.note(counters.bytes_acked, now_us)
        self.asked.note(counters.bytes_acked + queued_bytes, now_us)
        self.fragment_bytes = counters.fragment_bytes
        self.link_down_since_us = None if counters.connected else self.link_down_since_us or now_us
        self.queued_since_us = None if queued_bytes == 0 else self.queued_since_us or now_us

    def statistics(self) -> dict[str, Any]:
        """Return what the planner wants to know, as plain JSON."""
        return {
            "rows_per_s": {stream: rate.per_s for stream, rate in self.rates.items()},
            "batches_per_s": {stream: rate.per_s for stream, rate in self.batches.items()},
            "fragments": {n: m.statistics(self.fragment_bytes.get(n, 0)) for n, m in self.fragments.items()},
        }

    def link_status(
        self, counters: LinkCounters, queued_bytes: int, bandwidth_bytes_per_s: float | None
    ) -> dict[str, Any]:
        """Return how the link does, as a site and a relay tell it."""
        return {
            "bytes_sent": counters.bytes_sent,
            "spared_bytes": counters.spared_bytes,
            "bytes_by_fragment": dict(counters.fragment_bytes),
            "queued_bytes": queued_bytes,
            "goodput_bytes_per_s": counters.goodput_bytes_per_s,
            "round_trip_s": counters.round_trip_s,
            **self.link_use(bandwidth_bytes_per_s, counters.goodput_bytes_per_s),
            "connected": counters.connected,
            "last_error": counters.last_error,
            "link_down_since_us": self.link_down_since_us,
            "queued_since_us": self.queued_since_us,
        }

    def link_use(self, bandwidth_bytes_per_s: float | None, goodput_bytes_per_s: float | None) -> dict[str, Any]:
        """Return the use of the link over its capacity: utilisation of what it carried, congestion of what was asked.

        A congestion above 1 means that the queue grows. The capacity is the declared bandwidth or, where none is
        declared, the measured goodput.
        """
        capacity = bandwidth_bytes_per_s or goodput_bytes_per_s

        def share(rate: float | None) -> float | None:
            return rate / capacity if rate is not None and capacity else None

        return {
            "sent_bytes_per_s": self.sent.per_s,
            "utilisation": share(self.sent.per_s),
            "congestion": share(self.asked.per_s),
        }
