"""The time line: instants, windows, and the slices that windows are made of.

An instant is a whole number of microseconds since 1970 (UTC), as in Spark and Arrow. A **slice** is the largest
interval that no window boundary of the sharing queries cuts; so every window is a disjoint union of slices, and a
partial aggregate per slice serves every window that contains it.

Whoever needs the time is given a `Clock`; only `SystemClock` reads the real one.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Protocol

from catchment.errors import TimelineError
from catchment.units import SECOND_US as SECOND_US
from catchment.units import format_duration

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

END_OF_TIME_US = 2**62  # the low mark of a source that will never send again
START_OF_TIME_US = -(2**62)
# Between them, with room for the longest windows, an instant is a date that every table and language can hold.
EARLIEST_DATE_US = -(10**16)  # in the year 1653
LATEST_DATE_US = 2 * 10**17  # in the year 8307

MAX_CUTS = 4096  # of a slicing in one period; above it the windows fit together too badly


class Clock(Protocol):
    """The only source of the time for everything that is not pure."""

    def now_us(self) -> int: ...


class SystemClock:
    """The wall clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000


@dataclass
class ManualClock:
    """A clock that a test or a simulation moves by hand."""

    at_us: int = 0

    def now_us(self) -> int:
        return self.at_us

    def advance(self, by_us: int) -> None:
        self.at_us += by_us


@dataclass(frozen=True, order=True, slots=True)
class Window:
    """The half-open interval [start, end)."""

    start_us: int
    end_us: int

    def __post_init__(self) -> None:
        if self.end_us <= self.start_us:
            raise TimelineError(f"the window [{self.start_us}, {self.end_us}) is empty")


@dataclass(frozen=True, order=True)
class WindowSpec:
    """Windows of one size, one every slide; slide = size is a tumbling window."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if self.size_us <= 0 or self.slide_us <= 0:
            raise TimelineError(
                f"a window needs a positive size and slide, not {self.size_us} and {self.slide_us} microseconds"
            )
        if self.slide_us > self.size_us:
            raise TimelineError(
                f"the slide ({format_duration(self.slide_us)}) is longer than the window "
                f"({format_duration(self.size_us)}): records between windows would belong to none",
                hint="use a slide of at most the window's size",
            )
        object.__setattr__(self, "offset_us", self.offset_us % self.slide_us)

    @classmethod
    def tumbling(cls, size_us: int, offset_us: int = 0) -> WindowSpec:
        return cls(size_us, size_us, offset_us)

    def containing(self, instant_us: int) -> Iterator[Window]:
        """Yield the windows that contain an instant, earliest first."""
        last = (instant_us - self.offset_us) // self.slide_us * self.slide_us + self.offset_us
        count = -(-self.size_us // self.slide_us)
        for start in range(last - (count - 1) * self.slide_us, last + 1, self.slide_us):
            if instant_us < start + self.size_us:
                yield Window(start, start + self.size_us)

    def starts_between(self, first_us: int, end_us: int) -> range:
        """Return where the windows start that start at an instant or after it, and before another."""
        first = -((self.offset_us - first_us) // self.slide_us) * self.slide_us + self.offset_us
        return range(first, max(end_us, first), self.slide_us)

    def cuts(self) -> set[int]:
        """Return the offsets within one slide at which a window starts or ends."""
        return {self.offset_us, (self.offset_us + self.size_us) % self.slide_us}


@dataclass(frozen=True)
class Slicing:
    """A periodic cutting of the time line: inside each period, one slice starts at each cut.

    Law: for every window of every spec it was made from, the slices that meet the window tile it exactly.
    """

    period_us: int
    cuts_us: tuple[int, ...]

    @classmethod
    def of(cls, specs: Iterable[WindowSpec]) -> Slicing:
        """Return the coarsest slicing that no window boundary of the specs crosses."""
        chosen = sorted(set(specs))
        if not chosen:
            raise TimelineError("a slicing needs at least one window")
        period = lcm(*(s.slide_us for s in chosen))
        if sum(period // s.slide_us * len(s.cuts()) for s in chosen) > 2 * MAX_CUTS:
            named = ", ".join(f"{format_duration(s.size_us)}/{format_duration(s.slide_us)}" for s in chosen)
            raise TimelineError(
                f"these windows cut the time line into over {MAX_CUTS} pieces per period: {named}",
                hint="choose window sizes that are multiples of each other",
            )
        cuts = {c + k for s in chosen for c in s.cuts() for k in range(0, period, s.slide_us)}
        return cls(period, tuple(sorted(cuts)))

    def start_of(self, instant_us: int) -> int:
        """Return the start of the slice that contains an instant."""
        base = instant_us // self.period_us * self.period_us
        index = bisect_right(self.cuts_us, instant_us - base) - 1
        return base + (self.cuts_us[index] if index >= 0 else self.cuts_us[-1] - self.period_us)

    def starts_of(self, instants_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the starts of the slices that contain the instants."""
        return self.starts_of_numbers(self.numbers_of(instants_us))

    def numbers_of(self, instants_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the slices that contain the instants: consecutive slices have consecutive numbers."""
        import numpy as np  # commands that only read small files need none of it

        since_us = instants_us - self.cuts_us[0]
        periods = since_us // self.period_us
        if len(self.cuts_us) == 1:
            return periods
        cuts = np.asarray(self.cuts_us, dtype=np.int64) - self.cuts_us[0]
        inside = np.searchsorted(cuts, since_us - periods * self.period_us, side="right") - 1
        return np.asarray(periods * len(cuts) + inside, dtype=np.int64)

    def starts_of_numbers(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the starts of the slices with these numbers."""
        import numpy as np

        if len(self.cuts_us) == 1:
            return numbers * self.period_us + self.cuts_us[0]
        periods, inside = np.divmod(numbers, len(self.cuts_us))
        return np.asarray(periods * self.period_us + np.asarray(self.cuts_us, dtype=np.int64)[inside], dtype=np.int64)

    def end_of(self, slice_start_us: int) -> int:
        """Return the end of the slice that starts at an instant."""
        base = slice_start_us // self.period_us * self.period_us
        index = self.cuts_us.index(slice_start_us - base)
        if index + 1 < len(self.cuts_us):
            return base + self.cuts_us[index + 1]
        return base + self.period_us + self.cuts_us[0]

    def within(self, window: Window) -> Iterator[int]:
        """Yield the starts of the slices of a window, in order."""
        at = self.start_of(window.start_us)
        while at < window.end_us:
            yield at
            at = self.end_of(at)

    def sql(self, micros: str) -> str:
        """Return Spark SQL for the start of the slice that contains `micros`, which is a BIGINT expression."""
        first, *rest = self.cuts_us
        if not rest:
            return f"({micros} - pmod({micros} - {first}L, {self.period_us}L))"
        inside = f"pmod({micros}, {self.period_us}L)"
        steps = " ".join(f"WHEN {inside} >= {cut}L THEN {cut}L" for cut in reversed(self.cuts_us))
        return f"({micros} - {inside} + CASE {steps} ELSE {self.cuts_us[-1] - self.period_us}L END)"
