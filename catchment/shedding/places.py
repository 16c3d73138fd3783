"""Which records a sampler lets pass: decided by a hash, never by a coin.

A record's place is a number in [0, 2^53), a hash of (stream, the record's identity, seed); a sampler of
rate p lets it pass if the place is below p 2^53. So
- a replayed batch sheds the same records;
- rates nest: what passes at a rate passes at every higher one, so the samplers along a path are one
  comparison with the lowest of them, and a record that one query lost to a lower rate is still there for
  another;
- different records pass independently of each other (as far as the hash is random), which every bound of
  the quality room asks for. The **identity must therefore be the record's own**: its place in its source
  (file and row, partition and offset), or a key that occurs once. Records of equal identity share one
  fate, and then the bounds do not hold.

The rule exists twice, as Spark SQL and as numpy over Arrow, bit by bit the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from catchment.aggregates.hashing import hash_rows, hash_text
from catchment.arrays import Words
from catchment.errors import ConfigError
from catchment.storage.codec import stored
from catchment.wire.limits import MAX_STRATA

Floats = NDArray[np.float64]

PLACES = 2**53  # doubles count this far without gaps, so a rate is compared exactly on both sides
_DROPPED_BITS = 64 - 53
# A sampler's expression names each stratum; at the bound, the smaller groups go without a rate of their own.


@dataclass(frozen=True)
class SamplingRule:
    """How the records of a stream are told apart: Spark SQL expressions that together are a record's own."""

    stream: str
    identity: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.stream or not self.identity:
            raise ConfigError(
                f"a sampler of stream {self.stream!r} has no identity of its records to decide by",
                hint="name the columns that tell one record from another, such as file and row",
            )

    @cached_property
    def salt(self) -> int:
        """Stream and seed in one number, not negative (Spark's grammar has no least BIGINT)."""
        return hash_text(self.stream, self.seed) >> 1

    @cached_property
    def _salted(self) -> int:
        """The hash of the salt alone: the seed of what is hashed after it."""
        return int(hash_rows([pa.array([self.salt], pa.int64())])[0])

    @property
    def place_sql(self) -> str:
        """The record's place, as a BIGINT expression of Spark SQL."""
        columns = ", ".join(f"({expression})" for expression in self.identity)
        return f"shiftrightunsigned(xxhash64({self.salt}L, {columns}), {_DROPPED_BITS})"

    def keep_sql(self, rate: float | str) -> str:
        """Whether the record passes at a rate: a number, or an expression such as `stratum_rate_sql`
        gives."""
        threshold = f"({rate}) * {PLACES}D" if isinstance(rate, str) else number_sql(_checked(rate) * PLACES)
        return f"({self.place_sql} < {threshold})"

    def places(self, columns: Sequence[pa.Array]) -> Words:
        """The records' places; `columns` are the values of the identity's expressions."""
        if len(columns) != len(self.identity):
            raise ConfigError(f"the identity has {len(self.identity)} columns and {len(columns)} were given")
        return hash_rows(columns, self._salted) >> np.uint64(_DROPPED_BITS)

    def keep(self, columns: Sequence[pa.Array], rate: ArrayLike) -> NDArray[np.bool_]:
        """Which records pass, at one rate or at one each."""
        return np.asarray(self.places(columns).astype(np.float64) < np.asarray(rate, dtype=np.float64) * PLACES)


@stored()
@dataclass(frozen=True)
class GroupRates:
    """A rate for each of some values of a key (Spark SQL). Any other value, null too, has rate 1: a group that is not
    known yet is a small one."""

    key: str
    rates: tuple[tuple[int | str, float], ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.rates) <= MAX_STRATA:
            raise ConfigError(f"{len(self.rates)} groups have rates of their own; 1 to {MAX_STRATA} may")
        if any(not 0.0 < rate <= 1.0 for _, rate in self.rates):
            raise ConfigError(f"the rate of a group is above 0 and at most 1: {self.rates}")

    @property
    def lowest(self) -> float:
        return min(rate for _, rate in self.rates)

    @property
    def values(self) -> list[int | str]:
        return [value for value, _ in self.rates]

    @property
    def sql(self) -> str:
        """A record's rate, as Spark SQL."""
        return stratum_rate_sql(f"CAST({self.key} AS STRING)", {str(value): rate for value, rate in self.rates})

    def of(self, keys: pa.Array) -> Floats:
        """The rate of each record, by its key."""
        places = pc.index_in(keys, value_set=pa.array(self.values).cast(keys.type)).fill_null(len(self.rates))
        return np.asarray(np.array([*(rate for _, rate in self.rates), 1.0])[np.asarray(places)])


def scaled(values: ArrayLike, rates: ArrayLike) -> Floats:
    """Horvitz and Thompson: a kept value stands for 1 / rate of its kind, so their sum is unbiased."""
    divisor = np.asarray(rates, dtype=np.float64)
    if np.any(~((divisor > 0.0) & (divisor <= 1.0))):
        raise ConfigError("a kept record has a rate above 0 and at most 1")
    return np.asarray(values, dtype=np.float64) / divisor


def number_sql(number: float) -> str:
    """A double literal of Spark SQL that is read back as the same double."""
    return f"{float(number)!r}D"


def stratum_rate_sql(key: str, rates: Mapping[str, float], default: float = 1.0) -> str:
    """The rate of a record by its group: `key` is a STRING expression; groups that are not named have
    `default`."""
    if len(rates) > MAX_STRATA:
        raise ConfigError(
            f"{len(rates)} strata are more than a sampler names ({MAX_STRATA})",
            hint="give the largest groups rates of their own and leave the others to the default",
        )
    if not rates:
        return number_sql(_checked(default))
    pairs = ", ".join(f"{text_sql(name)}, {number_sql(_checked(rate))}" for name, rate in sorted(rates.items()))
    return f"coalesce(try_element_at(map({pairs}), {key}), {number_sql(_checked(default))})"


def spare_large_sql(rate: float | str, value: str, limit: float) -> str:
    """A rate of 1 for records whose value is over the limit: what may be shed then has a known range, and
    the bound of its sum is proved however heavy the tail. (A null or a NaN is no number to be far off by:
    it has the rate.)"""
    given = rate if isinstance(rate, str) else number_sql(_checked(rate))
    return f"CASE WHEN abs({value}) > {number_sql(limit)} AND NOT isnan({value}) THEN 1D ELSE {given} END"


def text_sql(text: str) -> str:
    """A text literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _checked(rate: float) -> float:
    if not 0.0 <= rate <= 1.0:
        raise ConfigError(f"a sampling rate is between 0 and 1, not {rate!r}")
    return rate
