"""Feed templates: what a logical feed view says, before there are users (Chandramouli et al., VLDB'13, 2.1).

A template joins at most two *inputs*, each the stream of a device or the output of another two-input view, with
reference tables that say which devices meet; `many_inputs.py` makes chains of them. It is kept in a normal form of
SQL texts:

- `static`: conditions over reference tables alone; together with the tables they generate the physical views;
- `device` of an input: an expression over the tables that names the device;
- `where` of an input: conditions on its own columns, checked where the feed is born, before anything is sent;
- `share` of an input: the sampling filter, i.e. the share of the feed that one pair demands;
- `match` and `outputs`: what is evaluated when two events meet.

- `lifetime_us` of an input: how long its events live.

Two events meet when the later one comes within the lifetime of the earlier one. So a view is a set of matches that
only grows: the order in which events arrive, and where they are joined, cannot change it.

Views over one input are not materialised: they are unfolded into the views that use them, which is never
dearer (the paper's footnote 4). Invariant: a `FeedProgram` holds templates inputs first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.forms.window import WindowForm
from catchment.feeds.language.functions import BUILT_IN, Functions
from catchment.feeds.language.lifetimes import DEFAULT_LIFETIME_US
from catchment.feeds.language.operator_calls import operator_in
from catchment.feeds.language.statements import BORN_AT_CLOUD, Declared
from catchment.query.sql.dialect import read_expression

CLOUD_FEED = BORN_AT_CLOUD  # who has the feed of a stream that is born at the cloud
DEVICES = "devices"  # the implicit table of all known devices, with one column of the same name
FEED_COLUMN = "__feed"  # in the relation of a view: the name of its physical view
EVENT_TIME = "__at_us"  # a column of every input: the time of its event
NOTIFIED_COLUMN = "__notified"  # in the relation of a view: the device that it notifies
WHO = "__who"  # the output that names the notified device, where no other does


PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "BIGINT": (int,),
    "INT": (int,),
    "DOUBLE": (float, int),
    "STRING": (str,),
    "BOOLEAN": (bool,),
}


@dataclass(frozen=True)
class FeedInput:
    """One feed that a view reads."""

    alias: str
    source: str
    device: str | None  # SQL over the tables; None when the source is a view
    where: str | None = None
    share: str = "1"
    columns: tuple[str, ...] = ()
    lifetime_us: int = DEFAULT_LIFETIME_US  # how long after it an event meets others

    @property
    def is_stream(self) -> bool:
        return self.device is not None


@dataclass(frozen=True)
class TableUse:
    """A reference table under its alias; `is_view` marks the relation of a view that is read as input."""

    alias: str
    table: str
    is_view: bool = False


@dataclass(frozen=True)
class FeedOutput:
    """A column of a view; a static one is known from the reference tables."""

    name: str
    sql: str
    static_sql: str | None = None


@dataclass(frozen=True)
class FeedTemplate:
    """A logical feed view in normal form."""

    name: str
    inputs: tuple[FeedInput, ...]
    tables: tuple[TableUse, ...]
    static: str | None
    match: str | None
    params: tuple[str, ...]  # "alias.column" of reference tables that are read when events meet
    outputs: tuple[FeedOutput, ...]
    notify_every_us: int | None = None
    where: str = ""  # the place of its statement
    window: WindowForm | None = None  # its matches are aggregated, and notified once per window
    collected: bool = False  # its notices are kept at the cloud, so that is where it is computed
    who: str | None = None  # the output that names the notified device; views that others read have one

    def __post_init__(self) -> None:
        where = f"{self.where}, view {self.name!r}"
        if not 1 <= len(self.inputs) <= 2:
            raise FeedError(f"found {len(self.inputs)} inputs; a view has at least 1", where=where)
        shortest_us = min(i.lifetime_us for i in self.inputs)
        if shortest_us < 0 or (self.notify_every_us or 1) <= 0:
            raise FeedError("a lifetime is negative, or notify_every is not positive", where=where)
        names = [o.name for o in self.outputs]
        if len(set(names)) != len(names):
            raise FeedError(f"two output columns have one name: {names}", where=where, hint="use AS")

    @property
    def is_pair(self) -> bool:
        return len(self.inputs) == 2

    @property
    def stays_at_cloud(self) -> bool:
        """Whether it reads the matches of all hosts together, at the cloud."""
        return self.window is not None or self.collected

    @property
    def lifetime_us(self) -> int:
        """The longest lifetime of an input: events that are further apart than that do not meet."""
        return max(i.lifetime_us for i in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.outputs)


@dataclass(frozen=True)
class KnownFeed:
    """The columns that a kind of feed has had while a cloud ran: a column never changes its place."""

    columns: tuple[str, ...]
    fewest: int  # columns that an event may have: devices may know an earlier program


@dataclass(frozen=True)
class FeedProgram:
    """Streams, reference tables and templates that belong together, inputs before their readers."""

    text: str
    streams: dict[str, Declared]
    tables: dict[str, Declared]
    templates: dict[str, FeedTemplate]
    consumed: frozenset[str] = frozenset()  # views that other views read: they keep matches, but notify nobody
    functions: Functions = field(default_factory=lambda: BUILT_IN, repr=False, compare=False)
    known_feeds: dict[str, KnownFeed] = field(default_factory=dict)  # of the programs that this one continues

    @cached_property
    def pushed_columns(self) -> dict[str, tuple[str, ...]]:
        """Per feed kind, the columns that leave the device: all that any template reads, the device aside."""
        needed: dict[str, set[str]] = {}
        for template in self.templates.values():
            for item in template.inputs:
                if item.is_stream:
                    needed.setdefault(feed_kind(item.source, item.where), set()).update(item.columns)
        return {kind: self._in_order(kind, columns) for kind, columns in needed.items()}

    def _in_order(self, kind: str, columns: set[str]) -> tuple[str, ...]:
        """Return the columns of a kind: first those that earlier programs had, in their places."""
        stream = self.streams[stream_of(kind)]
        known = self.known_feeds[kind].columns if kind in self.known_feeds else ()
        added = (c for c in stream.column_names if c in columns and c != stream.device and c not in known)
        return (*known, *added)

    def fewest_values(self, kind: str) -> int:
        """Return how many values an event of a kind may have: a device may know an earlier program."""
        return self.known_feeds[kind].fewest if kind in self.known_feeds else len(self.pushed_columns[kind])

    def accepts(self, kind: str, values: tuple[Any, ...]) -> bool:
        """Return whether values have the number and the types of a feed kind's columns; NULL is always possible."""
        stream = self.streams[stream_of(kind)]
        columns = self.pushed_columns[kind]
        return self.fewest_values(kind) <= len(values) <= len(columns) and all(
            value is None or type(value) in PYTHON_TYPES[stream.type_of(column)]
            for value, column in zip(values, columns, strict=False)
        )

    def columns_of(self, source: str, where: str | None) -> tuple[str, ...]:
        """Return the columns of the events that a view receives from a source."""
        if source in self.streams:
            return self.pushed_columns[feed_kind(source, where)]
        return self.templates[source].output_names

    def has_operator(self, template: FeedTemplate) -> bool:
        """Return whether a template consists of a call of an operator with state."""
        return template.name in self._with_operators

    @cached_property
    def _with_operators(self) -> frozenset[str]:
        calls = {t.name: read_expression(t.outputs[0].sql) for t in self.templates.values() if not t.is_pair}
        return frozenset(name for name, call in calls.items() if operator_in(call, self.functions) is not None)

    def type_of_param(self, template: FeedTemplate, param: str) -> str:
        """Return the type of a parameter: a column of a reference table, or the device that a row notifies."""
        alias, column = param.split(".")
        use = next(use for use in template.tables if use.alias == alias)
        return self._device_type(use.table) if use.is_view else self.tables[use.table].type_of(column)

    def _device_type(self, source: str) -> str:
        """Return the type that the device has which a view, or a stream, is about."""
        if source not in self.streams:
            return self._device_type(self.templates[source].inputs[0].source)
        stream = self.streams[source]
        assert stream.device is not None
        return stream.type_of(stream.device)


def feed_kind(stream: str, where: str | None) -> str:
    """Return the name of a feed without its device: equal streams under equal filters meet in one feed."""
    return stream if where is None else f"{stream}[{where}]"


def stream_of(kind: str) -> str:
    """Return the stream that a feed kind reads."""
    return kind.split("[", 1)[0]
