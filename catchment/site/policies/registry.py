"""Policies by name, as configuration files and the command line spell them.

`streaming`, `batching`, `spillway` (or `spillway:1.5`, with an insurance), a cache size such as `lazy-empirical` or
`hybrid:0.25`, each size optionally with an eviction: `hybrid:0.25+lru`.
"""

from __future__ import annotations

from catchment.errors import SiteError
from catchment.site.policies.base import Policy
from catchment.site.policies.basic import Batching, Streaming
from catchment.site.policies.sized import DEFAULT_EVICTION, EVICTIONS, SIZES, SizePolicy
from catchment.site.policies.spillway.policy import Spillway


def policy_names() -> tuple[str, ...]:
    """Return every name that `policy_by_name` knows, with one example for those that need a parameter."""
    return ("streaming", "batching", "spillway", *SIZES, "hybrid:0.25")


def policy_by_name(name: str) -> Policy:
    """Return the policy of a name such as `batching` or `hybrid:0.25+lru`."""
    head, plus, eviction = name.strip().partition("+")
    kind, colon, number = head.partition(":")
    if kind == "streaming" and not plus and not colon:
        return Streaming()
    if kind == "batching" and not plus and not colon:
        return Batching()
    if kind == "spillway" and not plus:
        return Spillway(_parse_number(number, name)) if colon else Spillway()
    if (kind in SIZES and not colon) or (kind == "hybrid" and colon):
        laziness = _parse_number(number, name) if colon else None
        return SizePolicy(kind, laziness, eviction if plus else DEFAULT_EVICTION)
    raise SiteError(
        f"there is no policy {name!r}",
        hint=f"use one of {', '.join(policy_names())}; a cache size may add +{' or +'.join(EVICTIONS)}",
    )


def _parse_number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SiteError(f"{text!r} in {name!r} is not a number", hint="write hybrid:0.25 or spillway:1.5") from None
