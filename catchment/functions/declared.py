"""How a project declares its own functions: `@catchment.function` for scalars, `@catchment.aggregate` for aggregates.

A scalar function takes Arrow arrays and returns one of the same length, each value from the values beside it alone. An
aggregate is a class with three methods and their law (`catchment.aggregates.base`):

    lift(values...)      one state per record
    combine(left, right) one state per pair of states: associative and commutative
    lower(state)         one value per state

A state is a named tuple of Arrow arrays, without nulls; no records have no state, so that nobody writes an identity.
What the code of a user raises, or returns against this contract, is a `FunctionError`, which names the function.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

from catchment.errors import ConfigError, FunctionError

SqlType: TypeAlias = "str | pa.DataType"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
NAME_FORM = "a name has small letters, digits and single _, begins with a letter and has at most 40 characters"
TYPES: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}
MAX_STATE_BYTES = 1 << 20  # the largest bound that an aggregate may state


@dataclass(frozen=True)
class ScalarFunction:
    """A function from columns to a column; calling it calls the code of the user."""

    name: str
    takes: tuple[pa.DataType, ...]
    returns: pa.DataType
    code: Callable[..., Any]

    def __call__(self, *columns: Any) -> Any:
        return self.code(*columns)

    def evaluate(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the value of each row, of the declared type."""
        given = [column.cast(type_) for column, type_ in zip(columns, self.takes, strict=True)]
        return _read_array(_call(self.name, self.code, *given), self.returns, len(given[0]), self.name)


