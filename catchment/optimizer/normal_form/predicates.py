"""When one condition implies another, and how conditions are decided from the key columns of partials.

Answers are "certainly" or "not known", so that nothing is shared by mistake. A comparison with a constant is understood
where its order is certain: a text column with texts, any other subject with numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from catchment.errors import PlanError
from catchment.optimizer.normal_form.expressions import operands, parse_bare, to_text
from catchment.query.fragment import Key

Value = Decimal | str
_ORDERED: dict[type[exp.Expr], str] = {
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.EQ: "=",
    exp.NEQ: "<>",
}
_HOLDS: Mapping[str, Callable[[Value, Value], bool]] = {
    "<": lambda a, b: a < b,  # type: ignore[operator]
    "<=": lambda a, b: a <= b,  # type: ignore[operator]
    ">": lambda a, b: a > b,  # type: ignore[operator]
    ">=": lambda a, b: a >= b,  # type: ignore[operator]
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
}
_COMPUTE = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "=": pc.equal,
    "<>": pc.not_equal,
}


@dataclass(frozen=True)
class ConstantComparison:
    """A comparison `subject operator value`; for `in`, with any of several values."""

    subject: str
    operator: str
    values: tuple[Value, ...]


@cache
def read_comparison(condition: str) -> ConstantComparison | None:
    """Return the comparison with constants that a condition in normal form is, if it is one."""
    node = parse_bare(condition)
    if isinstance(node, exp.In) and node.expressions:
        operator = "in"
        constants = node.expressions
    elif isinstance(node, exp.Binary) and type(node) in _ORDERED:
        operator = _ORDERED[type(node)]
        constants = [node.right]
    else:
        return None
    values = [_value(c) for c in constants]
    known = tuple(v for v in values if v is not None)
    return (
        ConstantComparison(to_text(node.this), operator, known) if len(known) == len(values) and _alike(known) else None
    )


def _value(node: exp.Expr) -> Value | None:
    if isinstance(node, exp.Neg):
        inner = _value(node.this)
        return -inner if isinstance(inner, Decimal) else None
    if not isinstance(node, exp.Literal):
        return None
    return str(node.this) if node.is_string else Decimal(node.this)


def _alike(values: tuple[Value, ...]) -> bool:
    return len({isinstance(v, str) for v in values}) == 1


def implies(given: Iterable[str], wanted: str, texts: frozenset[str]) -> bool:
    """Return whether the wanted condition certainly holds wherever all the given ones do.

    `texts` are the columns that hold texts.
    """
    known = list(given)
    if wanted in known:
        return True
    alternatives, not_null = _goal(wanted)
    if alternatives:
        return any(implies(known, part, texts) for part in alternatives)
    facts = [c for c in map(read_comparison, known) if c is not None]
    if not_null is not None:
        return any(fact.subject == not_null for fact in facts)
    goal = read_comparison(wanted)
    return goal is not None and any(_entails(fact, goal, texts) for fact in facts)


@cache
def _goal(wanted: str) -> tuple[tuple[str, ...], str | None]:
    """Return the alternatives of an OR, and the subject of an IS NOT NULL."""
    node = parse_bare(wanted)
    if isinstance(node, exp.Or):
        return tuple(to_text(part) for part in operands(node, exp.Or)), None
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Null):
        return (), to_text(node.this.this)
    return (), None


def _entails(fact: ConstantComparison, goal: ConstantComparison, texts: frozenset[str]) -> bool:
    if fact.subject != goal.subject or not _alike((*fact.values, *goal.values)):
        return False
    if isinstance(fact.values[0], str) != (fact.subject in texts):
        return False  # Spark would convert one side, and texts are not in the order of what they are converted to
    if fact.operator in ("=", "in"):
        return all(_satisfies(value, goal) for value in fact.values)
    return goal.operator != "in" and goal.operator != "=" and _range_entails(fact, goal)


def _satisfies(value: Value, goal: ConstantComparison) -> bool:
    if goal.operator == "in":
        return value in goal.values
    return _HOLDS[goal.operator](value, goal.values[0])


def _range_entails(fact: ConstantComparison, goal: ConstantComparison) -> bool:
    """Return whether a range entails another: x > 5 entails x > 3, x >= 5, x <> 5 and x <> 4."""
    low, high = fact.values[0], goal.values[0]
    if goal.operator == "<>":
        return fact.operator != "<>" and not _HOLDS[fact.operator](high, low)
    side = fact.operator[0]
    if fact.operator == "<>" or side != goal.operator[0]:
        return False
    if fact.operator == f"{side}=" and goal.operator == side:
        return _HOLDS[side](low, high)
    return _HOLDS[f"{side}="](low, high)


@lru_cache(maxsize=65_536)
def can_evaluate(condition: str, keys: tuple[Key, ...]) -> bool:
    """Return whether a condition can be decided from these keys alone."""
    return _can(parse_bare(condition), {k.sql: k for k in keys})


def _can(node: exp.Expr, keys: Mapping[str, Key]) -> bool:
    if isinstance(node, exp.And | exp.Or):
        return _can(node.left, keys) and _can(node.right, keys)
    if isinstance(node, exp.Not):
        return _can(node.this, keys)
    if isinstance(node, exp.Is):
        return isinstance(node.expression, exp.Null) and to_text(node.this) in keys
    if isinstance(node, exp.Boolean):
        return True
    found = keys.get(to_text(node))
    if found is not None:
        return bool(pa.types.is_boolean(found.type))
    compared = read_comparison(to_text(node))
    key = keys.get(compared.subject) if compared else None
    if compared is None or key is None:
        return False
    return all(_fits(value, key.type) for value in compared.values)


def _fits(value: Value, type_: pa.DataType) -> bool:
    """Return whether Arrow compares such a key with such a constant as Spark does; floats and decimals are left out."""
    if isinstance(value, str):
        return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))
    return bool(pa.types.is_integer(type_)) and value == int(value) and abs(value) < 2**63


def evaluate(condition: str, table: pa.Table, keys: Mapping[str, Key]) -> pa.ChunkedArray:
    """Return for which rows a condition holds, by three-valued logic: a filter drops rows where that is null."""
    return _evaluate(parse_bare(condition), table, keys)


def _evaluate(node: exp.Expr, table: pa.Table, keys: Mapping[str, Key]) -> pa.ChunkedArray:
    if isinstance(node, exp.And | exp.Or):
        both = [_evaluate(side, table, keys) for side in (node.left, node.right)]
        return pc.and_kleene(*both) if isinstance(node, exp.And) else pc.or_kleene(*both)
    if isinstance(node, exp.Not):
        return pc.invert(_evaluate(node.this, table, keys))
    if isinstance(node, exp.Is):
        return pc.is_null(table[keys[to_text(node.this)].name])
    if isinstance(node, exp.Boolean):
        return pa.chunked_array([pa.array([bool(node.this)] * table.num_rows, pa.bool_())])
    if to_text(node) in keys:
        return table[keys[to_text(node)].name]
    return _compare(read_comparison(to_text(node)), table, keys, to_text(node))


def _compare(
    found: ConstantComparison | None, table: pa.Table, keys: Mapping[str, Key], condition: str
) -> pa.ChunkedArray:
    if found is None or found.subject not in keys:
        raise PlanError(f"the condition {condition} cannot be decided from the keys {sorted(keys)}")
    key = keys[found.subject]
    wide = pa.int64() if pa.types.is_integer(key.type) else key.type
    column = table[key.name].cast(wide)
    scalars = [pa.scalar(v if isinstance(v, str) else int(v), wide) for v in found.values]
    if found.operator == "in":
        hits = [pc.equal(column, s) for s in scalars]
        made = hits[0]
        for hit in hits[1:]:
            made = pc.or_kleene(made, hit)
        return made
    return _COMPUTE[found.operator](column, scalars[0])
