"""Names and types in a SELECT: which column of which relation a name means, and which type an expression has.

A resolved expression names every input column as `relation`.`column`, in the declared spelling; a column without a
relation is one of the aggregation (a bound of the window, a key, an aggregate).

Types are inferred from the declared columns. sqlglot's inference is trusted for the kind of a type, not for its width:
an integer expression is a BIGINT, a floating one a DOUBLE, and whatever is not a plain column is CAST to the inferred
type, so that Spark and the plan cannot disagree. Where no type can be inferred, and for arithmetic of decimals, whose
scale is easily lost, the user is asked for a CAST.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp
from sqlglot.optimizer.annotate_types import annotate_types

from catchment.project.options import did_you_mean
from catchment.query.sql.dialect import CatchmentSpark, render, show
from catchment.query.sql.statements import Column, DeclaredRelation, Stream
from catchment.query.sql.tokens import SqlText
from catchment.query.types import TIMESTAMP, arrow_type, read_type, sql_type

RESOLVED = "resolved"  # marks a column that no scope needs to resolve
VALUE_OF = "value_of"  # marks the value of a column of a joined subquery with the stream that the subquery reads


UNKNOWN_TYPE = pa.null()  # of a derived column whose expression does not show its type


@dataclass(frozen=True)
class DerivedRelation(DeclaredRelation):
    """The columns of a subquery: each is an expression over the columns of what the subquery reads (resolved).

    `side` is the stream that the subquery reads, where it is joined with another.
    """

    expressions: Mapping[str, exp.Expr] = field(default_factory=dict, compare=False)  # by the name of the column
    hidden: frozenset[str] = frozenset()  # columns that a star leaves out
    side: str | None = None

    def expression(self, column: Column) -> exp.Expr:
        """Return what stands for a column, in parentheses unless it is one column itself."""
        value = enclose(self.expressions[column.name].copy())
        if self.side is not None:
            for node in value.walk():  # all of them: a condition may be taken apart
                node.meta[VALUE_OF] = self.side
        return value


def enclose(expression: exp.Expr) -> exp.Expr:
    """Return an expression that can stand within any other: in parentheses, unless it is one thing itself."""
    is_one = isinstance(expression, exp.Column | exp.Dot | exp.Cast | exp.Paren)
    return expression if is_one else exp.paren(expression, copy=False)


@dataclass(frozen=True)
class Scope:
    """The relations of one FROM clause, by the user's names; the streams behind them, by their names in the plan."""

    text: SqlText
    relations: Mapping[str, DeclaredRelation]  # by the user's alias, in order
    canonical: Mapping[str, str]  # the user's alias to the alias in the plan
    streams: Mapping[str, Stream] = field(default_factory=dict)

    def event_time(self, stream: str) -> exp.Column:
        """Return the event time of a stream, resolved."""
        column = exp.column(self.streams[stream].event_time, table=stream, quoted=True)
        column.type = read_type(sql_type(TIMESTAMP))
        column.meta[RESOLVED] = True
        return column

    def resolve(self, column: exp.Column) -> exp.Expr:
        """Return the input column (or field of a struct column) that a name means."""
        if RESOLVED in column.meta:
            return column
        parts = [p.name for p in column.parts]
        alias = next((a for a in self.relations if a.lower() == parts[0].lower()), None) if len(parts) > 1 else None
        if alias is not None:
            parts = parts[1:]
        elif len(parts) > 1 and not any(r.column(parts[0]) for r in self.relations.values()):
            raise self.text.error(
                f"there is no relation {parts[0]!r} here", column, hint=did_you_mean(parts[0], self.relations)
            )
        owner = alias if alias is not None else self._owner(parts[0], column)
        declared = self.relations[owner].column(parts[0])
        if declared is None:
            raise self._unknown(parts[0], column, {owner: self.relations[owner]})
        return self._fields(self._input_column(owner, declared, column), declared, parts[1:], column)

    def knows(self, name: str) -> bool:
        """Return whether some relation has a column of this name."""
        return any(r.column(name) for r in self.relations.values())

    def _owner(self, name: str, at: exp.Expr) -> str:
        owners = [alias for alias, relation in self.relations.items() if relation.column(name)]
        if len(owners) > 1:
            raise self.text.error(
                f"the column {name!r} is ambiguous: {' and '.join(owners)} have it",
                at,
                hint=f"write {' or '.join(f'{owner}.{name}' for owner in owners)}",
            )
        if not owners:
            raise self._unknown(name, at, self.relations)
        return owners[0]

    def _unknown(self, name: str, at: exp.Expr, among: Mapping[str, DeclaredRelation]) -> Exception:
        names = [c.name for relation in among.values() for c in relation.columns]
        return self.text.error(
            f"there is no column {name!r} in {' or '.join(among)}", at, hint=did_you_mean(name, names)
        )

    def _input_column(self, alias: str, declared: Column, at: exp.Expr) -> exp.Expr:
        relation = self.relations[alias]
        if isinstance(relation, DerivedRelation):
            return relation.expression(declared)
        column = exp.column(declared.name, table=self.canonical[alias], quoted=True)
        column.this.meta.update(next((n.meta for n in at.walk() if "start" in n.meta), {}))
        column.type = read_type(sql_type(declared.type))
        return column

    def _fields(self, column: exp.Expr, declared: Column, path: list[str], at: exp.Expr) -> exp.Expr:
        type_ = declared.type
        for name in path:
            fields = {f.name.lower(): f for f in type_} if pa.types.is_struct(type_) else {}
            if name.lower() not in fields:
                raise self.text.error(
                    f"{sql_type(type_)} has no field {name!r}",
                    at,
                    hint=did_you_mean(name, [f.name for f in fields.values()]),
                )
            field = fields[name.lower()]
            column = exp.Dot(this=column, expression=exp.to_identifier(field.name, quoted=True))
            column.type = read_type(sql_type(field.type))
            type_ = field.type
        return column


