"""A site of `tests.worlds.world` whose fragment can be suspended and resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from catchment.site.account import BatchAccepted
from catchment.site.backfill import PastAbsorbed, PastBatches
from catchment.site.events import LinkMeasured, LowMarkRaised
from catchment.site.retry import RecordsRetried, RetryBegun
from catchment.site.suspension import (
    BatchSkipped,
    FragmentResumed,
    FragmentSuspended,
    RecordPlace,
    RecordsQuarantined,
)
from catchment.timeline import START_OF_TIME_US
from tests.worlds.world import Record, Site, lifted


class SuspendableSite(Site):
    """Takes batches on which its fragment fails, as the pipeline of a site journals them."""

    @property
    def is_suspended(self) -> bool:
        return "q" in self.core.suspended

    def poison(self, records: Sequence[Record], mark: int) -> None:
        """A batch of which the fragment takes nothing: it fails on it, or was suspended before."""
        counts = tuple(Counter(self.fragment.slicing.start_of(ts) for ts, _, _ in records).items())
        place = RecordPlace("x", "part0.json", 7)
        why = "the value 'x' is not a number"
        from_us = min(slice_us for slice_us, _ in counts)
        first = FragmentSuspended("s", self.batches, "q", from_us, why, "CAST(t AS INT)", place)
        events = [
            *([] if self.is_suspended else [first]),
            BatchSkipped("q", self.batches, counts),
            LowMarkRaised("s", mark),
        ]
        for _ in range(2):  # Spark may replay a batch: it must change nothing
            self.host.submit("s", events, batch=self.batches)
        self.batches += 1
        self.core.validate()

    def resume(self) -> None:
        self.host.submit("resume", [FragmentResumed("q")])

    def resume_from_history(self, newest: int) -> None:
        """Take part again, and read from history what was skipped."""
        past = PastBatches(self.batches, START_OF_TIME_US + 1, newest + 1, self.core.suspended["q"].batch)
        self.host.submit("resume", [FragmentResumed("q", past)])

    def read_past(self, history: Mapping[int, Sequence[Record]], failing: Collection[int] = ()) -> None:
        """Read the next skipped batch from history; on some the fragment fails again."""
        number = self.core.backfills["q"].next_batch
        assert number is not None
        records = history[number]
        lost: tuple[tuple[int, int], ...] = ()
        if number in failing:
            lost = ((min(ts for ts, _, _ in records), max(ts for ts, _, _ in records) + 1),)
            records = []
        event = lifted(self.fragment, records)
        past = PastAbsorbed("q", number, number + 1, event.partials, event.records, lost)
        for _ in range(2):  # a second copy must change nothing
            self.host.submit("backfill", [past])
        self.core.validate()

    def block(self, blocked: bool) -> None:
        self.host.submit("tick", [LinkMeasured(None, 0, blocked)])


class SettingAsideSite(SuspendableSite):
    """A site whose fragment sets the records aside that it fails on, and may try them again.

    `quarantine` is what lies on its disk, by try and batch: a crash leaves it as it is.
    """

    quarantine: dict[tuple[int, int], list[Record]]

    def batch_setting_aside(self, records: Sequence[Record], mark: int, failing: Collection[Record]) -> None:
        """A batch of which the fragment takes all records that it does not fail on."""
        bad = [record for record in records if record in failing]
        if bad:
            self.quarantine[0, self.batches] = bad
        events = [
            BatchAccepted("s", self.batches, len(records)),
            lifted(self.fragment, [record for record in records if record not in failing]),
            RecordsQuarantined("q", self.batches, self._per_slice(bad)),
            LowMarkRaised("s", mark),
        ]
        for _ in range(2):
            self.host.submit("s", events, batch=self.batches)
        self.batches += 1

    def begin_retry(self) -> None:
        """Try what was set aside so far again."""
        self.host.submit("retry", [RetryBegun("q", self.batches)])

    def retry_some(self, failing: Collection[Record], batches: int, crash: Callable[[str], bool]) -> None:
        """Try the records of some batches again, as the pipeline of a site does; it may crash in the middle."""
        retry = self.core.retry_of("q")
        first = retry.next_batch
        end = min(first + batches, retry.end)
        found = [
            r for (of, n), kept in self.quarantine.items() if first <= n < end and retry.is_current(of, n) for r in kept
        ]
        bad = [record for record in found if record in failing]
        good = [record for record in found if record not in failing]
        self.quarantine.pop((retry.attempt, first), None)
        if bad:
            self.quarantine[retry.attempt, first] = bad
        if crash("before the entry"):
            self.crash()
            return
        taken = lifted(self.fragment, good)
        event = RecordsRetried("q", retry.attempt, first, end, taken.partials, taken.records, self._per_slice(good))
        for _ in range(2):  # a second copy must change nothing
            self.host.submit("retry", [event])
        if crash("after the entry"):
            self.crash()
            return
        self.forget_tried()

    def forget_tried(self) -> None:
        """Remove what does not count any more."""
        retry = self.core.retry_of("q")
        self.quarantine = {place: kept for place, kept in self.quarantine.items() if retry.is_current(*place)}

    def _per_slice(self, records: Sequence[Record]) -> tuple[tuple[int, int], ...]:
        return tuple(Counter(self.fragment.slicing.start_of(ts) for ts, _, _ in records).items())
