"""FROM and JOIN: the stream that a view reads, the tables it looks up, and the names they have in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from catchment.options import did_you_mean
from catchment.query.calls import fresh_name, resolve_inputs
from catchment.query.catalog import Catalog
from catchment.query.dialect import render, show
from catchment.query.fragment import Lookup
from catchment.query.scope import Scope
from catchment.query.statements import Relation, Stream, Table, View


@dataclass(frozen=True)
class From:
    """What a SELECT reads."""

    stream: Stream
    scope: Scope
    lookups: tuple[Lookup, ...]


def read_from(view: View, catalog: Catalog) -> From:
    """The stream and the lookups of a view."""
    clause = view.select.args.get("from_")
    if clause is None:
        raise view.text.error(f"view {view.name!r} reads nothing", view.select,
                              hint=f"add FROM and a stream; {did_you_mean('', catalog.streams)}")  # fmt: skip
    table = _table(clause.this, view)
    stream = _declared(table, view, catalog)
    if not isinstance(stream, Stream):
        raise view.text.error(f"{table.name!r} is a {_kind(stream)}, and a view reads FROM a stream", table,
                              hint=did_you_mean(table.name, catalog.streams))  # fmt: skip
    scope = Scope(view.text, {table.alias_or_name: stream}, {table.alias_or_name: stream.name})
    lookups: list[Lookup] = []
    for join in view.select.args.get("joins") or ():
        scope, lookup = _read_join(join, scope, view, catalog)
        lookups.append(lookup)
    return From(stream, scope, tuple(lookups))


def _read_join(join: exp.Join, scope: Scope, view: View, catalog: Catalog) -> tuple[Scope, Lookup]:
    """The scope with one table more, and its lookup."""
    table = _table(join.this, view)
    declared = _declared(table, view, catalog)
    if not isinstance(declared, Table):
        raise view.text.error(
            f"{table.name!r} is a {_kind(declared)}: joining it is not possible yet",
            table,
            hint=f"a stream is joined with a TABLE; {did_you_mean(table.name, catalog.tables)}",
        )
    alias = table.alias_or_name
    if alias.lower() in (a.lower() for a in scope.relations):
        raise view.text.error(f"{alias!r} names two relations", table, hint=f"write {table.name} AS other_name")
    canonical = fresh_name(declared.name, [c.lower() for c in scope.canonical.values()])
    wider = _with_relation(scope, alias, declared, canonical)
    on = resolve_inputs(_condition(join, view), wider, "JOIN ON")
    _check_equality(on, canonical, view)
    return wider, Lookup(declared.name, canonical, render(on), _how(join, view))


def _with_relation(scope: Scope, alias: str, relation: Relation, canonical: str) -> Scope:
    return Scope(scope.text, {**scope.relations, alias: relation}, {**scope.canonical, alias: canonical})


def _how(join: exp.Join, view: View) -> str:
    words = [w for w in (join.args.get("method"), join.side, join.kind) if w]
    if words in (["LEFT"], ["LEFT", "OUTER"]):
        return "left"
    if words in ([], ["INNER"]):
        return "inner"
    raise view.text.error(f"{' '.join(words)} JOIN is not possible", join,
                          hint="possible: JOIN and LEFT JOIN with a table")  # fmt: skip


def _condition(join: exp.Join, view: View) -> exp.Expr:
    on = join.args.get("on")
    if not isinstance(on, exp.Expr) or isinstance(on, exp.Boolean):
        found = "USING (...)" if join.args.get("using") else "no condition"
        raise view.text.error(f"this JOIN has {found}", join, hint="write ON stream.column = table.column")
    return on


def _check_equality(on: exp.Expr, table: str, view: View) -> None:
    """Every part of the condition says: something of the table = something of what is known already."""
    for part in conjuncts(on):
        sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
        owners = [{c.table for c in side.find_all(exp.Column)} for side in sides]
        if not all(owners) or sorted(owners == {table} for owners in owners) != [False, True]:
            raise view.text.error(
                f"a lookup is by equality, not by {render(part)}",
                part,
                hint="write ON stream.column = table.column [AND ...], the rest in WHERE",
            )


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of a condition that must all hold."""
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        yield from conjuncts(bare.left)
        yield from conjuncts(bare.right)
    else:
        yield bare


def _table(node: object, view: View) -> exp.Table:
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        at = node if isinstance(node, exp.Expr) else view.select
        raise view.text.error("only a stream or a table can be read here", at, hint="write the name of one")
    if node.args.get("db"):
        raise view.text.error(f"{show(node)} has a prefix", node, hint=f"names have none: write {node.name}")
    return node


def _declared(table: exp.Table, view: View, catalog: Catalog) -> Stream | Table | View:
    found = catalog.find(table.name)
    if found is None:
        raise view.text.error(f"view {view.name!r} reads {table.name!r}, which is not declared", table,
                              hint=did_you_mean(table.name, (*catalog.streams, *catalog.tables)))  # fmt: skip
    return found


def _kind(declared: Stream | Table | View) -> str:
    return type(declared).__name__.lower()
