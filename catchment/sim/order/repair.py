"""Repair: late records are registered, batched, and merged into the windows they touch, until nothing is outstanding.

The trigger of Yang et al. (HPM, section 1.4) fires when the event times of the registered late records span more than
Gamma. Alone it has no bound in time, and its last batch never fires: so it also fires at a number of records, and when
the oldest has waited long enough. A batch is merged slice by slice: its records are lifted into one partial for each
slice, and each partial is combined into the windows that contain the slice and were published without it. Aggregates
that cannot be merged (exact quantiles) are recomputed from the records of the touched windows.

Cost is counted in items: a record read, or a partial combined. The work of the stream itself is one item per record.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np

from catchment.aggregates.grouped import sum_pairs
from catchment.arrays import Floats, Ints, Mask
from catchment.errors import SimulationError
from catchment.quality.contract import Measure
from catchment.sim.order.answers import Windows, quantiles
from catchment.sim.order.replay import step_of
from catchment.sim.order.trace import ArrivalTrace
from catchment.timeline import SECOND_US, Slicing

EXACT = 1e-12  # the largest relative distance from the correctly rounded sum that counts as exact


@dataclass(frozen=True)
class RepairPolicy:
    """When a batch of registered late records is repaired."""

    spread_us: int = 5 * SECOND_US
    max_records: int = 10_000
    max_age_us: int = 10 * SECOND_US

    def __post_init__(self) -> None:
        if self.spread_us <= 0 or self.max_records <= 0 or self.max_age_us <= 0:
            raise SimulationError(f"a repair trigger needs positive bounds, not {self}")


@dataclass(frozen=True)
class RepairOutcome:
    """What was late, when it was repaired, at which cost, and whether the end is exact."""

    known: Mask  # per (record, window): in the answer when it was first published
    repaired_at_us: Ints  # per (record, window): when it came into the answer; 0 where it was on time
    late_records: int
    repaired_windows: int
    revisions: int
    items: int
    reread_items: int  # what reading the touched windows again would have cost
    final_exact: bool


def repair(
    trace: ArrivalTrace, windows: Windows, closed_at_us: Ints, measure: Measure, policy: RepairPolicy, step_us: int
) -> RepairOutcome:
    """Follow the late records of a replay to the end."""
    steps = step_of(trace, step_us)
    known = steps[windows.record] <= closed_at_us[windows.window]
    late = np.unique(windows.record[~known])
    fired_at, batch = _fire(late, trace.event_us, steps, policy, step_us)
    batch_of = np.full(len(trace), -1)
    at = np.zeros(len(trace), dtype=np.int64)
    batch_of[late] = batch
    at[late] = fired_at
    pairs = _LatePairs.of(trace, windows, known, batch_of)
    exact = _final_is_exact(trace, windows, measure, known, pairs)
    return RepairOutcome(
        known=known,
        repaired_at_us=np.where(known, 0, at[windows.record]),
        late_records=len(late),
        repaired_windows=len(np.unique(pairs.window)),
        revisions=pairs.revisions,
        items=pairs.items(measure, len(late)),
        reread_items=pairs.reread,
        final_exact=exact,
    )


def _fire(late: Ints, event_us: Ints, steps: Ints, policy: RepairPolicy, step_us: int) -> tuple[Ints, Ints]:
    """Return for each late record, in order of arrival: when its batch fires, and the number of that batch."""
    fired = np.zeros(len(late), dtype=np.int64)
    batch = np.zeros(len(late), dtype=np.int64)
    first = 0
    number = 0
    low = 0
    high = 0
    for i, (record, at) in enumerate(zip(late.tolist(), steps[late].tolist(), strict=True)):
        due = int(steps[late[first]]) + -(-policy.max_age_us // step_us) * step_us if first < i else at
        if first < i and at > due:
            fired[first:i] = due
            batch[first:i] = number
            first = i
            number = number + 1
        event = int(event_us[record])
        low, high = (event, event) if first == i else (min(low, event), max(high, event))
        if high - low > policy.spread_us or i + 1 - first >= policy.max_records:
            fired[first : i + 1] = at
            batch[first : i + 1] = number
            first = i + 1
            number = number + 1
    if first < len(late):
        fired[first:] = int(steps[late[first]]) + policy.max_age_us
        batch[first:] = number
    return fired, batch


@dataclass(frozen=True)
class _LatePairs:
    """The late (record, window) pairs, each with its batch and its partial (batch, slice, window)."""

    record: Ints
    window: Ints
    partial: Ints
    partial_window: Ints  # window that each partial is merged into
    revisions: int
    read_once: int
    reread: int

    @classmethod
    def of(cls, trace: ArrivalTrace, windows: Windows, known: Mask, batch_of: Ints) -> _LatePairs:
        record = windows.record[~known]
        window = windows.window[~known]
        batch = batch_of[record]
        slices = Slicing.of([windows.spec]).starts_of(trace.event_us[record])
        rows = np.stack([batch, slices, window]) if len(record) else np.zeros((3, 0), dtype=np.int64)
        distinct, partial = np.unique(rows, axis=1, return_inverse=True)
        touched = np.unique(rows[[0, 2]], axis=1)
        size = np.bincount(windows.window, minlength=len(windows))
        read_once = _records_under(trace, windows, touched)
        reread = int(size[touched[1]].sum())
        return cls(record, window, partial.reshape(-1), distinct[2], touched.shape[1], read_once, reread)

    def items(self, measure: Measure, late_records: int) -> int:
        """Return records lifted and partials combined; or, where nothing can be combined, the touched slices read."""
        return self.read_once if measure.name == "quantile" else late_records + len(self.partial_window)


def _records_under(trace: ArrivalTrace, windows: Windows, touched: Ints) -> int:
    """Return records in the union of the touched windows, batch by batch: each is read once per batch."""
    if not touched.shape[1]:
        return 0
    ordered = np.sort(trace.event_us)
    ends = windows.ends_us[touched[1]]
    low = np.searchsorted(ordered, ends - windows.spec.size_us)
    high = np.searchsorted(ordered, ends)
    fresh = np.append(True, touched[0, 1:] != touched[0, :-1])
    before = np.where(fresh, 0, np.append(0, high[:-1]))
    return int((high - np.maximum(low, before)).sum())


def _final_is_exact(trace: ArrivalTrace, windows: Windows, measure: Measure, known: Mask, late: _LatePairs) -> bool:
    """Return whether published states with all late partials merged in equal the batch answers over all records."""
    on_time = windows.record[known]
    size = len(windows)
    counts = np.bincount(windows.window[known], minlength=size) + np.bincount(late.window, minlength=size)
    batch = np.bincount(windows.window, minlength=size)
    if not np.array_equal(counts, batch):
        return False
    if measure.name == "count":
        return True
    if measure.name == "quantile":
        merged = np.concatenate([windows.window[known], late.window])
        values = trace.value[np.concatenate([on_time, late.record])]
        got = quantiles(merged, values, counts.astype(np.float64), measure.p)
        return bool(np.array_equal(got, _batch_quantiles(trace, windows, measure.p)))
    high, low = _merged_sums(trace, windows, known, late)
    truth = _batch_sums(trace, windows)
    scale = np.maximum(np.abs(truth), np.finfo(np.float64).tiny)
    return bool((np.abs((high - truth) + low) <= EXACT * scale).all())


def _merged_sums(trace: ArrivalTrace, windows: Windows, known: Mask, late: _LatePairs) -> tuple[Floats, Floats]:
    """Return sums as pairs: of what was on time, and of every late partial, combined."""
    size = len(windows)
    parts = len(late.partial_window)
    on_time = trace.value[windows.record[known]]
    high, low = sum_pairs(on_time, np.zeros(len(on_time)), windows.window[known], size)
    values = trace.value[late.record]
    late_high, late_low = sum_pairs(values, np.zeros(len(values)), late.partial, parts)
    where = np.concatenate([np.arange(size), late.partial_window])
    return sum_pairs(np.concatenate([high, late_high]), np.concatenate([low, late_low]), where, size)


def _batch_sums(trace: ArrivalTrace, windows: Windows) -> Floats:
    """Return correctly rounded sums over all records, window by window."""
    edges = np.searchsorted(windows.window, np.arange(len(windows) + 1)).tolist()
    values = trace.value[windows.record]
    return np.array([fsum(values[a:b].tolist()) for a, b in pairwise(edges)])


def _batch_quantiles(trace: ArrivalTrace, windows: Windows, p: float) -> Floats:
    """Return quantiles over all records, window by window: the value of least rank that reaches p."""
    edges = np.searchsorted(windows.window, np.arange(len(windows) + 1)).tolist()
    values = trace.value[windows.record]
    return np.array([np.quantile(values[a:b], p, method="inverted_cdf") for a, b in pairwise(edges)])