@dataclass(frozen=True)
class TypedExpression:
    """An expression that is ready for Spark: its text, and the Arrow type that it certainly has."""

    sql: str
    type: pa.DataType

    def cast(self, type_: pa.DataType) -> TypedExpression:
        """Return the expression in another type."""
        return self if self.type == type_ else TypedExpression(f"CAST({self.sql} AS {sql_type(type_)})", type_)


def infer_type(expression: exp.Expr) -> pa.DataType | None:
    """Return the type of an expression whose columns are typed; None where it is not certain."""
    if isinstance(expression, exp.Paren):
        return infer_type(expression.this)
    found = arrow_type(annotate_types(expression, dialect=CatchmentSpark, overwrite_types=False).type)
    if isinstance(expression, exp.Column | exp.Dot | exp.Cast) or found is None:
        return found
    if pa.types.is_integer(found):
        return pa.int64()
    if pa.types.is_floating(found):
        return pa.float64()
    return None if pa.types.is_decimal(found) or _is_time_difference(expression) else found


def _is_time_difference(expression: exp.Expr) -> bool:
    """Return whether an expression is a difference of two instants: an interval, whatever sqlglot infers."""
    return isinstance(expression, exp.Sub) and all(
        side.type is not None and side.type.is_type(*exp.DataType.TEMPORAL_TYPES)
        for side in (expression.this, expression.expression)
    )


def make_typed(expression: exp.Expr, text: SqlText, what: str, at: exp.Expr | None = None) -> TypedExpression:
    """Return the expression with a certain type: a plain column, or a CAST to what was inferred."""
    type_ = infer_type(expression)
    if type_ is None:
        raise text.error(
            f"the type of {what} {show(expression)}, cannot be inferred",
            at or expression,
            hint=f"say it: CAST({show(expression)} AS DOUBLE), or AS STRING, AS DECIMAL(18, 4), ...",
        )
    if isinstance(expression, exp.Column | exp.Dot | exp.Cast):
        return TypedExpression(render(expression), type_)
    return TypedExpression(f"CAST({render(expression)} AS {sql_type(type_)})", type_)
