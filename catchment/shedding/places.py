"""Which records a sampler lets pass: decided by a hash of the record's identity.

A record's place is a number in [0, 2^53), a hash of (stream, the record's identity, seed); a sampler of rate p lets it
pass if the place is below p 2^53. So
- a replayed batch sheds the same records;
- rates nest: what passes at a rate passes at every higher one, so the samplers along a path are one comparison with the
  lowest of them, and a record that one query lost to a lower rate is still there for another;
- different records pass independently of each other (as far as the hash is random), which every bound of the quality
  room needs. The **identity must therefore be unique**: the number of the record in its source, or its batch and its
  number there. Records of equal identity share one fate, and then the bounds do not hold.

The rule exists twice, as Spark SQL and as numpy over Arrow, bit by bit the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from catchment.aggregates.hashing import hash_rows, hash_text
from catchment.arrays import Mask, Words
from catchment.errors import ConfigError
from catchment.shedding.reader_filter import PLACES, ROW
from catchment.wire.frames.limits import MAX_STRATA

__all__ = ["PLACES", "ROW", "SamplingRule", "history_rule", "number_sql", "source_rule", "stratum_rate_sql", "text_sql"]

_DROPPED_BITS = 64 - 53  # bits of a hash that a place does not use


@dataclass(frozen=True)
class SamplingRule:
    """The sampling rule of a stream: Spark SQL expressions that together identify a record."""

    stream: str
    identity: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.stream or not self.identity:
            raise ConfigError(
                f"the sampling rule of stream {self.stream!r} has no identity of its records to decide by",
                hint="name the columns that identify a record, such as batch and row",
            )

    @cached_property
    def salt(self) -> int:
        """Return stream and seed as one number that is not negative: Spark's grammar has no least BIGINT."""
        return hash_text(self.stream, self.seed) >> 1

    @cached_property
    def _salted(self) -> int:
        """Return the hash of the salt, which is the seed of what is hashed after it."""
        return int(hash_rows([pa.array([self.salt], pa.int64())])[0])

    @property
    def place_sql(self) -> str:
        """Return the place of a record as a BIGINT expression of Spark SQL."""
        columns = ", ".join(f"({expression})" for expression in self.identity)
        return f"shiftrightunsigned(xxhash64({self.salt}L, {columns}), {_DROPPED_BITS})"

    def keep_sql(self, rate: float | str) -> str:
        """Return whether a record passes, as Spark SQL. A rate is a number, or SQL as `stratum_rate_sql` returns."""
        if isinstance(rate, str):
            threshold = f"({rate}) * {PLACES}D"
        else:
            threshold = number_sql(_check_rate(rate) * PLACES)
        return f"({self.place_sql} < {threshold})"

    def places(self, columns: Sequence[pa.Array]) -> Words:
        """Return the places of records; `columns` are the values of the expressions of the identity."""
        if len(columns) != len(self.identity):
            raise ConfigError(f"the identity has {len(self.identity)} columns and {len(columns)} were given")
        return hash_rows(columns, self._salted) >> np.uint64(_DROPPED_BITS)

    def keep(self, columns: Sequence[pa.Array], rate: ArrayLike) -> Mask:
        """Return which records pass, at one rate or at one rate each."""
        return np.asarray(self.places(columns).astype(np.float64) < np.asarray(rate, dtype=np.float64) * PLACES)


def source_rule(stream: str) -> SamplingRule:
    """Return the rule for records that are numbered by their source."""
    return SamplingRule(stream, (ROW,))


def history_rule(stream: str, batch: int) -> SamplingRule:
    """Return the rule for the records of a batch of history, which are numbered within the batch."""
    return SamplingRule(stream, (f"{batch}L", ROW))


def number_sql(number: float) -> str:
    """Return a double literal of Spark SQL that is read back as the same double."""
    return f"{float(number)!r}D"


def stratum_rate_sql(key: str, rates: Mapping[str, float], default: float = 1.0) -> str:
    """Return the rate of a record by its group, as Spark SQL.

    `key` is a STRING expression; groups that are not named have the default rate.
    """
    if len(rates) > MAX_STRATA:
        raise ConfigError(
            f"{len(rates)} strata are more than a sampler names ({MAX_STRATA})",
            hint="give the largest groups rates of their own and leave the others to the default",
        )
    if not rates:
        return number_sql(_check_rate(default))
    pairs = ", ".join(f"{text_sql(name)}, {number_sql(_check_rate(rate))}" for name, rate in sorted(rates.items()))
    return f"coalesce(try_element_at(map({pairs}), {key}), {number_sql(_check_rate(default))})"


def text_sql(text: str) -> str:
    """Return a text literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _check_rate(rate: float) -> float:
    if not 0.0 <= rate <= 1.0:
        raise ConfigError(f"a sampling rate is between 0 and 1, not {rate!r}")
    return rate
