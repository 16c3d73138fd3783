"""What vectorised expressions compute of numbers beyond plain arithmetic: the answers of Spark, or an error."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.arrays import Floats
from catchment.vectorised.values import Value

MAX_ROUND_DIGITS = 15  # powers of ten up to here are exact as DOUBLE, and so is the quotient of a whole number
_EXACT = 2.0**52  # whole numbers below it are exact, and halves


def round_half_up(value: Value, digits: Value) -> Value:
    """Return round(value, digits) of DOUBLEs: as decimal digits, half away from zero, and never -0.0."""
    if not isinstance(value, pa.Array):
        return round_half_up(pa.array([value.as_py()], value.type), digits)[0]
    missing = np.asarray(value.is_null()) if value.null_count else None
    numbers = np.asarray(value.fill_null(0.0) if value.null_count else value)
    return pa.array(_round(numbers, digits.as_py()), mask=missing)


def _round(numbers: Floats, digits: int) -> Floats:
    """Round by multiplication where that is certain; near a half, and where it is not exact, by the digits."""
    power = 10.0**digits
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.abs(numbers) * power
        below = np.floor(scaled)
        fraction = scaled - below
        rounded = np.copysign((below + (fraction > 0.5)) / power, numbers)
        is_near_half = np.abs(fraction - 0.5) <= scaled / _EXACT * 2
    rounded = np.where(rounded == 0, 0.0, rounded)
    is_finite = np.isfinite(numbers)
    rounded = np.where(is_finite, rounded, numbers)
    step = Decimal(1).scaleb(-digits)
    for row in np.flatnonzero(is_finite & (is_near_half | (scaled >= _EXACT / 4))):
        rounded[row] = _round_digits(float(numbers[row]), step)
    return np.asarray(rounded)


def _round_digits(number: float, step: Decimal) -> float:
    if abs(number) >= _EXACT:
        return number  # it has no digits after the point
    return float(Decimal(repr(number)).quantize(step, ROUND_HALF_UP)) + 0.0


def sign_of(value: Value) -> Value:
    """Return sign(value) of DOUBLEs: zeros and NaN are their own signs."""
    return pc.if_else(pc.or_(pc.equal(value, 0.0), pc.is_nan(value)), value, pc.sign(value))


def both_bits(left: Value, right: Value) -> Value:
    """Return left & right of integers."""
    return pc.bit_wise_and(left, right)


def either_bits(left: Value, right: Value) -> Value:
    """Return left | right of integers."""
    return pc.bit_wise_or(left, right)


def differing_bits(left: Value, right: Value) -> Value:
    """Return left ^ right of integers."""
    return pc.bit_wise_xor(left, right)


def other_bits(value: Value) -> Value:
    """Return ~value of an integer."""
    return pc.bit_wise_not(value)