@dataclass(frozen=True)
class AggregateFunction:
    """An aggregate by its law; `state` has the names and types of the columns of a state."""

    name: str
    takes: tuple[pa.DataType, ...]
    state: tuple[tuple[str, pa.DataType], ...]
    returns: pa.DataType
    max_state_bytes: int
    law: Any  # an instance of the class that the user wrote

    @cached_property
    def _state_class(self) -> Any:
        return namedtuple(f"{self.name}_state", [name for name, _ in self.state])

    def lift(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the state of each record; no value is null."""
        return self._read_states("lift", _call(self.name, self.law.lift, *columns), len(columns[0]))

    def combine(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the states of two states each, row by row."""
        made = _call(self.name, self.law.combine, self._state_class(*left), self._state_class(*right))
        return self._read_states("combine", made, len(left[0]))

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        """Return the value of each state."""
        return _read_array(
            _call(self.name, self.law.lower, self._state_class(*states)), self.returns, len(states[0]), self.name
        )

    def _read_states(self, verb: str, made: Any, rows: int) -> list[pa.Array]:
        columns = tuple(made) if isinstance(made, tuple | list) else (made,)
        if len(columns) != len(self.state):
            raise FunctionError(
                f"{self.name}.{verb} returned {len(columns)} columns, and its state has {len(self.state)}",
                hint=f"return a tuple of {', '.join(name for name, _ in self.state)}",
            )
        pairs = zip(columns, self.state, strict=True)
        found = [_read_array(column, type_, rows, f"{self.name}.{verb}: {name}") for column, (name, type_) in pairs]
        if any(column.null_count for column in found):
            raise FunctionError(
                f"{self.name}.{verb} returned a state with null",
                hint="records with a null argument are not given to lift; a state has a value in every column",
            )
        self._check_size(found, verb)
        return found

    def _check_size(self, states: Sequence[pa.Array], verb: str) -> None:
        import pyarrow.compute as pc  # large, and a light site, which calls no function, does without

        widths = [_row_bytes(column) for column in states]
        fixed = sum(width for width in widths if isinstance(width, int))
        varying = [width for width in widths if not isinstance(width, int)]
        if not varying or not len(states[0]):
            return
        total = varying[0]
        for width in varying[1:]:
            total = pc.add(total, width)
        largest = fixed + pc.max(total).as_py()
        if largest > self.max_state_bytes:
            raise FunctionError(
                f"{self.name}.{verb} returned a state of {largest} bytes, and its max_state_bytes are "
                f"{self.max_state_bytes}",
                hint="keep less in a state, or state a higher bound",
            )


def function(*, takes: Sequence[SqlType], returns: SqlType) -> Callable[[Callable[..., Any]], ScalarFunction]:
    """Declare a scalar function over Arrow arrays: `@catchment.function(takes=["DOUBLE"], returns="DOUBLE")`."""

    def declare(code: Callable[..., Any]) -> ScalarFunction:
        name = _checked_name(code.__name__)
        if not takes:
            raise ConfigError(f"the function {name!r} takes nothing", hint="a function depends on its arguments alone")
        return ScalarFunction(name, tuple(_read_type(t, name) for t in takes), _read_type(returns, name), code)

    return declare


def aggregate(
    *, takes: Sequence[SqlType], state: Mapping[str, SqlType], returns: SqlType, max_state_bytes: int | None = None
) -> Callable[[type], AggregateFunction]:
    """Declare an aggregate: a class with lift, combine and lower over Arrow arrays.

    `max_state_bytes` is needed where a state has texts, binaries or arrays: no state may be larger.
    """

    def declare(law: type) -> AggregateFunction:
        name = _checked_name(law.__name__)
        lacking = [verb for verb in ("lift", "combine", "lower") if not callable(getattr(law, verb, None))]
        if lacking or not takes or not state:
            raise ConfigError(
                f"the aggregate {name!r} lacks {', '.join(lacking) or 'arguments or a state'}",
                hint="an aggregate takes one column at least, has a state, and methods lift, combine and lower",
            )
        columns = tuple((column, _read_type(type_, name)) for column, type_ in state.items())
        bound = _state_bound(name, columns, max_state_bytes)
        given = tuple(_read_type(t, name) for t in takes)
        return AggregateFunction(name, given, columns, _read_type(returns, name), bound, law())

    return declare


def _state_bound(name: str, columns: Sequence[tuple[str, pa.DataType]], stated: int | None) -> int:
    """Return the most bytes of a state: as stated, or what its columns of fixed width take."""
    for column, type_ in columns:
        if not (_fixed_width(type_) or _is_text(type_) or (pa.types.is_list(type_) and _fixed_width(type_.value_type))):
            raise ConfigError(
                f"the state {column!r} of the aggregate {name!r} is of type {type_}",
                hint="a state has numbers, instants, booleans, texts, binaries, or arrays of numbers",
            )
    widths = [_fixed_width(type_) for _, type_ in columns]
    if all(widths):
        return sum(width for width in widths if width)
    if stated is None or not 0 < stated <= MAX_STATE_BYTES:
        raise ConfigError(
            f"the aggregate {name!r} has a state of varying size and max_state_bytes = {stated}",
            hint=f"say how large a state may be: from 1 to {MAX_STATE_BYTES} bytes",
        )
    return stated


def _call(name: str, code: Callable[..., Any], *given: Any) -> Any:
    try:
        return code(*given)
    except Exception as cause:  # whatever the code of a user raises is an error of that function
        raise FunctionError(f"the function {name} raised {type(cause).__name__}: {cause}") from cause


def _read_array(made: Any, type_: pa.DataType, rows: int, what: str) -> pa.Array:
    """Return what a function made as one array of the declared type and length."""
    try:
        column = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
        column = column if isinstance(column, pa.Array) else pa.array(column)
        column = column if column.type == type_ else column.cast(type_)
    except (pa.ArrowException, TypeError, ValueError) as cause:
        raise FunctionError(f"{what} returned what is no array of {type_}: {cause}") from cause
    if len(column) != rows:
        raise FunctionError(
            f"{what} returned {len(column)} values for {rows} rows", hint="return one value for each row"
        )
    return column


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name) or "__" in name:
        raise ConfigError(f"{name!r} cannot be the name of a function", hint=NAME_FORM)
    return name


def _read_type(given: SqlType, name: str) -> pa.DataType:
    if isinstance(given, pa.DataType):
        return given
    found = TYPES.get(str(given).strip().upper())
    if found is None:
        raise ConfigError(
            f"the function {name!r} declares the type {given!r}",
            hint=f"possible: {', '.join(TYPES)}, or an Arrow type such as pyarrow.decimal128(18, 4)",
        )
    return found


def _fixed_width(type_: pa.DataType) -> int | None:
    if pa.types.is_boolean(type_):
        return 1
    return type_.bit_width // 8 if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) else None


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _row_bytes(column: pa.Array) -> int | pa.Array:
    """Return the bytes of each row of a state's column; one number where all take as many."""
    import pyarrow.compute as pc

    width = _fixed_width(column.type)
    if width is not None:
        return width
    if _is_text(column.type):
        return pc.binary_length(column).cast(pa.int64())
    return pc.multiply(pc.list_value_length(column).cast(pa.int64()), _fixed_width(column.type.value_type))
