"""Where a view that is added during a run begins: with what comes, or in the past, which is read from history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from catchment.project.options import OptionKind
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US
from catchment.units import format_duration, parse_duration

ALL = "all"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@stored()
@dataclass(frozen=True)
class ViewStart:
    """A begin in the past: at an instant, or so long before the newest event time of each site; else with everything.

    At most one of the two is given.
    """

    at_us: int | None = None
    back_us: int | None = None

    def resolve_us(self, newest_us: int | None) -> int:
        """Return the instant from which on records count, at a site that has read up to an event time."""
        if self.at_us is not None:
            return self.at_us
        if self.back_us is None or newest_us is None:
            return START_OF_TIME_US + 1
        return newest_us + 1 - self.back_us

    @classmethod
    def read(cls, value: Any) -> ViewStart:
        """Read what people write: 'all', a duration, or a timestamp, which is in UTC unless it names an offset."""
        if not isinstance(value, str):
            raise TypeError(value)
        text = value.strip()
        if text.lower() == ALL:
            return cls()
        if text[:4].isdigit() and text[4:5] == "-":
            instant = datetime.fromisoformat(text)
            aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
            return cls(at_us=(aware - _EPOCH) // timedelta(microseconds=1))
        back_us = parse_duration(text)
        if back_us <= 0:
            raise ValueError(value)
        return cls(back_us=back_us)

    def write(self) -> str:
        """Return it as it is read."""
        if self.at_us is not None:
            return write_instant(self.at_us)
        if self.back_us is not None:
            return f"{self.back_us} us" if self.back_us % 1000 else format_duration(self.back_us)
        return ALL


def write_instant(at_us: int) -> str:
    """Return an instant as people write it, in UTC."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat(sep=" ").removesuffix("+00:00")


def view_start() -> OptionKind:
    """Return the kind of option that says where a view begins."""
    expected = "'all', a duration such as '2 hours', or a timestamp such as '2026-03-01 12:00:00'"
    return OptionKind(expected, ViewStart.read, ViewStart.write)
