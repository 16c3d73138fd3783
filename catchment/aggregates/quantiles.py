"""percentile_approx: a KLL sketch of doubles.

The value at p is the least value of the sketch whose rank is at least p, as in Spark; with at most k values in all it
is exact. Compaction is random, so two merges of the same large parts may differ within the error. The sketch skips NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from datasketches import kll_doubles_sketch

from catchment.aggregates.base import Aggregate, AggregateCall, quote
from catchment.aggregates.grouped import floats_of
from catchment.aggregates.sketches import SketchAggregate, read_sketch
from catchment.aggregates.totals import check_number
from catchment.errors import AggregateError
from catchment.storage.codec import stored

DEFAULT_K = 200  # default size of a sketch
MIN_K, MAX_K = 8, 65535


@stored()
@dataclass(frozen=True)
class ApproxPercentile(SketchAggregate):
    """The value at a rank, or the values at several; null for none. Its `sketch_error` is one of rank."""

    ranks: tuple[float, ...] = (0.5,)
    many: bool = False
    k: int = DEFAULT_K
    suffix = "kll"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self)
        check_ranks(self.ranks, self)
        if not MIN_K <= self.k <= MAX_K:
            raise AggregateError(f"a KLL sketch takes k from {MIN_K} to {MAX_K}, not {self.k}", where=self.name)

    @classmethod
    def from_call(cls, call: AggregateCall) -> ApproxPercentile:
        """Make the aggregate of a call: a rank or a list of them, then optionally 1 over the largest error of rank."""
        if not call.parameters:
            raise AggregateError(
                "percentile_approx needs a percentage",
                where=call.name,
                hint="write percentile_approx(x, 0.5)",
            )
        wanted, *accuracy = call.parameters
        ranks, many = read_ranks(wanted, call)
        k = k_of(_number(accuracy[0], call), call.name) if accuracy else DEFAULT_K
        return cls(*call.head, ranks, many, k)

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.float64()) if self.many else pa.float64()

    @property
    def sketch_error(self) -> float:
        """How far the rank of a value may be from the one asked for, as a share of 1, with 99% confidence.

        Where several are asked for, it holds for all of them together.
        """
        return float(kll_doubles_sketch.get_normalized_rank_error(self.k, self.many))

    def lift_sql(self) -> tuple[str, ...]:
        return (f"kll_sketch_agg_double(CAST(({self.argument}) AS DOUBLE), {self.k})",)

    def merge_sql(self) -> tuple[str, ...]:
        return (f"kll_merge_agg_double({quote(self.states[0].name)}, {self.k})",)

    def prepare(self, values: pa.Array) -> pa.Array:
        return pa.array(floats_of(values))

    def sketch(self, values: pa.Array) -> bytes:
        sketch = kll_doubles_sketch(self.k)
        sketch.update(np.array(values))  # a copy, because the sketch needs a writable array
        return bytes(sketch.serialize())

    def merge(self, sketches: Sequence[bytes]) -> bytes:
        merged = kll_doubles_sketch(self.k)
        for state in sketches:
            merged.merge(read_sketch(kll_doubles_sketch.deserialize, state, self))
        return bytes(merged.serialize())

    def estimate(self, sketch: bytes | None) -> float | list[float] | None:
        if sketch is None:
            return None
        read = read_sketch(kll_doubles_sketch.deserialize, sketch, self)
        if read.is_empty():
            return None
        values: list[float] = read.get_quantiles(list(self.ranks), True)
        return values if self.many else values[0]


def k_of(accuracy: float, name: str) -> int:
    """Return the least k whose error of rank is at most 1 / accuracy."""
    error = kll_doubles_sketch.get_normalized_rank_error
    most = int(1 / error(MAX_K, False))
    if not 1 <= accuracy <= most:
        raise AggregateError(
            f"percentile_approx takes an accuracy from 1 to {most}, and was given {accuracy:g}",
            where=name,
            hint="the error of rank is 1 / accuracy; leave it out for about 1.3%",
        )
    low, high = MIN_K, MAX_K
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if error(middle, False) <= 1 / accuracy else (middle + 1, high)
    return low


def check_ranks(ranks: Sequence[float], aggregate: Aggregate) -> None:
    """Refuse ranks that are no shares of 1, and a list of none."""
    if not ranks or not all(0.0 <= rank <= 1.0 for rank in ranks):
        raise AggregateError(
            f"{aggregate.function} takes percentages from 0.0 to 1.0, and was given {tuple(ranks)}",
            where=aggregate.name,
        )


def read_ranks(parameter: object, call: AggregateCall) -> tuple[tuple[float, ...], bool]:
    """Return the ranks that a call asks for, and whether it asks for a list of them."""
    listed = parameter if isinstance(parameter, (list, tuple)) else (parameter,)
    return tuple(_number(rank, call) for rank in listed), listed is parameter


def _number(value: object, call: AggregateCall) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise AggregateError(
            f"{call.function} needs numbers as its percentage and accuracy, and was given {value!r}",
            where=call.name,
        ) from None
