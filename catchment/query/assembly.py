"""Windows that are assembled from slices at the center, because they are not all of one size.

Sites aggregate such a view per slice and key, as they do any other. A row of it belongs to the slice that its window
ends in, and follows from the slices around that one: from `lookback_us` before it to `lookahead_us` after it.

- A session is as long as the records of a key follow each other in less than a gap. Slices are as long as the gap, so
  that all records of a key in one slice are of one session: what a site sends of a slice and key is a part of a session
  with its first and last instant, and parts that are less than the gap apart are one session.
- A growing window begins with each period and is answered at each step of it, until the period ends.
- A calendar day of a time zone is 23 to 25 hours long; weeks and months are several days. They are made of slices of 15
  minutes, because the offsets of time zones are multiples of that (since 1973): so each midnight is the end of a slice.
  Weeks and months of UTC are made of days. A slice is read for one period only, by the slice that this ends in.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from catchment.errors import TimelineError
from catchment.units import SECOND_US, format_duration

MAX_SLICES = 200  # of a lookback: every row looks at so many slices
MINUTE_US = 60 * SECOND_US
DAY_US = 24 * 60 * MINUTE_US
UNITS = {"day": 1, "week": 7, "month": 31}  # of calendar windows, each with how many days it has at most
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_GAPS = 24  # how many gaps a session lasts at most, unless the view says otherwise


@dataclass(frozen=True)
class Sessions:
    """Sessions that end where no record of their key follows within a gap; longer ones lose what is before `max_us`."""

    gap_us: int
    max_us: int

    def __post_init__(self) -> None:
        if self.max_us < self.gap_us or self.max_us > MAX_SLICES * self.gap_us:
            gap, longest = format_duration(self.gap_us), format_duration(self.max_us)
            raise TimelineError(
                f"sessions with gaps of {gap} cannot last up to {longest}",
                hint=f"max_session is from 1 to {MAX_SLICES} times the gap",
            )

    @property
    def slice_us(self) -> int:
        return self.gap_us

    @property
    def lookback_us(self) -> int:
        return -(-self.max_us // self.gap_us) * self.gap_us

    @property
    def lookahead_us(self) -> int:
        return self.gap_us

    def __str__(self) -> str:
        return f"sessions with gaps of {format_duration(self.gap_us)}, of up to {format_duration(self.max_us)}"


@dataclass(frozen=True)
class GrowingWindows:
    """Windows that begin with each period of `size_us` and end with each of its steps."""

    step_us: int
    size_us: int

    def __post_init__(self) -> None:
        if self.step_us <= 0 or self.size_us % self.step_us or not 1 < self.size_us // self.step_us <= MAX_SLICES:
            raise TimelineError(
                f"a window cannot grow by {format_duration(self.step_us)} up to {format_duration(self.size_us)}",
                hint=f"the size is a whole number of steps, from 2 to {MAX_SLICES}",
            )

    @property
    def slice_us(self) -> int:
        return self.step_us

    @property
    def lookback_us(self) -> int:
        return self.size_us - self.step_us

    @property
    def lookahead_us(self) -> int:
        return 0

    def start_us(self, slice_us: int) -> int:
        """Return where the window begins that ends with the slice at an instant."""
        return slice_us // self.size_us * self.size_us

    def __str__(self) -> str:
        return f"growing by {format_duration(self.step_us)} up to {format_duration(self.size_us)}"


@dataclass(frozen=True)
class CalendarPeriods:
    """The days, weeks or months of a time zone, from midnight to midnight; weeks begin with Monday."""

    unit: str
    zone: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise TimelineError(
                f"there are no calendar windows of a {self.unit!r}", hint=f"possible: {', '.join(map(repr, UNITS))}"
            )
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError) as cause:
            raise TimelineError(
                f"there is no time zone {self.zone!r}", hint="write a name such as 'Europe/Berlin' or 'UTC'"
            ) from cause

    @property
    def slice_us(self) -> int:
        return DAY_US if self.zone == "UTC" and self.unit != "day" else 15 * MINUTE_US

    @property
    def lookback_us(self) -> int:
        return UNITS[self.unit] * DAY_US + 60 * MINUTE_US

    @property
    def lookahead_us(self) -> int:
        return 0

    def start_us(self, slice_us: int) -> int | None:
        """Return where the period begins that ends with the slice at an instant; None where none ends with it."""
        last = self._local_date(slice_us + self.slice_us - 1)
        following = self._local_date(slice_us + self.slice_us)
        return None if self._first(following) == self._first(last) else self._midnight_us(self._first(last))

    def last_slice_us(self, slice_us: int) -> int:
        """Return the slice that the period ends with which a slice is in."""
        first = self._first(self._local_date(slice_us))
        following = self._first(first + timedelta(days=UNITS[self.unit]))
        return (self._midnight_us(following) - 1) // self.slice_us * self.slice_us

    def _first(self, day: date) -> date:
        """Return the first day of the period that a day is in."""
        if self.unit == "month":
            return day.replace(day=1)
        return day - timedelta(days=day.weekday()) if self.unit == "week" else day

    def _midnight_us(self, day: date) -> int:
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return (midnight - EPOCH) // timedelta(microseconds=1)

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    def _local_date(self, instant_us: int) -> date:
        return (EPOCH + timedelta(microseconds=instant_us)).astimezone(self._zone).date()

    def __str__(self) -> str:
        return f"calendar {self.unit}s of {self.zone}"


Assembly = Sessions | GrowingWindows | CalendarPeriods
