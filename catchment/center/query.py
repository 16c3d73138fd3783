"""A query as the center knows it, and the rule by which its late records are merged."""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.errors import CenterError
from catchment.optimizer.sharing.derive import Derivation
from catchment.quality.contract import Contract
from catchment.query.fragment import Fragment
from catchment.query.join import Join
from catchment.storage.codec import stored
from catchment.timeline import SECOND_US, Window, WindowSpec


@stored()
@dataclass(frozen=True)
class RepairRule:
    """When registered late records are merged, whichever comes first.

    `spread_us`: their event times span more than this (Yang et al., HPM, section 2: Gamma). `max_records`: there are so
    many. `max_age_us`: the first has waited so long; the paper has no such rule, and the last batch of a stream that
    falls silent would never be repaired.
    """

    spread_us: int = 5 * SECOND_US
    max_records: int = 10_000
    max_age_us: int = 10 * SECOND_US

    def __post_init__(self) -> None:
        if self.spread_us < 0 or self.max_records < 1 or self.max_age_us < 0:
            raise CenterError(f"a repair rule needs a spread and an age of 0 or more, a number of 1 or more: {self}")


# version 4 has renewal, version 5 named_sites
@stored(5, {1: lambda fields: fields | {"whole_windows": False}, 2: lambda fields: fields, 3: dict, 4: dict})
@dataclass(frozen=True)
class CenterQuery:
    """A query as the center runs it: its own fragment, its windows, the sites that it waits for and how long.

    With a `derivation` its partials are derived from those of a shared fragment; without one, its own fragment runs.
    With a `contract` its sites say what they lack when they close a window. `early_us`: how often open windows are
    published early, if at all. Without `repair`, late records are registered and counted, not merged. `source_key` is
    the key, if any, that is the stream's source, so that coverage is known row by row. With a `join` it has two
    `sides`, each with a derivation of its own, and its fragment is the pairing of both; with sides and without a join
    it is a union, and each side has the layout of its fragment. With `whole_windows` every
    revision has all rows of its window, because what is published of one row depends on the others (LIMIT).
    `late_delta` is the chance that more is late than is stated: the part of 1 - confidence that samplers and sketches
    leave to late records. `renewal` counts how often its windows were ordered to be computed again. With `named_sites`
    it takes the partials of those alone, wherever else its fragment runs.
    """

    name: str
    fragment: Fragment
    window: WindowSpec
    sites: tuple[str, ...]
    repair_horizon_us: int
    freshness_us: int | None = None
    derivation: Derivation | None = None
    contract: Contract | None = None
    early_us: int | None = None
    repair: RepairRule | None = field(default_factory=RepairRule)
    source_key: str | None = None
    join: Join | None = None
    sides: tuple[CenterQuery, ...] = ()
    whole_windows: bool = False
    late_delta: float = 0.05
    renewal: int = 0
    named_sites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.sites:
            raise CenterError(f"query {self.name!r} has no sites that send to it")
        if self.repair_horizon_us < 0 or (self.freshness_us is not None and self.freshness_us < 0):
            raise CenterError(f"query {self.name!r} has a negative repair horizon or freshness")
        if self.join is not None and not self.sides:
            raise CenterError(f"query {self.name!r} has a join without sides")

    @property
    def parts(self) -> tuple[CenterQuery, ...]:
        """Its queries over one stream each: itself or, of several streams, its sides."""
        return self.sides or (self,)

    @property
    def answers(self) -> Fragment:
        """The layout of what is published of it."""
        return self.fragment if self.join is None else self.join.answers

    @property
    def learns_errors(self) -> bool:
        """Whether what its answers lack is learned from former windows: records are not what they count.

        It has a contract, and joins streams or makes several rows of a record.
        """
        return self.contract is not None and (self.join is not None or bool(self.fragment.explodes))

    @property
    def source_fragment(self) -> str:
        """The fragment that its partials come from."""
        return self.derivation.fragment if self.derivation is not None else self.fragment.name

    def counts(self, site: str) -> bool:
        """Return whether it is asked about records of a site."""
        return not self.named_sites or site in self.named_sites

    def window_at(self, start_us: int) -> Window:
        """Return its window that starts at an instant."""
        return Window(start_us, start_us + self.window.size_us)
