"""What vectorised expressions compute of instants and days, in UTC: the answers of Spark, or an error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.arrays import Ints
from catchment.vectorised.values import Value

_DAY_US = 86_400_000_000
_THURSDAY = 3  # the weekday of 1970-01-01, where Monday is 0


def to_day(value: Value, type_: pa.DataType) -> Value:
    """Return the day of an instant in UTC."""
    return _on_micros(value, lambda micros: micros // _DAY_US).cast(pa.int32()).cast(type_)


def to_micros(value: Value) -> Value:
    """Return unix_micros(value)."""
    return value.cast(pa.int64())


def to_millis(value: Value) -> Value:
    """Return unix_millis(value), rounded down."""
    return _on_micros(value, lambda micros: micros // 1_000)


def to_seconds(value: Value) -> Value:
    """Return unix_seconds(value), rounded down."""
    return _on_micros(value, lambda micros: micros // 1_000_000)


def hour(value: Value) -> Value:
    """Return the hour of an instant in UTC."""
    return _on_micros(value, lambda micros: micros // 3_600_000_000 % 24).cast(pa.int32())


def minute(value: Value) -> Value:
    """Return the minute of an instant."""
    return _on_micros(value, lambda micros: micros // 60_000_000 % 60).cast(pa.int32())


def second(value: Value) -> Value:
    """Return the second of an instant."""
    return _on_micros(value, lambda micros: micros // 1_000_000 % 60).cast(pa.int32())


def year(value: Value) -> Value:
    """Return the year of a day."""
    return pc.year(value).cast(pa.int32())


def month(value: Value) -> Value:
    """Return the month of a day."""
    return pc.month(value).cast(pa.int32())


def day(value: Value) -> Value:
    """Return the day of the month of a day."""
    return pc.day(value).cast(pa.int32())


def truncate(value: Value, unit_us: Value) -> Value:
    """Return an instant cut to whole units of this many microseconds."""
    unit: int = unit_us.as_py()
    return _on_micros(value, lambda micros: micros // unit * unit).cast(value.type)


def _on_micros(value: Value, compute: Callable[[np.ndarray], np.ndarray]) -> Value:
    """Return what is computed of whole numbers of microseconds or days; null stays null."""
    assert isinstance(value, pa.Array), "instants that are constants are not computed with"
    whole = value.cast(pa.int64())
    missing = np.asarray(whole.is_null()) if whole.null_count else None
    return pa.array(compute(np.asarray(whole.fill_null(0) if whole.null_count else whole)), mask=missing)


def from_seconds(value: Value) -> Value:
    """Return timestamp_seconds(value) of an integer; one that is too large is an error."""
    return _from_units(value, 1_000_000)


def from_millis(value: Value) -> Value:
    """Return timestamp_millis(value); one that is too large is an error."""
    return _from_units(value, 1_000)


def from_micros(value: Value) -> Value:
    """Return timestamp_micros(value)."""
    return _from_units(value, 1)


def _from_units(value: Value, unit_us: int) -> Value:
    return pc.multiply_checked(value.cast(pa.int64()), unit_us).cast(pa.timestamp("us", "UTC"))


def _on_days(value: Value, compute: Callable[[Ints], Ints]) -> Value:
    return _on_micros(value.cast(pa.int32()), compute)


def day_of_week(value: Value) -> Value:
    """Return dayofweek(value) of a day: 1 is Sunday."""
    return _on_days(value, lambda days: (days + _THURSDAY + 1) % 7 + 1).cast(pa.int32())


def weekday(value: Value) -> Value:
    """Return weekday(value) of a day: 0 is Monday."""
    return _on_days(value, lambda days: (days + _THURSDAY) % 7).cast(pa.int32())


def day_of_year(value: Value) -> Value:
    """Return dayofyear(value) of a day."""
    return pc.day_of_year(value).cast(pa.int32())


def week_of_year(value: Value) -> Value:
    """Return weekofyear(value) of a day: weeks begin on Monday, and the first has more than three days of its year."""
    return pc.iso_week(value).cast(pa.int32())


def quarter(value: Value) -> Value:
    """Return the quarter of a day."""
    return pc.quarter(value).cast(pa.int32())


def add_days(value: Value, days: Value) -> Value:
    """Return the day so many days later; one that is too far is an error."""
    return pc.add_checked(value.cast(pa.int32()), days.cast(pa.int32())).cast(pa.date32())


def count_days(end: Value, start: Value) -> Value:
    """Return datediff(end, start) of days."""
    return pc.subtract_checked(end.cast(pa.int32()), start.cast(pa.int32()))


def first_day(value: Value, unit: Value) -> Value:
    """Return the first day of the week, month, quarter or year of a day."""
    name: str = unit.as_py()
    return _on_days(value, lambda days: _first_days(days, name)).cast(pa.int32()).cast(pa.date32())


def _first_days(days: Ints, unit: str) -> Ints:
    if unit == "WEEK":
        return days - (days + _THURSDAY) % 7
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    length = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}[unit]
    first = months // length * length
    return np.asarray(first.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64))
