"""Policies by name, as configuration files and the command line spell them.

`streaming`, `batching`, a cache size such as `lazy-empirical` or `hybrid:0.25`, each size optionally with an
eviction: `hybrid:0.25+lru`.
"""

from __future__ import annotations

from catchment.errors import SiteError
from catchment.site.cache_sizes import SIZES
from catchment.site.evictions import EVICTIONS
from catchment.site.extremes import Batching, Streaming
from catchment.site.policy import Policy
from catchment.site.size_policies import DEFAULT_EVICTION, SizePolicy

DEFAULT_POLICY = "batching"


def policy_names() -> tuple[str, ...]:
    """Every name that `policy_by_name` knows, one example for those with a parameter."""
    return ("streaming", "batching", *SIZES, "hybrid:0.25")


def policy_by_name(name: str) -> Policy:
    """The policy of a name such as `batching` or `hybrid:0.25+lru`."""
    head, plus, eviction = name.strip().partition("+")
    sizing, colon, laziness = head.partition(":")
    if sizing in ("streaming", "batching") and not plus and not colon:
        return Streaming() if sizing == "streaming" else Batching()
    if (sizing in SIZES and not colon) or (sizing == "hybrid" and colon):
        return SizePolicy(sizing, _laziness(laziness, name) if colon else None, eviction if plus else DEFAULT_EVICTION)
    raise SiteError(
        f"there is no policy {name!r}",
        hint=f"use one of {', '.join(policy_names())}; a cache size may add +{' or +'.join(EVICTIONS)}",
    )


def _laziness(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SiteError(f"the laziness {text!r} of {name!r} is not a number", hint="write hybrid:0.25") from None
