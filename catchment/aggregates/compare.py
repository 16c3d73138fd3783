"""Comparisons of two columns row by row as in Spark: a null with nothing, NaN equal to NaN and above all else."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_COMPUTE = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal, "<>": pc.not_equal, "=": pc.equal,
}  # fmt: skip


def compare(left: pa.Array, operator: str, right: pa.Array) -> pa.Array:
    """Where the comparison certainly holds."""
    if pa.types.is_floating(left.type):
        left, right = _ranks(left, right)
    elif pa.types.is_boolean(left.type):
        left, right = left.cast(pa.int8()), right.cast(pa.int8())
    return _COMPUTE[operator](left, right).fill_null(False)


def _ranks(left: pa.Array, right: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Whole numbers in the order of two columns of floats."""
    both = pa.concat_arrays([left, right.cast(left.type)])
    whole = pc.if_else(pc.is_nan(both), pa.scalar(None, both.type), pc.add(both, pa.scalar(0.0, both.type)))
    distinct = pc.unique(whole.drop_null())
    order = distinct.take(pc.sort_indices(distinct))
    known = pc.index_in(whole, value_set=order)
    ranks = pc.if_else(pc.is_nan(both), pa.scalar(len(order), pa.int32()), known)
    return ranks.slice(0, len(left)), ranks.slice(len(left))
