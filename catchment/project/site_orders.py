"""What the operator has ordered of sites, beyond what `catchment.toml` declares: retire, come back, be replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from catchment.storage.codec import stored


@stored()
@dataclass(frozen=True)
class SiteOrders:
    """The orders that are in force; `version` grows with each.

    A site in `retired` counts no more, though it may still be declared. `lives`: how often a site was replaced by one
    with an empty disk. `boundaries`: the event time that the newest order of a site states, where it states one.
    """

    retired: tuple[str, ...] = ()
    lives: Mapping[str, int] = field(default_factory=dict)
    boundaries: Mapping[str, int] = field(default_factory=dict)
    version: int = 0

    def add(self, site: str, from_us: int | None) -> SiteOrders:
        """Return the orders with a site that counts, from an instant on if one is stated."""
        retired = tuple(name for name in self.retired if name != site)
        return replace(self, retired=retired)._at(site, from_us)

    def retire(self, site: str, until_us: int | None) -> SiteOrders:
        """Return the orders with a site that counts no more, from an instant on if one is stated."""
        retired = tuple(dict.fromkeys((*self.retired, site)))
        return replace(self, retired=retired)._at(site, until_us)

    def replace(self, site: str, from_us: int | None) -> SiteOrders:
        """Return the orders with one more life of a site, from an instant on if one is stated."""
        return replace(self, lives={**self.lives, site: self.lives.get(site, 0) + 1})._at(site, from_us)

    def _at(self, site: str, instant_us: int | None) -> SiteOrders:
        boundaries = {name: at for name, at in self.boundaries.items() if name != site}
        if instant_us is not None:
            boundaries[site] = instant_us
        return replace(self, boundaries=boundaries, version=self.version + 1)
