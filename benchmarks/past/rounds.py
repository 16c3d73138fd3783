"""What a second round sends, against sending all values: medians, percentiles and distinct counts at three sites.

The states are those that sites send, made by the aggregates' own laws and packed as on the wire; shipping the values is
one column of them, packed in the same way. No figure is believed before the answer is that of the sorted values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import RenderableType
from rich.table import Table

from catchment.aggregates import Aggregate, make_aggregate
from catchment.aggregates.bounded_sets import MAX_SET
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.second_round import RankIntervals, find_intervals, settle
from catchment.arrays import Floats
from catchment.errors import EngineError
from catchment.wire.frames.codec import pack_table

DESCRIPTION = "bytes of a second round, which makes medians and distinct counts exact, against sending all values"
SITES = 3
SIZES = (100_000, 1_000_000, 10_000_000)
QUICK_SIZES = (100_000,)
MAX_DISTINCT = 10_000
RANKS = {"median": (0.5,), "p90 and p99": (0.9, 0.99)}

Report = Callable[[str], None]


def run(report: Report, quick: bool) -> dict[str, Any]:
    """Measure every size and kind of values."""
    rows = []
    for count in QUICK_SIZES if quick else SIZES:
        for kind in ("durations", "milliseconds"):
            report(f"{count:,} {kind}")
            parts = np.array_split(_draw(kind, count), SITES)
            rows += [_measure_percentile(kind, name, ranks, parts) for name, ranks in RANKS.items()]
            if count <= MAX_SET:
                rows.append(_measure_distinct(kind, parts))
    return {"data": f"made-up values at {SITES} sites, one row, max_distinct = {MAX_DISTINCT:,}", "rows": rows}


def _draw(kind: str, count: int) -> Floats:
    """Return log-normal durations: as doubles, nearly all distinct, or as whole milliseconds, which repeat."""
    values = np.random.default_rng(7).lognormal(4.0, 1.5, count)
    return values if kind == "durations" else np.round(values)


def _measure_percentile(kind: str, name: str, ranks: Sequence[float], parts: Sequence[Floats]) -> dict[str, Any]:
    aggregate = make_aggregate("percentile", "v", pa.float64(), (list(ranks), MAX_DISTINCT), name="p")
    exact = make_aggregate("percentile", "v", pa.float64(), (list(ranks), MAX_SET), name="p")
    assert isinstance(aggregate, Percentile)
    first = [_lift(aggregate, part) for part in parts]
    merged = _merge(aggregate, first)
    is_estimate = bool(aggregate.are_estimates(merged)[0])
    second: list[list[pa.Array]] = []
    answer = aggregate.lower(merged)[0].as_py()
    if is_estimate:
        known = find_intervals(aggregate, merged[1][0].as_py())
        second = [_lift(exact, _narrow(part, known)) for part in parts]
        items = _merge(exact, second)[0][0].as_py()
        values = np.array([item["value"] for item in items])
        settled = settle(aggregate, known, values, np.array([item["count"] for item in items]))
        if isinstance(settled, str):
            raise EngineError(f"the second round of {name} of {kind} has failed: {settled}")
        state = pa.array([[{"value": v, "count": c} for v, c in settled]], aggregate.states[0].type)
        answer = aggregate.lower([state, pa.array([None], pa.binary())])[0].as_py()
    together = np.concatenate(parts)
    if not np.allclose(answer, np.quantile(together, ranks), rtol=1e-12):
        raise EngineError(f"{name} of {kind} is {answer}, and {np.quantile(together, ranks)} by the sorted values")
    return _row(kind, name, parts, _bytes(aggregate, first), _bytes(exact, second))


def _measure_distinct(kind: str, parts: Sequence[Floats]) -> dict[str, Any]:
    aggregate = make_aggregate("count_distinct", "v", pa.float64(), (MAX_DISTINCT,), name="d")
    exact = make_aggregate("count_distinct", "v", pa.float64(), (MAX_SET,), name="d")
    first = [_lift(aggregate, part) for part in parts]
    is_estimate = bool(aggregate.are_estimates(_merge(aggregate, first))[0])
    second = [_lift(exact, part) for part in parts] if is_estimate else []
    found = exact.lower(_merge(exact, second or first))[0].as_py()
    if found != len(np.unique(np.concatenate(parts))):
        raise EngineError(
            f"{found} distinct {kind} were counted, and there are {len(np.unique(np.concatenate(parts)))}"
        )
    return _row(kind, "count(DISTINCT)", parts, _bytes(aggregate, first), _bytes(exact, second))


def _row(kind: str, name: str, parts: Sequence[Floats], first_bytes: int, second_bytes: int) -> dict[str, Any]:
    shipped = sum(len(pack_table(pa.table({"v": part})).data) for part in parts)
    return {
        "values": kind,
        "records": sum(map(len, parts)),
        "answer": name,
        "first_bytes": first_bytes,
        "second_bytes": second_bytes,
        "all_values_bytes": shipped,
        "share": (first_bytes + second_bytes) / shipped,
    }


def _lift(aggregate: Aggregate, values: Floats) -> list[pa.Array]:
    return aggregate.lift(pa.array(values), np.zeros(len(values), np.int64), 1)


def _merge(aggregate: Aggregate, states: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    together = [pa.concat_arrays(list(column)) for column in zip(*states, strict=True)]
    return aggregate.combine(together, np.zeros(len(states), np.int64), 1)


def _narrow(values: Floats, known: RankIntervals) -> Floats:
    """Return values as sites send them in a second round (`RankIntervals.narrow_sql`)."""
    narrowed = np.full(len(values), np.nan)
    edges = known.intervals
    for low, high in edges:
        narrowed = np.where((values >= low) & (values <= high), values, narrowed)
    for (_, end), (begin, _) in pairwise(edges):
        narrowed = np.where((values > end) & (values < begin), (end + begin) / 2, narrowed)
    narrowed = np.where(values < edges[0][0], -np.inf, narrowed)
    return np.where(values > edges[-1][1], np.inf, narrowed)


def _bytes(aggregate: Aggregate, states: Sequence[Sequence[pa.Array]]) -> int:
    """Return what the states of each site take on the wire."""
    names = [state.name for state in aggregate.states]
    tables = [pa.table({"slice_us": pa.array([0], pa.int64()), **dict(zip(names, s, strict=True))}) for s in states]
    return sum(len(pack_table(table).data) for table in tables)


def render(result: Mapping[str, Any]) -> RenderableType:
    """Return a table of what crosses the WAN."""
    table = Table("values", "records", "answer", "first round", "second round", "all values", "share")
    for row in result["rows"]:
        table.add_row(
            row["values"],
            f"{row['records']:,}",
            row["answer"],
            f"{row['first_bytes'] / 1e3:,.0f} kB",
            f"{row['second_bytes'] / 1e3:,.0f} kB" if row["second_bytes"] else "none: exact",
            f"{row['all_values_bytes'] / 1e3:,.0f} kB",
            f"{100 * row['share']:.1f}%",
        )
    return table
