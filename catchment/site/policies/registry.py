"""Policies by name, as configuration files and the command line spell them.

`streaming`, `batching`, `spillway` (or `spillway:1.5`, with an insurance), a cache size such as
`lazy-empirical` or `hybrid:0.25`, each size optionally with an eviction: `hybrid:0.25+lru`.
"""

from __future__ import annotations

from catchment.errors import SiteError
from catchment.site.policies.base import Policy
from catchment.site.policies.cache_sizes import SIZES
from catchment.site.policies.evictions import EVICTIONS
from catchment.site.policies.extremes import Batching, Streaming
from catchment.site.policies.sized import DEFAULT_EVICTION, SizePolicy
from catchment.site.policies.spillway.policy import Spillway


def policy_names() -> tuple[str, ...]:
    """Every name that `policy_by_name` knows, one example for those with a parameter."""
    return ("streaming", "batching", "spillway", *SIZES, "hybrid:0.25")


def policy_by_name(name: str) -> Policy:
    """The policy of a name such as `batching` or `hybrid:0.25+lru`."""
    head, plus, eviction = name.strip().partition("+")
    sizing, colon, number = head.partition(":")
    if sizing in ("streaming", "batching") and not plus and not colon:
        return Streaming() if sizing == "streaming" else Batching()
    if (sizing in SIZES and not colon) or (sizing == "hybrid" and colon):
        return SizePolicy(sizing, _number(number, name) if colon else None, eviction if plus else DEFAULT_EVICTION)
    if sizing == "spillway" and not plus:
        return Spillway(_number(number, name)) if colon else Spillway()
    raise SiteError(
        f"there is no policy {name!r}",
        hint=f"use one of {', '.join(policy_names())}; a cache size may add +{' or +'.join(EVICTIONS)}",
    )


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SiteError(f"{text!r} in {name!r} is not a number", hint="write hybrid:0.25 or spillway:1.5") from None
