"""Options that people write, in TOML or in SQL: what each may hold, and what is said when it does not.

A `Kind` reads one value and knows the sentence for what is possible; an `Option` is a named kind with a
default; `read_options` checks a whole table of them. Every reader of people's settings goes through here, so
that an unknown name, a wrong value and a missing one are answered the same way everywhere: where, what was
found, what is possible.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from catchment.errors import CatchmentError, ConfigError
from catchment.timeline import parse_duration

SITE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

_SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
               "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "BYTE": 1, "BYTES": 1}  # fmt: skip
_RATE_UNITS = {"BYTES": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2.0**10, "MIB": 2.0**20,
               "BIT": 1 / 8, "KBIT": 1e3 / 8, "MBIT": 1e6 / 8, "GBIT": 1e9 / 8}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*/\s*s\s*")


@dataclass(frozen=True)
class Kind:
    """Reads a value, or raises; `expected` completes the sentence "it must be ..."."""

    expected: str
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Option:
    """One setting: its name, what it holds, and its value when it is absent."""

    name: str
    kind: Kind
    default: Any = None
    required: bool = False


def did_you_mean(word: str, possible: Iterable[str]) -> str:
    """A hint: the nearest possible word, if one is near, and all that are possible."""
    names = sorted(possible)
    lowered = {n.lower(): n for n in names}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    choice = f"possible: {', '.join(names)}" if names else "nothing is declared yet"
    return f"did you mean {lowered[near[0]]!r}? {choice}" if near else choice


def read_options(
    given: Mapping[str, Any],
    options: Iterable[Option],
    *,
    what: str,
    where: Callable[[str | None], str],
    error: type[CatchmentError] = ConfigError,
) -> dict[str, Any]:
    """The checked values of a table of options, defaults filled in; `where(name)` is the place to blame."""
    known = {o.name: o for o in options}
    for name in given:
        if name not in known:
            raise error(f"{what} has no option {name!r}", where=where(name), hint=did_you_mean(name, known))
    for option in known.values():
        if option.required and option.name not in given:
            raise error(f"{what} lacks the option {option.name!r}", where=where(None),
                        hint=f"it must be {option.kind.expected}")  # fmt: skip
    return {name: _read(o, given, what, where, error) for name, o in known.items()}


def _read(
    option: Option,
    given: Mapping[str, Any],
    what: str,
    where: Callable[[str | None], str],
    error: type[CatchmentError],
) -> Any:
    if option.name not in given:
        return option.default
    try:
        return option.kind.read(given[option.name])
    except (ValueError, TypeError, CatchmentError) as cause:
        raise error(
            f"{what}: {option.name} = {given[option.name]!r} cannot be used",
            where=where(option.name),
            hint=f"it must be {option.kind.expected}",
        ) from cause


def parse_size(text: str | int) -> int:
    """Bytes of '1 GB', '64 KiB', '512'; a bare number is bytes."""
    found = _QUANTITY.fullmatch(str(text))
    factor = _SIZE_UNITS.get(found.group(2).upper()) if found else None
    if not found or factor is None:
        raise ConfigError(
            f"cannot read the size {text!r}",
            hint="write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, such as '64 MB'",
        )
    return round(Decimal(found.group(1)) * factor)


def parse_bandwidth(text: str) -> float:
    """Bytes a second of '2 MB/s', '20 Mbit/s', '128 kbit/s', '1000 bytes/s'."""
    found = _RATE.fullmatch(str(text))
    factor = _RATE_UNITS.get(found.group(2).upper()) if found else None
    rate = float(found.group(1)) * factor if found and factor else 0.0
    if rate <= 0:
        raise ConfigError(
            f"cannot read the bandwidth {text!r}",
            hint="write a positive number and one of bytes/s, KB/s, MB/s, GB/s, kbit/s, Mbit/s, Gbit/s",
        )
    return rate


def format_bandwidth(bytes_per_s: float) -> str:
    """The rate in the largest unit of which there is at least one: 2500000.0 -> '2.5 MB/s'."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:g} {unit}/s"
    return f"{bytes_per_s:g} bytes/s"


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(value)
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"on": True, "true": True, "off": False, "false": False}[_text(value).lower()]


def flag() -> Kind:
    def read(value: Any) -> bool:
        try:
            return _flag(value)
        except KeyError:
            raise ValueError(value) from None

    return Kind("on or off (true or false)", read)


def _number(low: float, high: float, whole: bool, open_low: bool, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    number = int(str(value)) if whole else float(value)
    if not (low < number if open_low else low <= number) or not number <= high:
        raise ValueError(value)
    return number


def number(low: float = 0.0, high: float = float("inf"), *, open_low: bool = True) -> Kind:
    """A number in (low, high], or [low, high] where open_low is off."""
    top = "" if high == float("inf") else f" and at most {high:g}"
    return Kind(
        f"a number {'over' if open_low else 'of at least'} {low:g}{top}",
        partial(_number, low, high, False, open_low),
    )


def share() -> Kind:
    """A number strictly between 0 and 1."""

    def read(value: Any) -> float:
        found = _number(0.0, 1.0, False, True, value)
        if found == 1.0:
            raise ValueError(value)
        return found

    return Kind("a number between 0 and 1, both excluded", read)


def integer(low: int = 0, high: int = 2**63 - 1) -> Kind:
    return Kind(f"a whole number of at least {low}", partial(_number, low, high, True, False))


def text(expected: str = "a text in quotes") -> Kind:
    return Kind(expected, _text)


def choice(*names: str) -> Kind:
    def read(value: Any) -> str:
        if _text(value).lower() not in names:
            raise ValueError(value)
        return _text(value).lower()

    return Kind(f"one of {', '.join(names)}", read)


def matching(pattern: str, expected: str) -> Kind:
    def read(value: Any) -> str:
        if not re.fullmatch(pattern, _text(value)):
            raise ValueError(value)
        return str(value)

    return Kind(expected, read)


def site_name() -> Kind:
    return matching(SITE_NAME.pattern, "a name of letters, digits, _ and - that starts with a letter or _")


def duration(*, none: bool = False, positive: bool = False) -> Kind:
    """Microseconds; with `none`, the words none and off give None."""

    def read(value: Any) -> int | None:
        if none and _text(value).lower() in ("none", "off"):
            return None
        found = parse_duration(_text(value))
        if positive and found <= 0:
            raise ValueError(value)
        return found

    also = ", or 'none'" if none else ""
    return Kind(f"a {'positive ' if positive else ''}duration such as '500 ms' or '1 hour'{also}", read)


def size() -> Kind:
    return Kind("a size such as '64 MB' or '1 GiB'", _positive_size)


def _positive_size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int) or parse_size(value) <= 0:
        raise ValueError(value)
    return parse_size(value)


def bandwidth() -> Kind:
    return Kind("a bandwidth such as '2 MB/s', '20 Mbit/s' or '128 kbit/s'", lambda v: parse_bandwidth(_text(v)))


def address() -> Kind:
    """host:port, kept as (host, port); port 0 asks for any free one."""

    def read(value: Any) -> tuple[str, int]:
        host, _, port = _text(value).rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(value)
        return host.strip("[]"), int(port)

    return Kind("an address host:port such as '127.0.0.1:9410' (port 0: any free one)", read)


def policy() -> Kind:
    expected = "the name of a policy such as 'spillway', 'batching' or 'hybrid:0.25+lfu'"
    return matching(r"[a-z][a-z-]*(:[0-9.]+)?(\+[a-z]+)?", expected)
