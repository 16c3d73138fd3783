"""Text as values of a type: only what Spark would certainly read in the same way.

Whatever else there is, such as `2024-1-1`, `+5` or `inf`, is marked as doubtful, and its record is left to Spark, which
reads it or refuses it. So every shortcut here may be too strict, and none may be too generous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from catchment.arrays import Ints, Mask
from catchment.query.types import TIMESTAMP

PIECES = 16  # into which values are cut, again and again, to find those that Arrow refuses
_DATE_LENGTH = 10  # 2024-12-31
_SECONDS_LENGTH = 19  # 2024-12-31T23:59:59
_MICROS_LENGTH = 26  # 2024-12-31T23:59:59.123456
_ZONE_LENGTH = 6  # +05:30
_WHOLE = r"^-?[0-9]+$"
_DOUBLE = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_BOOLEAN = r"^(?i:true|false)$"


@dataclass(frozen=True)
class ReadValues:
    """Values of a type, null where the text was null or is doubtful."""

    values: pa.Array
    doubtful: Mask


def is_readable(type_: pa.DataType) -> bool:
    """Return whether text is read as values of a type here."""
    return bool(
        pa.types.is_signed_integer(type_)
        or type_ in (pa.string(), pa.float64(), pa.bool_(), pa.date32())
        or type_ == TIMESTAMP
    )


def read_values(texts: pa.StringArray, type_: pa.DataType) -> ReadValues:
    """Return text as values of a type."""
    if type_ == pa.string():
        return ReadValues(texts, np.zeros(len(texts), dtype=bool))
    if type_ == TIMESTAMP:
        return _read_times(texts)
    if type_ == pa.date32():
        layout = _Layout.of(texts)
        return _cast(texts, type_, (layout.lengths != _DATE_LENGTH) | ~layout.has_usual_year)
    if type_ == pa.bool_():
        return _cast(texts, type_, _unlike(texts, _BOOLEAN))
    if pa.types.is_signed_integer(type_):
        return _cast(texts, type_, _unlike(texts, _WHOLE, b"0123456789-"))
    read = _cast(texts, type_, _unlike(texts, _DOUBLE, b"0123456789-"))
    return doubt(read, ~np.isfinite(np.asarray(read.values.fill_null(0.0))))


def doubt(read: ReadValues, more: Mask) -> ReadValues:
    """Return the values with more of them doubtful."""
    if not more.any():
        return read
    return ReadValues(pc.if_else(pa.array(more), None, read.values), read.doubtful | more)


def _read_times(texts: pa.StringArray) -> ReadValues:
    """Return instants; text without a zone is in UTC, the time zone of every session."""
    layout = _Layout.of(texts)
    has_zone = layout.has_zone()
    seconds = layout.lengths - np.where(has_zone, np.where(layout.byte(-1) == ord("Z"), 1, _ZONE_LENGTH), 0)
    odd = (seconds < _SECONDS_LENGTH) | (seconds > _MICROS_LENGTH) | ~layout.has_usual_year
    odd |= (layout.byte(13) != ord(":")) | (layout.byte(16) != ord(":"))
    known = ~odd & np.asarray(texts.is_valid())
    if not (has_zone & known).any():
        local = _cast(texts, pa.timestamp("us"), odd)
        return ReadValues(local.values.cast(TIMESTAMP), local.doubtful)
    zoned = _cast(texts, TIMESTAMP, odd | ~has_zone)
    if (has_zone | ~known).all():
        return zoned
    local = _cast(texts, pa.timestamp("us"), odd | has_zone)
    both = pc.coalesce(zoned.values, local.values.cast(TIMESTAMP))
    return ReadValues(both, zoned.doubtful & local.doubtful)


@dataclass(frozen=True)
class _Layout:
    """Where the bytes of each text are."""

    data: npt.NDArray[np.uint8]
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, texts: pa.StringArray) -> _Layout:
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
        held = np.zeros(1, np.uint8) if data is None or data.size == 0 else np.frombuffer(data, np.uint8)
        return cls(held, ends[:-1], np.diff(ends))

    def byte(self, place: int) -> npt.NDArray[np.uint8]:
        """Return the byte at a place of each text, from its end where negative; of a text that is shorter, any."""
        places = self.starts + place if place >= 0 else self.starts + self.lengths + place
        return self.data[np.clip(places, 0, len(self.data) - 1)]

    @property
    def has_usual_year(self) -> Mask:
        """Whether each text begins with a year from 1900 to 2999."""
        first = self.byte(0)
        return np.asarray((first == ord("2")) | ((first == ord("1")) & (self.byte(1) == ord("9"))))

    def has_zone(self) -> Mask:
        """Return whether each text ends with Z, or with +hh:mm up to 17 hours."""
        sign = self.byte(-6)
        tens, units = self.byte(-5), self.byte(-4)
        is_near = (tens == ord("0")) | ((tens == ord("1")) & (units <= ord("7")))
        is_offset = ((sign == ord("+")) | (sign == ord("-"))) & (self.byte(-3) == ord(":")) & is_near
        is_long = self.lengths >= _SECONDS_LENGTH + _ZONE_LENGTH
        return np.asarray((self.byte(-1) == ord("Z")) | (is_offset & is_long))


def _unlike(texts: pa.StringArray, pattern: str, usual: bytes = b"") -> Mask:
    """Return which texts do not match a pattern; of those with usual bytes alone, Arrow refuses what does not."""
    if usual and _has_only(texts, usual):
        return np.zeros(len(texts), dtype=bool)
    return ~np.asarray(pc.match_substring_regex(texts, pattern).fill_null(True))


def _has_only(texts: pa.StringArray, allowed: bytes) -> bool:
    layout = _Layout.of(texts)
    if not len(texts):
        return True
    used = layout.data[layout.starts[0] : layout.starts[-1] + layout.lengths[-1]]
    return bool(np.bincount(used, minlength=256)[np.setdiff1d(np.arange(256), list(allowed))].sum() == 0)


def _cast(texts: pa.StringArray, type_: pa.DataType, odd: Mask) -> ReadValues:
    """Return texts as Arrow reads them; the odd ones, and those that it refuses, are doubtful."""
    is_text = np.asarray(texts.is_valid())
    odd = odd & is_text
    if odd.any():
        texts = pc.if_else(pa.array(odd), None, texts)
    values, refused = _cast_apart(texts, type_)
    return ReadValues(values, odd | refused)


def _cast_apart(texts: pa.StringArray, type_: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return the values, null where Arrow refuses a text, and which it refuses."""
    try:
        return texts.cast(type_), np.zeros(len(texts), dtype=bool)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, type_), np.ones(1, dtype=bool)
    step = -(-len(texts) // PIECES)
    pieces = [_cast_apart(texts.slice(at, step), type_) for at in range(0, len(texts), step)]
    return pa.concat_arrays([values for values, _ in pieces]), np.concatenate([refused for _, refused in pieces])
