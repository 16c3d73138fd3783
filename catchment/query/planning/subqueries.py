"""Subqueries in FROM and the queries of WITH that only filter and compute columns: relations of expressions.

What such a query selects becomes a relation whose columns stand for expressions over what it reads, so a view over it
has the plan that it would have without it. A subquery that aggregates would need windows of its own, and is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from catchment.query.planning.calls import is_aggregate, resolve_inputs
from catchment.query.planning.outputs import check_boolean
from catchment.query.planning.scope import UNKNOWN_TYPE, DerivedRelation, Scope, enclose, infer_type
from catchment.query.sql.dialect import conjuncts, render, show
from catchment.query.sql.statements import Column
from catchment.query.sql.tokens import SqlText

AGGREGATED = "aggregate in the outer SELECT, or make it a view and read FROM that: a subquery only filters and computes"
_NAMELESS = "subquery"  # the name of a subquery that was given none


@dataclass(frozen=True)
class QuerySource:
    """A query that stands for a relation: its SELECTs, the name that it is known by, and the queries it may name.

    Of several SELECTs (UNION ALL) it has the records of all, and the column names of the first. A view that it stands
    for may name the sites whose records it has.
    """

    selects: tuple[exp.Select, ...]
    alias: str
    named: NamedQueries = field(repr=False)
    sites: tuple[str, ...] | None = None

    def branch(self, number: int) -> QuerySource:
        """Return one of its SELECTs alone."""
        return replace(self, selects=(self.selects[number],))


NamedQueries = Mapping[str, QuerySource]  # by name, in lower case


def named_queries(select: exp.Select, around: NamedQueries, text: SqlText) -> NamedQueries:
    """Return the queries that a SELECT may name: those of its own WITH, each with those before it, and those around."""
    known = dict(around)
    clause = select.args.get("with_")
    if clause is None:
        return known
    for query in clause.expressions:
        name = query.alias
        if clause.args.get("recursive"):
            raise text.error(
                "WITH RECURSIVE is not possible in a view", query, hint="a query of WITH reads those before it"
            )
        if query.args["alias"].columns:
            raise text.error(f"{name!r} lists its columns", query, hint="name them inside: SELECT ... AS name")
        known[name.lower()] = QuerySource(_read_branches(query.this, text), name, dict(known))
    return known


def selects_records(select: exp.Select) -> bool:
    """Return whether a SELECT gives records instead of groups of them."""
    if select.args.get("group") is not None or select.args.get("distinct") is not None:
        return False
    return not any(is_aggregate(node) for item in select.selects for node in item.walk())


def find_query(node: object, named: NamedQueries, text: SqlText) -> QuerySource | None:
    """Return the query that a relation of FROM is, or None where it is the name of a stream, a table or a view."""
    if isinstance(node, exp.Subquery):
        return QuerySource(_read_branches(node.this, text), node.alias or _NAMELESS, named)
    if isinstance(node, exp.Table) and not node.args.get("db") and node.name.lower() in named:
        found = named[node.name.lower()]
        return QuerySource(found.selects, node.alias_or_name, found.named)
    return None


def _read_branches(query: exp.Expr, text: SqlText) -> tuple[exp.Select, ...]:
    """Return the SELECTs that a subquery consists of: one, or those of UNION ALL."""
    query = query.unnest() if isinstance(query, exp.Subquery) else query
    if isinstance(query, exp.Union) and not query.args.get("distinct"):
        if query.args.get("with_") or query.args.get("order") or query.args.get("limit"):
            raise text.error("a UNION ALL has WITH, ORDER BY or LIMIT", query, hint="write them in the outer SELECT")
        return (*_read_branches(query.this, text), *_read_branches(query.expression, text))
    if not isinstance(query, exp.Select):
        word = type(query).__name__.upper()
        raise text.error(
            f"{word} is not possible in a view", query, hint="possible: UNION ALL, and SELECT DISTINCT over it"
        )
    return (_check_plain(query, text),)


def _check_plain(select: exp.Select, text: SqlText) -> exp.Select:
    """Return a SELECT, if it only filters and computes columns."""
    for name in ("group", "having", "distinct", "order", "limit", "offset"):
        clause = select.args.get(name)
        if clause:
            word = {"group": "GROUP BY", "order": "ORDER BY"}.get(name, name.upper())
            at = clause if isinstance(clause, exp.Expr) else select
            raise text.error(f"{word} is not possible in a subquery", at, hint=AGGREGATED)
    return select


def derive_relation(
    source: QuerySource, scope: Scope, names: Sequence[str] = (), is_branch: bool = False
) -> tuple[DerivedRelation, tuple[exp.Expr, ...]]:
    """Return the relation that a query stands for, and its conditions; `scope` is that of its own FROM.

    `names` are those of its columns, where they are not its own: of the first branch of its UNION ALL. In a branch,
    columns of equal expressions are kept apart, because they need not be equal in the other branches.
    """
    (select,) = source.selects
    written = selected_columns(select, scope, needs_names=not names)
    selected = [(name, resolve_plain(expression, scope)) for name, expression in written]
    if names and len(names) != len(selected):
        raise scope.text.error(
            f"a branch of UNION ALL has {len(selected)} columns, and the first one {len(names)}",
            select,
            hint=f"select the same columns in every branch: {', '.join(names)}",
        )
    columns: dict[str, exp.Expr] = {}
    for name, (own, expression) in zip(names or [own for own, _ in selected], selected, strict=True):
        if name.lower() in (known.lower() for known in columns):
            raise scope.text.error(
                f"two columns of {source.alias!r} are named {own!r}", select, hint="name one ... AS other_name"
            )
        columns[name] = _kept_apart(expression, columns.values()) if is_branch else expression
    where = select.args.get("where")
    conditions: tuple[exp.Expr, ...] = ()
    if where is not None:
        resolved = resolve_inputs(where.this, scope, "WHERE")
        check_boolean(resolved, where.this, scope, "WHERE")
        conditions = tuple(conjuncts(resolved))
    typed = tuple(Column(name, infer_type(e.copy()) or UNKNOWN_TYPE) for name, e in columns.items())
    return DerivedRelation(source.alias, typed, expressions=columns), conditions


def _kept_apart(expression: exp.Expr, before: Collection[exp.Expr]) -> exp.Expr:
    """Return an expression in so many parentheses that its text differs from those before it."""
    texts = {render(e) for e in before}
    apart = enclose(expression)
    while render(apart) in texts:
        apart = exp.paren(apart)
    return apart


def selected_columns(select: exp.Select, scope: Scope, needs_names: bool = True) -> Iterator[tuple[str, exp.Expr]]:
    """Yield the columns of a SELECT list, stars spelt out: their names, and their expressions as written."""
    for item in select.selects:
        if item.is_star:
            yield from _all_columns(item, scope)
        else:
            yield _name_of(item, scope, needs_names), item.unalias()


def _all_columns(star: exp.Expr, scope: Scope) -> Iterator[tuple[str, exp.Expr]]:
    owner = star.table if isinstance(star, exp.Column) else ""
    if any(star.args.get(k) for k in ("except_", "except", "replace", "rename")):
        raise scope.text.error(f"{show(star)} is not possible in a view", star, hint="list the columns")
    for alias, relation in scope.relations.items():
        if owner.lower() in ("", alias.lower()):
            hidden = relation.hidden if isinstance(relation, DerivedRelation) else frozenset()
            for column in (c for c in relation.columns if c.name not in hidden):
                yield column.name, exp.column(column.name, table=alias)


def _name_of(item: exp.Expr, scope: Scope, is_needed: bool) -> str:
    if item.alias:
        return str(item.alias)
    if isinstance(item, exp.Column | exp.Dot):
        return str(item.expression.name if isinstance(item, exp.Dot) else item.name)
    if is_needed:
        raise scope.text.error(f"the column {show(item)} has no name", item, hint="write ... AS name")
    return show(item)


def resolve_plain(expression: exp.Expr, scope: Scope) -> exp.Expr:
    """Return an expression of a SELECT that does not aggregate, resolved."""
    called = next((n for n in expression.walk() if is_aggregate(n)), None)
    if called is not None:
        raise scope.text.error(f"{show(called)} is an aggregate in a subquery", called, hint=AGGREGATED)
    return resolve_inputs(expression, scope, "a subquery")
