"""Where a feed view calls an operator with state: it is the whole of its SELECT list."""

from __future__ import annotations

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.language.functions import Functions
from catchment.feeds.language.operators import FeedOperator, OperatorFunction


def operator_in(node: exp.Expr | None, functions: Functions) -> FeedOperator | None:
    """Return the operator that an expression calls, itself or within it."""
    for call in node.find_all(exp.Anonymous) if node is not None else ():
        found = functions.get(call.name.lower())
        if isinstance(found, OperatorFunction):
            return found.operator
    return None


def expand_operator(outputs: dict[str, exp.Expr], functions: Functions) -> dict[str, exp.Expr] | None:
    """Return the columns of a view that consists of a call of an operator, each with that call; None for others."""
    if not any(operator_in(node, functions) for node in outputs.values()):
        return None
    (node, *others) = outputs.values()
    operator = operator_in(node, functions)
    if others or operator is None or not isinstance(node, exp.Anonymous):
        raise FeedError(
            "an operator is the whole of a SELECT list",
            hint="SELECT stops(a.lat, a.lon) FROM location a: the columns of the view are those of the operator",
        )
    return {name: node.copy() for name, _ in operator.outputs}
