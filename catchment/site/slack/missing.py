"""What the sources of a stream have not sent yet for a window, by expectation.

A source is *due* behind the front by its usual lag. Up to there it should have been heard: a silence between its
progress and there is a stall (what is missing will come), a pause (it had nothing to send for long) or chance (it
rarely sends). Beyond there its records are in flight. The three are weighed by how often each happened; a silence
that outlasts every stall known grows ever less likely to be one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catchment.arrays import Floats, Mask
from catchment.site.slack.sources import GAP_RECORDS, RECORDS, SourceTable

LAG_SPREADS = 3.0  # a source is due this many mean deviations after its mean lag
# A source is idle once it is silent for the longer of these two.
IDLE_STALLS = 3.0  # multiples of the longest stall known
IDLE_WINDOWS = 20.0  # multiples of the window size


@dataclass(frozen=True, slots=True)
class ExpectedMissing:
    """Per source: the part of a window that is expected to be missing, as event time."""

    time_us: Floats  # in flight, plus the silence times the chance that it is a stall
    variance_us2: Floats
    idle: Mask  # present, but silent for longer than sources are waited for
    gone: Mask  # idle, and silent for longer than any window waits
    behind: Mask  # present, but usually so late that no window can wait for it
    rates: Floats  # records, values, squares per microsecond

    @property
    def not_awaited(self) -> Mask:
        """Sources that are not worth waiting for, though they may yet come."""
        return self.idle | self.behind

    @property
    def lost(self) -> Mask:
        """Sources that no window waits for, whatever the violation budget."""
        return self.gone | self.behind


def expected_missing(table: SourceTable, end_us: int, front_us: int) -> ExpectedMissing:
    """Return what each source is expected to lack in the window that ends at `end_us`."""
    rates = table.rates()
    silence_us = silences_us(table, front_us)
    begin = np.maximum(table.progress, end_us - table.task.window.size_us)
    due = np.minimum(table.progress + silence_us, end_us)
    silent = np.maximum(due - begin, 0.0)
    in_flight = np.maximum(end_us - np.maximum(due, begin), 0.0)
    stalled = _stall_chances(table, silence_us, rates[:, RECORDS])
    idle = idle_sources(table, front_us)
    return ExpectedMissing(
        time_us=table.present * (in_flight + stalled * silent),
        variance_us2=table.present * (stalled * (1.0 - stalled) * silent * silent),
        idle=idle,
        gone=idle & (silence_us > table.task.max_wait_us),
        behind=sources_behind(table),
        rates=rates,
    )


def silences_us(table: SourceTable, front_us: int) -> Floats:
    """Return for how long each source should have been heard and was not."""
    due = front_us - table.lag - LAG_SPREADS * table.lag_spread
    return np.maximum(due - table.progress, 0.0)


def idle_sources(table: SourceTable, front_us: int) -> Mask:
    """Return which sources have been silent for longer than any stall that they may be in."""
    silence_us = silences_us(table, front_us)
    unusual = silence_us * table.rates()[:, RECORDS] > GAP_RECORDS
    return np.asarray(table.present & (silence_us > longest_awaited_silence_us(table)) & unusual)


def longest_awaited_silence_us(table: SourceTable) -> float:
    """Return how long a silent source is waited for: longer than any stall known, but no longer than a window is."""
    known = max(IDLE_STALLS * table.longest_stall_us, IDLE_WINDOWS * table.task.window.size_us)
    return min(known, float(table.task.max_wait_us))


def sources_behind(table: SourceTable) -> Mask:
    """Return which sources are usually further behind than a window may wait."""
    return np.asarray(table.present & (table.lag > table.task.max_wait_us))


def least_progress_us(table: SourceTable, front_us: int) -> int:
    """Return the progress of the last of the sources that are waited for; the front, if there is none."""
    awaited = table.present & ~idle_sources(table, front_us) & ~sources_behind(table)
    return int(table.progress[awaited].min()) if awaited.any() else front_us


def _stall_chances(table: SourceTable, silence_us: Floats, rate: Floats) -> Floats:
    """Return the chance that a silent source is stalled, against a pause and against having had nothing to send."""
    by_chance = np.exp(-np.minimum(rate * silence_us, 700.0))  # 700: the exponent that float64 still holds
    lasting = np.square(np.minimum(longest_awaited_silence_us(table) / np.maximum(silence_us, 1.0), 1.0))
    stall = table.stalls / table.rows * lasting
    pause = table.pauses / table.rows
    return np.asarray(stall / (stall + pause + by_chance), dtype=np.float64)
