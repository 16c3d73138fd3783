"""The outer shape of a SELECT: which clauses it may have, and what FROM and JOIN bring into scope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from catchment.options import did_you_mean
from catchment.query.calls import fresh_name
from catchment.query.catalog import Catalog
from catchment.query.scope import Scope
from catchment.query.source import SqlText
from catchment.query.statements import Relation, Stream, Table, View

# What a SELECT may not have (yet), and what to do in its place.
REFUSED_CLAUSES = {
    "with_": ("WITH ... AS", "define the inner query as a view of its own, or write its expressions out"),
    "distinct": ("SELECT DISTINCT", "GROUP BY the columns that should be distinct"),
    "order": ("ORDER BY", "results are a table: order them when you read them"),
    "limit": (
        "LIMIT",
        "results are a table: limit them when you read them; approx_top_k(x, k) gives the most frequent",
    ),
    "offset": ("OFFSET", "results are a table: skip rows when you read them"),
    "qualify": ("QUALIFY", "use HAVING on aggregates"),
    "laterals": ("LATERAL VIEW", "one record gives one row here"),
    "pivots": ("PIVOT", "use sum(...) FILTER (WHERE ...) for each column"),
    "sort": ("SORT BY", "results are a table: order them when you read them"),
    "cluster": ("CLUSTER BY", "the engine distributes the work"),
    "distribute": ("DISTRIBUTE BY", "the engine distributes the work"),
    "into": ("INTO", "results go to the view's own table"),
    "hint": ("a hint", "the engine chooses how to join"),
    "kind": ("SELECT AS", "list the columns"),
}
REFUSED_NODES: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Query: ("a subquery", "a view reads one stream, and tables by JOIN"),
    exp.Window: ("OVER (...)", "windows are made with GROUP BY window(event_time, 'size')"),
    exp.Lambda: ("a lambda", "use plain expressions"),
    exp.Parameter: ("a parameter", "write its value"),
    exp.Placeholder: ("a parameter", "write its value"),
    exp.Explode: ("explode(...)", "one record gives one row here"),
}


@dataclass(frozen=True)
class Join:
    """A lookup as it was written: the table, its name in the plan, and the condition not yet resolved."""

    table: Table
    alias: str
    on: exp.Expr
    how: str


@dataclass(frozen=True)
class From:
    """What a SELECT reads."""

    stream: Stream
    scope: Scope
    joins: tuple[Join, ...]


def check_shape(select: exp.Select, text: SqlText) -> None:
    """Refuse what a continuous query cannot be, saying what can be done."""
    for name, (clause, way_out) in REFUSED_CLAUSES.items():
        if select.args.get(name):
            value = select.args[name]
            at = value if isinstance(value, exp.Expr) else select
            raise text.error(f"{clause} is not possible in a view", at, hint=way_out)
    for node in select.walk():
        kind = next((k for k in REFUSED_NODES if isinstance(node, k)), None)
        if kind and node is not select:
            found, way_out = REFUSED_NODES[kind]
            raise text.error(f"{found} is not possible in a view", node, hint=way_out)


def read_from(view: View, catalog: Catalog) -> From:
    """The stream and the lookups of a view."""
    clause = view.select.args.get("from_")
    if clause is None:
        raise view.text.error(
            f"view {view.name!r} reads nothing",
            view.select,
            hint=f"add FROM stream; {did_you_mean('', catalog.streams)}",
        )
    first = _table(clause.this, view)
    stream = _declared(first, view, catalog)
    if not isinstance(stream, Stream):
        raise view.text.error(
            f"{first.name!r} is a {_kind(stream)}, and a view reads FROM a stream",
            first,
            hint=did_you_mean(first.name, catalog.streams),
        )
    relations: dict[str, Relation] = {first.alias_or_name: stream}
    canonical = {first.alias_or_name: stream.name}
    joins = tuple(_read_joins(view, catalog, relations, canonical))
    return From(stream, Scope(view.text, relations, canonical), joins)


def _read_joins(
    view: View, catalog: Catalog, relations: dict[str, Relation], canonical: dict[str, str]
) -> Iterator[Join]:
    for join in view.select.args.get("joins") or ():
        table = _table(join.this, view)
        declared = _declared(table, view, catalog)
        if not isinstance(declared, Table):
            raise view.text.error(
                f"{table.name!r} is a {_kind(declared)}: joining it is not possible yet",
                table,
                hint=f"a stream is joined with a TABLE; {did_you_mean(table.name, catalog.tables)}",
            )
        alias = table.alias_or_name
        if alias.lower() in (a.lower() for a in relations):
            raise view.text.error(
                f"{alias!r} names two relations", table, hint=f"write {table.name} AS another_name"
            )
        relations[alias] = declared
        canonical[alias] = fresh_name(declared.name, [c.lower() for c in canonical.values()])
        yield Join(declared, canonical[alias], _condition(join, view), _how(join, view))


def _how(join: exp.Join, view: View) -> str:
    words = [w for w in (join.args.get("method"), join.side, join.kind) if w]
    if join.side == "LEFT" and words in (["LEFT"], ["LEFT", "OUTER"]):
        return "left"
    if words in ([], ["INNER"]):
        return "inner"
    raise view.text.error(
        f"{' '.join(words)} JOIN is not possible", join, hint="possible: JOIN and LEFT JOIN with a table"
    )


def _condition(join: exp.Join, view: View) -> exp.Expr:
    on = join.args.get("on")
    if not isinstance(on, exp.Expr):
        found = "USING (...)" if join.args.get("using") else "no condition"
        raise view.text.error(f"this JOIN has {found}", join, hint="write ON stream.column = table.column")
    return on


def _table(node: object, view: View) -> exp.Table:
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        at = node if isinstance(node, exp.Expr) else view.select
        raise view.text.error("only a stream or a table can be read here", at, hint="write the name of one")
    if node.args.get("db"):
        raise view.text.error(f"{node.sql()} has a prefix", node, hint=f"names have none: write {node.name}")
    return node


def _declared(table: exp.Table, view: View, catalog: Catalog) -> Stream | Table | View:
    found = catalog.find(table.name)
    if found is None:
        raise view.text.error(
            f"view {view.name!r} reads {table.name!r}, which is not declared",
            table,
            hint=did_you_mean(table.name, (*catalog.streams, *catalog.tables)),
        )
    return found


def _kind(declared: Stream | Table | View) -> str:
    return type(declared).__name__.lower()
