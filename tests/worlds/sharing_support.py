"""What the tests of sharing have in common: random queries on random records, and their answers computed plainly.

Records have exactly the columns that queries name, under the canonical texts of those columns, so that a fragment can
be evaluated with DuckDB for its filter and its expressions, and with catchment.aggregates.partials for its partials.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Sequence
from functools import cache

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from catchment.aggregates import partials as tables
from catchment.aggregates.sketches import SketchAggregate
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery, query_of_plan
from catchment.optimizer.sharing.demand_estimate import StreamStatistics
from catchment.optimizer.sharing.share import SharingState
from catchment.optimizer.sharing.statistics import Statistics
from catchment.query.catalog import Catalog
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.query.planning.build import plan_view
from catchment.query.sql.dialect import read_expression
from catchment.query.sql.parse import parse_sql
from tests.worlds.query_support import make_project

SECOND = 1_000_000

SCHEMA = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, country STRING, bytes BIGINT, ms DOUBLE, bot BOOLEAN)
  WITH (event_time = 'ts', sites = 'us,eu', path = 'data/{site}');
CREATE STREAM other (ts TIMESTAMP, page STRING, bytes BIGINT)
  WITH (event_time = 'ts', sites = 'us,eu', path = 'other/{site}');
"""


@cache
def duck() -> duckdb.DuckDBPyConnection:
    """One engine for all tests: starting one costs more than what it is asked."""
    atexit.register(duck.cache_clear)  # DuckDB reports a connection that outlives the interpreter as leaked
    return duckdb.connect(config={"threads": 1})


@cache
def base_catalog() -> Catalog:
    return Catalog(make_project()).add(*parse_sql(SCHEMA, "schema.sql"))


def make_queries(*selects: str) -> list[SharedQuery]:
    """The queries q0, q1, ... of some SELECTs."""
    text = "\n".join(f"CREATE MATERIALIZED VIEW q{i} AS {s};" for i, s in enumerate(selects))
    catalog = base_catalog().add(*parse_sql(text, "q.sql"))
    return [query_of_plan(plan_view(view, catalog), catalog) for view in catalog.views.values()]


def make_hits(rng: np.random.Generator, count: int) -> pa.Table:
    """Random records with nulls, ties and few distinct values, over five minutes."""

    def some(values: Sequence[object]) -> list[object]:
        return [values[i] for i in rng.integers(0, len(values), count)]

    return pa.table(
        {
            "ts": pa.array(rng.integers(0, 300 * SECOND, count), pa.int64()),
            "page": pa.array(some(["a", "b", "c", "ä", None]), pa.string()),
            "user": pa.array(some([1, 2, 3, 40, -5, None]), pa.int32()),
            "country": pa.array(some(["us", "de", None]), pa.string()),
            "bytes": pa.array(some([0, 10, 500, 10**6, None]), pa.int64()),
            "ms": pa.array(some([0.5, 1.25, 100.0, None]), pa.float64()),
            "bot": pa.array(some([True, False, None]), pa.bool_()),
        }
    )


def lift_fragment(records: pa.Table, fragment: Fragment) -> pa.Table:
    """The partials of a fragment: filter and expressions by DuckDB, states by catchment.aggregates.partials."""
    asked = [f"{spark_as_duck(k.sql)} AS {_name(k.name)}" for k in fragment.keys]
    asked += [f"{spark_as_duck(a.argument)} AS {_name('of_' + a.name)}" for a in fragment.aggregates if a.argument]
    where = f"WHERE {spark_as_duck(fragment.where)}" if fragment.where else ""
    connection = duck()
    connection.register(fragment.stream, records)
    rows = connection.sql(f"SELECT {', '.join(['ts', *asked])} FROM {fragment.stream} {where}").to_arrow_table()
    starts = fragment.slicing.starts_of(np.asarray(rows["ts"], dtype=np.int64))
    rows = rows.append_column(SLICE_COLUMN, pa.array(starts, pa.int64()))
    for key in fragment.keys:
        rows = rows.set_column(rows.column_names.index(key.name), key.name, rows[key.name].cast(key.type))
    sources = {a.name: f"of_{a.name}" if a.argument else None for a in fragment.aggregates}
    return tables.lift(rows, [SLICE_COLUMN, *fragment.key_names], fragment.aggregates, sources)


