"""The statements about feeds: streams of devices, and views that are computed for each user where least is sent.

    CREATE STREAM name (column TYPE, ...) WITH (device = 'column' [, rate = 0.2]);
    CREATE STREAM name (column TYPE, ...) WITH (born = 'cloud' [, key = 'column', rate = 0.2]);
    CREATE STREAM name (column TYPE, ...) WITH (born = 'cloud', view = 'name' [, rows = 'revisions', key = 'column']);
    CREATE FEED VIEW name [WITH (lifetime = '30 seconds', ...)] AS SELECT ...;

What they mean is known to `catchment.feeds.language`, which also reads their options. Here they are names with columns,
so that one catalog has them beside everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlglot import exp

from catchment.aggregates import quote
from catchment.errors import QueryError
from catchment.project.options import did_you_mean
from catchment.query.sql.dialect import render
from catchment.query.sql.statements import DeclaredRelation, named_relations, write_columns, write_with
from catchment.query.sql.tokens import SqlText

DEVICE = "device"  # the option by which a stream of devices is known
BORN = "born"  # the option by which a stream that is born at the cloud of feeds is known
EXACT_ROWS = "exact"  # the rows of a window are records once: when the window is first exact
ALL_REVISIONS = "revisions"  # every published revision of a row is a record


@dataclass(frozen=True)
class DeviceStream(DeclaredRelation):
    """CREATE STREAM for feed views: its records are born on devices, which one column names, or at the cloud."""

    device: str | None  # of a stream of the cloud its key, if it has one
    rate: float | None = None  # records per second of one device, until they are measured
    where: str = field(default="", compare=False)
    born_at_cloud: bool = False
    view: str | None = None  # the materialized view whose answers are its records
    rows: str = EXACT_ROWS  # which of these answers

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device is not None and self.column(self.device) is None:
            raise QueryError(
                f"the device {self.device!r} of stream {self.name!r} is not among its columns",
                where=self.where,
                hint=did_you_mean(self.device, [c.name for c in self.columns]),
            )

    def to_sql(self) -> str:
        options: dict[str, Any] = {DEVICE: self.device, "rate": self.rate}
        if self.born_at_cloud:
            options = {BORN: "cloud", "view": self.view, "key": self.device, "rate": self.rate}
            options |= {"rows": self.rows} if self.rows != EXACT_ROWS else {}
        return f"CREATE STREAM {quote(self.name)} {write_columns(self)} {write_with(options)}"


@dataclass(frozen=True)
class FeedView:
    """CREATE FEED VIEW, as it is written; two are equal if their canonical texts are."""

    name: str
    select: exp.Select = field(compare=False, repr=False)
    given: Mapping[str, Any] = field(default_factory=dict)  # its options
    places: Mapping[str | None, str] = field(default_factory=dict, compare=False, repr=False)  # of its options
    text: SqlText = field(default_factory=lambda: SqlText(""), compare=False, repr=False)
    where: str = field(default="", compare=False)

    @cached_property
    def definition(self) -> str:
        """The canonical text of its SELECT."""
        return render(self.select)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeedView):
            return NotImplemented
        return (self.name, dict(self.given), self.definition) == (other.name, dict(other.given), other.definition)

    @cached_property
    def tables(self) -> tuple[exp.Table, ...]:
        """Where it names streams, tables and views."""
        return tuple(named_relations(self.select, frozenset()))

    def to_sql(self) -> str:
        options = f" {write_with(self.given)}" if self.given else ""
        return f"CREATE FEED VIEW {quote(self.name)}{options} AS {self.definition}"


FeedStatement = DeviceStream | FeedView
