"""Aggregate calls: which nodes of an expression are calls, and the distinct aggregates that a view computes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import FUNCTIONS, Aggregate, canonical_name, find_function, make_aggregate, quote
from catchment.aggregates.bounded_sets import DEFAULT_MAX_DISTINCT
from catchment.aggregates.topk import ITEM
from catchment.errors import AggregateError, QueryError
from catchment.functions.installed import find_installed
from catchment.query.planning.scope import Scope, TypedExpression, infer_type, make_typed
from catchment.query.sql.dialect import AGGREGATE_NAMES, CatchmentSpark, render, show
from catchment.query.sql.functions import GROUPING_FUNCTIONS
from catchment.query.sql.tokens import SqlText

BY_EVENT_TIME = ("first", "last")
COUNTING_NULLS = ("approx_top_k",)  # where a record that FILTER leaves out must differ from one with null
EXACT_PERCENTILES = {"median": 0, "percentile": 1}  # how many constants are written behind their argument
OF_STRUCTS = (*BY_EVENT_TIME, "count_distinct", *(name for name, function in FUNCTIONS.items() if function.fields))


@dataclass(frozen=True)
class ParsedCall:
    """An aggregate call as written: f([DISTINCT] argument, parameters...) [FILTER (WHERE condition)].

    Several arguments are one struct. `skips_nulls` is for first and last, which otherwise take null for a value.
    """

    node: exp.Expr
    function: str
    argument: exp.Expr | None
    parameters: tuple[object, ...] = ()
    condition: exp.Expr | None = None
    skips_nulls: bool = False


def is_aggregate(node: exp.Expr) -> bool:
    """Return whether a node is itself a call of an aggregate function, known here or not."""
    if isinstance(node, exp.AggFunc | exp.Any):
        return True
    name = str(node.this) if isinstance(node, exp.Anonymous) else None
    return name is not None and (name.upper() in AGGREGATE_NAMES or canonical_name(name) is not None)


def is_own(function: str) -> bool:
    """Return whether an aggregate function is one that the project has brought."""
    return function not in FUNCTIONS and find_installed(function) is not None


def read_call(node: exp.Expr, text: SqlText) -> ParsedCall | None:
    """Return the aggregate call that a node is, if it is one."""
    if isinstance(node, exp.Filter):
        inner = read_call(node.this, text)
        if inner is None:
            raise text.error("FILTER belongs behind an aggregate", node, hint="write sum(x) FILTER (WHERE ...)")
        return replace(inner, node=node, condition=_both(inner, node.expression.this))
    if isinstance(node, exp.IgnoreNulls):
        inner = read_call(node.this, text)
        if inner is None or canonical_name(inner.function) not in BY_EVENT_TIME:
            raise text.error(
                f"{show(node.this)} has no IGNORE NULLS", node, hint="leave it out: only first and last take nulls"
            )
        return replace(inner, node=node, skips_nulls=True)
    return _read_plain(node, text) if is_aggregate(node) else None


def _name_and_arguments(node: exp.Expr, text: SqlText) -> tuple[str, list[exp.Expr]]:
    if isinstance(node, exp.Any):  # any(c), which is also the word of "x = ANY (...)"
        return "any", [node.this.unnest()]
    if not isinstance(node, exp.Anonymous):
        raise text.error(f"{show(node)} is not possible here", node, hint="write a plain call, such as sum(x)")
    return str(node.this).lower(), list(node.expressions)


def _read_plain(node: exp.Expr, text: SqlText) -> ParsedCall:
    name, arguments = _name_and_arguments(node, text)
    if name == "count_if" and len(arguments) == 1:
        return ParsedCall(node, "count", None, (), arguments[0])
    if arguments and isinstance(arguments[0], exp.Distinct):
        values = arguments[0].expressions
        several = make_struct({f"v{n}": value for n, value in enumerate(values, start=1)}) if len(values) > 1 else None
        return ParsedCall(node, f"{name}_distinct", several or next(iter(values), None))
    if canonical_name(name) in BY_EVENT_TIME:
        return _read_by_event_time(node, name, arguments, text)
    known = find_function(canonical_name(name) or "count")
    if known is not None and known.fields:
        if len(arguments) != len(known.fields):
            raise text.error(f"{name} has {len(arguments)} argument(s)", node, hint=f"write {known.signature}")
        return ParsedCall(node, name, make_struct(dict(zip(known.fields, arguments, strict=True))))
    if name in EXACT_PERCENTILES and len(arguments) != 1 + EXACT_PERCENTILES[name]:
        raise text.error(f"{name} has {len(arguments)} argument(s)", node, hint=f"write {FUNCTIONS[name].signature}")
    counts_rows = name == "count" and (not arguments or isinstance(arguments[0], exp.Star | exp.Literal))
    argument = None if counts_rows or not arguments else arguments[0]
    return ParsedCall(node, name, argument, tuple(_constant(a, text) for a in arguments[1:]))


def _read_by_event_time(node: exp.Expr, name: str, arguments: list[exp.Expr], text: SqlText) -> ParsedCall:
    """Read first(x) or last(x); what it is ordered by is added where the stream is known."""
    value, *rest = arguments or [exp.null()]
    flags = [_constant(a, text) for a in rest]
    if not arguments or len(rest) > 1 or not all(isinstance(f, bool) for f in flags):
        raise text.error(f"{show(node)} is not a call of {name}", node, hint=f"write {name}(x), or {name}(x, true)")
    if isinstance(value, exp.IgnoreNulls):
        return ParsedCall(node, name, value.this, skips_nulls=True)
    return ParsedCall(node, name, value, skips_nulls=any(flags))


def make_struct(fields: dict[str, exp.Expr]) -> exp.Struct:
    """Return the struct that a function of several arguments is over."""
    named = (exp.PropertyEQ(this=exp.to_identifier(n), expression=value.copy()) for n, value in fields.items())
    return exp.Struct(expressions=list(named))


def _both(inner: ParsedCall, condition: exp.Expr) -> exp.Expr:
    return condition if inner.condition is None else exp.and_(inner.condition, condition)


def _constant(node: exp.Expr, text: SqlText) -> object:
    if isinstance(node, exp.Array):
        return tuple(_constant(e, text) for e in node.expressions)
    with suppress(ValueError):
        if isinstance(node, exp.Literal | exp.Neg | exp.Boolean):
            return node.to_py()
    raise text.error(f"{show(node)} is not a constant", node, hint="parameters of aggregates are written as numbers")


def refuse_aggregates(expression: exp.Expr, text: SqlText, what: str) -> None:
    found = next((n for n in expression.walk() if is_aggregate(n)), None)
    if found is not None:
        raise text.error(
            f"{show(found)} is an aggregate, which is not possible in {what}",
            found,
            hint="aggregates stand in SELECT and HAVING",
        )


def _refuse_windows(expression: exp.Expr, text: SqlText, what: str) -> None:
    for call in (n for n in expression.find_all(exp.Anonymous) if str(n.this).lower() in GROUPING_FUNCTIONS):
        raise text.error(f"{show(call)} is not possible in {what}", call, hint="windows stand in GROUP BY")


def resolve_inputs(expression: exp.Expr, scope: Scope, what: str) -> exp.Expr:
    """Return an expression over input columns only, resolved."""
    refuse_aggregates(expression, scope.text, what)
    _refuse_windows(expression, scope.text, what)
    return expression.transform(lambda n: scope.resolve(n) if isinstance(n, exp.Column) else n)


def input_text(node: exp.Expr, scope: Scope) -> str | None:
    """Return the canonical text of an expression of input columns, None where the node is none."""
    try:
        return render(resolve_inputs(node, scope, "a key")) if isinstance(node, exp.Condition) else None
    except QueryError:
        return None


@dataclass
class AggregateSet:
    """The distinct aggregates of a view, each with a name of its own; it grows while the SELECT is rewritten."""

    scope: Scope
    taken: set[str]
    max_distinct: int = DEFAULT_MAX_DISTINCT  # up to how many distinct values are counted exactly
    found: dict[tuple[object, ...], Aggregate] = field(default_factory=dict)

    def add(self, call: ParsedCall, preferred: str | None = None) -> Aggregate:
        """Return the aggregate of a call, made unless an equal one exists."""
        whole = self.complete(call)
        return self.put(whole, self._argument(whole), preferred)

    def complete(self, call: ParsedCall) -> ParsedCall:
        """Return a call with what is not written in it: the event time, or the bound of a set."""
        if canonical_name(call.function) in BY_EVENT_TIME and not isinstance(call.argument, exp.Struct):
            return self._by_event_time(call)
        if call.function == "count_distinct" and not call.parameters:
            return replace(call, parameters=(self.max_distinct,))
        if len(call.parameters) == EXACT_PERCENTILES.get(call.function):
            return replace(call, parameters=(*call.parameters, self.max_distinct))
        return call

    def put(self, call: ParsedCall, argument: TypedExpression | None, preferred: str | None = None) -> Aggregate:
        """Return the aggregate of a call with this argument, its condition included."""
        identity = (canonical_name(call.function) or call.function, argument, call.parameters)
        if identity not in self.found:
            name = fresh_name(preferred or _automatic_name(call), self.taken)
            self.found[identity] = self._make(call, argument, name)
            self.taken.add(name.lower())
        return self.found[identity]

    def _by_event_time(self, call: ParsedCall) -> ParsedCall:
        """Return a call of first or last over (value, event time); without an event time a record does not count."""
        if len(self.scope.streams) > 1:
            raise self.scope.text.error(
                f"{call.function} of a join could be by the event time of either stream",
                call.node,
                hint="say which: max_by(a.x, a.ts) for the last, min_by(a.x, a.ts) for the first",
            )
        assert call.argument is not None
        (stream,) = self.scope.streams
        time: exp.Expr = self.scope.event_time(stream)
        if call.skips_nulls:
            known = exp.Not(this=exp.Is(this=exp.paren(call.argument), expression=exp.null()))
            time = exp.cast(exp.Case(ifs=[exp.If(this=known, true=time)]), "TIMESTAMP", dialect=CatchmentSpark)
        return replace(call, argument=make_struct({"value": call.argument, "by": time}))

    def _argument(self, call: ParsedCall) -> TypedExpression | None:
        what = f"an argument of {call.function}"
        condition = resolve_inputs(call.condition, self.scope, what) if call.condition else None
        value = self.value(call, resolve_inputs(call.argument, self.scope, what)) if call.argument else None
        if value is not None and condition is not None and call.function in COUNTING_NULLS:
            value = TypedExpression(f"STRUCT({value.sql} AS {quote(ITEM)})", pa.struct([(ITEM, value.type)]))
        return restrict(value, condition)

    def value(self, call: ParsedCall, value: exp.Expr) -> TypedExpression:
        if call.function == "count" and infer_type(value) is None:
            return TypedExpression(f"{render(exp.paren(value))} IS NOT NULL OR NULL", pa.bool_())
        if isinstance(value, exp.Struct) and (canonical_name(call.function) in OF_STRUCTS or is_own(call.function)):
            return self._typed_struct(call, value)
        return make_typed(value, self.scope.text, f"the argument of {call.function},")

    def _typed_struct(self, call: ParsedCall, struct: exp.Struct) -> TypedExpression:
        """Return the struct of several arguments, each with a certain type."""
        what = f"an argument of {call.function},"
        made = {e.name: make_typed(e.expression, self.scope.text, what) for e in struct.expressions}
        fields = ", ".join(f"{typed.sql} AS {quote(name)}" for name, typed in made.items())
        return TypedExpression(f"STRUCT({fields})", pa.struct([(name, typed.type) for name, typed in made.items()]))

    def _make(self, call: ParsedCall, argument: TypedExpression | None, name: str) -> Aggregate:
        sql, type_ = (argument.sql, argument.type) if argument else (None, None)
        try:
            return make_aggregate(call.function, sql, type_, call.parameters, name=name)
        except AggregateError as cause:
            known = find_function(canonical_name(call.function) or "")
            hint = cause.hint or (f"write {known.signature}" if known else None)
            raise self.scope.text.error(cause.message, call.node, hint=hint) from cause


def restrict(value: TypedExpression | None, condition: exp.Expr | None) -> TypedExpression | None:
    """Return a value that is null where the condition does not hold; without a value, 1 per record."""
    if condition is None:
        return value
    then = value or TypedExpression("1", pa.int32())
    return TypedExpression(f"CASE WHEN {render(condition)} THEN {then.sql} END", then.type)


def _plain_name(function: str) -> str:
    found = find_installed(function)
    return function if found is None else found.name


def _automatic_name(call: ParsedCall) -> str:
    name = _plain_name(call.function)
    argument = call.argument
    if isinstance(argument, exp.Cast) and is_own(call.function):
        argument = argument.this
    if isinstance(argument, exp.Column) and call.condition is None:
        return f"{name}_{argument.name}"
    return name


def fresh_name(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number appended where it is already taken (whatever the case)."""
    used = set(taken)
    candidates = (name, *(f"{name}_{n}" for n in range(2, len(used) + 3)))
    return next(c for c in candidates if c.lower() not in used)
