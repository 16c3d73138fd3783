"""Whether a stream is more than its site can take, and how its batches are then sampled.

Pure: the monitor learns what each micro-batch held and what its parts cost, and decides how the next one is sampled.
The load equation is that of Babcock et al. (section 2): rows per second times the seconds per row, summed over the
parts of the pipeline. Reading and writing the raw records is load that no sampler saves, unless it can be deferred;
then only examining every arriving row is. What parts cost is in `CostBook`, what to sample is chosen by `ShedPlanner`.

Hysteresis: shedding begins as soon as the load is over `ENTER_LOAD`; it ends after `CALM_BATCHES` batches in a row
under `LEAVE_LOAD`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from catchment.arrays import Floats
from catchment.shedding.cost_book import CostBook
from catchment.shedding.fragment_stats import FragmentStats, SheddableFragment
from catchment.shedding.load_levels import DRAIN_S, ENTER_LOAD, LEAVE_LOAD
from catchment.shedding.rate_planner import GROUP_MASS, ShedPlanner
from catchment.shedding.sampler import TAKE_ALL, Sampler

CALM_BATCHES = 3  # shedding ends after this many calm batches in a row
MIN_BATCH_ROWS = 4_000  # smaller batches are never sampled: nearly all of their cost is the fixed cost of jobs
MAX_MOMENT_ROWS = 100_000  # larger batches that are taken whole skip moment estimation


@dataclass(frozen=True)
class Arrivals:
    """A micro-batch as it arrives: its rows, the seconds in which they came, and the rows that wait behind them."""

    rows: int
    interval_s: float
    backlog_rows: int = 0

    @property
    def arriving_per_s(self) -> float:
        return self.rows / max(self.interval_s, 1e-6)

    @property
    def rows_per_s(self) -> float:
        """Return the rows per second that have to be taken to work off the backlog as well."""
        return (self.rows + self.backlog_rows * self.interval_s / DRAIN_S) / max(self.interval_s, 1e-6)


@dataclass(frozen=True)
class Decision:
    """How each fragment samples one micro-batch, the errors that are expected, and why; no samplers: take it whole."""

    samplers: Mapping[str, Sampler]
    load: float
    errors: Mapping[str, float]
    reason: str

    def sampler(self, fragment: str) -> Sampler:
        return self.samplers.get(fragment, TAKE_ALL)

    @property
    def rates(self) -> dict[str, float]:
        """Return the share of its records that each fragment takes."""
        return {name: sampler.rate for name, sampler in self.samplers.items()}

    @property
    def sheds(self) -> bool:
        return any(sampler.sheds for sampler in self.samplers.values())

    @property
    def highest_rate(self) -> float:
        return max(self.rates.values(), default=1.0)


class LoadMonitor:
    """The load of one stream at one site. `deferrable`: its records can be read again, so that history can wait."""

    def __init__(self, stream: str, fragments: Sequence[SheddableFragment], delta: float, deferrable: bool) -> None:
        self.fragments = tuple(fragments)
        self.deferrable = deferrable
        self.costs = CostBook([f.name for f in fragments], deferrable)
        self.stats = {f.name: FragmentStats() for f in fragments}
        self.planner = ShedPlanner(stream, fragments, delta, self.costs, self.stats)
        self.shedding = False
        self.load = 0.0
        self.calm_batches = 0
        self.arriving_per_s = 0.0
        self.last: Decision | None = None

    def adopt(self, known: LoadMonitor) -> None:
        """Take over what another monitor of the same stream has learned of the fragments that are here too."""
        self.costs.adopt(known.costs)
        self.stats.update({name: stats for name, stats in known.stats.items() if name in self.stats})
        self.shedding = known.shedding
        self.load = known.load
        self.calm_batches = known.calm_batches

    # --- learning -----------------------------------------------------------------------------------------

    def learn_whole(self, rows: int, seconds: Mapping[str, float]) -> None:
        """Learn from the seconds of each part of a batch that was taken whole."""
        self.costs.learn_whole(rows, seconds)

    def learn_sampled(
        self, rows: int, rates: Mapping[str, float], seconds: Mapping[str, float], rows_read: int | None = None
    ) -> None:
        """Learn from the seconds of each part of a batch that was sampled."""
        self.costs.learn_sampled(rows, rates, seconds, rows_read)

    def learn_sizes(self, name: str, rows: float, groups: Floats, event_span_s: float) -> None:
        """Learn how many records reached a fragment (scaled), by group, of this many rows over a span of event time."""
        if rows <= 0:
            return
        stats = self.stats[name]
        stats.learn_sizes(rows, groups, GROUP_MASS)
        event_rows_per_s = rows / max(event_span_s, 1e-3)
        stats.pace = event_rows_per_s / self.arriving_per_s if self.arriving_per_s else 1.0

    def wants_moments(self, rows: int) -> bool:
        """Return whether a batch that is taken whole should return the moments of values.

        They have to be known when shedding begins, and only records show them.
        """
        return rows <= MAX_MOMENT_ROWS

    # --- deciding -----------------------------------------------------------------------------------------

    def decide(self, arrivals: Arrivals) -> Decision:
        """Return how to take the batch that comes."""
        self.load = arrivals.rows_per_s * self.costs.whole_row_s
        self.arriving_per_s = arrivals.arriving_per_s
        self._update_state(arrivals)
        if not self.shedding or arrivals.rows < MIN_BATCH_ROWS:
            decision = Decision({}, self.load, {}, "")
        else:
            decision = self.plan(arrivals.rows_per_s)
        self.last = decision
        return decision

    def plan(self, rows_per_s: float) -> Decision:
        """Return how to sample, whether or not the stream sheds."""
        planned = self.planner.plan(rows_per_s, self.arriving_per_s)
        reason = f"{rows_per_s:,.0f} rows/s are a load of {self.load:.2f}"
        if planned.note:
            reason = f"{reason}; {planned.note}"
        return Decision(planned.samplers, self.load, planned.errors, reason)

    def dry_run(self, rate: float) -> Decision:
        """Return a decision with one uniform rate, for warm-up."""
        return Decision(self.planner.uniform(rate), self.load, {}, "")

    def read_share(self, decision: Decision) -> float:
        """Return about the share of the rows that are read."""
        return self.planner.read_share(decision.samplers)

    @property
    def has_room(self) -> bool:
        """Whether repairs may run beside the stream."""
        return not self.shedding and self.load <= LEAVE_LOAD

    def _update_state(self, arrivals: Arrivals) -> None:
        if self.load > ENTER_LOAD and arrivals.rows >= MIN_BATCH_ROWS:
            self.shedding = True
            self.calm_batches = 0
        elif self.load < LEAVE_LOAD:
            self.calm_batches += 1
            self.shedding = self.shedding and self.calm_batches < CALM_BATCHES
        else:
            self.calm_batches = 0
