"""A standing as a JSON entry of a segment's header, and back; what is not one is refused before it is read."""

from __future__ import annotations

from math import isfinite
from typing import Any

from catchment.quality.merge_sites import Estimate
from catchment.wire.limits import Limits
from catchment.wire.messages import Closing, Standing

_INT64 = 2**63


def pack_standing(standing: Standing) -> list[Any]:
    """["w", fragment, query, over, closings]; a closing is [end, reason, estimates, sources], lists of lists."""
    closings = [
        [
            c.end_us,
            c.reason,
            [[e.coverage, e.bound, e.count, e.total] for e in c.estimates],
            [list(s) for s in c.sources],
        ]
        for c in standing.closings
    ]
    return ["w", standing.fragment, standing.query, standing.over_us, closings]


def unpack_standing(entry: list[Any]) -> Standing:
    """The standing of an entry that was checked."""
    _, fragment, query, over_us, closings = entry
    return Standing(fragment, query, over_us, tuple(
        Closing(end, reason, tuple(Estimate(*e) for e in estimates), tuple((n, s) for n, s in sources))
        for end, reason, estimates, sources in closings
    ))  # fmt: skip


def check_standing(entry: list[Any], limits: Limits) -> bool:
    """Whether an entry can be unpacked: every part of its type and within its limits."""
    if len(entry) != 5 or not _is_text(entry[2], limits) or not _is_instant(entry[3]) or not isinstance(entry[4], list):
        return False
    return len(entry[4]) <= limits.slices and all(_is_closing(closing, limits) for closing in entry[4])


def _is_closing(value: Any, limits: Limits) -> bool:
    if not isinstance(value, list) or len(value) != 4 or not _is_instant(value[0]) or not _is_text(value[1], limits):
        return False
    estimates, sources = value[2:]
    if not isinstance(estimates, list) or not isinstance(sources, list):
        return False
    named = all(isinstance(s, list) and len(s) == 2 and isinstance(s[0], str) and _is_share(s[1]) for s in sources)
    return named and len(sources) <= limits.slices and all(_is_estimate(e) for e in estimates)


def _is_estimate(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 4:
        return False
    coverage, bound, count, total = value
    bounded = bound is None or (_is_number(bound) and bound >= 0)
    return _is_share(coverage) and bounded and _is_number(count) and count >= 0 and _is_number(total)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _is_instant(value: Any) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64


def _is_text(value: Any, limits: Limits) -> bool:
    return isinstance(value, str) and 0 < len(value.encode("utf-8", "surrogatepass")) <= limits.name_bytes
