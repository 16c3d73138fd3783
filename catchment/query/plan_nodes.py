"""The nodes of a view's plan: frozen, valid by construction, and printing themselves.

Expressions in nodes are canonical Spark SQL texts (every column qualified by the name of its relation, every
identifier quoted), so that nodes are values: equal texts are equal nodes, whatever aliases the user chose.
The printed form, with its inputs below each node, is that of EXPLAIN, of logs and of golden tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from catchment.aggregates import Aggregate
from catchment.aggregates.user_defined import UserAggregate
from catchment.errors import QueryError
from catchment.query.assembly import Assembly
from catchment.query.fragment import SLICE_COLUMN, Explode, Key, Lookup
from catchment.query.join import (
    KINDS,
    LEFT,
    RIGHT,
    SIDES,
    JoinedKey,
    KeyComparison,
    PairAggregate,
    RowCondition,
    describe_condition,
)
from catchment.query.sql.view_options import ViewOptions
from catchment.query.types import TIMESTAMP, sql_type
from catchment.timeline import WindowSpec
from catchment.units import format_duration

WINDOW_START = "window_start"
WINDOW_END = "window_end"
LOWER_ROWS = "_rows"  # of a view of a view: how many rows of that a row is made of
FIRST_INSTANT = "_first"  # of a session: the event time of its first record, and of its last
LAST_INSTANT = "_last"
SLICES = ".slices"  # what follows the name of a view in that of its slices
COPIES = "copies"  # of a view without GROUP BY: how many equal records a row stands for


Layout = tuple[tuple[object, ...], tuple[object, ...]]  # of keys and of aggregates
OF_ANY_WIDTH = ("count", "sum", "avg")  # whose states do not depend on how wide the numbers are


@dataclass(frozen=True)
class Node(ABC):
    """A step of a plan; what it reads are those of its fields that are nodes."""

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(value for f in fields(self) if isinstance(value := getattr(self, f.name), Node))

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """Return the same step over other inputs."""
        names = [f.name for f in fields(self) if isinstance(getattr(self, f.name), Node)]
        assert len(names) == len(inputs)
        return replace(self, **dict(zip(names, inputs, strict=True)))

    @abstractmethod
    def title(self) -> str:
        """Return what follows the name of the step in its printed form."""

    def details(self) -> tuple[str, ...]:
        """Return further lines, printed below the title."""
        return ()

    def to_text(self, depth: int = 0) -> str:
        """Return the tree below this step, inputs indented."""
        space = "  " * depth
        lines = [
            f"{space}{type(self).__name__} {self.title()}".rstrip(),
            *(f"{space}| {d}" for d in self.details()),
        ]
        return "\n".join([*lines, *(node.to_text(depth + 1) for node in self.inputs)])


@dataclass(frozen=True)
class Scan(Node):
    """Read a stream at the sites where it is born; only these columns are needed.

    Where the view names sites, it is read at those alone, also when it is born at others later.
    """

    stream: str
    event_time: str
    columns: tuple[str, ...]
    sites: tuple[str, ...]
    named_sites: tuple[str, ...] = field(default=(), kw_only=True)  # empty: all

    def __post_init__(self) -> None:
        if self.event_time not in self.columns:
            raise QueryError(f"a scan of {self.stream!r} leaves out its event time {self.event_time!r}")

    def title(self) -> str:
        only = f", and only at {', '.join(self.named_sites)}" if self.named_sites else ""
        return f"{self.stream} [{', '.join(self.columns)}] at {', '.join(self.sites)}{only}"


@dataclass(frozen=True)
class ViewScan(Scan):
    """Read the newest answers of another view where they are published; a row is at the start of its window."""

    window: WindowSpec
    sketch_error: float = 0.0

    def title(self) -> str:
        return f"{self.stream} [{', '.join(self.columns)}] as published at {', '.join(self.sites)}"


@dataclass(frozen=True)
class SliceScan(ViewScan):
    """Read the slices of a view that is assembled from them, which are published as a query of their own."""

    source: Node = field(kw_only=True)

    def title(self) -> str:
        return f"{self.stream} with their states, as published at {', '.join(self.sites)}"


@dataclass(frozen=True)
class LookupJoin(Node):
    """Join each record with a row of a table."""

    input: Node
    lookup: Lookup

    def title(self) -> str:
        name = f" as {self.lookup.alias}" if self.lookup.alias != self.lookup.table else ""
        return f"{self.lookup.how} {self.lookup.table}{name} on {self.lookup.on}"


@dataclass(frozen=True)
class ExplodeRecords(Node):
    """Make a row of each element of an array, or of each entry of a map, of each record."""

    input: Node
    explode: Explode

    def title(self) -> str:
        return str(self.explode)


@dataclass(frozen=True)
class Filter(Node):
    """Keep the records for which all conditions hold."""

    input: Node
    conditions: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.conditions:
            raise QueryError("a filter has no condition")

    def title(self) -> str:
        return self.sql

    @property
    def sql(self) -> str:
        """All conditions as one."""
        first, *rest = self.conditions
        return " AND ".join(f"({c})" for c in self.conditions) if rest else first


@dataclass(frozen=True)
class WindowAggregate(Node):
    """Aggregate per window and key; its columns are window_start, window_end, the keys and the aggregates."""

    input: Node
    window: WindowSpec
    keys: tuple[Key, ...]
    aggregates: tuple[Aggregate, ...]

    def __post_init__(self) -> None:
        if not self.aggregates:
            raise QueryError("a windowed aggregate computes nothing")
        names = [n.lower() for n in (SLICE_COLUMN, *self.columns)]
        if len(set(names)) != len(names):
            raise QueryError(f"a windowed aggregate has two columns of one name: {sorted(names)}")

    @cached_property
    def columns(self) -> dict[str, pa.DataType]:
        """The types of its columns, by name."""
        bounds = {WINDOW_START: TIMESTAMP, WINDOW_END: TIMESTAMP}
        keys = {k.name: k.type for k in self.keys}
        return {**bounds, **keys, **{a.name: a.result_type for a in self.aggregates}}

    @property
    def layout(self) -> Layout:
        """The names and types of its keys, and what is computed: what the branches of a union have in common."""
        return tuple((k.name, k.type) for k in self.keys), tuple(map(_layout_of, self.aggregates))

    def title(self) -> str:
        return describe_window(self.window)

    def details(self) -> tuple[str, ...]:
        keys = (f"key {k.name} {sql_type(k.type)} = {k.sql}" for k in self.keys)
        return (
            *keys,
            *(f"{a.name} {sql_type(a.result_type)} = {describe_aggregate(a)}" for a in self.aggregates),
        )


@dataclass(frozen=True)
class Assemble(WindowAggregate):
    """Merge slices into windows that are not all of one size; a row belongs to the slice that its window ends in."""

    assembly: Assembly = field(kw_only=True)

    def title(self) -> str:
        return str(self.assembly)

    def details(self) -> tuple[str, ...]:
        return tuple(f"merges {a.name}" for a in self.aggregates)


@dataclass(frozen=True)
class WindowJoin(Node):
    """Pair the records of two streams that are in one window, agree in `on` and fulfil `compared`.

    It works on what either side has aggregated; the left one may be a join itself. Its columns are window_start,
    window_end, the keys and the aggregates over all pairs. Of the `preserved` sides, records without a partner are rows
    too, if `conditions` keep them.
    """

    left: WindowAggregate | WindowJoin
    right: WindowAggregate
    on: tuple[tuple[str, str], ...]
    joined: tuple[JoinedKey, ...]
    pairs: tuple[PairAggregate, ...]
    compared: tuple[KeyComparison, ...] = ()
    preserved: tuple[str, ...] = ()
    conditions: tuple[RowCondition, ...] = ()

    def __post_init__(self) -> None:
        if self.left.window != self.right.window:
            raise QueryError("two streams are joined in windows of their own")
        if not self.on or not self.pairs:
            raise QueryError("a join of two streams has no equality, or computes nothing")

    @cached_property
    def streams(self) -> dict[str, WindowAggregate]:
        """What each stream aggregates, by its place: left and right, or left.left, left.right, ..."""
        if isinstance(self.left, WindowJoin):
            return {**{f"{LEFT}.{place}": node for place, node in self.left.streams.items()}, RIGHT: self.right}
        return {LEFT: self.left, RIGHT: self.right}

    @property
    def window(self) -> WindowSpec:
        return self.right.window

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(p.aggregate for p in self.pairs)

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        found = {(s, k.name): k for s, side in zip(SIDES, (self.left, self.right), strict=True) for k in side.keys}
        return tuple(replace(found[k.side, k.source], name=k.name) for k in self.joined)

    def title(self) -> str:
        kind = KINDS[self.preserved]
        return f"{kind} {describe_window(self.window)} on {describe_condition(self.on, self.compared)}".lstrip()

    def details(self) -> tuple[str, ...]:
        keys = (f"key {k.name} = {k}" for k in self.joined)
        where = (f"where {c}" for c in self.conditions)
        return (*where, *keys, *(f"{p.aggregate.name} {sql_type(p.aggregate.result_type)} = {p}" for p in self.pairs))


@dataclass(frozen=True)
class WindowUnion(Node):
    """Merge what several streams have aggregated, as if their records were those of one (UNION ALL)."""

    first: WindowAggregate | WindowUnion
    last: WindowAggregate

    def __post_init__(self) -> None:
        if (self.first.window, self.first.layout) != (self.last.window, self.last.layout):
            raise QueryError("the branches of a union have other windows, keys or aggregates")

    @property
    def branches(self) -> tuple[WindowAggregate, ...]:
        """What is merged, in the order of the query."""
        before = self.first.branches if isinstance(self.first, WindowUnion) else (self.first,)
        return (*before, self.last)

    @property
    def window(self) -> WindowSpec:
        return self.last.window

    @property
    def layout(self) -> Layout:
        return self.last.layout

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.branches[0].keys

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return self.branches[0].aggregates

    def title(self) -> str:
        return describe_window(self.window)


@dataclass(frozen=True)
class OutputColumn:
    """A column of a view's results: Spark SQL over the columns of the aggregate below.

    `source` names the column that it merely copies, if it does.
    """

    name: str
    sql: str
    type: pa.DataType
    source: str | None = None


@dataclass(frozen=True)
class SortKey:
    """One key of ORDER BY: Spark SQL over the columns of the aggregate below, and the column that it merely is."""

    sql: str
    type: pa.DataType
    source: str | None = None
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        usual = self.nulls_first != self.descending
        nulls = "" if usual else f" NULLS {'FIRST' if self.nulls_first else 'LAST'}"
        return f"{self.sql}{' DESC' if self.descending else ''}{nulls}"


@dataclass(frozen=True)
class TopRows:
    """ORDER BY and LIMIT: how many rows of each window stay, and in which order the first are found.

    Rows that are equal in every key of the order are told apart by the keys of GROUP BY.
    """

    keys: tuple[SortKey, ...]
    limit: int

    def __str__(self) -> str:
        return f"the first {self.limit} of each window by {', '.join(map(str, self.keys))}"


@dataclass(frozen=True)
class Finish(Node):
    """The SELECT list, HAVING, and ORDER BY with LIMIT, over what the aggregate gives."""

    input: Node
    columns: tuple[OutputColumn, ...]
    having: str | None = None
    top: TopRows | None = None

    def __post_init__(self) -> None:
        names = [c.name.lower() for c in self.columns]
        if not names or len(set(names)) != len(names):
            raise QueryError(f"the columns of a result need different names, these are {sorted(names)}")

    @property
    def trivial(self) -> bool:
        """Whether no expression has to be computed: columns are only renamed and left out, and rows ordered by them."""
        sources = [c.source for c in self.columns]
        if self.top is not None:
            sources += [key.source for key in self.top.keys]
        return self.having is None and None not in sources

    def title(self) -> str:
        return "trivial" if self.trivial else ""

    def details(self) -> tuple[str, ...]:
        columns = (f"{c.name} {sql_type(c.type)} = {c.sql}" for c in self.columns)
        having = (f"having {self.having}",) if self.having else ()
        return (*columns, *having, *((str(self.top),) if self.top else ()))


@dataclass(frozen=True)
class Sink(Node):
    """Publish at a site, under a contract."""

    input: Node
    view: str
    site: str
    options: ViewOptions

    def title(self) -> str:
        error = self.options.max_error
        contract = f" within {error:g} at confidence {self.options.confidence:g}" if error is not None else ""
        return f"{self.view} at {self.site}{contract}"


def _layout_of(aggregate: Aggregate) -> tuple[object, ...]:
    """Return what two aggregates must have in common for their states to be merged."""
    given_type = None if aggregate.function in OF_ANY_WIDTH else aggregate.argument_type
    call = describe_aggregate(replace(aggregate, argument=None))
    return aggregate.name, call, given_type, tuple(s.type for s in aggregate.states), aggregate.result_type


def describe_aggregate(aggregate: Aggregate) -> str:
    """Return the call of an aggregate as text, with the parameters that its kind adds."""
    common = {f.name for f in fields(Aggregate)}
    if isinstance(aggregate, UserAggregate):  # its name says which code it is, and so everything else
        return f"{aggregate.function}({aggregate.argument}) [state of up to {aggregate.max_state_bytes} bytes]"
    own = [f"{f.name}={getattr(aggregate, f.name)!r}" for f in fields(aggregate) if f.name not in common]
    return f"{aggregate.function}({', '.join([aggregate.argument or '*', *own])})"


def describe_window(window: WindowSpec) -> str:
    """Return a window in words: tumbling 1 min, or sliding 1 min every 10 s, from an offset."""
    size, slide = format_duration(window.size_us), format_duration(window.slide_us)
    shape = f"tumbling {size}" if window.size_us == window.slide_us else f"sliding {size} every {slide}"
    return shape + (f" offset {format_duration(window.offset_us)}" if window.offset_us else "")


Answer = WindowAggregate | WindowJoin | WindowUnion

N = TypeVar("N", bound=Node)


def walk(root: Node) -> Iterator[Node]:
    """Yield every node, each before its inputs."""
    yield root
    for node in root.inputs:
        yield from walk(node)


def find(root: Node, kind: type[N]) -> Iterator[N]:
    """Return every node of a kind, each before its inputs."""
    return (node for node in walk(root) if isinstance(node, kind))


def transform(root: Node, rule: Callable[[Node], Node]) -> Node:
    """Return the tree with every node replaced by what the rule makes of it, inputs first."""
    inputs = tuple(transform(node, rule) for node in root.inputs)
    return rule(root if inputs == root.inputs else root.with_inputs(inputs))
