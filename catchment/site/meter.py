"""What a site learns of its streams while it reduces them: rates, selectivities, distinct keys; and of its link.

Plain counts and sketches, no clock of its own. Distinct values are those of a key over the life of the process (HLL,
about 2% off; of a batch at most `MAX_VALUES` of a key are looked at, so very many are underestimated); a rate is that
of the last `RATE_SPAN_US` of the clock, and that of a stream is by the second of its own time: how many records a slice
holds does not depend on how fast a log is read. Between batches a sketch is bytes, as in a partial: one that lived on
in a thread of Spark's gateway would outlive the interpreter, which its library complains of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
from datasketches import hll_sketch

from catchment.query.fragment import Fragment
from catchment.site.events import Absorbed
from catchment.wire.link_meter import LinkCounters

RATE_SPAN_US = 60_000_000
MAX_READINGS = 600
MAX_VALUES = 10_000
_LOG_BUCKETS = 11


@dataclass
class Rate:
    """How fast a running total has grown of late, by the clock or by another time that is noted with it."""

    readings: deque[tuple[int, int, float]] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))

    def note(self, total: float, now_us: int, at_us: int | None = None) -> None:
        self.readings.append((now_us, now_us if at_us is None else at_us, total))
        while len(self.readings) > 2 and now_us - self.readings[1][0] > RATE_SPAN_US:
            self.readings.popleft()

    @property
    def per_s(self) -> float | None:
        """None until two readings are there."""
        if not self.readings:
            return None
        (_, first_us, first), (_, last_us, last) = self.readings[0], self.readings[-1]
        return (last - first) / (last_us - first_us) * 1e6 if last_us > first_us else None


@dataclass
class FragmentMeter:
    """Of one fragment: records read and kept, and the distinct values of each key."""

    read: int = 0
    kept: int = 0
    distinct: dict[str, bytes] = field(default_factory=dict)  # key -> HLL sketch

    def note(self, fragment: Fragment, event: Absorbed, rows: int) -> None:
        self.read += rows
        self.kept += sum(count for _, count in event.records)
        for key in fragment.keys:
            known = self.distinct.get(key.sql)
            sketch = hll_sketch(_LOG_BUCKETS) if known is None else hll_sketch.deserialize(known)
            for value in pc.unique(event.partials[key.name])[:MAX_VALUES].to_pylist():
                sketch.update(str(value))
            self.distinct[key.sql] = sketch.serialize_compact()


@dataclass
class SiteMeter:
    """Of all that runs at a site."""

    rows: dict[str, int] = field(default_factory=dict)
    rates: dict[str, Rate] = field(default_factory=dict)
    fragments: dict[str, FragmentMeter] = field(default_factory=dict)
    sent: Rate = field(default_factory=Rate)
    asked: Rate = field(default_factory=Rate)
    fragment_bytes: Mapping[str, int] = field(default_factory=dict)

    def batch(
        self,
        stream: str,
        rows: int,
        fragments: Iterable[Fragment],
        events: Iterable[object],
        now_us: int,
        span_us: tuple[int, int] | None,
    ) -> None:
        """A micro-batch was reduced; `span_us`: its oldest event time, and the newest of the stream so far."""
        before = self.rows.get(stream, 0)
        self.rows[stream] = before + rows
        if span_us is not None:
            rate = self.rates.setdefault(stream, Rate())
            if not rate.readings:
                rate.note(before, now_us, span_us[0])
            rate.note(self.rows[stream], now_us, span_us[1])
        absorbed = {e.fragment: e for e in events if isinstance(e, Absorbed)}
        for fragment in fragments:
            if fragment.name in absorbed:
                meter = self.fragments.setdefault(fragment.name, FragmentMeter())
                meter.note(fragment, absorbed[fragment.name], rows)

    def link(self, counters: LinkCounters, queued_bytes: int, now_us: int) -> None:
        """What the sender says; what waits was asked of the link too."""
        self.sent.note(counters.bytes_acked, now_us)
        self.asked.note(counters.bytes_acked + queued_bytes, now_us)
        self.fragment_bytes = counters.fragment_bytes

    def statistics(self) -> dict[str, Any]:
        """As plain JSON, for the planner."""
        return {
            "rows_per_s": {stream: rate.per_s for stream, rate in self.rates.items()},
            "fragments": {
                name: {
                    "rows": m.read,
                    "bytes": self.fragment_bytes.get(name, 0),
                    "selectivity": m.kept / m.read if m.read else None,
                    "distinct": {sql: hll_sketch.deserialize(s).get_estimate() for sql, s in m.distinct.items()},
                }
                for name, m in self.fragments.items()
            },
        }

    def use(self, bandwidth_bytes_per_s: float | None, goodput_bytes_per_s: float | None) -> dict[str, Any]:
        """Use over capacity: of what was carried (utilisation) and of what was asked (congestion, above 1 it grows).

        The capacity is the declared bandwidth, or, where none is declared, the goodput that was measured.
        """
        capacity = bandwidth_bytes_per_s or goodput_bytes_per_s

        def share(rate: float | None) -> float | None:
            return rate / capacity if rate is not None and capacity else None

        return {
            "sent_bytes_per_s": self.sent.per_s,
            "utilisation": share(self.sent.per_s),
            "congestion": share(self.asked.per_s),
        }
