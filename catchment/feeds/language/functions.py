"""Black-box functions of feed templates: a registered Python function that a view may call.

A function is strict: with a NULL argument its value is NULL and the Python code is not called. It must be
deterministic, because the same view may be computed on a device, at the cloud, or for a while on both
(Chandramouli et al., VLDB'13, section 4.1). A function that also has a Spark SQL form runs natively at the
cloud; one without is called there as a Python function.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from catchment.errors import FeedError

EARTH_DIAMETER_M = 12_742_017.6

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_RETURN_TYPES = ("double", "bigint", "string", "boolean")


@dataclass(frozen=True)
class FeedFunction:
    """A named Python function; `spark_sql` is its native form with {0}, {1}, ... for the arguments."""

    name: str
    arity: int
    python: Callable[..., Any]
    spark_sql: str | None = None
    returns: str = "double"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise FeedError(f"a function cannot be called {self.name!r}", hint="use lower case letters, digits and _")
        if self.arity < 0 or self.returns not in _RETURN_TYPES:
            raise FeedError(
                f"function {self.name!r} has {self.arity} arguments and returns {self.returns!r}; "
                f"expected 0 or more and one of {', '.join(_RETURN_TYPES)}"
            )

    def to_spark(self, arguments: list[str]) -> str:
        """Return the call in Spark SQL: the native form, or a call of the registered Python function."""
        if self.spark_sql is None:
            return f"{self.name}({', '.join(arguments)})"
        return "(" + self.spark_sql.format(*arguments) + ")"


def distance(lat_a: float, lon_a: float, lat_b: float, lon_b: float) -> float:
    """Return the metres along the great circle between two positions in degrees."""
    half_lat = math.radians(lat_b - lat_a) / 2
    half_lon = math.radians(lon_b - lon_a) / 2
    chord = math.sin(half_lat) ** 2
    chord += math.cos(math.radians(lat_a)) * math.cos(math.radians(lat_b)) * math.sin(half_lon) ** 2
    return EARTH_DIAMETER_M * math.asin(math.sqrt(min(1.0, chord)))


_DISTANCE_SQL = (
    f"{EARTH_DIAMETER_M}D * asin(sqrt(least(1D, pow(sin(radians({{2}} - {{0}}) / 2), 2) + "
    "cos(radians({0})) * cos(radians({2})) * pow(sin(radians({3} - {1}) / 2), 2))))"
)

Functions = Mapping[str, FeedFunction]

BUILT_IN: Functions = MappingProxyType({"distance": FeedFunction("distance", 4, distance, _DISTANCE_SQL)})


def with_functions(*extra: FeedFunction) -> Functions:
    """Return the built-in functions and these; every name must be new."""
    known = dict(BUILT_IN)
    for function in extra:
        if function.name in known:
            raise FeedError(f"function {function.name!r} is already registered")
        known[function.name] = function
    return MappingProxyType(known)
