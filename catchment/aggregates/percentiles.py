"""median and percentile: the values themselves with their counts, up to a bound; beyond it a KLL sketch.

The state is a multiset: each distinct value with the number of its records, in order. It depends on the records alone,
so partials merge in any order and pieces, and percentiles of it are those of all records. A multiset of more than
`max_distinct` values is replaced by a KLL sketch, whose error is one of rank; what is merged with a sketch goes into
the sketch. NaN is greater than any other number, as in Spark; in a sketch it counts as infinity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import kll_doubles_sketch

from catchment.aggregates.base import Aggregate, AggregateCall, Groups, StateColumn
from catchment.aggregates.bounded_sets import DEFAULT_MAX_DISTINCT, check_set_size
from catchment.aggregates.grouped import floats_of, nullable, sorted_codes, valid_rows
from catchment.aggregates.quantiles import check_ranks, read_ranks
from catchment.aggregates.sketches import read_sketch
from catchment.aggregates.totals import check_number
from catchment.arrays import Floats, Ints, Mask
from catchment.errors import AggregateError
from catchment.storage.codec import stored

SKETCH_K = 1_000  # size of the sketches beyond the bound: an error of rank of about 0.3%
REPEATED_AT_ONCE = 1_000_000  # values with counts go into a sketch in pieces of so many records

_ITEM = pa.struct([("value", pa.float64()), ("count", pa.int64())])


@dataclass(frozen=True)
class _Multisets:
    """The values of several groups with their counts: item i belongs to `owners[i]`, sorted by owner and value."""

    owners: Ints
    values: Floats
    counts: Ints

    def of(self, group: int) -> tuple[Floats, Ints]:
        """Return the values and counts of one group."""
        first, last = np.searchsorted(self.owners, [group, group + 1])
        return self.values[first:last], self.counts[first:last]

    def sizes(self, groups: int) -> Ints:
        """Return how many distinct values each group has."""
        return np.bincount(self.owners, minlength=groups).astype(np.int64)

    def to_lists(self, is_dropped: Mask) -> pa.Array:
        """Return one list per group, null for those that are dropped."""
        kept = ~is_dropped[self.owners]
        sizes = np.bincount(self.owners[kept], minlength=len(is_dropped))
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        columns = [pa.array(self.values[kept]), pa.array(self.counts[kept])]
        items = pa.StructArray.from_arrays(columns, fields=list(_ITEM))
        lists = pa.ListArray.from_arrays(offsets, items)
        return pc.if_else(pa.array(is_dropped), pa.scalar(None, lists.type), lists) if is_dropped.any() else lists


@stored()
@dataclass(frozen=True)
class Percentile(Aggregate):
    """The value at a rank, or the values at several, interpolated between neighbours as in Spark; null for none.

    Exact up to `max_distinct` distinct values, an estimate beyond. Its `sketch_error` is one of rank.
    """

    ranks: tuple[float, ...] = (0.5,)
    many: bool = False
    max_distinct: int = DEFAULT_MAX_DISTINCT

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self)
        check_ranks(self.ranks, self)
        check_set_size(self.max_distinct, 2, self)

    @classmethod
    def from_call(cls, call: AggregateCall) -> Percentile:
        """Make the aggregate of a call: percentile has one rank or a list of them, median none; then the bound."""
        parameters = (0.5, *call.parameters) if call.function == "median" else call.parameters
        if not parameters:
            raise AggregateError("percentile needs a percentage", where=call.name, hint="write percentile(x, 0.5)")
        ranks, many = read_ranks(parameters[0], call)
        return cls(*call.head, ranks, many, *(int(str(bound)) for bound in parameters[1:]))

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return self.column("values", pa.list_(_ITEM)), self.column("kll", pa.binary())

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.float64()) if self.many else pa.float64()

    @property
    def exact(self) -> bool:
        return False

    @property
    def merges_in_spark(self) -> bool:
        return False

    @property
    def sketch_error(self) -> float:
        """How far the rank of a value may be from the one asked for beyond the bound, with 99% confidence."""
        return float(kll_doubles_sketch.get_normalized_rank_error(SKETCH_K, self.many))

    def are_estimates(self, states: Sequence[pa.Array]) -> Mask:
        return valid_rows(states[1])

    def lift_sql(self) -> tuple[str, ...]:
        x = f"(CAST(({self.argument}) AS DOUBLE) + 0.0D)"
        is_small = f"size(collect_set({x})) <= {self.max_distinct}"
        starts = "filter(transform(l, (v, i) -> IF(get(l, i - 1) <=> v, NULL, i)), i -> i IS NOT NULL)"
        sorted_once = f"transform(array(array_sort(collect_list({x}))), l -> named_struct('l', l, 'starts', {starts}))"
        count = "CAST(coalesce(get(r.starts, n + 1), size(r.l)) - i AS BIGINT)"
        runs = f"transform(r.starts, (i, n) -> named_struct('value', get(r.l, i), 'count', {count}))"
        finite = f"IF(isnan({x}), CAST('Infinity' AS DOUBLE), {x})"
        return (
            f"IF({is_small}, element_at(transform({sorted_once}, r -> {runs}), 1), NULL)",
            f"IF({is_small}, NULL, kll_sketch_agg_double({finite}, {SKETCH_K}))",
        )

    def merge_sql(self) -> tuple[str, ...]:
        raise AggregateError(f"Spark cannot merge states of {self.function}; they are merged in the driver")

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        known = valid_rows(values)
        numbers = floats_of(values.filter(pa.array(known)))
        found = _count_values(numbers, np.ones(len(numbers), np.int64), groups[known])
        return self._bounded(found, [], size)

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        lists, sketches = states
        items = pc.list_flatten(lists)
        owners = groups[np.asarray(pc.list_parent_indices(lists))]
        values = np.asarray(pc.struct_field(items, "value"))
        counts = np.asarray(pc.struct_field(items, "count"))
        rows = np.flatnonzero(valid_rows(sketches))
        sketched = list(zip(groups[rows].tolist(), sketches.take(pa.array(rows)).to_pylist(), strict=True))
        return self._bounded(_count_values(values, counts, owners), sketched, size)

    def _bounded(self, found: _Multisets, sketched: Sequence[tuple[int, bytes]], size: int) -> list[pa.Array]:
        """Return the states of groups: multisets, and sketches of those beyond the bound or merged with a sketch."""
        is_large = found.sizes(size) > self.max_distinct
        is_large[[group for group, _ in sketched]] = True
        sketches = {group: kll_doubles_sketch(SKETCH_K) for group in np.flatnonzero(is_large).tolist()}
        for group, state in sketched:
            sketches[group].merge(read_sketch(kll_doubles_sketch.deserialize, state, self))
        for group, sketch in sketches.items():
            for piece in _repeated(*found.of(group)):
                sketch.update(piece)
        states = [bytes(sketches[g].serialize()) if g in sketches else None for g in range(size)]
        return [found.to_lists(is_large).cast(self.states[0].type), pa.array(states, pa.binary())]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        lists, sketches = states
        answers = _interpolate(lists, self.ranks)
        for row in np.flatnonzero(valid_rows(sketches)).tolist():
            sketch = read_sketch(kll_doubles_sketch.deserialize, sketches[row].as_py(), self)
            answers[row] = sketch.get_quantiles(list(self.ranks), True)
        is_empty = (_lengths(lists) == 0) & ~valid_rows(sketches)
        if not self.many:
            return nullable(answers[:, 0], is_empty)
        listed = pa.FixedSizeListArray.from_arrays(pa.array(answers.ravel()), len(self.ranks)).cast(self.result_type)
        return pc.if_else(pa.array(is_empty), pa.scalar(None, self.result_type), listed)


def _count_values(values: Floats, counts: Ints, groups: Groups) -> _Multisets:
    """Return each distinct value of each group, with the sum of its counts."""
    codes, distinct = sorted_codes(pa.array(values))
    width = max(len(distinct), 1)
    pairs, places = np.unique(groups.astype(np.int64) * width + codes, return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, places, counts)
    owners, items = np.divmod(pairs, width)
    return _Multisets(owners, np.asarray(distinct)[items] if len(distinct) else np.empty(0), sums)


def _repeated(values: Floats, counts: Ints) -> Iterator[Floats]:
    """Yield every value as often as it is counted, in pieces; NaN as infinity."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ordered = np.where(np.isnan(values), np.inf, values)
    for first in range(0, total, REPEATED_AT_ONCE):
        records = np.arange(first, min(first + REPEATED_AT_ONCE, total))
        yield ordered[np.searchsorted(ends, records, side="right")]


def _lengths(lists: pa.Array) -> Ints:
    return np.asarray(pc.list_value_length(lists).fill_null(0)).astype(np.int64)


def _interpolate(lists: pa.Array, ranks: Sequence[float]) -> Floats:
    """Return the values at these ranks, one row per list; NaN where a list is empty or null."""
    sizes = _lengths(lists)
    items = pc.list_flatten(lists)
    values = np.asarray(pc.struct_field(items, "value"))
    ends = np.concatenate([[0], np.cumsum(np.asarray(pc.struct_field(items, "count")))])
    last = np.cumsum(sizes)
    before = ends[last - sizes]
    records = ends[last] - before
    answers = np.full((len(lists), len(ranks)), np.nan)
    rows = np.flatnonzero(records > 0)
    for column, rank in enumerate(ranks):
        place = (records[rows] - 1) * rank
        lower, upper = (
            values[np.searchsorted(ends, before[rows] + end.astype(np.int64), side="right") - 1]
            for end in (np.floor(place), np.ceil(place))
        )
        with np.errstate(invalid="ignore"):
            mixed = lower + (place - np.floor(place)) * (upper - lower)
        answers[rows, column] = np.where(lower == upper, lower, mixed)
    return answers
