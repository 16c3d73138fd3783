"""The kinds of options: what each reads, how it is written, and the words for what is possible."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import partial
from typing import Any

from catchment.project.options import OptionKind
from catchment.units import (
    SECOND_US,
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_size,
)

_SITE_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,62}"
_FLAGS = {"on": True, "true": True, "off": False, "false": False}
COPY = "copy"
REFERENCE = "reference"


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(value)
    return value


def flag() -> OptionKind:
    """Return the kind of option that is a yes or no."""

    def read(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if _text(value).lower() not in _FLAGS:
            raise ValueError(value)
        return _FLAGS[value.lower()]

    return OptionKind("on or off (true or false)", read)


def history() -> OptionKind:
    """Return the kind of option that says how raw records are kept: True for a copy of them, `REFERENCE`, or False."""

    def read(value: Any) -> bool | str:
        if isinstance(value, str) and value.lower() in (COPY, REFERENCE):
            return REFERENCE if value.lower() == REFERENCE else True
        return bool(flag().read(value))

    return OptionKind(f"'{COPY}' (true), '{REFERENCE}', or false", read)


def _number(low: float, high: float, whole: bool, open_low: bool, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    number = int(str(value)) if whole else float(value)
    if not (low < number if open_low else low <= number) or not number <= high:
        raise ValueError(value)
    return number


def number(low: float = 0.0, high: float = float("inf"), *, open_low: bool = True) -> OptionKind:
    """Return the kind of option that is a number in (low, high], or in [low, high] where open_low is off."""
    top = "" if high == float("inf") else f" and at most {high:g}"
    return OptionKind(
        f"a number {'over' if open_low else 'of at least'} {low:g}{top}",
        partial(_number, low, high, False, open_low),
    )


def share() -> OptionKind:
    """Return the kind of option that is a number strictly between 0 and 1."""

    def read(value: Any) -> float:
        found = _number(0.0, 1.0, False, True, value)
        if found == 1.0:
            raise ValueError(value)
        return found

    return OptionKind("a number between 0 and 1, both excluded", read)


def integer(low: int = 0, high: int = 2**63 - 1) -> OptionKind:
    """Return the kind of option that is a whole number in [low, high]."""
    return OptionKind(f"a whole number of at least {low}", partial(_number, low, high, True, False))


def text(expected: str = "a text in quotes") -> OptionKind:
    """Return the kind of option that is any text that is not empty."""
    return OptionKind(expected, _text)


def names(expected: str) -> OptionKind:
    """Return the kind of option that is a list of texts, none of them twice."""

    def read(value: Any) -> tuple[str, ...]:
        found = tuple(_text(item) for item in value) if isinstance(value, list) else ()
        if not found or len(set(found)) != len(found):
            raise ValueError(value)
        return found

    return OptionKind(expected, read)


def choice(*names: str) -> OptionKind:
    """Return the kind of option that is one of some words, whatever their case."""

    def read(value: Any) -> str:
        if _text(value).lower() not in names:
            raise ValueError(value)
        return _text(value).lower()

    return OptionKind(f"one of {', '.join(names)}", read)


def matching(pattern: str, expected: str) -> OptionKind:
    """Return the kind of option that is a text that fits a regular expression."""

    def read(value: Any) -> str:
        if not re.fullmatch(pattern, _text(value)):
            raise ValueError(value)
        return str(value)

    return OptionKind(expected, read)


def site_name() -> OptionKind:
    """Return the kind of option that is a name that is also safe as the name of a folder."""
    return matching(_SITE_NAME, "a name of letters, digits, _ and - that starts with a letter or _")


def duration(*, none: bool = False, positive: bool = False) -> OptionKind:
    """Return the kind of option that is a duration, in microseconds; with `none`, the words none and off give None."""

    def read(value: Any) -> int | None:
        if none and _text(value).lower() in ("none", "off"):
            return None
        found = parse_duration(_text(value))
        if positive and found <= 0:
            raise ValueError(value)
        return found

    also = ", or 'none'" if none else ""
    expected = f"a {'positive ' if positive else ''}duration such as '500 ms' or '1 hour'{also}"
    return OptionKind(expected, read, _write_duration, "us")


def _write_duration(us: int) -> str:
    is_exact = us % SECOND_US == 0 or (us % 1000 == 0 and us < SECOND_US * 100)  # milliseconds have six digits
    return format_duration(us) if is_exact else f"{us} us"


def size(*, none: bool = False) -> OptionKind:
    """Return the kind of option that is a size, held in bytes; with `none`, the words none and off give None."""

    def read(value: Any) -> int | None:
        if none and isinstance(value, str) and value.lower() in ("none", "off"):
            return None
        return _positive_size(value)

    also = ", or 'none'" if none else ""
    return OptionKind(f"a size such as '64 MB' or '1 GiB'{also}", read, format_size, "bytes")


def _positive_size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int) or parse_size(value) <= 0:
        raise ValueError(value)
    return parse_size(value)


def bandwidth() -> OptionKind:
    """Return the kind of option that is a bandwidth, held in bytes per second."""
    expected = "a bandwidth such as '2 MB/s', '20 Mbit/s' or '128 kbit/s'"
    return OptionKind(expected, lambda value: parse_bandwidth(_text(value)), _write_bandwidth, "bytes_per_s")


def _write_bandwidth(bytes_per_s: float) -> str:
    short = format_bandwidth(bytes_per_s)
    return short if "e" not in short and parse_bandwidth(short) == bytes_per_s else f"{Decimal(bytes_per_s):f} bytes/s"


def address() -> OptionKind:
    """Return the kind of option that is an address host:port, held as (host, port); port 0 asks for any free one."""

    def read(value: Any) -> tuple[str, int]:
        host, _, port = _text(value).rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(value)
        return host.strip("[]"), int(port)

    expected = "an address host:port such as '127.0.0.1:9410' (port 0: any free one)"
    return OptionKind(expected, read, lambda value: join_address(*value))


def join_address(host: str, port: int) -> str:
    """Return host:port; an IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def policy() -> OptionKind:
    """Return the kind of option that is the name of a policy with its parameters; only the site knows which exist."""
    expected = "the name of a policy such as 'spillway', 'batching' or 'hybrid:0.25+lfu'"
    return matching(r"[a-z][a-z-]*(:[0-9.]+)?(\+[a-z]+)?", expected)


