"""What the operator has ordered of sites, beyond what `catchment.toml` declares: retire, come back, be replaced or
healed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from catchment.storage.codec import stored


@stored(version=2, migrations={1: dict})  # version 2 has healed
@dataclass(frozen=True)
class SiteOrders:
    """The orders that are in force; `version` grows with each.

    A site in `retired` counts no more, though it may still be declared. `lives`: how often a site, or a relay, was
    replaced by one with an empty disk, or healed. `healed`: the newest life that it has begun by being healed; it may
    then go on with whatever state it has. `boundaries`: the event time that the newest order of a site states, where it
    states one.
    """

    retired: tuple[str, ...] = ()
    lives: Mapping[str, int] = field(default_factory=dict)
    boundaries: Mapping[str, int] = field(default_factory=dict)
    version: int = 0
    healed: Mapping[str, int] = field(default_factory=dict)

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

    def heal(self, names: Iterable[str]) -> SiteOrders:
        """Return the orders with one more life of each of these, begun by whatever state is there."""
        begun = {name: self.lives.get(name, 0) + 1 for name in names}
        healed = replace(self, lives={**self.lives, **begun}, healed={**self.healed, **begun})
        return replace(healed, version=self.version + 1)

    def is_healed(self, name: str) -> bool:
        """Return whether the present life of a site or relay was begun by being healed."""
        return name in self.healed and self.healed[name] == self.lives.get(name, 0)

    def _at(self, site: str, instant_us: int | None) -> SiteOrders:
        boundaries = {name: at for name, at in self.boundaries.items() if name != site}
        if instant_us is not None:
            boundaries[site] = instant_us
        return replace(self, boundaries=boundaries, version=self.version + 1)
