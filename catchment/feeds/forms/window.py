"""The window of a view: its length, and the aggregates of the matches in it, with SQL's NULL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def _mean(values: list[Any]) -> Any:
    return math.fsum(values) / len(values)


def _total(values: list[Any]) -> Any:
    return sum(values) if all(type(v) is int for v in values) else math.fsum(values)


_AGGREGATE: dict[str, Callable[[list[Any]], Any]] = {"sum": _total, "min": min, "max": max, "avg": _mean}


@dataclass(frozen=True)
class WindowForm:
    """A tumbling window, and the function of each output; None is a column that is the same in all rows."""

    window_us: int
    functions: tuple[str | None, ...]

    def aggregate(self, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the outputs for the arguments of a window's matches, of which there is at least one."""
        columns = zip(*rows, strict=True)
        return tuple(_value(function, list(column)) for function, column in zip(self.functions, columns, strict=True))


def _value(function: str | None, column: list[Any]) -> Any:
    if function is None:
        return column[0]
    known = [value for value in column if value is not None]
    if function == "count":
        return len(known)
    return _AGGREGATE[function](known) if known else None
