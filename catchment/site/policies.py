"""Policies by name, as configuration files and the command line spell them."""

from __future__ import annotations

from catchment.errors import SiteError
from catchment.site.extremes import Batching, Streaming
from catchment.site.policy import Policy

DEFAULT_POLICY = "batching"


def policy_names() -> tuple[str, ...]:
    """Every name that `policy_by_name` knows."""
    return ("streaming", "batching")


def policy_by_name(name: str) -> Policy:
    """The policy of a name such as `batching`."""
    if name == "streaming":
        return Streaming()
    if name == "batching":
        return Batching()
    raise SiteError(f"there is no policy {name!r}", hint=f"use one of {', '.join(policy_names())}")
