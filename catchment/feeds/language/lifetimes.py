"""How long an event lives: the option `lifetime` of a feed view, for all inputs or for each.

    lifetime = '20 seconds'                  an event of any input lives for 20 seconds
    lifetime = 'a: 7 days, b: 10 minutes'    an event of `a` lives for 7 days, one of `b` for 10 minutes

An event meets what comes within its lifetime after it. So an event of `a` at time s and one of `b` at time t meet when
t - s is at most the lifetime of `a`, or, where `b` was first, s - t is at most the lifetime of `b`. A lifetime of
'0 seconds' is possible for one input: its events meet only what was there before them (the paper's AlterLifetime on
the other input, Chandramouli et al., VLDB'13, section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from catchment.errors import FeedError
from catchment.project.options import OptionKind
from catchment.units import parse_duration

DEFAULT_LIFETIME_US = 60_000_000


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes as declared: one for every input, or one for each by its alias."""

    for_all_us: int = DEFAULT_LIFETIME_US
    by_alias_us: tuple[tuple[str, int], ...] = ()

    def resolve(self, aliases: Sequence[str], where: str) -> dict[str, int]:
        """Return the lifetime of each input of a view."""
        given = dict(self.by_alias_us)
        if not given:
            return dict.fromkeys(aliases, self.for_all_us)
        if sorted(given) != sorted(aliases):
            raise FeedError(
                f"found lifetimes of {', '.join(given)}; expected one for each input: {', '.join(aliases)}",
                where=where,
                hint=f"write lifetime = '{', '.join(f'{alias}: 1 minute' for alias in aliases)}'",
            )
        return given


def lifetimes() -> OptionKind:
    """Return the kind of option that holds the lifetimes of a view."""
    expected = "a positive duration such as '20 seconds', or one for each input such as 'a: 7 days, b: 10 minutes'"
    return OptionKind(expected, _read_lifetimes)


def _read_lifetimes(value: Any) -> Lifetimes:
    if not isinstance(value, str):
        raise TypeError(value)
    if ":" not in value:
        found = Lifetimes(for_all_us=parse_duration(value))
        longest_us = found.for_all_us
    else:
        pairs = [_read_pair(part) for part in value.split(",")]
        if len(dict(pairs)) != len(pairs):
            raise ValueError(value)
        found = Lifetimes(by_alias_us=tuple(pairs))
        longest_us = max(lifetime_us for _, lifetime_us in pairs)
    if longest_us <= 0:
        raise ValueError(value)
    return found


def _read_pair(text: str) -> tuple[str, int]:
    alias, colon, duration = text.partition(":")
    if not alias.strip() or not colon:
        raise ValueError(text)
    return alias.strip().lower(), parse_duration(duration)
