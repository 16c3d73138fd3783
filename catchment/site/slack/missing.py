"""What the sources of a stream owe to a window.

A source is *due* behind the front by its usual lag. Up to there it should have been heard: a silence between
its progress and there is a stall (what it owes will come), a pause (it had nothing to say for long) or
nothing at all (it rarely speaks). Beyond there its records are in flight. The three chances are weighed by
how often each happened; a silence that outlasts every stall known grows ever less likely to be one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catchment.site.slack.batch import Floats
from catchment.site.slack.sources import GAP_RECORDS, RECORDS, Mask, SourceTable

LAG_SPREADS = 3.0  # a source is due this many mean deviations after its mean lag
IDLE_STALLS = 3.0  # silent for this many times the longest stall known: idle ...
IDLE_WINDOWS = 20.0  # ... but not before this many windows


@dataclass(frozen=True, slots=True)
class Debt:
    """Per source: the part of a window it is expected to owe, as event time."""

    time_us: Floats  # expected: in flight, plus stalled times its chance
    doubt_us2: Floats  # variance of it
    idle: Mask  # present, but silent for longer than is waited for
    gone: Mask  # idle, and silent for longer than any window waits
    behind: Mask  # present, but by habit so late that no window can wait for it
    rates: Floats  # records, values, squares per microsecond

    @property
    def forgone(self) -> Mask:
        """Sources that are not worth waiting for, though they may yet come."""
        return self.idle | self.behind

    @property
    def lost(self) -> Mask:
        """Sources that no window waits for, whatever it costs."""
        return self.gone | self.behind


def debt_to(table: SourceTable, end_us: int, front_us: int) -> Debt:
    """What each source owes to the window that ends at `end_us`."""
    rates, silent = table.rates(), silence(table, front_us)
    begin = np.maximum(table.progress, end_us - table.setting.window.size_us)
    due = np.minimum(table.progress + silent, end_us)
    quiet = np.maximum(due - begin, 0.0)
    flying = np.maximum(end_us - np.maximum(due, begin), 0.0)
    stalled = _stalled(table, silent, rates[:, RECORDS])
    time = table.present * (flying + stalled * quiet)
    doubt = table.present * (stalled * (1.0 - stalled) * quiet * quiet)
    resting = idle(table, front_us)
    return Debt(time, doubt, resting, resting & (silent > table.setting.max_wait_us), behind(table), rates)


def silence(table: SourceTable, front_us: int) -> Floats:
    """How long each source should have been heard, and was not."""
    due = front_us - table.lag - LAG_SPREADS * table.lag_spread
    return np.maximum(due - table.progress, 0.0)


def idle(table: SourceTable, front_us: int) -> Mask:
    """Sources that have been silent for longer than any stall that they may be in."""
    silent = silence(table, front_us)
    unusual = silent * table.rates()[:, RECORDS] > GAP_RECORDS
    return np.asarray(table.present & (silent > patience_us(table)) & unusual)


def patience_us(table: SourceTable) -> float:
    """How long a silent source is waited for: longer than any stall known, but never longer than a window is."""
    known = max(IDLE_STALLS * table.longest_stall_us, IDLE_WINDOWS * table.setting.window.size_us)
    return min(known, float(table.setting.max_wait_us))


def behind(table: SourceTable) -> Mask:
    """Sources that are always further behind than a window may wait."""
    return np.asarray(table.present & (table.lag > table.setting.max_wait_us))


def least_progress_us(table: SourceTable, front_us: int) -> int:
    """The progress of the last of the sources that are waited for; the front, if there is none."""
    waited = table.present & ~idle(table, front_us) & ~behind(table)
    return int(table.progress[waited].min()) if waited.any() else front_us


def _stalled(table: SourceTable, silent: Floats, rate: Floats) -> Floats:
    """The chance that a silent source is stalled, against a pause and against having had nothing to say."""
    nothing = np.exp(-np.minimum(rate * silent, 700.0))
    as_long = np.square(np.minimum(patience_us(table) / np.maximum(silent, 1.0), 1.0))
    stall, pause = table.stalls / table.rows * as_long, table.pauses / table.rows
    return np.asarray(stall / (stall + pause + nothing), dtype=np.float64)
