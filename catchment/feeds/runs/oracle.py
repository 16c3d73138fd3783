"""The naive answer: every raw record in one place, every view recomputed over all of them with SQLite.

It shares nothing with the devices, the router or the controller but the view graph: records are filtered and
numbered, sampled and joined in SQL that SQLite evaluates. What it cannot catch is a view graph that is itself
wrong; that has its own tests.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.forms.window import WindowForm
from catchment.feeds.language.expressions import column_name
from catchment.feeds.language.operator_calls import operator_in
from catchment.feeds.language.operators import OperatorFunction
from catchment.feeds.language.template import EVENT_TIME, FeedOutput, FeedProgram, FeedTemplate, feed_kind, stream_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.protocol.sampling import rank_of
from catchment.query.sql.dialect import read_expression

ARROW = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
}
Identity = tuple[str, str, tuple[int, ...]]


def naive_notices(
    graph: ViewGraph,
    records: Iterable[DeviceRecord],
    since_us: Mapping[str, int] | None = None,
    unknown: Iterable[tuple[str, int]] = (),
) -> set[Identity]:
    """Return identities of all notices: of every pair of events, or of those later than `since_us` of their view.

    `unknown` has kinds of feeds with the places of records that were no events of them, because the device knew a
    program without that kind. Notices of views with a window are not among them: those are aggregates, which
    `naive_windows` returns.
    """
    oracle = _Oracle(graph)
    oracle.load(records, unknown)
    found: set[Identity] = set()
    for template in graph.program.templates.values():
        views = [v for v in graph.views.values() if v.template == template.name]
        if views and graph.program.has_operator(template):
            found |= oracle.operate(template, views, since_us or {})
        elif views and template.window is None:
            found |= oracle.compute(template, views, since_us or {})
    return found


def naive_windows(graph: ViewGraph, records: Iterable[DeviceRecord]) -> dict[tuple[str, str, int], tuple[Any, ...]]:
    """Return the aggregates of every view with a window, by view, notified user and number of the window."""
    oracle = _Oracle(graph)
    oracle.load(records)
    found: dict[tuple[str, str, int], tuple[Any, ...]] = {}
    for template in graph.program.templates.values():
        views = [v for v in graph.views.values() if v.template == template.name]
        if template.window is not None:
            found.update(oracle.aggregate(template, views, template.window))
        elif views:
            oracle.compute(template, views, {})
    return found


class _Oracle:
    """One SQLite database with a table per feed kind and a table per template."""

    def __init__(self, graph: ViewGraph) -> None:
        self.graph = graph
        self.program: FeedProgram = graph.program
        self.db = sqlite3.connect(":memory:")
        self.db.create_function("event_rank", 2, _rank, deterministic=True)
        for function in [f for f in self.program.functions.values() if not isinstance(f, OperatorFunction)]:
            self.db.create_function(function.name, function.arity, _strict(function.python), deterministic=True)

    # ---- raw records to feeds

    def load(self, records: Iterable[DeviceRecord], unknown: Iterable[tuple[str, int]] = ()) -> None:
        self.db.execute("CREATE TABLE unknown (kind TEXT, number INT, PRIMARY KEY (kind, number))")
        self.db.executemany("INSERT INTO unknown VALUES (?, ?)", unknown)
        by_stream: dict[str, list[tuple[Any, ...]]] = {}
        for number, record in enumerate(records):
            by_stream.setdefault(record.stream, []).append(
                (number, record.at_us, record.device, record.boot, *record.row)
            )
        for kind, where in self._kinds().items():
            stream = self.program.streams[stream_of(kind)]
            raw = ", ".join(_quote(c) for c in stream.column_names)
            self.db.execute("DROP TABLE IF EXISTS raw")
            self.db.execute(f"CREATE TABLE raw (number INT, at_us INT, device TEXT, boot INT, {raw})")
            marks = ",".join("?" * (4 + len(stream.columns)))
            self.db.executemany(f"INSERT INTO raw VALUES ({marks})", by_stream.get(stream.name, []))
            self._make_feed(kind, where)

    def _kinds(self) -> dict[str, str | None]:
        inputs = [i for t in self.program.templates.values() for i in t.inputs if i.is_stream]
        return {feed_kind(i.source, i.where): i.where for i in inputs}

    def _make_feed(self, kind: str, where: str | None) -> None:
        columns = "".join(f", {_quote(c)}" for c in self.program.pushed_columns[kind])
        condition = read_expression(where).sql(dialect="sqlite") if where else "true"
        stream = self.program.streams[stream_of(kind)]
        part = _quote(stream.device) if stream.born_at_cloud and stream.device is not None else "device"
        self.db.execute(
            f"CREATE TABLE {_quote(kind)} AS SELECT ? || '@' || {part} AS feed, at_us, "
            f"'[' || (boot + row_number() OVER (PARTITION BY {part}, boot ORDER BY number) - 1) || ']' AS key{columns} "
            f"FROM raw WHERE {condition} AND number NOT IN (SELECT u.number FROM unknown AS u WHERE u.kind = ?)",
            (kind, kind),
        )
        self._rank(kind)
        self._forget_unwanted(kind)
        self._index(kind)

    def _rank(self, table: str) -> None:
        self.db.execute(f"ALTER TABLE {_quote(table)} ADD COLUMN rank REAL")
        self.db.execute(f"UPDATE {_quote(table)} SET rank = event_rank(feed, key)")

    def _forget_unwanted(self, kind: str) -> None:
        """Delete events that every view of their feed samples out: they can meet nothing."""
        shares = [(f, max(v.share_of(f) for v in readers)) for f, readers in self.graph.consumers.items()]
        self.db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (feed TEXT PRIMARY KEY, share REAL)")
        self.db.executemany("INSERT OR REPLACE INTO wanted VALUES (?, ?)", shares)
        sampled = f"SELECT share FROM wanted WHERE wanted.feed = {_quote(kind)}.feed"
        self.db.execute(f"DELETE FROM {_quote(kind)} WHERE rank >= coalesce(({sampled}), 0)")

    def _index(self, table: str) -> None:
        """Index events in two ways: the sampled events of a feed, and those near an instant."""
        for columns in ("feed, rank, at_us", "feed, at_us, rank"):
            self.db.execute(f"CREATE INDEX {_quote(f'{table} by {columns}')} ON {_quote(table)} ({columns})")

    # ---- feeds to matches

    def compute(self, template: FeedTemplate, views: list[PhysicalView], since_us: Mapping[str, int]) -> set[Identity]:
        self._make_rows(template, views, since_us)
        cursor = self.db.execute(self._query(template))
        if template.name in self.program.consumed:
            self._make_output(template, cursor.fetchall())
            return set()
        every = template.notify_every_us
        return {
            (view, notified, tuple(json.loads(key)) if every is None else (at_us // every,))
            for view, notified, key, at_us, *_ in cursor
        }

    def operate(self, template: FeedTemplate, views: list[PhysicalView], since_us: Mapping[str, int]) -> set[Identity]:
        """Return the identities of the rows of an operator: each period from scratch, one event after the other."""
        call = read_expression(template.outputs[0].sql)
        operator = operator_in(call, self.program.functions)
        assert operator is not None
        given = [FeedOutput(f"given{at}", part.sql()) for at, part in enumerate(call.expressions)]
        self._make_rows(template, views, {})
        found: list[tuple[Any, ...]] = self.db.execute(self._query(replace(template, outputs=tuple(given)))).fetchall()
        period_us = template.lifetime_us
        ordered = sorted(
            (view, at_us // period_us, json.loads(key)[1], json.loads(key)[0], notified, at_us, args)
            for view, notified, key, at_us, *args in found
            if None not in args
        )
        made: set[Identity] = set()
        states: dict[Any, Any] = {}
        for view, period, ordinal, number, notified, at_us, args in ordered:
            row = dict(zip((name for name, _ in operator.inputs), args, strict=True))
            at = (view, period, ordinal, tuple(row[name] for name in operator.key))
            typed = {name: bool(row[name]) if kind == "BOOLEAN" else row[name] for name, kind in operator.inputs}
            batch = pa.RecordBatch.from_pylist([typed], pa.schema([(n, ARROW[k]) for n, k in operator.inputs]))
            states[at], rows = operator.update(states.get(at, operator.start()), batch)
            every = template.notify_every_us
            if period * period_us > since_us.get(view, -1):
                keys = [(number, ordinal, n) for n in range(rows.num_rows)]
                made |= {(view, notified, key if every is None else (at_us // every,)) for key in keys}
        return made

    def aggregate(
        self, template: FeedTemplate, views: list[PhysicalView], window: WindowForm
    ) -> Iterator[tuple[tuple[str, str, int], tuple[Any, ...]]]:
        """Yield the aggregates of each window, which SQLite computes over the matches."""
        self._make_rows(template, views, {})
        names = [_quote(name) for name in template.output_names]
        matched = f"SELECT * FROM ({self._query(template)})"
        self.db.execute("DROP TABLE IF EXISTS matched")
        self.db.execute(f"CREATE TABLE matched (view, notified, key, at_us, {', '.join(names)})")
        self.db.execute(f"INSERT INTO matched {matched}")
        columns = ", ".join(
            f"{function or 'min'}({name})" for function, name in zip(window.functions, names[1:], strict=True)
        )
        found = self.db.execute(
            f"SELECT notified, at_us / {window.window_us}, {columns} FROM matched "
            f"WHERE CAST({names[0]} AS TEXT) = notified GROUP BY 1, 2"
        )
        for notified, number, *values in found:
            yield (template.name, notified, number), tuple(values)

    def _make_rows(self, template: FeedTemplate, views: list[PhysicalView], since_us: Mapping[str, int]) -> None:
        width = len(template.inputs)
        names = [f"{part}{i}" for part in ("input", "share", "device") for i in range(width)]
        names += [f"p{i}" for i in range(len(template.params))]
        self.db.execute("DROP TABLE IF EXISTS view_rows")
        self.db.execute(f"CREATE TABLE view_rows (view, ordinal, notified, since_us, {', '.join(names)})")
        rows = [
            (v.name, n, r.notified, since_us.get(v.name), *r.inputs, *r.shares, *r.devices, *r.params)
            for v in views
            for n, r in enumerate(v.rows)
        ]
        marks = ",".join("?" * (4 + len(names)))
        self.db.executemany(f"INSERT INTO view_rows VALUES ({marks})", rows)

    def _query(self, template: FeedTemplate) -> str:
        aliases = [i.alias for i in template.inputs]
        tables = [
            f"JOIN {_quote(feed_kind(i.source, i.where))} AS {i.alias} ON {i.alias}.feed = v.input{n}"
            f" AND {i.alias}.rank < v.share{n} AND {i.alias}.at_us > coalesce(v.since_us, -1)"
            for n, i in enumerate(template.inputs)
        ]
        if len(aliases) == 2:
            first, second = template.inputs
            tables[1] += (
                f" AND {second.alias}.at_us BETWEEN {first.alias}.at_us - {second.lifetime_us}"
                f" AND {first.alias}.at_us + {first.lifetime_us}"
            )
        keys = " || ',' || ".join(f"trim({a}.key, '[]')" for a in aliases)
        at_us = f"max({', '.join(f'{a}.at_us' for a in aliases)})" if len(aliases) == 2 else f"{aliases[0]}.at_us"
        outputs = ", ".join(self._sql(template, o.sql) for o in template.outputs)
        match = self._sql(template, template.match) if template.match else "true"
        return (
            f"SELECT v.view, v.notified, '[' || {keys} || ',' || v.ordinal || ']', {at_us}, {outputs} "
            f"FROM view_rows AS v {' '.join(tables)} WHERE {match}"
        )

    def _sql(self, template: FeedTemplate, sql: str) -> str:
        devices = {
            f"{i.alias}.{self.program.streams[i.source].device}": f"device{n}"
            for n, i in enumerate(template.inputs)
            if i.is_stream
        }
        params = {name: f"p{n}" for n, name in enumerate(template.params)}

        def place(node: exp.Expr) -> exp.Expr:
            known = {**devices, **params}
            if isinstance(node, exp.Column) and column_name(node) in known:
                return exp.column(known[column_name(node)], table="v")
            if isinstance(node, exp.Column) and node.name == EVENT_TIME:
                return exp.column("at_us", table=node.table)
            return node

        return read_expression(sql).transform(place).sql(dialect="sqlite")

    def _make_output(self, template: FeedTemplate, rows: list[tuple[Any, ...]]) -> None:
        names = ", ".join(_quote(n) for n in template.output_names)
        self.db.execute(f"CREATE TABLE {_quote(template.name)} (feed TEXT, key TEXT, at_us INT, {names})")
        marks = ",".join("?" * (3 + len(template.outputs)))
        self.db.executemany(
            f"INSERT INTO {_quote(template.name)} VALUES ({marks})",
            [(view, key, at_us, *values) for view, _, key, at_us, *values in rows],
        )
        self._rank(template.name)
        self._index(template.name)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _strict(function: Any) -> Any:
    return lambda *arguments: None if None in arguments else function(*arguments)


def _rank(feed: str, key: str) -> float:
    return rank_of(feed, tuple(json.loads(key)))
