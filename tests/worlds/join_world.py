"""Joins of two streams without Spark: cases, random records, and an oracle; `live_world` runs them.

The oracle is DuckDB over all raw records: every window, every pair of records in it that agrees. It shares nothing with
the engine but the text of the keys, the aggregates and the conditions, which mean the same in both dialects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.optimizer.sharing.demand import SharedQuery, queries_of_plan
from catchment.project.sections import Link, Site
from catchment.query.catalog import Catalog
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from catchment.timeline import WindowSpec
from tests.worlds.query_support import make_project
from tests.worlds.sharing_support import SECOND, duck

SITES = {"clicks": ("us", "eu"), "views": ("asia",), "taps": ("us", "asia")}
SCHEMA = "\n".join(
    f"CREATE STREAM {name} (ts TIMESTAMP, user {user}, page STRING, bytes BIGINT, ms DOUBLE) WITH "
    f"(event_time = 'ts', sites = '{','.join(SITES[name])}', path = '{name}/{{site}}');"
    for name, user in {"clicks": "INT", "views": "BIGINT", "taps": "INT"}.items()
)
HORIZON_US = 600 * SECOND
SPAN_S = 300


@dataclass(frozen=True)
class Case:
    """A join as both engines read it; the oracle's aggregates are those of the query unless they are given."""

    aggregates: str
    keys: tuple[str, ...] = ()
    on: str = "a.user = b.user"
    where: str = ""
    streams: tuple[str, str] = ("clicks", "views")
    window: tuple[int, int] = (60, 60)  # size and slide, in seconds
    oracle: str = ""
    kind: str = "JOIN"
    second: str = ""  # a subquery in place of the second stream, which it calls raw_b
    third: tuple[str, str, str] | None = None  # a further stream c: the kind of its join, the stream, and ON

    @property
    def sql(self) -> str:
        size, slide = self.window
        window = f"window(b.ts, '{size} seconds', '{slide} seconds')"
        second = self.second.replace("raw_b", self.streams[1]) or self.streams[1]
        keys = self.keys
        if self.kind != "JOIN":  # the others are as released state folders have them
            keys = tuple(f"{key} AS key_{number}" for number, key in enumerate(keys))
        return (
            f"SELECT {', '.join(['window.start', *keys, self.aggregates])} "
            f"FROM {self.streams[0]} a {self.kind} {second} b ON {self.on} {self._third()} {self.where} "
            f"GROUP BY {', '.join([window, *self.keys])}"
        )

    def _third(self) -> str:
        if self.third is None:
            return ""
        kind, stream, on = self.third
        return f"{kind} {stream} c ON {on}"

    @property
    def named_streams(self) -> dict[str, str]:
        """The streams by their names in the query."""
        named = dict(zip("ab", self.streams, strict=True))
        return named if self.third is None else {**named, "c": self.third[1]}

    def expected(self, records: Mapping[str, pa.Table]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """(window start, keys...) -> the aggregates, over all pairs of records."""
        spec, connection = WindowSpec(*(s * SECOND for s in self.window)), duck()
        named = self.named_streams
        for name, stream in named.items():
            connection.register(f"raw_{name}", records[stream])
        starts = {w.start_us for s in named.values() for t in records[s]["ts"].to_pylist() for w in spec.containing(t)}
        connection.register("windows", pa.table({"start": pa.array(sorted(starts), pa.int64())}))
        inside = {
            x: f"(SELECT w.start AS w, t.* FROM windows w, {(self.second if x == 'b' else '') or f'raw_{x}'} t "
            f"WHERE t.ts >= w.start AND t.ts < w.start + {spec.size_us}) {x}"
            for x in named
        }
        start = f"coalesce({', '.join(f'{x}.w' for x in named)})"
        third = f"{self.third[0]} {inside['c']} ON c.w = coalesce(a.w, b.w) AND {self.third[2]} " if self.third else ""
        rows = connection.sql(
            f"SELECT {', '.join([start, *self.keys, self.oracle or self.aggregates])} "
            f"FROM {inside['a']} {self.kind} {inside['b']} ON a.w = b.w AND {self.on} {third}"
            f"{self.where} GROUP BY {', '.join([start, *self.keys])}"
        ).fetchall()
        width = 1 + len(self.keys)
        return {row[:width]: row[width:] for row in rows}


CASES = {
    "counts and sums of either side, keys of both": Case(
        "count(*) AS n, sum(a.bytes) AS x, avg(b.ms) AS y, min(a.page) AS low, max(b.ms) AS high", ("a.page", "b.bytes")
    ),
    "no key": Case("count(*) AS n, count(a.page) AS pages, sum(b.ms) AS ms"),
    "the join key as a key, of a sliding window": Case(
        "count(*) AS n, sum(b.bytes) AS x", ("a.user",), window=(90, 30)
    ),
    "several equalities, one of them in WHERE, and conditions": Case(
        "count(*) AS n, sum(a.ms) AS x",
        ("b.page",),
        on="a.user = b.user AND a.bytes > 0",
        where="WHERE b.page = a.page AND b.bytes >= 0",
    ),
    "an equality of expressions": Case("count(*) AS n", ("a.user",), on="abs(a.user) % 3 = b.user % 3"),
    "comparisons of either kind": Case(
        "count(*) AS n, sum(b.bytes) AS x, max(a.ms) AS y",
        ("a.page",),
        on="a.user = b.user AND a.bytes <= b.bytes",
        where="WHERE b.page <> a.page AND b.ms BETWEEN a.ms AND a.ms + 2.0",
    ),
    "products": Case("sum(a.bytes * b.bytes) AS p, avg(a.ms * b.ms) AS q, sum(2 * b.ms * a.bytes) AS r", ("a.page",)),
    "filters of either side": Case(
        "count(*) FILTER (WHERE a.bytes > 0 AND b.page = 'a') AS n, sum(a.bytes) FILTER (WHERE b.ms > 0) AS x, "
        "min(b.ms) FILTER (WHERE a.page = 'b') AS low",
        ("b.user",),
    ),
    "spreads": Case("var_pop(a.ms) AS v, stddev_samp(b.bytes) AS s", ("b.page",)),
    "distinct values": Case(
        "approx_count_distinct(b.page) AS d, approx_count_distinct(a.user) FILTER (WHERE b.bytes > 0) AS u",
        ("a.page",),
        oracle="count(DISTINCT b.page), count(DISTINCT a.user) FILTER (WHERE b.bytes > 0)",
    ),
    "a stream with itself": Case(
        "count(*) AS n, sum(a.bytes) AS x, max(b.bytes) AS y", ("a.page",), streams=("clicks", "clicks")
    ),
    "streams that share a site": Case(
        "count(*) AS n, sum(b.ms) AS x", ("a.page", "b.bytes"), streams=("clicks", "taps")
    ),
    "left: counts and sums, keys of both": Case(
        "count(*) AS n, count(b.user) AS partners, sum(a.bytes) AS x, sum(b.bytes) AS y, avg(b.ms) AS z",
        ("a.page", "b.page"),
        kind="LEFT JOIN",
    ),
    "right: no key, several equalities, comparisons": Case(
        "count(*) AS n, min(a.ms) AS x, max(b.bytes) AS y, var_pop(a.ms) AS v, sum(a.bytes * b.ms) AS p",
        on="a.user = b.user AND a.page = b.page AND a.bytes <= b.bytes",
        kind="RIGHT OUTER JOIN",
    ),
    "full: by the key of either side": Case(
        "count(*) AS n, count(a.user) AS l, count(b.user) AS r, sum(a.ms) AS x, sum(b.bytes) AS y",
        ("coalesce(a.user, b.user)",),
        kind="FULL JOIN",
    ),
    "full: keys of both, a sliding window": Case(
        "count(*) AS n, sum(a.bytes) AS x, max(b.page) AS y", ("a.page", "b.user"), window=(90, 30), kind="FULL JOIN"
    ),
    "left: conditions of ON decide who has a partner": Case(
        "count(*) AS n, count(b.ts) AS partners, sum(a.bytes) AS x",
        ("a.user",),
        on="a.user = b.user AND a.bytes > 0 AND b.page = 'a' AND a.page <> b.page",
        kind="LEFT JOIN",
    ),
    "left: only those without a partner": Case(
        "count(*) AS n, sum(a.bytes) AS x, sum(b.bytes) AS y", ("a.page",), where="WHERE b.ts IS NULL", kind="LEFT JOIN"
    ),
    "left: conditions on what may be missing": Case(
        "count(*) AS n, sum(b.bytes) AS y",
        ("a.user", "b.page"),
        where="WHERE coalesce(b.bytes, 10) > 0 AND a.ms > 0 AND (b.page = 'a' OR b.page IS NULL)",
        kind="LEFT JOIN",
    ),
    "full: a condition that leaves only rows with a left record": Case(
        "count(*) AS n, sum(b.bytes) AS y", ("a.page",), where="WHERE a.bytes >= 0", kind="FULL JOIN"
    ),
    "full: a condition that leaves pairs only": Case(
        "count(*) AS n, sum(b.bytes) AS y", ("a.page",), where="WHERE a.ms <= b.ms", kind="FULL JOIN"
    ),
    "full: expressions that are not null where a side is missing": Case(
        "sum(coalesce(b.bytes, 1)) AS x, sum(coalesce(a.bytes, 2) * coalesce(b.bytes, 3)) AS y, "
        "count(*) FILTER (WHERE b.page IS NULL AND a.bytes > 0) AS n, max(coalesce(a.page, 'none')) AS p, "
        "sum(a.bytes) FILTER (WHERE b.ms > 0) AS z",
        ("coalesce(b.page, 'none')",),
        kind="FULL JOIN",
    ),
    "left: columns of a subquery are null where it is missing": Case(
        "count(*) AS n, count(b.one) AS ones, sum(b.size) AS x, count(*) FILTER (WHERE b.is_small) AS small",
        ("a.user", "b.kind"),
        on="a.user = b.user",
        kind="LEFT JOIN",
        second="(SELECT ts, user, coalesce(page, 'none') AS kind, coalesce(bytes, 0) AS size, 1 AS one, "
        "bytes IS NULL AND ms > 0 AS is_small FROM raw_b WHERE bytes >= 0 OR page IS NULL)",
    ),
    "left: a stream with itself": Case(
        "count(*) AS n, sum(a.bytes) AS x, max(b.bytes) AS y",
        ("a.page",),
        on="a.user = b.user AND a.bytes < b.bytes",
        streams=("clicks", "clicks"),
        kind="LEFT JOIN",
    ),
    "three: counts, sums, extremes and keys of all": Case(
        "count(*) AS n, sum(a.bytes) AS x, avg(b.ms) AS y, max(c.ms) AS z, min(b.page) AS low, var_pop(c.bytes) AS v",
        ("a.page", "c.bytes"),
        third=("JOIN", "taps", "b.user = c.user"),
    ),
    "three: by columns of both that were joined before, a comparison, a sliding window": Case(
        "count(*) AS n, sum(c.bytes) AS x",
        ("b.page",),
        third=("JOIN", "taps", "a.user = c.user AND b.page = c.page AND a.bytes <= c.bytes"),
        where="WHERE a.ms > 0 AND c.ms < 5.0 AND a.bytes <= b.bytes",
        window=(90, 30),
    ),
    "three: products and filters over all": Case(
        "sum(a.bytes * b.bytes * c.bytes) AS p, avg(a.ms * c.ms) AS q, sum(b.ms) FILTER (WHERE a.bytes > 0 AND "
        "c.page = 'a') AS r, count(*) FILTER (WHERE b.bytes > 0) AS n",
        ("c.user",),
        third=("JOIN", "taps", "c.user = a.user"),
    ),
    "three: left twice, each without a partner": Case(
        "count(*) AS n, count(b.user) AS l, count(c.user) AS r, sum(a.bytes) AS x, sum(c.bytes) AS y",
        ("a.page", "b.page"),
        on="a.user = b.user AND b.bytes > 0",
        kind="LEFT JOIN",
        third=("LEFT JOIN", "taps", "a.user = c.user AND c.page = 'a'"),
    ),
    "three: a left join, then an inner one by what may be missing": Case(
        "count(*) AS n, sum(a.ms) AS x, max(c.page) AS y",
        ("a.page",),
        kind="LEFT JOIN",
        third=("JOIN", "taps", "b.page = c.page"),
    ),
    "three: full, then full by the key of the first": Case(
        "count(*) AS n, count(a.user) AS x, count(b.user) AS y, sum(c.bytes) AS z, sum(coalesce(a.bytes, 1)) AS s",
        ("a.page", "c.page"),
        kind="FULL JOIN",
        third=("FULL JOIN", "taps", "a.user = c.user"),
    ),
    "three: right, with a condition on what may be missing": Case(
        "count(*) AS n, sum(b.bytes) AS y, sum(a.bytes * c.bytes) AS p",
        ("c.user",),
        third=("RIGHT JOIN", "taps", "b.user = c.user AND b.bytes <= c.bytes"),
        where="WHERE coalesce(a.bytes, 10) > 0 AND c.ms > 0",
    ),
    "three: those that neither of the others has": Case(
        "count(*) AS n",
        ("a.user",),
        kind="LEFT JOIN",
        third=("LEFT JOIN", "taps", "a.user = c.user"),
        where="WHERE b.ts IS NULL AND c.ts IS NULL",
    ),
    "three: one stream with itself twice": Case(
        "count(*) AS n, sum(c.bytes) AS x",
        ("a.page",),
        on="a.user = b.user AND a.bytes < b.bytes",
        streams=("clicks", "clicks"),
        third=("JOIN", "clicks", "b.user = c.user AND b.page <> c.page"),
    ),
}
JOIN = (
    "SELECT window.start, b.page, count(*) AS n, sum(a.bytes) AS x FROM clicks a JOIN views b ON a.user = b.user "
    "WHERE a.bytes > 1 AND b.ms < 5.5 AND a.page < b.page GROUP BY window(a.ts, '1 minute'), b.page"
)


@cache
def base_catalog() -> Catalog:
    names = ("us", "eu", "asia", "center")
    links = {(n, "center"): Link(n, "center") for n in names[:-1]}
    return Catalog(make_project(sites={n: Site(n) for n in names}, links=links)).add(*parse_sql(SCHEMA, "schema.sql"))


def plans_of(*selects: str) -> dict[str, QueryPlan]:
    """The plans of the views q0, q1, ... of some SELECTs."""
    text = "\n".join(f"CREATE MATERIALIZED VIEW q{i} AS {s};" for i, s in enumerate(selects))
    catalog = base_catalog().add(*parse_sql(text, "q.sql"))
    return {name: plan_view(view, catalog) for name, view in catalog.views.items()}


def side_queries(plans: Iterable[QueryPlan]) -> list[SharedQuery]:
    return [q for p in plans for q in queries_of_plan(p, base_catalog())]


def make_records(rng: np.random.Generator, count: int, stream: str, since_s: int = 0) -> pa.Table:
    """Random records over `SPAN_S` seconds: few users, nulls, duplicates."""

    def some(values: Sequence[Any]) -> list[Any]:
        return [values[i] for i in rng.integers(0, len(values), count)]

    table = pa.table(
        {
            "ts": pa.array(rng.integers(since_s, since_s + SPAN_S, count) * SECOND, pa.int64()),
            "user": pa.array(some([1, 2, 3, 40, -5, None]), pa.int64() if stream == "views" else pa.int32()),
            "page": pa.array(some(["a", "b", "ä", None]), pa.string()),
            "bytes": pa.array(some([0, 10, 500, -7, None]), pa.int64()),
            "ms": pa.array(some([0.5, 1.25, -100.0, None]), pa.float64()),
        }
    )
    return pa.concat_tables([table, table.slice(0, count // 4)])  # some records come twice


def close(found: Mapping[Any, Sequence[Any]], expected: Mapping[Any, Sequence[Any]]) -> bool:
    """Equal; doubles within 1e-9 of each other."""
    return found.keys() == expected.keys() and all(
        a == b or (isinstance(a, float) and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6))
        for key, row in found.items()
        for a, b in zip(row, expected[key], strict=True)
    )
