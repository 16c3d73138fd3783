"""What is known of each source of a stream: how far it is, how fast it is, how late it usually is.

All of it is in event time, so it holds for a live stream and for a replay at any pace, and a source whose clock is
off is simply ahead of the others or behind them. The **front** is where event time stands now: the newest event time
seen, carried on by the clock while nothing arrives. A source that is in order has sent everything up to its
**progress**: its own newest event time, or its heartbeat.

Event times from the future: no record pushes the front further than `max_ahead_us` beyond the clock, and no source
alone pushes it further than the longest wait. A jump is accepted when several sources have made it. Where there is no
front to go by, in a first micro-batch or after a long silence, what lies beyond a long gap is accepted if several
sources have records there, or if no fewer sources lie wholly after the gap than wholly before it.

Invariant: progress never falls, except for sources whose last records turn out to be from the future.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from catchment.arrays import Floats, Ints, Mask
from catchment.site.slack.batch import SourceBatch
from catchment.site.slack.task import SlackTask
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US

MEMORY_WINDOWS = 20.0  # half-life of rates, in window lengths
YOUNG_WINDOWS = 0.1  # silence assumed before the first record of a source, in window lengths
LAG_GAIN = 0.1  # weight of the newest lag in the usual lag
GAP_RECORDS = 6.0  # a silence in which this many records were expected is a gap: a stall or a pause
MAX_ROWS = 100_000.0  # rows counted before all counters per row are halved, so that they follow changes
MAX_PACE_SHARE = 0.5  # largest weight of one micro-batch in the pace
JUMPING_SHARE = 0.1  # share of the sources, and at least two, that must have jumped for a jump to be accepted

RECORDS, TOTAL, SQUARE, SPAN = range(4)  # columns of `sums`
_DERIVED = {"stored": False}


@stored()
@dataclass
class UnconfirmedJumps:
    """The sources that are ahead of what is accepted, and how far; at most one entry per source."""

    newest_us: dict[int, int] = field(default_factory=dict)  # row of a source -> its newest event time

    def accepted_until_us(
        self, rows: Ints, batch: SourceBatch, far_us: int, sources: int, has_front: bool, max_wait_us: int
    ) -> int:
        """Return up to where a batch that goes beyond `far_us` is accepted, and note the sources beyond it."""
        need = ceil(min(max(JUMPING_SHARE * sources, 2), sources))
        beyond = batch.newest_us > far_us
        for row, newest in zip(rows[beyond].tolist(), batch.newest_us[beyond].tolist(), strict=True):
            self.newest_us[row] = max(self.newest_us.get(row, newest), newest)
        if not has_front:
            accepted = _newest_without_strays_us(rows, batch, need, max_wait_us)
        elif len(self.newest_us) < need:
            return far_us
        else:
            accepted = sorted(self.newest_us.values())[-need] + max_wait_us
        self.newest_us = {row: newest for row, newest in self.newest_us.items() if newest > accepted}
        return accepted


def _newest_without_strays_us(rows: Ints, batch: SourceBatch, need: int, max_wait_us: int) -> int:
    """Return the newest event time of a batch but for a few stray records beyond a long gap."""
    order = np.argsort(batch.oldest_us, kind="stable")
    reach = np.maximum.accumulate(batch.newest_us[order])
    gaps = np.flatnonzero(batch.oldest_us[order][1:] - reach[:-1] > max_wait_us) + 1
    for first in reversed(gaps.tolist()):
        above = set(rows[order[first:]].tolist())
        below = set(rows[order[:first]].tolist())
        if len(above) >= need or len(above - below) >= len(below - above) > 0:
            break
        reach = reach[:first]
    return int(reach[-1])


@stored()
@dataclass
class StreamFront:
    """Where the event time of a stream stands, and at which pace it moves against the clock."""

    newest_us: int = START_OF_TIME_US  # the newest event time seen
    began_us: int = START_OF_TIME_US  # the newest event time of the first batch
    seen_at_us: int = START_OF_TIME_US  # the clock at the last batch
    pace: float = 1.0  # event time per time on the clock
    longest_silence_us: float = 0.0  # longest silence of the whole stream

    def move(self, newest_us: int, now_us: int, memory_us: float) -> None:
        """Follow a micro-batch; the pace is an average over `memory_us` of event time."""
        elapsed = now_us - self.seen_at_us
        if self.newest_us == START_OF_TIME_US:
            self.began_us = newest_us
        elif elapsed > 0:
            self.longest_silence_us = max(self.longest_silence_us, float(elapsed))
            weight = min(elapsed * self.pace / memory_us, MAX_PACE_SHARE)
            self.pace += weight * (max(newest_us - self.newest_us, 0) / elapsed - self.pace)
        self.newest_us = max(self.newest_us, newest_us)
        self.seen_at_us = now_us

    def position_us(self, now_us: int, task: SlackTask) -> int:
        """Return the newest event time seen, carried on by the clock while the stream is silent.

        It is carried no further than the longest silence so far, unless the silence exceeds the longest wait. A stream
        that has covered less than a window has not shown its pace yet; only the longest wait carries it on.
        """
        silent = now_us - self.seen_at_us
        if self.newest_us == START_OF_TIME_US or silent <= 0:
            return self.newest_us
        if silent > task.max_wait_us:
            return self.newest_us + int(silent * self.pace)
        if self.newest_us - self.began_us < task.window.size_us:
            return self.newest_us
        carried = min(float(silent), self.longest_silence_us + task.window.slide_us)
        return self.newest_us + int(carried * self.pace)


@stored()
@dataclass(eq=False)
class SourceTable:
    """One row per source, as columns of numbers; names map to rows, and rows are never reused."""

    task: SlackTask
    names: list[str] = field(default_factory=list)
    progress: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    present: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))  # false for sources that have left
    sums: Floats = field(default_factory=lambda: np.zeros((0, 4)))  # records, values, squares, event time; they fade
    lag: Floats = field(default_factory=lambda: np.zeros(0))  # usual distance behind the front
    lag_spread: Floats = field(default_factory=lambda: np.zeros(0))  # mean deviation from it
    front: StreamFront = field(default_factory=StreamFront)
    max_delay_us: int = 0
    longest_stall_us: float = 0.0
    stalls: float = 0.5  # gaps after which a source brought what it owed; with `pauses` and `rows` it begins as a prior
    pauses: float = 0.05  # gaps after which it did not
    rows: float = 100.0  # times that a source was heard
    inversions: float = 0.0  # times that it sent something older than before
    future_records: int = 0
    jumps: UnconfirmedJumps = field(default_factory=UnconfirmedJumps)
    newly_joined: int = 0  # sources that joined since rates were learned last: the last rows of the table
    _row_of: dict[str, int] = field(init=False, repr=False, metadata=_DERIVED)
    _last_sources: tuple[str, ...] = field(init=False, repr=False, metadata=_DERIVED)  # sources of the last batch
    _last_rows: Ints = field(init=False, repr=False, metadata=_DERIVED)  # rows of these sources; -1 for new ones
    _some_left: bool = field(init=False, repr=False, metadata=_DERIVED)

    def __post_init__(self) -> None:
        self._row_of = {name: row for row, name in enumerate(self.names)}
        self._last_sources = ()
        self._last_rows = np.zeros(0, dtype=np.int64)
        self._some_left = not self.present.all()

    @property
    def newest_us(self) -> int:
        """The newest event time seen."""
        return self.front.newest_us

    @property
    def memory_us(self) -> float:
        """The half-life of rates."""
        return MEMORY_WINDOWS * self.task.window.size_us

    @property
    def young_us(self) -> float:
        """The silence that is assumed before the first record of a source."""
        return YOUNG_WINDOWS * self.task.window.size_us

    def observe(self, batch: SourceBatch, now_us: int) -> None:
        """Learn from the rows of a micro-batch."""
        if not len(batch):
            return
        newest_us = int(batch.newest_us.max())
        ceiling_us = self._ceiling_us(batch, newest_us, now_us)
        if newest_us > ceiling_us:
            batch = self._without_future(batch, ceiling_us)
            if not len(batch):
                return
            newest_us = int(batch.newest_us.max())
        rows, newest, oldest, gained = _merge_rows_by_source(self._rows_of(batch), batch)
        if self.newly_joined:
            self._leave_out_first_records(rows, gained)
        self.front.move(newest_us, now_us, self.memory_us)
        self.max_delay_us = max(self.max_delay_us, self.newest_us - int(oldest.min()))
        before = self.progress[rows]
        self._count_rows(len(rows), int(np.count_nonzero(oldest < before)))
        gained[:, SPAN] = self._advances(rows, newest, oldest)
        progress = np.maximum(before, newest)
        self.progress[rows] = progress
        self._learn_lag(rows, (self.newest_us - progress).astype(np.float64))
        self._learn_rates(rows, gained)

    def further_of(self, progress_us: Mapping[str, int]) -> dict[str, int]:
        """Return the sources that are further than was known, of those that state how far they are.

        Only sources that were heard count: what one would send that never sent anything is not known.
        """
        further = {}
        for name, stated_us in progress_us.items():
            row = self._row_of.get(name)
            if row is not None and self.present[row] and int(self.progress[row]) < stated_us:
                further[name] = stated_us
        return further

    def leave(self, name: str) -> None:
        """Note that a source will send no more: nothing is expected of it from here on."""
        if name in self._row_of:
            self.present[self._row_of[name]] = False
            self._some_left = True

    def _rows_of(self, batch: SourceBatch) -> Ints:
        """Return the row of each entry of a batch; new sources join, and sources that had left are present again."""
        if batch.sources is not self._last_sources:
            self._last_sources = batch.sources
            self._last_rows = np.array([self._row_of.get(name, -1) for name in batch.sources], dtype=np.int64)
        rows: Ints = self._last_rows[batch.source_index]
        if rows.min() < 0:
            self._join(batch, np.unique(batch.source_index[rows < 0]))
            rows = self._last_rows[batch.source_index]
        if self._some_left:
            self.present[rows] = True
            self._some_left = not self.present.all()
        return rows

    def _join(self, batch: SourceBatch, new: Ints) -> None:
        """Add rows for new sources, whose progress is their oldest record: before it they had nothing to send."""
        for index in new.tolist():
            name = batch.sources[index]
            self._last_rows[index] = self._row_of[name] = len(self.names)
            self.names.append(name)
        first = np.full(len(batch.sources), END_OF_TIME_US)
        np.minimum.at(first, batch.source_index, batch.oldest_us)
        self.newly_joined = len(new)
        self.progress = np.append(self.progress, first[new])
        self.present = np.append(self.present, np.full(len(new), True))
        self.sums = np.append(self.sums, np.zeros((len(new), 4)), axis=0)
        self.lag = np.append(self.lag, np.zeros(len(new)))
        self.lag_spread = np.append(self.lag_spread, np.zeros(len(new)))

    def _leave_out_first_records(self, rows: Ints, gained: Floats) -> None:
        """Leave the first record of new sources out of their rates: n records span n - 1 intervals."""
        new = rows >= len(self.names) - self.newly_joined
        records = gained[new, :1]
        gained[new] *= np.maximum(records - 1.0, 0.0) / np.maximum(records, 1.0)
        self.newly_joined = 0

    def _ceiling_us(self, batch: SourceBatch, newest_us: int, now_us: int) -> int:
        """Return up to where the event times of a batch are accepted."""
        by_clock_us = now_us + self.task.max_ahead_us
        far_us = self.front_us(now_us) + self.task.max_wait_us
        if newest_us <= far_us:
            return by_clock_us
        has_front = now_us - self.front.seen_at_us <= self.task.max_wait_us
        rows = self._rows_of(batch)
        by_jumps_us = self.jumps.accepted_until_us(
            rows, batch, far_us, len(self.names), has_front, self.task.max_wait_us
        )
        return min(by_clock_us, by_jumps_us)

    def _without_future(self, batch: SourceBatch, ceiling_us: int) -> SourceBatch:
        """Count the rows beyond the ceiling and leave them out: a wrong clock must not close everybody's windows.

        A source that joins with such rows is taken to be where the others are.
        """
        accepted = batch.newest_us <= ceiling_us
        here_us = ceiling_us if self.newest_us == START_OF_TIME_US else min(self.newest_us, ceiling_us)
        self.progress[self.progress > ceiling_us] = here_us
        self.future_records += int(batch.count[~accepted].sum())
        return batch.take(accepted)

    def _count_rows(self, number: int, inverted: int) -> None:
        self.rows += number
        self.inversions += inverted
        if self.rows > MAX_ROWS:
            self.rows /= 2
            self.inversions /= 2
            self.stalls /= 2
            self.pauses /= 2

    def _advances(self, rows: Ints, newest: Ints, oldest: Ints) -> Ints:
        """Return the event time in which each source made its records: its advance, less the time that it paused."""
        before = self.progress[rows]
        known = self.sums[rows]
        advance = newest - before
        gap = advance * known[:, RECORDS] > GAP_RECORDS * (known[:, SPAN] + self.young_us)
        if np.count_nonzero(gap):
            advance[gap] = self._learn_gaps(advance[gap], (oldest - before)[gap])
        return np.asarray(np.maximum(advance, 0))

    def _learn_gaps(self, gap: Ints, skipped: Ints) -> Ints:
        """Tell stalls from pauses: a source that returns with what it owed was stalled, else it paused.

        Return the gaps without pauses, from which a rate must not suffer.
        """
        paused = skipped > 0.5 * gap
        self.pauses += np.count_nonzero(paused)
        self.stalls += np.count_nonzero(~paused)
        self.longest_stall_us = max(self.longest_stall_us, float(np.where(paused, 0, gap).max()))
        return np.where(paused, gap - skipped, gap)

    def _learn_lag(self, rows: Ints, behind: Floats) -> None:
        """Learn how far behind the front each source is when it is heard; the first time is taken as it is."""
        off = behind - self.lag[rows]
        is_known = self.sums[rows, SPAN] > 0
        self.lag[rows] = np.where(is_known, behind - (1.0 - LAG_GAIN) * off, behind)
        spread = self.lag_spread[rows]
        self.lag_spread[rows] = spread + LAG_GAIN * (np.abs(off) - spread)

    def _learn_rates(self, rows: Ints, gained: Floats) -> None:
        self.sums[rows] = self.sums[rows] * fade(gained, self.memory_us) + gained

    def rates(self) -> Floats:
        """Return records, values and squares per microsecond of event time, one row per source."""
        return np.asarray(self.sums[:, :SPAN] / (self.sums[:, SPAN:] + self.young_us))

    def names_of(self, mask: Mask) -> tuple[str, ...]:
        """Return the names of some sources."""
        return tuple(self.names[row] for row in np.flatnonzero(mask)) if mask.any() else ()

    def inverted_share(self) -> float:
        """Return how often, of the times it was heard, a source sent something older than it had sent before."""
        return self.inversions / self.rows

    def front_us(self, now_us: int) -> int:
        """Return where event time stands."""
        return self.front.position_us(now_us, self.task)


def fade(gained: Floats, memory_us: float) -> Floats:
    """Return the weight of what was known before, by the event time that each source gained."""
    return np.exp2(gained[:, SPAN] / -memory_us)[:, None]


def _merge_rows_by_source(rows: Ints, batch: SourceBatch) -> tuple[Ints, Ints, Ints, Floats]:
    """Return one row per source: its row, newest, oldest, and sums with a column for the event time they span."""
    gained = np.zeros((len(rows), 4))
    gained[:, RECORDS] = batch.count
    gained[:, TOTAL] = batch.total
    gained[:, SQUARE] = batch.square
    if (batch.source_index[1:] > batch.source_index[:-1]).all():
        return rows, batch.newest_us, batch.oldest_us, gained
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    newest = np.maximum.reduceat(batch.newest_us[order], first)
    oldest = np.minimum.reduceat(batch.oldest_us[order], first)
    return ordered[first], newest, oldest, np.add.reduceat(gained[order], first)
