"""How a batch is sampled: one value that decisions, partial aggregations, debts and facts carry.

A `Sampler` says which records of a batch a fragment takes; a `Selection` names the records on one side of a sampler. A
repair selects what a sampler left out, so both sides of one sampler together are the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.arrays import Floats
from catchment.errors import ConfigError
from catchment.shedding.places import number_sql, stratum_rate_sql
from catchment.storage.codec import stored
from catchment.wire.frames.limits import MAX_STRATA

SparedValues = tuple[tuple[str, float], ...]  # (a column as Spark SQL, the size beyond which its records all pass)


@stored()
@dataclass(frozen=True)
class GroupRates:
    """The sampling rates of some values of a key (Spark SQL).

    Any other value, and null, has rate 1: a group without statistics is small.
    """

    key: str
    rates: tuple[tuple[int | str, float], ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.rates) <= MAX_STRATA:
            raise ConfigError(f"{len(self.rates)} groups have rates of their own; 1 to {MAX_STRATA} may")
        if any(not 0.0 < rate <= 1.0 for _, rate in self.rates):
            raise ConfigError(f"the rate of a group is above 0 and at most 1, not as in {self.rates}")

    @property
    def lowest(self) -> float:
        return min(rate for _, rate in self.rates)

    @property
    def values(self) -> list[int | str]:
        return [value for value, _ in self.rates]

    @property
    def sql(self) -> str:
        """Return the rate of a record as Spark SQL."""
        return stratum_rate_sql(f"CAST({self.key} AS STRING)", {str(value): rate for value, rate in self.rates})

    def of(self, keys: pa.Array) -> Floats:
        """Return the rate of each record by its key."""
        known = pa.array(self.values).cast(keys.type)
        index = pc.index_in(keys, value_set=known).fill_null(len(self.rates))
        rates = np.array([*(rate for _, rate in self.rates), 1.0])
        return np.asarray(rates[np.asarray(index)])


@stored()
@dataclass(frozen=True)
class Sampler:
    """Which records of a batch a fragment takes.

    A record passes if its place (`catchment.shedding.places`) is below the rate. Records with a value beyond a limit
    in `spared` always pass. With `groups`, each group has its own rate, and `rate` is the share that passes of all.
    """

    rate: float = 1.0
    spared: SparedValues = ()
    groups: GroupRates | None = None

    @property
    def sheds(self) -> bool:
        return self.rate < 1.0

    @property
    def lowest_rate(self) -> float:
        """Return the rate of the records that are sampled most thinly."""
        return self.rate if self.groups is None else self.groups.lowest

    @property
    def highest_rate(self) -> float:
        """Return the highest rate of any record that is not spared."""
        return self.rate if self.groups is None else 1.0

    @property
    def rate_sql(self) -> float | str:
        """Return the rate, or the rate of a record as Spark SQL."""
        return self.rate if self.groups is None else self.groups.sql

    @property
    def spared_sql(self) -> str:
        """Return whether a record is spared, as Spark SQL."""
        return " OR ".join(_is_large_sql(f"CAST({sql} AS DOUBLE)", limit) for sql, limit in self.spared)


TAKE_ALL = Sampler()


class Side(StrEnum):
    """A side of a sampler: the records that pass, or those that it leaves out."""

    KEPT = "kept"
    LEFT = "left"


class SparedPart(StrEnum):
    """A part of the records by whether they are spared: all, the spared ones (which all pass), or the rest."""

    ALL = "all"
    SPARED = "spared"
    REST = "rest"


@dataclass(frozen=True)
class Selection:
    """The records of a batch on one side of a sampler, and, of those, the spared ones, the rest, or both."""

    sampler: Sampler = TAKE_ALL
    side: Side = Side.KEPT
    part: SparedPart = SparedPart.ALL

    @property
    def is_sampled(self) -> bool:
        """Whether a record's place decides if it is selected."""
        return self.sampler.sheds and self.part is not SparedPart.SPARED

    @property
    def scales(self) -> bool:
        """Whether selected records stand for others; those that a sampler leaves out do not."""
        return self.is_sampled and self.side is Side.KEPT

    def split(self) -> tuple[Selection, ...]:
        """Return selections that together are this one, so that no selection mixes spared and sampled records."""
        if not self.sampler.spared or self.part is not SparedPart.ALL or not self.is_sampled:
            return (self,)
        rest = replace(self, part=SparedPart.REST)
        if self.side is Side.LEFT:
            return (rest,)
        return rest, replace(self, part=SparedPart.SPARED)

    def over_columns(self, value_column: Callable[[str], str], key_column: Callable[[str], str]) -> Selection:
        """Return the selection with column names in place of the SQL of spared values and of the group key."""
        given = self.sampler
        spared: SparedValues = ()
        if self.part is not SparedPart.ALL:
            spared = tuple((value_column(sql), limit) for sql, limit in given.spared)
        groups = None if given.groups is None else replace(given.groups, key=key_column(given.groups.key))
        return replace(self, sampler=Sampler(given.rate, spared, groups))


def _is_large_sql(value: str, limit: float) -> str:
    return f"coalesce(abs({value}) > {number_sql(limit)} AND NOT isnan({value}), false)"
