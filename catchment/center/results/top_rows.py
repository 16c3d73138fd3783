"""ORDER BY with LIMIT: which rows of a window are not among its first ones.

A window is ordered as a whole, so every revision of such a view holds all rows of its window; those beyond the limit
are published as retracted, with their states, because a late record may bring them back. Values are ordered as in
Spark: NaN is above every number, and a null is where the key says. Rows that agree in every key of the order are told
apart by the keys of GROUP BY, so that equal records give equal answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from catchment.aggregates.grouped import sorted_codes
from catchment.aggregates.partials import one_array
from catchment.arrays import Ints, Mask
from catchment.query.plan_nodes import SortKey


def beyond_limit(revisions: Ints, kept: Mask, order: Sequence[Ints], limit: int) -> Mask:
    """Return which rows are not among the first `limit` kept rows of their revision.

    `order` are the codes of each row by the keys of the order, the most important first.
    """
    ranked = np.lexsort([*reversed(order), ~kept, revisions])
    starts = np.flatnonzero(np.r_[True, np.diff(revisions[ranked]) != 0]) if len(ranked) else ranked
    sizes = np.diff(np.r_[starts, len(ranked)])
    place = np.empty(len(ranked), dtype=np.int64)
    place[ranked] = np.arange(len(ranked)) - np.repeat(starts, sizes)
    return np.asarray(~kept | (place >= limit))


def order_codes(column: pa.Array | pa.ChunkedArray, key: SortKey | None = None) -> Ints:
    """Return whole numbers in the order of a column; ascending, nulls first, where there is no key that says more."""
    values = one_array(column)
    codes, distinct = sorted_codes(values)
    if key is not None and key.descending:
        codes = -codes
    nulls_first = key is None or key.nulls_first
    outside = -len(distinct) - 1 if nulls_first else len(distinct) + 1
    return np.where(np.asarray(values.is_null()), outside, codes)
