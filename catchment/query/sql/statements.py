"""The statements of a SQL file as frozen dataclasses, each of which prints itself as SQL again.

Law: parsing what a statement prints gives an equal statement (`where`, its place in its file, apart).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import quote
from catchment.errors import QueryError
from catchment.project import option_kinds as kinds
from catchment.project.options import option, required, write_options
from catchment.query.marker_form import MarkerForm
from catchment.query.sql.connectors import (
    KAFKA_METADATA,
    SCHEMA_FORMATS,
    Connector,
    FilesConnector,
    GeneratorConnector,
    KafkaConnector,
    MqttConnector,
    PostgresConnector,
    ReceivedConnector,
    ReplayConnector,
    TableConnector,
)
from catchment.query.sql.dialect import render
from catchment.query.sql.sink_connectors import SinkConnector
from catchment.query.sql.tokens import SqlText
from catchment.query.sql.view_options import IN_DEFAULTS, ViewOptions
from catchment.query.types import TIMESTAMP, sql_type

VERSION_COLUMN = "_version"  # of every table: which version of it a record was looked up in


@dataclass(frozen=True)
class Column:
    """A declared column."""

    name: str
    type: pa.DataType

    def to_sql(self) -> str:
        return f"{quote(self.name)} {sql_type(self.type)}"


@dataclass(frozen=True)
class DeclaredRelation:
    """A named set of typed columns; names are found whatever their case."""

    name: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [c.name.lower() for c in self.columns]
        if not names:
            raise QueryError(f"{self.name!r} has no columns", hint="declare them: (name TYPE, ...)")
        for name in names:
            if names.count(name) > 1:
                raise QueryError(f"{self.name!r} has two columns named {name!r}", hint="names differ by more than case")

    @cached_property
    def _by_name(self) -> Mapping[str, Column]:
        return {c.name.lower(): c for c in self.columns}

    def column(self, name: str) -> Column | None:
        return self._by_name.get(name.lower())

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])


@dataclass(frozen=True)
class Stream(DeclaredRelation):
    """CREATE STREAM. `sites` is None until a catalog has said which sites those are."""

    event_time: str = field(
        metadata=required(
            kinds.text("the name of a TIMESTAMP column, such as 'ts'"),
            doc="the TIMESTAMP column by which records belong to windows",
        )
    )
    connector: Connector
    sites: tuple[str, ...] | None = option(
        kinds.site_names(),
        None,
        doc="where the stream is born; each of them needs a route to the center",
        absent="every site but the center; the center itself where there is no other",
    )
    slack_us: int | None = option(
        kinds.duration(),
        None,
        doc="how far behind the newest event time windows without a contract close",
        absent=IN_DEFAULTS,
    )
    max_jump_us: int | None = option(
        kinds.duration(positive=True),
        None,
        doc="how far one record may move event time; further only where a tenth of the records, two at least, agree",
        absent=IN_DEFAULTS,
    )
    history: bool | str | None = option(
        kinds.history(),
        None,
        doc="keep raw records at their site, so that answers can be repaired: a copy of them, or a reference to the "
        "files that they were read from, which must then stay as they are; for connector files on disk",
        absent=IN_DEFAULTS,
    )
    shed: bool = option(
        kinds.flag(),
        False,
        doc="under overload answer from samples, and make the answers exact afterwards; needs history",
    )
    source: str | None = option(
        kinds.text("the name of a column, such as 'device'"),
        None,
        doc="the column that says where a record comes from (a device, a partition): contracts follow each source",
        absent="all records of a site are of one source",
    )
    progress_column: str | None = option(
        kinds.text("the name of a TIMESTAMP column, such as 'complete_until'"),
        None,
        doc="the TIMESTAMP column with which a source states its progress: nothing before this instant will come from "
        "it any more, so windows close without waiting for slack; a record that has nothing else is a marker",
        absent="sources state nothing",
    )
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "event_time", self._check_time(self.event_time, "event time").name)
        if self.shed and self.history is False:
            raise QueryError(
                f"stream {self.name!r} is to be shed and has no history",
                hint="what is shed is repaired from history: leave history = false out, or shed = true",
            )
        if self.history == kinds.REFERENCE:
            self._check_reference()
        if isinstance(self.connector, ReplayConnector) and self.connector.arrival is not None:
            self._check_time(self.connector.arrival, "arrival")
        if isinstance(self.connector, KafkaConnector):
            self._check_kafka(self.connector)
        if isinstance(self.connector, MqttConnector):
            self._check_added(self.connector)
        if self.source is not None:
            object.__setattr__(self, "source", self._check_source(self.source).name)
        if self.progress_column is not None:
            object.__setattr__(self, "progress_column", self._check_progress(self.progress_column).name)
        elif isinstance(self.connector, KafkaConnector) and self.connector.progress_header is not None:
            raise QueryError(
                f"stream {self.name!r} has a progress_header and no progress_column",
                hint="declare a TIMESTAMP column that takes it, and name it: progress_column = 'complete_until'",
            )

    @property
    def payload_columns(self) -> tuple[str, ...]:
        """The columns of which a marker has none: all but its progress, its source and what is filled in."""
        filled = getattr(self.connector, "filled_columns", ())
        apart = {self.progress_column, self.source, *filled}
        return tuple(c.name for c in self.columns if c.name not in apart)

    @property
    def marker(self) -> MarkerForm | None:
        """How its markers are written, where sources send lines that state their progress."""
        connector = self.connector
        if self.progress_column is None or not isinstance(connector, FilesConnector | ReceivedConnector):
            return None
        names = tuple(c.name for c in self.columns)
        return MarkerForm(connector.format, connector.delimiter, names, self.progress_column, self.source)

    def _check_progress(self, name: str) -> Column:
        column = self._check_time(name, "progress_column")
        if column.name in (self.event_time, self.source):
            raise QueryError(
                f"the progress_column {name!r} of stream {self.name!r} is its event time or its source",
                hint="a record is at one instant, and states another: declare a column of its own for it",
            )
        if isinstance(self.connector, GeneratorConnector):
            raise QueryError(
                f"stream {self.name!r} is made by a generator, which states no progress",
                hint="remove progress_column",
            )
        return column

    def _check_reference(self) -> None:
        """Refuse a history of references where what was read is not there to be read again, as it was."""
        connector = self.connector
        reason = None
        if isinstance(connector, KafkaConnector):
            reason = "a broker removes records by the rules of its topic, and history does not know these yet"
        elif type(connector) is not FilesConnector:
            reason = f"what the {connector.kind} source gives cannot be read a second time"
        elif connector.is_in_store:
            reason = "it reads objects of a store, which history does not refer to yet"
        elif connector.growing:
            reason = "its files grow (growing = true), and only files that stay as they are can be referred to"
        elif self.shed:
            reason = "it may be shed (shed = true), and what was shed is repaired from copies"
        if reason is not None:
            raise QueryError(
                f"stream {self.name!r} asks for history = 'reference', but {reason}",
                hint="leave history out: then it is a copy; or set history = false to keep nothing",
            )

    def _check_kafka(self, kafka: KafkaConnector) -> None:
        for what, name in kafka.metadata_columns.items():
            column = self.column(name)
            expected = KAFKA_METADATA[what]
            if column is None or column.type != expected:
                found = f"is of type {sql_type(column.type)}" if column else "is not among its columns"
                raise QueryError(
                    f"the {what}_column {name!r} of stream {self.name!r} {found}",
                    hint=f"declare it: {name} {sql_type(expected)}",
                )
        if (kafka.format in SCHEMA_FORMATS) != (kafka.schema is not None or kafka.registry is not None):
            found = "neither a schema nor a registry" if kafka.format in SCHEMA_FORMATS else "a schema or a registry"
            raise QueryError(
                f"stream {self.name!r} has format {kafka.format!r} and {found}",
                hint="'avro' and 'protobuf' need schema = '<file>' or registry = 'http://...'; others need neither",
            )
        if kafka.message is not None and kafka.format != "protobuf":
            raise QueryError(
                f"stream {self.name!r} has format {kafka.format!r} and a message",
                hint="only format = 'protobuf' has messages: set it, or remove message",
            )

    def _check_added(self, mqtt: MqttConnector) -> None:
        for name, expected in mqtt.added_columns.items():
            column = self.column(name)
            if column is None or column.type != expected:
                found = f"is of type {sql_type(column.type)}" if column else "is not among its columns"
                raise QueryError(
                    f"the column {name!r} that stream {self.name!r} adds to messages {found}",
                    hint=f"declare it: {name} {sql_type(expected)}",
                )
            if mqtt.format != "json":
                raise QueryError(
                    f"stream {self.name!r} adds the column {name!r} to messages in format {mqtt.format!r}",
                    hint="only JSON objects can take a field more: set format = 'json', or leave the column out",
                )

    def _check_source(self, name: str) -> Column:
        column = self.column(name)
        if column is None:
            names = ", ".join(c.name for c in self.columns)
            raise QueryError(
                f"the source {name!r} of stream {self.name!r} is not among its columns", hint=f"name one: {names}"
            )
        return column

    def _check_time(self, name: str, what: str) -> Column:
        """Return the TIMESTAMP column of a name."""
        column = self.column(name)
        if column is not None and column.type == TIMESTAMP:
            return column
        found = f"is of type {sql_type(column.type)}" if column else "is not among its columns"
        times = [c.name for c in self.columns if c.type == TIMESTAMP]
        raise QueryError(
            f"the {what} {name!r} of stream {self.name!r} {found}",
            hint=f"name a TIMESTAMP column: {', '.join(times) or 'there is none, declare one'}",
        )

    def to_sql(self) -> str:
        options = {**write_options(self), **self.connector.to_options()}
        return f"CREATE STREAM {quote(self.name)} {write_columns(self)} {write_with(options)}"


@dataclass(frozen=True)
class Table(DeclaredRelation):
    """CREATE TABLE: slow-changing reference data.

    Beside its columns it has `_version`, which every row has: the version of the table that a site has read.
    """

    connector: TableConnector
    refresh_us: int | None = option(
        kinds.duration(positive=True),
        None,
        doc="how often to look whether its rows have changed; records that come from then on find the new rows",
        absent="it is read when a site starts",
    )
    unique: tuple[str, ...] = option(
        kinds.column_names(),
        (),
        doc="columns whose values no two rows have in common: a look-up by all of them finds one row at most, which "
        "makes samples of its records cheaper and their bounds tighter; rows that break it are not taken into use",
        absent="a look-up may find several rows",
    )
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "unique", tuple(self._check_unique(name).name for name in self.unique))
        for column in self.columns:
            if isinstance(self.connector, PostgresConnector) and pa.types.is_nested(column.type):
                raise QueryError(
                    f"column {column.name!r} of table {self.name!r} is {sql_type(column.type)}, "
                    "which is not read from PostgreSQL",
                    hint="make a view there whose columns are plain values, and name that",
                )

    def _check_unique(self, name: str) -> Column:
        column = self._by_name.get(name.lower())
        if column is None:
            names = ", ".join(c.name for c in self.columns)
            raise QueryError(
                f"the unique column {name!r} of table {self.name!r} is not among its columns",
                hint=f"name some: {names}",
            )
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            raise QueryError(
                f"the unique column {name!r} of table {self.name!r} is {sql_type(column.type)}",
                hint="name columns whose values are equal only if they are the same: numbers without a fraction, "
                "texts, instants",
            )
        return column

    @property
    def has_version(self) -> bool:
        """Whether `_version` is the version of the table, and not a column that it declares."""
        return VERSION_COLUMN not in self._by_name

    @property
    def readable_columns(self) -> tuple[Column, ...]:
        """The columns that a query may name."""
        return (*self.columns, Column(VERSION_COLUMN, pa.string())) if self.has_version else self.columns

    def column(self, name: str) -> Column | None:
        return next((c for c in self.readable_columns if c.name.lower() == name.lower()), None)

    def to_sql(self) -> str:
        options = {**write_options(self), **self.connector.to_options()}
        return f"CREATE TABLE {quote(self.name)} {write_columns(self)} {write_with(options)}"


@dataclass(frozen=True)
class View:
    """CREATE [OR REPLACE] MATERIALIZED VIEW; two views are equal if their canonical definitions are.

    `select` is shared and must not be changed: rewrites copy it.
    """

    name: str
    select: exp.Select = field(compare=False, repr=False)
    options: ViewOptions = field(default_factory=ViewOptions)
    text: SqlText = field(default_factory=lambda: SqlText(""), compare=False, repr=False)
    where: str = field(default="", compare=False)
    replaces: bool = False  # CREATE OR REPLACE: a view of this name may be there, and ends

    @cached_property
    def definition(self) -> str:
        """The canonical text of its SELECT."""
        return render(self.select)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, View):
            return NotImplemented
        mine = (self.name, self.options, self.definition, self.replaces)
        return mine == (other.name, other.options, other.definition, other.replaces)

    @cached_property
    def tables(self) -> tuple[exp.Table, ...]:
        """Where it names streams, tables and views."""
        return tuple(named_relations(self.select, frozenset()))

    @property
    def reads(self) -> tuple[str, ...]:
        """The relations that it names."""
        return tuple(dict.fromkeys(table.name for table in self.tables))

    def to_sql(self) -> str:
        create = "CREATE OR REPLACE" if self.replaces else "CREATE"
        head = f"{create} MATERIALIZED VIEW {quote(self.name)} {write_with(self.options.to_options())}"
        return f"{head} AS {self.definition}"


@dataclass(frozen=True)
class DeclaredSink:
    """CREATE SINK: another system that the answers of a view are delivered to."""

    name: str
    view: str
    connector: SinkConnector
    where: str = field(default="", compare=False)

    def to_sql(self) -> str:
        return f"CREATE SINK {quote(self.name)} FROM {quote(self.view)} {write_with(self.connector.to_options())}"


@dataclass(frozen=True)
class DropView:
    """DROP MATERIALIZED VIEW."""

    name: str
    where: str = field(default="", compare=False)

    def to_sql(self) -> str:
        return f"DROP MATERIALIZED VIEW {quote(self.name)}"


@dataclass(frozen=True)
class Explain:
    """EXPLAIN of a view by its name; with ANALYZE, beside what was measured."""

    name: str
    where: str = field(default="", compare=False)
    analyze: bool = False

    def to_sql(self) -> str:
        return f"EXPLAIN {'ANALYZE ' if self.analyze else ''}{quote(self.name)}"


def named_relations(select: exp.Expr, hidden: frozenset[str]) -> Iterator[exp.Table]:
    """Yield what a SELECT names in FROM and JOIN, in its subqueries too; `hidden` are the names of WITH around it."""
    clause = select.args.get("with_")
    for query in clause.expressions if clause is not None else ():
        yield from named_relations(query.this, hidden)
        hidden = hidden | {query.alias.lower()}
    if isinstance(select, exp.Subquery | exp.SetOperation):
        for part in (select.this, select.args.get("expression")):
            if part is not None:
                yield from named_relations(part, hidden)
        return
    start = select.args.get("from_")
    sources = [start.this] if start is not None else []
    for source in [*sources, *(join.this for join in select.args.get("joins") or ())]:
        if isinstance(source, exp.Table) and source.name.lower() not in hidden:
            yield source
        elif not isinstance(source, exp.Table):
            yield from named_relations(source, hidden)


Statement = Stream | Table | View | DeclaredSink | DropView | Explain


def write_columns(relation: DeclaredRelation) -> str:
    """Return the columns of a relation as they are declared."""
    return f"({', '.join(c.to_sql() for c in relation.columns)})"


def write_with(options: Mapping[str, Any]) -> str:
    """Return the options of a statement; those that are None are left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return f"WITH ({', '.join(f'{name} = {_literal(value)}' for name, value in given.items())})"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return render(exp.Literal.string(value)) if isinstance(value, str) else repr(value)
