"""Operators with state of feed views: a class of the project that turns the rows of one feed into other rows.

    class Stops(FeedOperator):
        name = "stops"
        inputs = (("lat", "DOUBLE"), ("lon", "DOUBLE"), ("speed", "DOUBLE"))
        outputs = (("lat", "DOUBLE"), ("lon", "DOUBLE"), ("events", "BIGINT"))

        def start(self) -> Any: ...
        def update(self, state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]: ...

    CREATE FEED VIEW stopped WITH (lifetime = '1 hour') AS SELECT stops(a.lat, a.lon, a.speed) FROM location a;

Law: `update` over rows at once, or over parts of them one after the other, gives the same state and the same rows; it
depends on nothing else, and does not change the state that it was given. State begins anew for every full lifetime of
event time, so it never depends on more than the events of one lifetime: whoever has those has the state. That is why a
view can move, and a process can be killed, without any state being sent or stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from catchment.errors import FeedError
from catchment.feeds.language.functions import FeedFunction

if TYPE_CHECKING:
    import pyarrow as pa

TYPES = ("BIGINT", "INT", "DOUBLE", "STRING", "BOOLEAN")
Columns = tuple[tuple[str, str], ...]


class FeedOperator:
    """What an operator says of itself, and what it does; a project's own derive from it."""

    name: str
    inputs: Columns  # the rows that it is given: names and types
    outputs: Columns  # the rows that it makes
    key: tuple[str, ...] = ()  # inputs by which rows are kept apart: each value has a state of its own
    max_state_bytes: int = 10_000  # of one key, as `catchment.testing.check_operator` measures it

    def start(self) -> Any:
        """Return the state before the first row."""
        raise NotImplementedError

    def update(self, state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        """Return the state after some rows of one key, in order, and the rows that follow from them."""
        raise NotImplementedError


@dataclass(frozen=True)
class OperatorFunction(FeedFunction):
    """An operator as those see it who plan and tell views: a function of its inputs, whose value they are."""

    operator: FeedOperator | None = None


def as_function(made: type[FeedOperator]) -> OperatorFunction:
    """Return an operator as a function that views may call; refuse one that does not say what it is."""
    operator = made()
    for field in ("inputs", "outputs"):
        columns = getattr(operator, field, ())
        if not columns or any(kind not in TYPES for _, kind in columns):
            raise FeedError(
                f"operator {made.__name__} has the {field} {columns!r}", hint=f"names with types of {', '.join(TYPES)}"
            )
    unknown = [name for name in operator.key if name not in dict(operator.inputs)]
    if unknown or len(dict(operator.outputs)) != len(operator.outputs):
        raise FeedError(f"operator {made.__name__} has a key that is no input ({unknown}), or two outputs of one name")
    return OperatorFunction(operator.name, len(operator.inputs), lambda *given: given, operator=operator)
