"""A fragment: the part of a plan that runs at a site, down to its partial aggregates.

A fragment says what to read, filter and group by; an evaluator decides how that is computed (native Spark SQL, or
vectorised in the reading tasks). Expressions are Spark SQL over the columns of the stream and of the tables that are
looked up; each column is qualified by the name of its stream, or by the alias of its table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import Aggregate
from catchment.errors import QueryError
from catchment.query.sql.dialect import conjuncts, read_expression, render
from catchment.storage.codec import stored
from catchment.timeline import Slicing, WindowSpec

SLICE_COLUMN = "slice_us"


stored()(WindowSpec)  # a fragment holds one; the time line itself knows nothing of storage


@stored()
@dataclass(frozen=True)
class Key:
    """A grouping column: its name in the partials, its Spark SQL expression and its Arrow type."""

    name: str
    sql: str
    type: pa.DataType


@stored()
@dataclass(frozen=True)
class Lookup:
    """A join of each record with a slow-changing reference table.

    `refresh_us` is how often the table is looked at again; None: never while a site runs. It says when rows are read
    and not what is computed, so it is no part of what a lookup is.
    """

    table: str
    alias: str
    on: str
    how: str = "inner"
    refresh_us: int | None = field(default=None, compare=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        if self.how not in ("inner", "left"):
            raise QueryError(f"a lookup join is inner or left, not {self.how!r}")


@stored()
@dataclass(frozen=True)
class Explode:
    """One record becomes several rows: one per element of an array, or per entry of a map.

    `sql` is the array or map, `columns` are the names and types of what each row has of it: its position first where
    `has_position`, then the element, or key and value. With `outer`, a record without elements is one row of nulls.
    It comes after so many look-ups of its fragment as `after` says: `sql` may use what those found.
    """

    alias: str
    sql: str
    columns: tuple[tuple[str, pa.DataType], ...]
    is_map: bool = False
    has_position: bool = False
    outer: bool = False
    after: int = 0

    def __str__(self) -> str:
        verb = f"{'pos' if self.has_position else ''}explode{'_outer' if self.outer else ''}"
        return f"{verb}({self.sql}) as {self.alias}({', '.join(name for name, _ in self.columns)})"


@stored(version=2, migrations={1: dict})  # version 2 has explodes
@dataclass(frozen=True)
class Fragment:
    """One partial aggregation of one stream, per slice and key."""

    name: str
    stream: str
    event_time: str
    keys: tuple[Key, ...]
    aggregates: tuple[Aggregate, ...]
    windows: tuple[WindowSpec, ...]
    where: str | None = None
    lookups: tuple[Lookup, ...] = ()
    explodes: tuple[Explode, ...] = ()

    def __post_init__(self) -> None:
        names = [c.name for c in self.schema]
        if len(set(names)) != len(names):
            raise QueryError(f"fragment {self.name!r} has two columns of one name: {sorted(names)}")

    @cached_property
    def slicing(self) -> Slicing:
        """The slices that all its windows are made of."""
        return Slicing.of(self.windows)

    @cached_property
    def unnamed(self) -> Fragment:
        """What it computes, whatever its name: twins have the same."""
        return replace(self, name="-")

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.keys)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of its partials: slice, keys, states."""
        states = [s for a in self.aggregates for s in a.states]
        return pa.schema(
            [pa.field(SLICE_COLUMN, pa.int64())]
            + [pa.field(k.name, k.type) for k in self.keys]
            + [pa.field(s.name, s.type) for s in states]
        )


def count_only(fragment: Fragment, where: str | None) -> Fragment:
    """Return a fragment that only counts records per slice, those that meet a condition if there is one."""
    return replace(fragment, keys=(), aggregates=(), where=where, lookups=(), explodes=())


def count_records(fragment: Fragment) -> Fragment:
    """Return what counts the records of a fragment whose records become several rows.

    A record counts once, whichever of its rows are taken, if it meets the conditions on its own columns.
    """
    parts = [render(part) for part in conjuncts(read_expression(fragment.where) if fragment.where else None)]
    own = [
        part for part in parts if all(c.table == fragment.stream for c in read_expression(part).find_all(exp.Column))
    ]
    return count_only(fragment, " AND ".join(f"({part})" for part in own) or None)
