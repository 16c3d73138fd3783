"""Whether what lands is more than its receiver can merge, and which groups are then merged now.

Pure: told what waits, what was merged and how long that took, it decides which share of the groups of each fragment is
merged. The load is rows per second times seconds per merged row; what waits behind a run counts as if it were to be
worked off in `DRAIN_S`. What a row costs is learned from entries of about the usual size: a small one that was slow is
no overload. Deferring begins above `ENTER_LOAD`, if more than `MIN_WAITING_S` of work waits, and ends after `CALM_S`
under `LEAVE_LOAD`; in between shares change only where the load leaves its range, because groups that come and go
within a window are complete in none of its answers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from catchment.shedding.group_shares import DeferrableFragment, choose_shares
from catchment.shedding.load_levels import DRAIN_S, ENTER_LOAD, LEAVE_LOAD
from catchment.timeline import SECOND_US

TARGET_LOAD = 0.65  # the load that shares are chosen for
TOO_LITTLE_LOAD = 0.45  # below it more groups are merged, while the whole load is still too high
CALM_S = 3.0  # deferring ends after so long under LEAVE_LOAD
MIN_WAITING_S = 5.0  # seconds of work that wait before anything is deferred
PART_S = 1.0  # seconds of work of deferred partials that are merged at a time
MAX_PART_ROWS = 200_000
MEMORY_S = 5.0  # arrivals of so long ago count half
COST_ENTRIES = 8  # the last entries, of which some say what a row costs
MIN_COST_SHARE = 0.25  # entries with fewer rows, as a share of the largest of them, do not


@dataclass
class DecayedRate:
    """An amount per second over the last while; what is old counts less."""

    amount: float = 0.0
    seconds: float = 0.0

    def note(self, amount: float, seconds: float) -> None:
        decay = 0.5 ** (seconds / MEMORY_S)
        self.amount = decay * self.amount + amount
        self.seconds = decay * self.seconds + seconds

    @property
    def per_s(self) -> float:
        return self.amount / self.seconds if self.seconds > 0.0 else 0.0


@dataclass
class MergeLoad:
    """The load of one receiver of partials."""

    load: float = 0.0  # if everything were merged at once
    shares: Mapping[str, float] = field(default_factory=dict)  # of the fragments that are deferred in part
    _arrived: DecayedRate = field(default_factory=DecayedRate)  # bytes
    _rows: Counter[str] = field(default_factory=Counter)  # rows of the last runs by fragment, decayed
    _run_bytes: float = 0.0  # bytes of these runs
    _entries: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=COST_ENTRIES))  # rows, seconds
    _behind_bytes: int = 0
    _decided_at_us: int | None = None
    _calm_since_us: int | None = None

    @property
    def is_deferring(self) -> bool:
        return bool(self.shares)

    @property
    def has_room(self) -> bool:
        """Whether what was deferred may be merged, where nothing else waits."""
        return not self.is_deferring and self.load <= ENTER_LOAD

    @property
    def row_s(self) -> float:
        """The seconds that a merged row takes, with all that follows from it: in the last two entries that tell."""
        least = MIN_COST_SHARE * max((rows for rows, _ in self._entries), default=0)
        telling = [entry for entry in self._entries if entry[0] >= least][-2:]
        return sum(seconds for _, seconds in telling) / sum(rows for rows, _ in telling) if telling else 0.0

    @property
    def part_rows(self) -> int:
        """How many rows of deferred partials are merged at a time, so that nothing waits long for them."""
        row_s = self.row_s
        return max(1, min(MAX_PART_ROWS, round(PART_S / row_s) if row_s else MAX_PART_ROWS))

    def learn(self, merged_rows: int, busy_s: float) -> None:
        """Learn that merging these rows, and what follows from it, took so many seconds."""
        if merged_rows:
            self._entries.append((merged_rows, busy_s))

    def decide(
        self,
        fragments: Mapping[str, DeferrableFragment],
        rows: Mapping[str, int],
        run_bytes: int,
        behind_bytes: int,
        now_us: int,
    ) -> Mapping[str, float]:
        """Return the shares of the groups that are merged of a run; fragments that are not named are merged whole.

        The run holds these rows by fragment and so many bytes; more bytes wait behind it.
        """
        self._note_arrivals(rows, run_bytes, behind_bytes, now_us)
        loads = self._loads(behind_bytes)
        self.load = sum(loads.values())
        waiting_s = self._rows_in(run_bytes + behind_bytes) * self.row_s
        self._update(fragments, loads, waiting_s, now_us)
        return self.shares

    def _note_arrivals(self, rows: Mapping[str, int], run_bytes: int, behind_bytes: int, now_us: int) -> None:
        if self._decided_at_us is not None:
            arrived = run_bytes + behind_bytes - self._behind_bytes
            self._arrived.note(max(arrived, 0), max(now_us - self._decided_at_us, 0) / SECOND_US)
        self._decided_at_us = now_us
        self._behind_bytes = behind_bytes
        if rows:
            self._rows = Counter({name: count / 2 for name, count in self._rows.items()})
            self._rows.update(rows)
            self._run_bytes = self._run_bytes / 2 + run_bytes

    def _rows_in(self, size_bytes: float) -> float:
        return size_bytes * self._rows.total() / self._run_bytes if self._run_bytes else 0.0

    def _loads(self, behind_bytes: int) -> dict[str, float]:
        """Return the load of each fragment if all of it were merged."""
        rows_per_s = self._rows_in(self._arrived.per_s + behind_bytes / DRAIN_S)
        total = self._rows.total()
        return {name: rows_per_s * count / total * self.row_s for name, count in self._rows.items()} if total else {}

    def _update(
        self,
        fragments: Mapping[str, DeferrableFragment],
        loads: Mapping[str, float],
        waiting_s: float,
        now_us: int,
    ) -> None:
        known = {name: share for name, share in self.shares.items() if name in fragments}
        self.shares = known
        if self.load >= LEAVE_LOAD:
            self._calm_since_us = None
        elif self._calm_since_us is None:
            self._calm_since_us = now_us
        if not known:
            if self.load > ENTER_LOAD and waiting_s > MIN_WAITING_S:
                self.shares = _below_one(choose_shares(fragments, loads, TARGET_LOAD))
            return
        if self._calm_since_us is not None and now_us - self._calm_since_us >= CALM_S * SECOND_US:
            self.shares = {}
            return
        present = sum(load * known.get(name, 1.0) for name, load in loads.items())
        if present > ENTER_LOAD or (present < TOO_LITTLE_LOAD and self.load > LEAVE_LOAD):
            chosen = _below_one(choose_shares(fragments, loads, TARGET_LOAD))
            self.shares = chosen or known


def _below_one(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: share for name, share in shares.items() if share < 1.0}
