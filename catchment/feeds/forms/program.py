"""The form of a program that devices are told: no SQL, only names, numbers and expression trees.

It says what a device needs and no more: the columns of its streams, how records become events of feeds, and how views
are computed. The reference rows of a view come with the view itself. `read` checks everything that arrives, so a form
that exists is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.forms.expression import Tree, functions_in, tree_of

VERSION = 2  # of the protocol; 1 told devices SQL
VALUE_TYPES: dict[str, tuple[type, ...]] = {
    "BIGINT": (int,),
    "INT": (int,),
    "DOUBLE": (float, int),
    "STRING": (str,),
    "BOOLEAN": (bool,),
}
_STREAM = ("name", "columns", "device")
_FEED = ("kind", "stream", "keep", "columns")
_VIEW = ("name", "inputs", "lifetimes_us", "notify_every_us", "notifies", "match", "outputs")


@dataclass(frozen=True)
class StreamForm:
    """A stream of records: its columns in order, each with its type, and which of them names the device."""

    name: str
    columns: tuple[tuple[str, str], ...]
    device: int

    def __post_init__(self) -> None:
        unknown = [kind for _, kind in self.columns if kind not in VALUE_TYPES]
        if unknown or not 0 <= self.device < len(self.columns):
            raise FeedError(f"stream {self.name!r} has the types {unknown} or no device column {self.device}")

    @classmethod
    def read(cls, value: Any) -> StreamForm:
        name, columns, device = _fields(value, _STREAM)
        return cls(_text(name), tuple((_text(c), _text(t)) for c, t in columns), _int(device))

    def check(self, row: tuple[Any, ...]) -> None:
        """Refuse a record with the wrong number or types of values; NULL is always possible."""
        if len(row) != len(self.columns):
            raise FeedError(f"a record of {self.name!r} has {len(row)} values, expected {len(self.columns)}: {row!r}")
        for value, (column, kind) in zip(row, self.columns, strict=True):
            if value is not None and type(value) not in VALUE_TYPES[kind]:
                raise FeedError(f"a record of {self.name!r} has {value!r} in {column!r}, expected {kind}")


@dataclass(frozen=True)
class FeedForm:
    """How records of a stream become events: which are kept, and which columns leave the device."""

    kind: str
    stream: str
    keep: Tree
    columns: tuple[int, ...]

    @classmethod
    def read(cls, value: Any) -> FeedForm:
        kind, stream, keep, columns = _fields(value, _FEED)
        return cls(_text(kind), _text(stream), tree_of(keep), tuple(_int(c) for c in columns))


@dataclass(frozen=True)
class ViewForm:
    """How a view is computed; a tree of it reads the values of each input, then the parameters, the devices
    and the times of the events.

    An event of an input meets later events of the other input up to its lifetime.
    """

    name: str
    inputs: tuple[str, ...]  # kinds of feeds, or names of views
    lifetimes_us: tuple[int, ...]
    notify_every_us: int | None
    notifies: bool  # otherwise its matches are for other views
    match: Tree
    outputs: tuple[tuple[str, Tree], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.inputs) <= 2 or len(self.lifetimes_us) != len(self.inputs):
            raise FeedError(f"view {self.name!r} has {len(self.inputs)} inputs and {len(self.lifetimes_us)} lifetimes")
        if min(self.lifetimes_us) < 0 or (self.notify_every_us is not None and self.notify_every_us <= 0):
            raise FeedError(f"view {self.name!r} has a lifetime or a period that is not positive")

    @classmethod
    def read(cls, value: Any) -> ViewForm:
        name, inputs, lifetimes, every, notifies, match, outputs = _fields(value, _VIEW)
        if type(notifies) is not bool:
            raise FeedError(f"found notifies = {notifies!r}; expected true or false")
        return cls(
            _text(name),
            tuple(_text(i) for i in inputs),
            tuple(_int(t) for t in lifetimes),
            None if every is None else _int(every),
            notifies,
            tree_of(match),
            tuple((_text(column), tree_of(tree)) for column, tree in outputs),
        )

    @cached_property
    def functions(self) -> frozenset[str]:
        """The functions that it calls."""
        return frozenset(f for tree in self._trees for f in functions_in(tree))

    @cached_property
    def fewest_values(self) -> tuple[int, ...]:
        """How many values of each input it reads; an event that was recorded with fewer is not taken."""
        read = [place for tree in self._trees for place in places_in(tree)]
        return tuple(max((at + 1 for s, at in read if s == slot), default=0) for slot in range(len(self.inputs)))

    @property
    def _trees(self) -> tuple[Tree, ...]:
        return (self.match, *(tree for _, tree in self.outputs))

    def is_same_as(self, other: ViewForm | None) -> bool:
        """Return whether two views are computed in the same way; 1 and true are equal in Python, but not here."""
        return repr(self) == repr(other)


@dataclass(frozen=True)
class ProgramForm:
    """Streams, feeds and views as a device is told them."""

    streams: tuple[StreamForm, ...]
    feeds: tuple[FeedForm, ...]
    views: tuple[ViewForm, ...]

    def __post_init__(self) -> None:
        streams = {s.name: s for s in self.streams}
        for feed in self.feeds:
            stream = streams.get(feed.stream)
            if stream is None or any(not 0 <= c < len(stream.columns) for c in feed.columns):
                raise FeedError(f"feed {feed.kind!r} reads a stream or column that is not in the program")
            _check_places(feed.keep, (len(stream.columns),), f"feed {feed.kind!r}")
        self._check_views({f.kind: len(f.columns) for f in self.feeds})

    def _check_views(self, widths: dict[str, int]) -> None:
        widths = {**widths, **{v.name: len(v.outputs) for v in self.views}}
        for view in self.views:
            unknown = [i for i in view.inputs if i not in widths]
            if unknown:
                raise FeedError(f"view {view.name!r} reads {unknown[0]!r}, which is not in the program")
            slots = (*(widths[i] for i in view.inputs), None, len(view.inputs), len(view.inputs))
            for tree in (view.match, *(t for _, t in view.outputs)):
                _check_places(tree, slots, f"view {view.name!r}")

    @classmethod
    def read(cls, value: Any) -> ProgramForm:
        """Return the form that a JSON value holds; refuse another version, by name, and what is not whole."""
        version, streams, feeds, views = _fields(value, ("version", "streams", "feeds", "views"))
        if version != VERSION:
            raise FeedError(f"a program of version {version!r} is refused; this device reads version {VERSION}")
        return cls(
            tuple(StreamForm.read(s) for s in streams),
            tuple(FeedForm.read(f) for f in feeds),
            tuple(ViewForm.read(v) for v in views),
        )

    def columns_of(self, kind: str) -> tuple[tuple[str, str], ...] | None:
        """Return the names and types of the values of a kind of feed; None if there is no such kind."""
        feed = next((feed for feed in self.feeds if feed.kind == kind), None)
        if feed is None:
            return None
        stream = next(stream for stream in self.streams if stream.name == feed.stream)
        return tuple(stream.columns[position] for position in feed.columns)

    @cached_property
    def text(self) -> str:
        """The form as JSON."""
        return json.dumps(self.as_json(), separators=(",", ":"), allow_nan=False)

    @cached_property
    def _types_of(self) -> dict[str, tuple[str, ...]]:
        """The types of the values of each kind of feed."""
        columns = {stream.name: stream.columns for stream in self.streams}
        return {feed.kind: tuple(columns[feed.stream][at][1] for at in feed.columns) for feed in self.feeds}

    def accepts(self, kind: str, values: tuple[Any, ...]) -> bool:
        """Return whether values could be those of an event of a kind; events from before may have fewer."""
        types = self._types_of.get(kind)
        if types is None or len(values) > len(types):
            return False
        return all(v is None or type(v) in VALUE_TYPES[t] for v, t in zip(values, types, strict=False))

    def as_json(self) -> dict[str, Any]:
        """Return the form as JSON values; tuples stand for arrays."""
        return {
            "version": VERSION,
            "streams": [_named(s, _STREAM) for s in self.streams],
            "feeds": [_named(f, _FEED) for f in self.feeds],
            "views": [_named(v, _VIEW) for v in self.views],
        }


def _check_places(tree: Tree, slots: tuple[int | None, ...], where: str) -> None:
    """Refuse a tree that reads outside its slots; the width of the parameters is that of each row."""
    for slot, position in places_in(tree):
        width = slots[slot] if slot < len(slots) else 0
        if width is not None and position >= width:
            raise FeedError(f"{where} reads position {position} of slot {slot}, which does not exist")


def places_in(tree: Tree) -> Iterator[tuple[int, int]]:
    """Yield the slots and positions that a tree reads."""
    if isinstance(tree, tuple):
        if tree[0] == "at":
            yield tree[1], tree[2]
        for part in tree[1:]:
            yield from places_in(part)


def _named(form: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(form, name) for name in names}


def _fields(value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if type(value) is not dict or set(value) != set(names):
        found = ", ".join(sorted(value)) if type(value) is dict else type(value).__name__
        raise FeedError(f"a program has {found[:80]}; expected an object with {', '.join(names)}")
    return tuple(value[name] for name in names)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise FeedError(f"found {value!r}; expected text")
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise FeedError(f"found {value!r}; expected a whole number")
    return value