def site_names() -> OptionKind:
    """Return the kind of option that is names of sites, held as a tuple."""

    def read(value: Any) -> tuple[str, ...]:
        names = tuple(site_name().read(name.strip()) for name in _text(value).split(","))
        if len(set(names)) != len(names):
            raise ValueError(value)
        return names

    return OptionKind("names of sites with commas between them, such as 'us,eu'", read, ",".join)


def column_names() -> OptionKind:
    """Return the kind of option that is names of columns, held as a tuple."""

    def read(value: Any) -> tuple[str, ...]:
        names = tuple(name.strip() for name in _text(value).split(","))
        if not all(names) or len({name.lower() for name in names}) != len(names):
            raise ValueError(value)
        return names

    return OptionKind("names of columns with commas between them, such as 'country,city'", read, ",".join)


def path_of_site() -> OptionKind:
    """Return the kind of option that is a path in which `{site}`, and nothing else in braces, may stand."""

    def read(value: Any) -> str:
        path = _text(value)
        if set(re.findall(r"\{[^}]*\}?", path)) - {"{site}"}:
            raise ValueError(value)
        return path

    return OptionKind("a path, in which {site} stands for the name of the site", read)


def one_character() -> OptionKind:
    """Return the kind of option that is a text of one character."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value) != 1:
            raise ValueError(value)
        return value

    return OptionKind("one character", read)
