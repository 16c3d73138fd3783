"""The joins of one micro-batch of the feed cloud, in native Spark SQL: routes, and views of every level.

Events are rows `(arrival, feed, key, at_us, rank, values)`, keys and values as JSON text. A view is joined
as fresh x (old and fresh), and old x fresh, so that every pair that is met for the first time in this
batch, and no other, is evaluated. Matches of views that others read join the events, for the views above
and for the routes; the cloud keeps them beside what came from devices, for later batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from sqlglot import exp

from catchment.feeds.cloud.batch_cloud import DELIVERY, MATCH, NOTICE
from catchment.feeds.cloud.batch_plane import BatchJob
from catchment.feeds.cloud.event_files import ARROW_TYPES, EVENT_TYPES
from catchment.feeds.forms.physical_view import PhysicalView, ViewRow, template_of
from catchment.feeds.language.expressions import column_name, to_spark
from catchment.feeds.language.program_form import form_of
from catchment.feeds.language.template import EVENT_TIME, FeedInput, FeedProgram, FeedTemplate
from catchment.feeds.protocol.sampling import MATCH_RANK_SQL
from catchment.query.sql.dialect import read_expression

_RESULT = ("arrival", "device", "feed", "key", "at_us", "values")
_ROUTES = {"route_feed": "STRING", "device": "STRING", "share": "DOUBLE"}


class FeedJoins:
    """Builds the job of a batch; DataFrames of routes and views are kept while they do not change."""

    def __init__(self, spark: SparkSession, program: FeedProgram) -> None:
        self.spark = spark
        self.program = program
        self.version = -1
        self.routes: DataFrame | None = None
        self.views: dict[str, DataFrame] = {}
        self.types: dict[str, list[str]] = {}  # template -> types of its outputs
        self.queries: dict[tuple[str, tuple[str, ...]], str] = {}
        self.fewest = {view.name: view.fewest_values for view in form_of(program).views}
        self._analyse_types()

    def run(self, fresh: DataFrame, old: DataFrame, job: BatchJob) -> DataFrame | None:
        """Return rows `kind, arrival, device, feed, key, at_us, values`: what was found; None if nothing can be."""
        if job.version != self.version:
            self._refresh(job.routes, job.installed.values())
            self.version = job.version
        results: list[DataFrame] = []
        fresh = _meaning_the_same(fresh, job.ended)
        old = _meaning_the_same(old, job.ended)
        matched: dict[str, DataFrame] = {}  # of views that others read
        for name in [n for n in self.program.templates if n in self.views]:
            template = self.program.templates[name]
            by_role = [_with_matches(fresh, matched, [item.source]) for item in template.inputs]
            matches = self._matches(template, by_role, old)
            results.append(_as(MATCH if name in self.program.consumed else NOTICE, matches))
            if name in self.program.consumed:
                matched[name] = _as_events(matches)
        if self.routes is not None:
            sent = {template_of(feed) for feed in job.routes}
            results.append(self._deliveries(_with_matches(fresh, matched, [n for n in matched if n in sent])))
        return reduce(DataFrame.unionByName, results) if results else None

    # ---- routes

    def _refresh(self, routes: Mapping[str, Mapping[str, float]], views: Iterable[PhysicalView]) -> None:
        rows = [(feed, device, share) for feed, devices in routes.items() for device, share in devices.items()]
        self.routes = self._frame(rows, _ROUTES) if rows else None
        by_template: dict[str, list[PhysicalView]] = {}
        for view in views:
            by_template.setdefault(view.template, []).append(view)
        self.views = {name: self._view_rows(name, found) for name, found in by_template.items()}

    def _frame(self, rows: list[tuple[Any, ...]], columns: Mapping[str, str]) -> DataFrame:
        """Return rows of the driver as a local relation: by Arrow, with no Python worker in the job."""
        fields = [pa.field(name, ARROW_TYPES[kind]) for name, kind in columns.items()]
        arrays = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(fields)]
        return self.spark.createDataFrame(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))

    def _deliveries(self, events: DataFrame) -> DataFrame:
        assert self.routes is not None
        wanted = (events["feed"] == self.routes["route_feed"]) & (events["rank"] < self.routes["share"])
        return _as(DELIVERY, events.join(self.routes, wanted))

    # ---- views

    def _view_rows(self, name: str, views: Iterable[PhysicalView]) -> DataFrame:
        template = self.program.templates[name]
        columns = {"view": "STRING", "ordinal": "INT", "notified": "STRING"}
        for part, kind in (("input", "STRING"), ("share", "DOUBLE"), ("id", "STRING")):
            columns.update((f"{part}{role}", kind) for role in range(len(template.inputs)))
        columns.update((f"param{n}", self.program.type_of_param(template, p)) for n, p in enumerate(template.params))
        return self._frame([_view_row(v, n, r) for v in views for n, r in enumerate(v.rows)], columns)

    def _matches(self, template: FeedTemplate, fresh: Sequence[DataFrame], old: DataFrame) -> DataFrame:
        """Return matches with at least one fresh event: `arrival, device, feed, key, at_us, values`.

        Each input has fresh events of its own: the plan of a view that it reads is in them, and in no others.
        """
        fresh[0].createOrReplaceTempView("feed_fresh")
        self.views[template.name].createOrReplaceTempView("feed_view_rows")
        if not template.is_pair:
            return self.spark.sql(self._query(template, ("feed_fresh",)))
        old.createOrReplaceTempView("feed_old")
        fresh[1].createOrReplaceTempView("feed_fresh_second")
        fresh[1].unionByName(old).createOrReplaceTempView("feed_both")
        first = self.spark.sql(self._query(template, ("feed_fresh", "feed_both")))
        return first.unionByName(self.spark.sql(self._query(template, ("feed_old", "feed_fresh_second"))))

    def _query(self, template: FeedTemplate, tables: tuple[str, ...]) -> str:
        """Return the SQL of one join; its text is made once, for it names tables and not what is in them."""
        if (template.name, tables) not in self.queries:
            self.queries[template.name, tables] = self._build_query(template, tables)
        return self.queries[template.name, tables]

    def _build_query(self, template: FeedTemplate, tables: tuple[str, ...]) -> str:
        aliases = [i.alias for i in template.inputs]
        keys = ", ".join(f"substr({a}.key, 2, length({a}.key) - 2), ','" for a in aliases)
        outputs = ", ".join(f"{self._sql(template, o.sql)} AS o{n}" for n, o in enumerate(template.outputs))
        values = ", ',', ".join(_json_item(f"o{n}") for n in range(len(template.outputs)))
        at_us, arrival = (_greatest([f"{a}.{c}" for a in aliases]) for c in ("at_us", "arrival"))
        matched = (
            f"SELECT {arrival} AS arrival, r.notified AS device, r.view AS feed, "
            f"concat('[', {keys}, r.ordinal, ']') AS key, {at_us} AS at_us, {outputs} "
            f"FROM feed_view_rows AS r {self._joins(template, tables)} WHERE {self._sql(template, template.match)}"
        )
        return f"SELECT arrival, device, feed, key, at_us, concat('[', {values}, ']') AS values FROM ({matched})"

    def _joins(self, template: FeedTemplate, tables: tuple[str, ...]) -> str:
        aliases = [i.alias for i in template.inputs]
        joins = [
            f"JOIN (SELECT *, from_json(values, 'array<string>') AS v FROM {table}) AS {alias} "
            f"ON {alias}.feed = r.input{role} AND {alias}.rank < r.share{role} AND size({alias}.v) >= {fewest}"
            for role, (alias, table, fewest) in enumerate(zip(aliases, tables, self.fewest[template.name], strict=True))
        ]
        if template.is_pair:
            first, second = template.inputs
            apart = f"{second.alias}.at_us - {first.alias}.at_us"
            joins[1] += f" AND {apart} BETWEEN {-second.lifetime_us} AND {first.lifetime_us}"
        return " ".join(joins)

    def _analyse_types(self) -> None:
        """Return the types of what each template gives, as Spark derives them; nothing is run."""
        self._frame([], EVENT_TYPES).createOrReplaceTempView("feed_none")
        for name, template in self.program.templates.items():
            self._view_rows(name, []).createOrReplaceTempView("feed_view_rows")
            joins = self._joins(template, ("feed_none",) * len(template.inputs))
            columns = ", ".join(f"{self._sql(template, o.sql)} AS c{n}" for n, o in enumerate(template.outputs))
            analysed = self.spark.sql(f"SELECT {columns} FROM feed_view_rows AS r {joins}")
            self.types[name] = [field.dataType.simpleString() for field in analysed.schema]

    def _sql(self, template: FeedTemplate, sql: str | None) -> str:
        places = {p: f"r.param{n}" for n, p in enumerate(template.params)}
        for role, item in enumerate(template.inputs):
            places.update(self._input_places(item, role))

        def place(column: exp.Column) -> exp.Expr:
            return read_expression(places[column_name(column)])

        return to_spark(sql, self.program.functions, place)

    def _input_places(self, item: FeedInput, role: int) -> dict[str, str]:
        columns = self.program.columns_of(item.source, item.where)
        time = {f"{item.alias}.{EVENT_TIME}": f"{item.alias}.at_us"}
        if not item.is_stream:
            types = self.types[item.source]
            places = {
                f"{item.alias}.{c}": f"try_cast(get({item.alias}.v, {n}) AS {types[n]})" for n, c in enumerate(columns)
            }
            return {**places, **time}
        stream = self.program.streams[item.source]
        places = {
            f"{item.alias}.{c}": f"try_cast(get({item.alias}.v, {n}) AS {stream.type_of(c)})"
            for n, c in enumerate(columns)
        }
        if stream.device is not None:
            device = f"try_cast(r.id{role} AS {stream.type_of(stream.device)})"
            places[f"{item.alias}.{stream.device}"] = device
        return {**places, **time}


def _as(kind: str, frame: DataFrame) -> DataFrame:
    return frame.select(fn.lit(kind).alias("kind"), *_RESULT)


def _meaning_the_same(events: DataFrame, ended: Mapping[str, int]) -> DataFrame:
    """Return events without the matches of views that meant something else when these were found."""
    for template, until in ended.items():
        is_old = (fn.substring_index("feed", "(", 1) == template) & (fn.col("arrival") <= until)
        events = events.where(~is_old)
    return events


def _with_matches(fresh: DataFrame, matched: Mapping[str, DataFrame], views: Iterable[str]) -> DataFrame:
    """Return the fresh events together with the matches that this batch found of some views."""
    return reduce(DataFrame.unionByName, [matched[name] for name in views if name in matched], fresh)


def _view_row(view: PhysicalView, ordinal: int, row: ViewRow) -> tuple[Any, ...]:
    ids = (None if device is None else str(device) for device in row.devices)
    return (view.name, ordinal, row.notified, *row.inputs, *row.shares, *ids, *row.params)


def _as_events(matches: DataFrame) -> DataFrame:
    return matches.withColumn("rank", fn.expr(MATCH_RANK_SQL.format("key"))).select(*EVENT_TYPES)


def _json_item(sql: str) -> str:
    """Return one value as JSON, natively: an array of it, without the brackets."""
    return f"substr(to_json(array({sql})), 2, length(to_json(array({sql}))) - 2)"


def _greatest(columns: list[str]) -> str:
    return columns[0] if len(columns) == 1 else f"greatest({', '.join(columns)})"
