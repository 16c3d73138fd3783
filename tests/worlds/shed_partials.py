"""Partials of sampled records, as a site makes them when it sheds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials
from catchment.aggregates.shed_terms import ShedTerms, terms_in, with_terms
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.terms import add_terms
from catchment.timeline import WindowSpec
from tests.worlds.world import Record, make_fragment


def shed_fragment(window: WindowSpec) -> Fragment:
    plain = make_fragment(window)
    return replace(plain, aggregates=with_terms(plain.aggregates))


def partials_of(fragment: Fragment, records: Sequence[Record], rate: float) -> tuple[pa.Table, Counter[int]]:
    slices = [fragment.slicing.start_of(ts) for ts, _, _ in records]
    raw = pa.table(
        {
            SLICE_COLUMN: pa.array(slices, pa.int64()),
            "k": pa.array([k for _, k, _ in records], pa.string()),
            "v": pa.array([v for _, _, v in records], pa.int64()),
            "one": pa.array(np.ones(len(records), dtype=np.int64)),
        }
    )
    base = [a for a in fragment.aggregates if not isinstance(a, ShedTerms)]
    keys = [SLICE_COLUMN, "k"]
    moments = [m for m in (t.moments for t in terms_in(fragment.aggregates)) if m is not None]
    table = partials.lift(raw, keys, [*base, *moments])
    counts = raw.group_by(keys, use_threads=False).aggregate([("one", "sum")])["one_sum"]
    full = add_terms(table, fragment.aggregates, counts.combine_chunks(), rate)
    return full.select(fragment.schema.names).cast(fragment.schema), Counter(slices)