def answers(partials: pa.Table, fragment: Fragment) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The values of each (slice, key), as plain Python."""
    keys = [SLICE_COLUMN, *fragment.key_names]
    lowered = tables.lower(tables.combine(partials, keys, fragment.aggregates), keys, fragment.aggregates)
    return {tuple(row[k] for k in keys): tuple(row[a.name] for a in fragment.aggregates) for row in lowered.to_pylist()}


def spark_as_duck(sql: str | None) -> str:
    """Spark SQL of the plain kind that tests use, as DuckDB reads it."""
    if "STRUCT(" in (sql or ""):
        return read_expression(sql or "").sql(dialect="duckdb")
    return (sql or "").replace("`", '"').replace("STRING", "VARCHAR")


def _name(name: str) -> str:
    return f'"{name}"'


CONDITIONS = [
    "page = 'a'",
    "page IN ('a', 'b')",
    "page <> 'c'",
    "user > 1",
    "user >= 2",
    "2 < user",
    "user BETWEEN 1 AND 3",
    "bytes > 5",
    "bytes > 100",
    "NOT bot",
    "bot",
    "country IS NOT NULL",
    "country IS NULL OR page = 'a'",
    "ms < 50.5",
    "NOT (page = 'a' OR user < 2)",
    "1 = 1",
]


AGGREGATES = [
    "count(*)",
    "sum(bytes)",
    "avg(bytes)",
    "avg(ms)",
    "sum(ms)",
    "count(bytes)",
    "min(ms)",
    "max(bytes)",
    "stddev_pop(ms)",
    "var_samp(ms)",
    "approx_count_distinct(user)",
    "count(*) FILTER (WHERE user > 1)",
    "percentile_approx(ms, 0.5)",
    "percentile_approx(ms, 0.9)",
    "approx_top_k(page, 2)",
    "sum(bytes + user)",
    "sum(user + bytes)",
]


WINDOWS = ["'1 minute'", "'30 seconds'", "'1 minute', '20 seconds'", "'2 minutes'", "'45 seconds'"]


KEYS = ["page", "user", "country", "bot", "user + 1"]


MINUTE = "'1 minute'"


def select(calls: str, keys: str = "", where: str = "", window: str = MINUTE, stream: str = "hits") -> str:
    grouped = f"window(ts, {window})" + (f", {keys}" if keys else "")
    return f"SELECT window.start, {calls} FROM {stream} {'WHERE ' + where if where else ''} GROUP BY {grouped}"


@st.composite
def selects(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True))
    calls = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=3, unique=True))
    where = draw(st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True))
    window = draw(st.sampled_from(WINDOWS))
    named = [f"{call} AS v{i}" for i, call in enumerate(calls)]
    filtered = f" WHERE {' AND '.join(f'({c})' for c in where)}" if where else ""
    grouped = ", ".join([f"window(ts, {window})", *keys])
    return f"SELECT window.start, {', '.join(named)} FROM hits{filtered} GROUP BY {grouped}"


def size(demand: FragmentDemand) -> float:
    """A stand-in for bytes that makes merging sometimes worth it."""
    return 10.0 * float(2 ** len(demand.keys)) + 3 * len(demand.aggregates) - len(demand.conditions)


def size_by_sketches(demand: FragmentDemand) -> float:
    """A stand-in for bytes that makes it worth it to send values in place of sketches, and one fragment for all."""
    return 10.0 + 5 * sum(isinstance(a, SketchAggregate) for a in demand.aggregates) + len(demand.keys)


def is_close(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return found == expected


def known(rows: float, values: float) -> Statistics:
    """So many records a second at each site, both columns with so many distinct values."""
    distinct = {"page": values, "country": values}
    return Statistics({"hits": StreamStatistics({"us": rows, "eu": rows}, 60, distinct)})


# Where nearly every record is a group of its own, one fragment by both keys sends less than two; else far more.
SPARSE, DENSE = known(1, 1e6), known(1e5, 20)


def site_rates(sharing: SharingState, statistics: Statistics) -> dict[str, float]:
    """Return the bytes per second that each site sends: the partials of every fragment of its streams, once."""
    rates: dict[str, float] = {}
    for demand in sharing.fragments.values():
        for site in demand.source.sites:
            rates[site] = rates.get(site, 0.0) + statistics.partial_bytes_per_s(demand, site)
    return rates
