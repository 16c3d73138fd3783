"""What a SQL file can say, as frozen statements, each of which prints itself as SQL again.

Law: parsing what a statement prints gives an equal statement (`where`, its place in its file, apart).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import quote
from catchment.errors import QueryError
from catchment.query.sql.dialect import render
from catchment.query.sql.tokens import SqlText
from catchment.query.types import TIMESTAMP, sql_type
from catchment.units import format_duration


@dataclass(frozen=True)
class Column:
    """A declared column."""

    name: str
    type: pa.DataType

    def to_sql(self) -> str:
        return f"{quote(self.name)} {sql_type(self.type)}"


@dataclass(frozen=True)
class FilesConnector:
    """Records in files; `{site}` in the path stands for the site that reads."""

    path: str
    format: str = "json"
    header: bool = True
    delimiter: str = ","
    kind = "files"


@dataclass(frozen=True)
class ReplayConnector(FilesConnector):
    """A log whose records are given out in order of arrival, at their own pace times `speed`."""

    arrival: str | None = None
    speed: float = 1.0
    kind = "replay"


@dataclass(frozen=True)
class GeneratorConnector:
    """Made-up records, the same ones for the same seed."""

    rows_per_s: float = 1000.0
    keys: int = 100
    seed: int = 0
    duration_us: int | None = None
    kind = "generator"


Connector = FilesConnector | ReplayConnector | GeneratorConnector


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

    event_time: str
    connector: Connector
    sites: tuple[str, ...] | None = None
    slack_us: int | None = None
    max_jump_us: int | None = None
    history: bool | None = None
    shed: bool = False
    source: str | None = None  # the column that says where a record comes from, where its stream's disorder is between
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "event_time", self._check_time(self.event_time, "event time").name)

        if self.shed and self.history is False:
            raise QueryError(
                f"stream {self.name!r} is to be shed and has no history",
                hint="what is shed is repaired from history: leave history = false out, or shed = true",
            )
        if isinstance(self.connector, ReplayConnector) and self.connector.arrival is not None:
            self._check_time(self.connector.arrival, "arrival")
        if self.source is not None:
            object.__setattr__(self, "source", self._check_source(self.source).name)

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
        options = {
            "event_time": self.event_time,
            "sites": ",".join(self.sites) if self.sites is not None else None,
            "slack": _duration(self.slack_us),
            "max_jump": _duration(self.max_jump_us),
            "history": self.history,
            "shed": self.shed or None,
            "source": self.source,
            **_connector_options(self.connector),
        }
        return f"CREATE STREAM {quote(self.name)} {_columns(self)} {_with(options)}"


@dataclass(frozen=True)
class Table(DeclaredRelation):
    """CREATE TABLE: slow-changing reference data."""

    connector: FilesConnector
    where: str = field(default="", compare=False)

    def to_sql(self) -> str:
        return f"CREATE TABLE {quote(self.name)} {_columns(self)} {_with(_connector_options(self.connector))}"


# When what was shed of a view is made good, and whether a view may be shed at all.
ALWAYS, ON_DEMAND, NEVER = "always", "on_demand", "never"
BOUNDED, ANY = "bounded", "any"


@dataclass(frozen=True)
class ViewOptions:
    """What a view promises and where; None leaves a setting to the project's defaults."""

    max_error: float | None = None
    confidence: float = 0.95
    sink: str | None = None
    freshness_us: int | None = None
    policy: str | None = None
    emit_early_us: int | None = None
    repair: str = ALWAYS
    shed: str = BOUNDED
    weight: float = 1.0
    slack: str | None = None

    def to_options(self) -> dict[str, Any]:
        return {
            "max_error": self.max_error,
            "confidence": self.confidence if self.max_error is not None else None,
            "sink": self.sink,
            "freshness": _duration(self.freshness_us),
            "policy": self.policy,
            "emit_early": _duration(self.emit_early_us),
            "repair": self.repair if self.repair != ALWAYS else None,
            "shed": self.shed if self.shed != BOUNDED else None,
            "weight": self.weight if self.weight != 1.0 else None,
            "slack": self.slack,
        }


@dataclass(frozen=True)
class View:
    """CREATE MATERIALIZED VIEW; two views are equal if their canonical definitions are.

    `select` is shared and must not be changed: rewrites copy it.
    """

    name: str
    select: exp.Select = field(compare=False, repr=False)
    options: ViewOptions = field(default_factory=ViewOptions)
    text: SqlText = field(default_factory=lambda: SqlText(""), compare=False, repr=False)
    where: str = field(default="", compare=False)

    @cached_property
    def definition(self) -> str:
        """The canonical text of its SELECT."""
        return render(self.select)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, View):
            return NotImplemented
        return (self.name, self.options, self.definition) == (other.name, other.options, other.definition)

    @cached_property
    def tables(self) -> tuple[exp.Table, ...]:
        """Where it names streams and tables."""
        return tuple(self.select.find_all(exp.Table, bfs=False))

    @property
    def reads(self) -> tuple[str, ...]:
        """The relations that it names."""
        return tuple(dict.fromkeys(table.name for table in self.tables))

    def to_sql(self) -> str:
        head = f"CREATE MATERIALIZED VIEW {quote(self.name)} {_with(self.options.to_options())}"
        return f"{head} AS {self.definition}"


@dataclass(frozen=True)
class DropView:
    """DROP MATERIALIZED VIEW."""

    name: str
    where: str = field(default="", compare=False)

    def to_sql(self) -> str:
        return f"DROP MATERIALIZED VIEW {quote(self.name)}"


@dataclass(frozen=True)
class Explain:
    """EXPLAIN of a view by its name."""

    name: str
    where: str = field(default="", compare=False)

    def to_sql(self) -> str:
        return f"EXPLAIN {quote(self.name)}"


Statement = Stream | Table | View | DropView | Explain


def _columns(relation: DeclaredRelation) -> str:
    return f"({', '.join(c.to_sql() for c in relation.columns)})"


def _with(options: Mapping[str, Any]) -> str:
    given = {name: value for name, value in options.items() if value is not None}
    return f"WITH ({', '.join(f'{name} = {_literal(value)}' for name, value in given.items())})"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return render(exp.Literal.string(value)) if isinstance(value, str) else repr(value)


def _duration(us: int | None) -> str | None:
    return None if us is None else f"{us} us" if us % 1000 else format_duration(us)


def _connector_options(connector: Connector) -> dict[str, Any]:
    options = {name: value for name, value in vars(connector).items() if name != "duration_us"}
    if isinstance(connector, GeneratorConnector):
        options["duration"] = _duration(connector.duration_us)
    elif connector.format != "csv":
        options = {name: value for name, value in options.items() if name not in ("header", "delimiter")}
    return {"connector": connector.kind, **options}
