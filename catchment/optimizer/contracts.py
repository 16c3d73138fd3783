"""Refusal of queries whose contract a link could not keep: a link over its capacity falls ever further behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from catchment.errors import PlanError
from catchment.project.routes import LinkName
from catchment.units import format_bandwidth


@dataclass(frozen=True)
class LinkLoad:
    """What a link would carry in all, and what it can carry (None: without a limit)."""

    link: LinkName
    bytes_per_s: float
    capacity_bytes_per_s: float | None

    @property
    def overloaded(self) -> bool:
        return self.capacity_bytes_per_s is not None and self.bytes_per_s > self.capacity_bytes_per_s


def check_contract(query: str, loads: Iterable[LinkLoad]) -> None:
    """Refuse a query with a contract that needs an overloaded link."""
    for load in loads:
        if load.overloaded:
            assert load.capacity_bytes_per_s is not None
            origin, destination = load.link
            raise PlanError(
                f"the query {query!r} cannot meet its contract: the link {origin} -> {destination} would carry "
                f"{format_bandwidth(load.bytes_per_s)} of {format_bandwidth(load.capacity_bytes_per_s)}",
                hint='share more (sharing = "full"), give the link more bandwidth, or drop the contract',
            )
