"""Expressions as trees that any language can read, and their evaluation in Python.

A tree is a constant (null, a boolean, a number, a text) or an operation `(name, argument, ...)`; as JSON it is a
scalar or an array. `("at", slot, position)` is the value at a position of a slot. `OPERATORS` lists every operation;
docs/reference/feeds-protocol.md says what each gives, and tests/golden/feeds_vectors.json holds values of many, which
every implementation must give.

Invariant: a tree gives what Spark SQL gives for the expression that it was made from, NULL included: comparisons and
arithmetic of NULL are NULL, AND and OR are three-valued, a division by zero is NULL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.language.functions import Functions

Tree = Any  # a constant, or a tuple of an operator's name and its arguments
Slots = tuple[tuple[Any, ...], ...]
Evaluate = Callable[[Slots], Any]

AT = "at"
CALL = "call"
MAX_DEPTH = 200  # of nested operations


def _divide(left: float, right: float) -> float | None:
    return left / right if right else None


def _remainder(left: float, right: float) -> float | None:
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return int(math.copysign(abs(left) % abs(right), left))
    return math.fmod(left, right)


# What is NULL where an argument is: the operation, and how many arguments it takes.
_STRICT: dict[str, tuple[Callable[..., Any], int]] = {
    "=": (operator.eq, 2),
    "!=": (operator.ne, 2),
    "<": (operator.lt, 2),
    "<=": (operator.le, 2),
    ">": (operator.gt, 2),
    ">=": (operator.ge, 2),
    "+": (operator.add, 2),
    "-": (operator.sub, 2),
    "*": (operator.mul, 2),
    "/": (_divide, 2),
    "%": (_remainder, 2),
    "neg": (operator.neg, 1),
    "not": (operator.not_, 1),
    "abs": (abs, 1),
}


class UnknownFunctionError(FeedError):
    """An expression calls a function that is not known here."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the function {name!r} is not known here",
            hint="functions of a project do not travel: give them to this device, or let the cloud compute the view",
        )
        self.name = name


def tree_of(value: Any, depth: int = 0) -> Tree:
    """Return the tree of a JSON value; refuse what is none."""
    if depth > MAX_DEPTH:
        raise FeedError(f"an expression is nested more than {MAX_DEPTH} deep")
    if type(value) is not list:
        return _check_constant(value)
    if not value or type(value[0]) is not str:
        raise FeedError(f"found {str(value)[:60]!r}; an operation begins with its name")
    tree = (value[0], *(tree_of(part, depth + 1) for part in value[1:]))
    _check_operation(tree)
    return tree


def _check_constant(value: Any) -> Tree:
    if value is not None and type(value) not in (bool, int, float, str):
        raise FeedError(f"found {value!r} in an expression; possible: null, a boolean, a number, a text")
    if type(value) is float and not math.isfinite(value):
        raise FeedError("a number in an expression is not finite")
    return value


def _check_operation(tree: tuple[Any, ...]) -> None:
    name = tree[0]
    count = len(tree) - 1
    if name in _STRICT:
        correct = count == _STRICT[name][1]
    elif name == AT:
        correct = count == 2 and all(type(v) is int and v >= 0 for v in tree[1:])
    elif name == CALL:
        correct = count >= 1 and type(tree[1]) is str
    elif name == "is":
        correct = count == 2 and (tree[2] is None or type(tree[2]) is bool)
    elif name == "case":
        correct = count % 2 == 1
    elif name in _OTHERS:
        correct = count >= _OTHERS[name][1]
    else:
        raise FeedError(f"found the operator {name!r}; possible: {', '.join(OPERATORS)}")
    if not correct:
        raise FeedError(f"{name!r} has {count} arguments, or wrong ones: {str(tree)[:60]}")


def functions_in(tree: Tree) -> Iterator[str]:
    """Yield the functions that a tree calls."""
    if isinstance(tree, tuple):
        if tree[0] == CALL:
            yield tree[1]
        for part in tree[1:]:
            yield from functions_in(part)


def compile_tree(tree: Tree, functions: Functions) -> Evaluate:
    """Return a closure that evaluates a tree over slots."""
    if not isinstance(tree, tuple):
        return lambda slots: tree
    name, *arguments = tree
    if name == AT:
        slot, position = arguments
        return lambda slots: slots[slot][position]
    if name == CALL:
        return _call(arguments, functions)
    parts = [compile_tree(a, functions) for a in arguments]
    if name in _STRICT:
        return _strict(_STRICT[name][0], parts)
    return _OTHERS[name][0](parts)


def _call(arguments: list[Tree], functions: Functions) -> Evaluate:
    function = functions.get(arguments[0])
    if function is None:
        raise UnknownFunctionError(arguments[0])
    return _strict(function.python, [compile_tree(a, functions) for a in arguments[1:]])


def _strict(operation: Callable[..., Any], parts: list[Evaluate]) -> Evaluate:
    """Return an operation that is NULL when an argument is."""

    def evaluate(slots: Slots) -> Any:
        values = [p(slots) for p in parts]
        return None if None in values else operation(*values)

    return evaluate


def _and(parts: list[Evaluate]) -> Evaluate:
    def evaluate(slots: Slots) -> bool | None:
        unknown = False
        for part in parts:
            value = part(slots)
            if value is False:
                return False
            unknown = unknown or value is None
        return None if unknown else True

    return evaluate


def _or(parts: list[Evaluate]) -> Evaluate:
    def evaluate(slots: Slots) -> bool | None:
        unknown = False
        for part in parts:
            value = part(slots)
            if value is True:
                return True
            unknown = unknown or value is None
        return None if unknown else False

    return evaluate


def _in(parts: list[Evaluate]) -> Evaluate:
    value, *choices = parts

    def evaluate(slots: Slots) -> bool | None:
        found = value(slots)
        options = [choice(slots) for choice in choices]
        if found is None:
            return None
        if found in [o for o in options if o is not None]:
            return True
        return None if None in options else False

    return evaluate


def _is(parts: list[Evaluate]) -> Evaluate:
    value, wanted = parts
    return lambda slots: value(slots) is wanted(slots)


def _coalesce(parts: list[Evaluate]) -> Evaluate:
    return lambda slots: next((v for p in parts if (v := p(slots)) is not None), None)


def _extreme(choose: Callable[..., Any]) -> Callable[[list[Evaluate]], Evaluate]:
    def build(parts: list[Evaluate]) -> Evaluate:
        return lambda slots: choose((v for p in parts if (v := p(slots)) is not None), default=None)

    return build


def _case(parts: list[Evaluate]) -> Evaluate:
    """Build from condition, value, condition, value, ..., and the value otherwise."""
    arms = list(zip(parts[:-1:2], parts[1::2], strict=True))
    otherwise = parts[-1]

    def evaluate(slots: Slots) -> Any:
        chosen = next((value for condition, value in arms if condition(slots) is True), otherwise)
        return chosen(slots)

    return evaluate


# The other operations: how each is built from its parts, and how many arguments it takes at least.
_OTHERS: dict[str, tuple[Callable[[list[Evaluate]], Evaluate], int]] = {
    "and": (_and, 1),
    "or": (_or, 1),
    "in": (_in, 2),
    "is": (_is, 2),
    "coalesce": (_coalesce, 1),
    "least": (_extreme(min), 1),
    "greatest": (_extreme(max), 1),
    "case": (_case, 1),
}

OPERATORS = (AT, *_STRICT, *_OTHERS, CALL)
