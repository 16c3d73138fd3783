"""What is known of each source of a stream: how far it is, how fast it is, how late it usually is.

All of it is in event time, so it holds for a live stream and for a replay at any pace, and a source whose
clock is off is simply one that is ahead of the others or behind them. The **front** is where event time
stands now: the newest event time seen, carried on by the clock while nothing arrives. A source that is in
order has sent everything up to its **progress**, its own newest event time (or a heartbeat).

Invariant: progress never falls, no record pushes it further than `max_ahead_us` beyond the clock, and no source alone
pushes the front further than a window may wait: a jump is believed when several sources have made it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.site.slack.batch import Batch, Floats, Ints
from catchment.site.slack.jumps import Jumps
from catchment.site.slack.setting import Setting
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US

Mask = npt.NDArray[np.bool_]

MEMORY_WINDOWS = 20.0  # rates are averages over this many window lengths
FAST = 8.0  # the rate of the last while is over a memory this many times shorter
YOUNG_WINDOWS = 0.1  # a source that has just joined is judged as if it had been silent this long before
LAG_GAIN = 0.1
GAP_RECORDS = 6.0  # a silence in which this many records were expected is a gap: a stall or a pause

MAX_ROWS = 100_000.0

RECORDS, TOTAL, SQUARE, SPAN = range(4)  # columns of `sums`
_ARRAYS = ("progress", "present", "sums", "fast", "lag", "lag_spread", "unsteady")
_SCALARS = ("newest_us", "began_us", "seen_at_us", "pace", "quiet_us", "max_delay_us", "longest_stall_us", "stalls",
            "pauses", "rows", "inversions", "future_records")  # fmt: skip


class SourceTable:
    """One row a source, as columns of numbers; names map to rows and rows are never reused."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._memory_us = MEMORY_WINDOWS * setting.window.size_us
        self._young_us = YOUNG_WINDOWS * setting.window.size_us
        self.names: list[str] = []
        self._index: dict[str, int] = {}
        self._last: tuple[tuple[str, ...], Ints] = ((), np.zeros(0, dtype=np.int64))
        self._strangers = False  # whether the names of the last batch may hold new ones
        self._left = False  # whether a source may be absent
        self._joined = 0  # how many sources joined with the batch at hand
        self.tracks_drift = False  # whether `fast` is kept: it is needed only to impute
        self.progress: Ints = np.zeros(0, dtype=np.int64)
        self.present: Mask = np.zeros(0, dtype=bool)
        self.sums: Floats = np.zeros((0, 4))  # of records, values, squares and event time, older ones fading
        self.fast: Floats = np.zeros((0, 4))  # the same, fading faster
        self.lag: Floats = np.zeros(0)  # usual distance behind the front
        self.lag_spread: Floats = np.zeros(0)
        self.unsteady: Floats = np.zeros(0)  # mean square of the relative drift of the rate
        self.newest_us = START_OF_TIME_US
        self.began_us = START_OF_TIME_US  # the newest event time of the first batch
        self.seen_at_us = START_OF_TIME_US
        self.pace = 1.0  # event time per time on the clock
        self.quiet_us = 0.0  # longest silence of the whole stream so far
        self.max_delay_us = 0
        self.longest_stall_us = 0.0
        self.stalls, self.pauses, self.rows, self.inversions = 0.5, 0.05, 100.0, 0.0  # the first three: a prior
        self.future_records = 0
        self._jumps = Jumps(setting.max_wait_us)

    def observe(self, batch: Batch, now_us: int) -> None:
        """Take the rows of a micro-batch, each source's into its row."""
        if not len(batch):
            return
        newest_us = int(batch.newest_us.max())
        ceiling_us = self._ceiling_us(batch, newest_us, now_us)
        if newest_us > ceiling_us:
            batch = self._set_future_aside(batch, ceiling_us)
            if not len(batch):
                return
            newest_us = int(batch.newest_us.max())
        rows, newest, oldest, gained = _by_source(self._rows_of(batch), batch)
        if self._joined:
            self._leave_out_first(rows, gained)
        self._move_front(newest_us, int(oldest.min()), now_us)
        before, known = self.progress[rows], self.sums[rows]
        advance = newest - before
        self._count_rows(len(rows), int(np.count_nonzero(oldest < before)))
        long = advance * known[:, RECORDS] > GAP_RECORDS * (known[:, SPAN] + self._young_us)
        if np.count_nonzero(long):
            advance[long] = self._after_gap(advance[long], (oldest - before)[long])
        self.progress[rows] = now_at = np.maximum(before, newest)
        self._learn_lag(rows, (self.newest_us - now_at).astype(np.float64), known[:, SPAN])
        gained[:, SPAN] = np.maximum(advance, 0)
        keep = np.exp2(gained[:, SPAN] / -self._memory_us)[:, None]
        self.sums[rows] = known * keep + gained
        if self.tracks_drift:
            self.fast[rows] = self.fast[rows] * keep**FAST + gained

    def _count_rows(self, number: int, inverted: int) -> None:
        """What is counted a row fades, so that a stream that changes its habits is seen to."""
        self.rows += number
        self.inversions += inverted
        if self.rows > MAX_ROWS:
            self.rows, self.inversions = self.rows / 2, self.inversions / 2
            self.stalls, self.pauses = self.stalls / 2, self.pauses / 2

    def leave(self, name: str) -> None:
        """The source will send no more: nothing is expected of it from here on."""
        if name in self._index:
            self.present[self._index[name]] = False
            self._left = True

    def _rows_of(self, batch: Batch) -> Ints:
        if batch.sources is not self._last[0]:
            self._last = (batch.sources, np.array([self._index.get(n, -1) for n in batch.sources], dtype=np.int64))
            self._strangers = bool((self._last[1] < 0).any())
        rows: Ints = self._last[1][batch.source]
        if self._strangers and rows.min() < 0:
            self._join(batch, np.unique(batch.source[rows < 0]))
            rows = self._last[1][batch.source]
        if self._left:
            self.present[rows] = True
            self._left = not self.present.all()
        return rows

    def _join(self, batch: Batch, new: Ints) -> None:
        """Rows for new sources; before its first record a source had nothing to tell."""
        for place in new.tolist():
            self._last[1][place] = self._index[batch.sources[place]] = len(self.names)
            self.names.append(batch.sources[place])
        first = np.full(len(batch.sources), END_OF_TIME_US)
        np.minimum.at(first, batch.source, batch.oldest_us)
        self._joined = missing = len(self.names) - len(self.present)
        self.progress = np.append(self.progress, first[new])
        self.present = np.append(self.present, np.full(missing, True))
        self.sums = np.append(self.sums, np.zeros((missing, 4)), axis=0)
        self.fast = np.append(self.fast, np.zeros((missing, 4)), axis=0)
        self.lag, self.lag_spread, self.unsteady = (
            np.append(column, np.zeros(missing)) for column in (self.lag, self.lag_spread, self.unsteady)
        )

    def _leave_out_first(self, rows: Ints, gained: Floats) -> None:
        """Of n records in order only n - 1 fall into the time since the first: rates must not count it."""
        new = rows >= len(self.names) - self._joined
        gained[new] *= np.maximum(gained[new, :1] - 1.0, 0.0) / np.maximum(gained[new, :1], 1.0)
        self._joined = 0

    def _ceiling_us(self, batch: Batch, newest_us: int, now_us: int) -> int:
        """Up to where event times are believed. Where nothing else has come for the longest wait, a jump is."""
        clock_us = now_us + self.setting.max_ahead_us
        far_us = self.front_us(now_us) + self.setting.max_wait_us
        if newest_us <= far_us:
            return clock_us
        lonely = now_us - self.seen_at_us > self.setting.max_wait_us
        rows = self._rows_of(batch)
        return min(clock_us, self._jumps.believed_us(rows, batch, far_us, len(self.names), lonely))

    def _set_future_aside(self, batch: Batch, ceiling_us: int) -> Batch:
        """Rows from the future count, and push nothing: a wrong clock must not close everybody's windows. A source that
        joins with them is taken to be where the others are."""
        kept = batch.newest_us <= ceiling_us
        here_us = ceiling_us if self.newest_us == START_OF_TIME_US else min(self.newest_us, ceiling_us)
        self.progress[self.progress > ceiling_us] = here_us
        self.future_records += int(batch.count[~kept].sum())
        return batch.take(kept)

    def _move_front(self, newest_us: int, oldest_us: int, now_us: int) -> None:
        elapsed = now_us - self.seen_at_us
        if self.newest_us == START_OF_TIME_US:
            self.began_us = newest_us
        elif elapsed > 0:
            self.quiet_us = max(self.quiet_us, float(elapsed))
            share = min(elapsed * self.pace / self._memory_us, 0.5)
            self.pace += share * (max(newest_us - self.newest_us, 0) / elapsed - self.pace)
        self.newest_us, self.seen_at_us = max(self.newest_us, newest_us), now_us
        self.max_delay_us = max(self.max_delay_us, self.newest_us - oldest_us)

    def _after_gap(self, gap: Ints, skipped: Ints) -> Ints:
        """A source that returns after a gap was stalled if it brings what it owed; if not, it was pausing,
        and its rate is not to suffer for it."""
        paused = skipped > 0.5 * gap
        self.pauses += np.count_nonzero(paused)
        self.stalls += np.count_nonzero(~paused)
        self.longest_stall_us = max(self.longest_stall_us, float(np.where(paused, 0, gap).max()))
        return np.where(paused, gap - skipped, gap)

    def _learn_lag(self, rows: Ints, behind: Floats, span: Floats) -> None:
        """How far behind the front each source is when it is heard; the first time is taken as it is."""
        off = behind - self.lag[rows]
        self.lag[rows] = np.where(span > 0, behind - (1.0 - LAG_GAIN) * off, behind)
        spread = self.lag_spread[rows]
        self.lag_spread[rows] = spread + LAG_GAIN * (np.abs(off) - spread)

    def learn_drift(self) -> None:
        """How far the rates of the last while stray from the long ones: the doubt in what is imputed."""
        slow = self.sums[:, TOTAL] * self.fast[:, SPAN]
        quick = self.fast[:, TOTAL] * self.sums[:, SPAN]
        stray = np.where(slow != 0.0, quick / np.where(slow != 0.0, slow, 1.0) - 1.0, 0.0)
        share = self.setting.window.slide_us / self._memory_us
        self.unsteady += share * (np.minimum(stray * stray, 1.0) - self.unsteady)

    def rates(self) -> Floats:
        """Records, values and squares per microsecond of event time, a row a source."""
        return np.asarray(self.sums[:, :SPAN] / (self.sums[:, SPAN:] + self._young_us))

    def named(self, mask: Mask) -> tuple[str, ...]:
        """The names of some sources."""
        return tuple(self.names[row] for row in np.flatnonzero(mask)) if mask.any() else ()

    def inverted_share(self) -> float:
        """Of the times a source was heard, how often it sent something older than it had sent before."""
        return self.inversions / self.rows

    def front_us(self, now_us: int) -> int:
        """Where event time stands: the newest seen, carried on while the stream is no longer silent than it
        was before, or so long that waiting for it has no end. A stream of which less than a window was seen has not
        shown its pace or its sources yet, and is not carried on but by the longest wait."""
        silent = now_us - self.seen_at_us
        if self.newest_us == START_OF_TIME_US or silent <= 0:
            return self.newest_us
        lasting = silent > self.setting.max_wait_us
        if not lasting and self.newest_us - self.began_us < self.setting.window.size_us:
            return self.newest_us
        carried = silent if lasting else min(float(silent), self.quiet_us + self.setting.window.slide_us)
        return self.newest_us + int(carried * self.pace)

    def snapshot(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        scalars = {name: getattr(self, name) for name in _SCALARS}
        return {"names": list(self.names), "jumps": self._jumps.snapshot(), **arrays, **scalars}

    def restore(self, state: dict[str, Any]) -> None:
        self.names = list(state["names"])
        self._jumps.restore(state["jumps"])
        self._index = {name: row for row, name in enumerate(self.names)}
        for name in _ARRAYS:
            like: npt.NDArray[Any] = getattr(self, name)
            setattr(self, name, np.array(state[name], dtype=like.dtype).reshape(-1, *like.shape[1:]))
        for name in _SCALARS:
            setattr(self, name, state[name])
        self._last, self._left = ((), np.zeros(0, dtype=np.int64)), not self.present.all()


def _by_source(rows: Ints, batch: Batch) -> tuple[Ints, Ints, Ints, Floats]:
    """One row a source: newest, oldest, and sums with room for the event time they span."""
    gained = np.zeros((len(rows), 4))
    gained[:, RECORDS], gained[:, TOTAL], gained[:, SQUARE] = batch.count, batch.total, batch.square
    if (batch.source[1:] > batch.source[:-1]).all():
        return rows, batch.newest_us, batch.oldest_us, gained
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    newest = np.maximum.reduceat(batch.newest_us[order], first)
    oldest = np.minimum.reduceat(batch.oldest_us[order], first)
    return ordered[first], newest, oldest, np.add.reduceat(gained[order], first)
