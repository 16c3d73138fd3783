"""Quantities with units as people write them: durations, sizes and bandwidths, read and written.

A duration is a whole number of microseconds, a size a whole number of bytes, a bandwidth bytes per second.
"""

from __future__ import annotations

import re
from decimal import Decimal

from catchment.errors import ConfigError, TimelineError

SECOND_US = 1_000_000
_MINUTE_US = 60 * SECOND_US
_HOUR_US = 60 * _MINUTE_US
_DAY_US = 24 * _HOUR_US

_DURATION_UNITS_US = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": SECOND_US,
    "sec": SECOND_US,
    "s": SECOND_US,
    "minute": _MINUTE_US,
    "min": _MINUTE_US,
    "m": _MINUTE_US,
    "hour": _HOUR_US,
    "h": _HOUR_US,
    "day": _DAY_US,
    "d": _DAY_US,
    "week": 7 * _DAY_US,
}
_SIZE_UNITS_BYTES = {
    "": 1,
    "B": 1,
    "BYTE": 1,
    "BYTES": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_BANDWIDTH_UNITS_BYTES = {
    "B": 1.0,
    "BYTES": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KIB": 2.0**10,
    "MIB": 2.0**20,
    "BIT": 1 / 8,
    "KBIT": 1e3 / 8,
    "MBIT": 1e6 / 8,
    "GBIT": 1e9 / 8,
}
_DURATION_TERM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_BANDWIDTH = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*/\s*s\s*")


def parse_duration(text: str) -> int:
    """Return the microseconds of '1 minute', '90 s', '1 hour 30 minutes' or '250ms'."""
    rest = text.lower().removeprefix("interval").strip().strip("'\"")
    total_us = 0.0
    position = 0
    while position < len(rest):
        term = _DURATION_TERM.match(rest, position)
        unit_us = term and _DURATION_UNITS_US.get(_singular(term.group(2)))
        if not term or not unit_us:
            raise TimelineError(
                f"cannot read the duration {text!r}",
                hint="write a number and a unit, such as '1 minute' or '250 ms'",
            )
        total_us += float(term.group(1)) * unit_us
        position = term.end()
    if not rest or total_us != int(total_us):
        raise TimelineError(f"the duration {text!r} is not a whole number of microseconds")
    return int(total_us)


def _singular(unit: str) -> str:
    return unit if unit in _DURATION_UNITS_US else unit.removesuffix("s")


def format_duration(us: int) -> str:
    """Return a duration in the largest unit that divides it: 90000000 -> '90 s', 120000000 -> '2 min'."""
    if us == 0:
        return "0 s"
    for unit, size_us in (("d", _DAY_US), ("h", _HOUR_US), ("min", _MINUTE_US), ("s", SECOND_US)):
        if us % size_us == 0:
            return f"{us // size_us} {unit}"
    return f"{us / 1000:g} ms"


def parse_size(text: str | int) -> int:
    """Return the bytes of '1 GB', '64 KiB' or '512'; a bare number is bytes."""
    found = _SIZE.fullmatch(str(text))
    factor = _SIZE_UNITS_BYTES.get(found.group(2).upper()) if found else None
    if not found or factor is None:
        raise ConfigError(
            f"cannot read the size {text!r}",
            hint="write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, such as '64 MB'",
        )
    return round(Decimal(found.group(1)) * factor)


def format_size(size_bytes: int) -> str:
    """Return a size in the largest decimal unit that divides it: 64000000 -> '64 MB'."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size_bytes % _SIZE_UNITS_BYTES[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS_BYTES[unit]} {unit}"
    return f"{size_bytes} B"


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second of '2 MB/s', '20 Mbit/s', '128 kbit/s' or '1000 bytes/s'."""
    found = _BANDWIDTH.fullmatch(str(text))
    factor = _BANDWIDTH_UNITS_BYTES.get(found.group(2).upper()) if found else None
    rate = float(found.group(1)) * factor if found and factor else 0.0
    if rate <= 0:
        raise ConfigError(
            f"cannot read the bandwidth {text!r}",
            hint="write a positive number and one of bytes/s, KB/s, MB/s, GB/s, kbit/s, Mbit/s, Gbit/s",
        )
    return rate


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth in the largest unit that it reaches: 2500000.0 -> '2.5 MB/s'."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:g} {unit}/s"
    return f"{bytes_per_s:g} bytes/s"


def format_estimated_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth that is an estimate with two significant digits: 26031.0 -> '26 KB/s'."""
    rounded = float(f"{max(bytes_per_s, 0.0):.2g}")
    return format_bandwidth(rounded)
