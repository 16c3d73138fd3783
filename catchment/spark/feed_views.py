"""The view graph, generated on Spark from reference data of any size; and its change when the data changes.

Law: for the same program and rows it gives the same graph as `catchment.feeds.view_graph.generate_views`
(Chandramouli et al., VLDB'13, section 2.1). A graph is a DataFrame with one row a physical view: `view,
template, inputs array<string>, rows array<struct<inputs, shares, devices, params, notified>>`, where ids
and parameters are text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as fn
from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.expressions import to_spark
from catchment.feeds.functions import Functions
from catchment.feeds.template import (
    DEVICES,
    FEED_COLUMN,
    NOTIFIED_COLUMN,
    FeedProgram,
    FeedTemplate,
    Input,
    feed_kind,
)
from catchment.feeds.view_graph import PhysicalView, SourceFeed, ViewGraph, ViewRow

_PYTHON_TYPES: dict[str, Any] = {
    "BIGINT": int,
    "INT": int,
    "DOUBLE": float,
    "STRING": str,
    "BOOLEAN": lambda text: text == "true",
}


def register_functions(spark: SparkSession, functions: Functions) -> None:
    """Make functions without a native form callable in Spark SQL; NULL in, NULL out."""
    for function in functions.values():
        if function.spark_sql is None:
            spark.udf.register(function.name, _strict(function.python), function.returns)


def _strict(python: Any) -> Any:
    return lambda *arguments: None if None in arguments else python(*arguments)


def spark_views(
    spark: SparkSession,
    program: FeedProgram,
    tables: Mapping[str, DataFrame],
    devices: DataFrame | None = None,
) -> DataFrame:
    """The physical views of a program; `devices` (one column) lists the known devices."""
    register_functions(spark, program.functions)
    relations: dict[str, DataFrame] = {}
    graphs: list[DataFrame] = []
    for template in program.templates.values():
        joined = _Joined(program, template, tables, devices, relations).rows(spark)
        _refuse_faults(joined, template, devices)
        relations[template.name] = joined.select(*_relation_columns(template))
        if template.is_pair or template.name not in program.consumed:
            graphs.append(_grouped(joined, template))
    if not graphs:
        raise FeedError("the program has no view")
    return reduce(DataFrame.unionByName, graphs)


def views_delta(older: DataFrame, newer: DataFrame) -> DataFrame:
    """What changed: `view, change` (added, removed, changed) with the newer template, inputs and rows."""
    old = older.select("view", fn.array_sort("rows").alias("old_rows"))
    new = newer.withColumn("rows", fn.array_sort("rows"))
    both = old.join(new, "view", "full_outer")
    change = (
        fn.when(fn.col("old_rows").isNull(), "added")
        .when(fn.col("rows").isNull(), "removed")
        .when(fn.col("old_rows") != fn.col("rows"), "changed")
    )
    return both.withColumn("change", change).where("change IS NOT NULL").drop("old_rows")


def to_view_graph(views: DataFrame, program: FeedProgram) -> ViewGraph:
    """Collect a graph to the driver, for a cloud that runs on one machine."""
    found: dict[str, dict[str, PhysicalView]] = {name: {} for name in program.templates}
    feeds: dict[str, SourceFeed] = {}
    for row in views.toLocalIterator():
        view = _physical_view(row, program)
        found[view.template][view.name] = view
        for item in view.rows:
            feeds.update(_source_feeds(program.templates[view.template], item))
    ordered = {n: v for views in found.values() for n, v in sorted(views.items(), key=lambda p: p[1].inputs)}
    return ViewGraph(program, feeds, ordered)


class _Joined:
    """The join of the reference tables of one template, as Spark SQL."""

    def __init__(
        self,
        program: FeedProgram,
        template: FeedTemplate,
        tables: Mapping[str, DataFrame],
        devices: DataFrame | None,
        relations: Mapping[str, DataFrame],
    ) -> None:
        self.program = program
        self.template = template
        self.sources: dict[str, DataFrame] = {}
        for use in template.tables:
            if use.is_view:
                self.sources[use.alias] = relations[use.table]
            elif use.table == DEVICES:
                self.sources[use.alias] = _known_devices(devices, template)
            else:
                self.sources[use.alias] = _table(tables, program, use.table)

    def rows(self, spark: SparkSession) -> DataFrame:
        """One row a joined reference row: input, share, device of each role, parameters, static outputs."""
        names = {alias: f"__feeds_{self.template.name}_{alias}" for alias in self.sources}
        for alias, frame in self.sources.items():
            frame.createOrReplaceTempView(names[alias])
        columns = ", ".join(f"{sql} AS `{name}`" for name, sql in self._columns().items())
        tables = " CROSS JOIN ".join(f"{names[alias]} AS {alias}" for alias in self.sources)
        joined = spark.sql(f"SELECT DISTINCT {columns} FROM {tables} WHERE {self._sql(self.template.static)}")
        for name in names.values():
            spark.catalog.dropTempView(name)
        return joined

    def _sql(self, sql: str | None) -> str:
        return to_spark(sql, self.program.functions, lambda c: exp.column(c.name, table=c.table))

    def _columns(self) -> dict[str, str]:
        template, columns = self.template, {}
        for role, item in enumerate(template.inputs):
            device = self._sql(item.device) if item.is_stream else "NULL"
            columns[f"input{role}"] = self._feed(item)
            columns[f"share{role}"] = f"CAST({self._sql(item.share)} AS DOUBLE)"
            columns[f"device{role}"] = f"CAST({device} AS STRING)"
        for at, name in enumerate(template.params):
            columns[f"param{at}"] = f"CAST({name} AS STRING)"
        first = template.inputs[0]
        notified = self._sql(first.device) if first.is_stream else f"{first.alias}.`{NOTIFIED_COLUMN}`"
        columns[NOTIFIED_COLUMN] = f"CAST({notified} AS STRING)"
        for output in template.outputs:
            if output.static_sql is not None:
                columns[output.name] = self._sql(output.static_sql)
        return columns

    def _feed(self, item: Input) -> str:
        if not item.is_stream:
            return f"{item.alias}.`{FEED_COLUMN}`"
        kind = feed_kind(item.source, item.where).replace("\\", "\\\\").replace("'", "\\'")
        return f"concat('{kind}@', CAST({self._sql(item.device)} AS STRING))"


def _table(tables: Mapping[str, DataFrame], program: FeedProgram, name: str) -> DataFrame:
    if name not in tables:
        raise FeedError(f"no rows are given for the reference table {name!r}", hint="an empty DataFrame is possible")
    missing = set(program.tables[name].column_names) - set(tables[name].columns)
    if missing:
        raise FeedError(f"the reference table {name!r} has no column {', '.join(sorted(missing))}")
    return tables[name]


def _known_devices(devices: DataFrame | None, template: FeedTemplate) -> DataFrame:
    if devices is None:
        raise FeedError(f"view {template.name!r} runs on every device, but the known devices are not listed")
    return devices.toDF("device")


def _relation_columns(template: FeedTemplate) -> list[Column]:
    static = [fn.col(o.name) for o in template.outputs if o.static_sql is not None]
    return [*static, _view_name(template).alias(FEED_COLUMN), fn.col(NOTIFIED_COLUMN)]


def _roles(template: FeedTemplate, prefix: str) -> Column:
    return fn.array(*(fn.col(f"{prefix}{role}") for role in range(len(template.inputs))))


def _view_name(template: FeedTemplate) -> Column:
    inputs = fn.array_join(fn.array_sort(_roles(template, "input")), ",")
    return fn.concat(fn.lit(f"{template.name}("), inputs, fn.lit(")"))


def _grouped(joined: DataFrame, template: FeedTemplate) -> DataFrame:
    params = [fn.col(f"param{at}") for at in range(len(template.params))]
    row = fn.struct(
        _roles(template, "input").alias("inputs"),
        _roles(template, "share").alias("shares"),
        _roles(template, "device").alias("devices"),
        (fn.array(*params) if params else fn.array().cast("array<string>")).alias("params"),
        fn.col(NOTIFIED_COLUMN).alias("notified"),
    )
    keys = [
        _view_name(template).alias("view"),
        fn.lit(template.name).alias("template"),
        fn.array_sort(_roles(template, "input")).alias("inputs"),
    ]
    return joined.groupBy(*keys).agg(fn.array_sort(fn.collect_set(row)).alias("rows"))


def _refuse_faults(joined: DataFrame, template: FeedTemplate, devices: DataFrame | None) -> None:
    """One pass over the joined rows: the first of each kind of fault, if there is any."""
    checked, faults = joined, {}
    if template.is_pair:
        faults["self"] = fn.col("input0") == fn.col("input1")
    for role, item in enumerate(template.inputs):
        share = fn.col(f"share{role}")
        faults[f"share{role}"] = share.isNull() | (share <= 0) | (share > 1)
        if item.is_stream:
            faults[f"device{role}"] = fn.col(f"device{role}").isNull()
            if devices is not None:
                known = devices.toDF("known").select(fn.col("known").cast("string").alias(f"known{role}"))
                checked = checked.join(known, fn.col(f"known{role}") == fn.col(f"device{role}"), "left")
                faults[f"unknown{role}"] = fn.col(f"known{role}").isNull()
    row = fn.to_json(fn.struct(*joined.columns))
    firsts = [fn.min(fn.when(fault, row)).alias(name) for name, fault in faults.items()]
    found = checked.agg(*firsts).collect()[0].asDict()
    for name, example in found.items():
        if example is not None:
            raise _fault(name, example, template)


def _fault(name: str, example: str, template: FeedTemplate) -> FeedError:
    where = f"view {template.name!r}"
    if name == "self":
        return FeedError(f"a self edge: a device is joined with itself in {example}", where=where)
    alias = template.inputs[int(name[-1])].alias
    told = {
        "share": f"the share of {alias!r} must be over 0 and at most 1 in {example}",
        "device": f"a reference row names no device for {alias!r}: {example}",
        "unknown": f"unknown device for {alias!r} in {example}",
    }
    return FeedError(told[name[:-1]], where=where)


def _physical_view(row: Row, program: FeedProgram) -> PhysicalView:
    template = program.templates[row["template"]]
    rows = [_view_row(item, template, program) for item in row["rows"]]
    ordered = tuple(sorted(rows, key=lambda r: r.sort_key))
    return PhysicalView(row["view"], template.name, tuple(row["inputs"]), ordered)


def _view_row(item: Row, template: FeedTemplate, program: FeedProgram) -> ViewRow:
    return ViewRow(
        inputs=tuple(item["inputs"]),
        shares=tuple(item["shares"]),
        devices=tuple(_device(program, i, d) for i, d in zip(template.inputs, item["devices"], strict=True)),
        params=tuple(_param(program, template, n, v) for n, v in zip(template.params, item["params"], strict=True)),
        notified=item["notified"],
    )


def _device(program: FeedProgram, item: Input, text: str | None) -> Any:
    if text is None:
        return None
    stream = program.streams[item.source]
    assert stream.device is not None
    return _PYTHON_TYPES[stream.type_of(stream.device)](text)


def _param(program: FeedProgram, template: FeedTemplate, name: str, text: str | None) -> Any:
    alias, column = name.split(".")
    table = next(use.table for use in template.tables if use.alias == alias)
    return None if text is None else _PYTHON_TYPES[program.tables[table].type_of(column)](text)


def _source_feeds(template: FeedTemplate, row: ViewRow) -> dict[str, SourceFeed]:
    return {
        name: SourceFeed(name, feed_kind(item.source, item.where), str(device))
        for item, name, device in zip(template.inputs, row.inputs, row.devices, strict=True)
        if item.is_stream
    }
