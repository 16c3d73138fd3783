"""FROM and JOIN: the one or two streams that a view reads, the tables that it looks up, and their names in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from catchment.project.options import did_you_mean
from catchment.query.catalog import Catalog
from catchment.query.fragment import Lookup
from catchment.query.planning.calls import fresh_name, resolve_inputs
from catchment.query.planning.scope import Scope
from catchment.query.sql.dialect import conjuncts, render, show
from catchment.query.sql.statements import DeclaredRelation, Stream, Table, View


@dataclass(frozen=True)
class StreamJoin:
    """A second stream, its name in the plan, and the condition of the join (resolved)."""

    stream: Stream
    canonical: str
    on: exp.Expr


@dataclass(frozen=True)
class FromClause:
    """What a SELECT reads; `owners` is the stream that each relation belongs to, by their names in the plan."""

    stream: Stream
    scope: Scope
    lookups: tuple[Lookup, ...] = ()
    joined: StreamJoin | None = None
    owners: Mapping[str, str] = field(default_factory=dict)

    @property
    def streams(self) -> dict[str, Stream]:
        """The streams by their names in the plan."""
        other = {self.joined.canonical: self.joined.stream} if self.joined else {}
        return {self.stream.name: self.stream, **other}


def read_from(view: View, catalog: Catalog) -> FromClause:
    """Return the streams and the lookups of a view."""
    clause = view.select.args.get("from_")
    if clause is None:
        raise view.text.error(
            f"view {view.name!r} reads nothing",
            view.select,
            hint=f"add FROM and a stream; {did_you_mean('', catalog.streams)}",
        )
    table = _table(clause.this, view)
    stream = _find_declared(table, view, catalog)
    if not isinstance(stream, Stream):
        raise view.text.error(
            f"{table.name!r} is a {_kind(stream)}, and a view reads FROM a stream",
            table,
            hint=did_you_mean(table.name, catalog.streams),
        )
    scope = Scope(view.text, {table.alias_or_name: stream}, {table.alias_or_name: stream.name})
    read = FromClause(stream, scope, owners={stream.name: stream.name})
    for join in view.select.args.get("joins") or ():
        read = _read_join(join, read, view, catalog)
    return read


def _read_join(join: exp.Join, read: FromClause, view: View, catalog: Catalog) -> FromClause:
    """Return the FROM clause with one more relation."""
    table = _table(join.this, view)
    scope = read.scope
    declared = _find_declared(table, view, catalog)
    if isinstance(declared, View):
        raise view.text.error(
            f"{table.name!r} is a view: joining it is not possible",
            table,
            hint=f"a stream is joined with a STREAM or a TABLE; {did_you_mean(table.name, catalog.tables)}",
        )
    alias = table.alias_or_name
    if alias.lower() in (a.lower() for a in scope.relations):
        raise view.text.error(f"{alias!r} names two relations", table, hint=f"write {table.name} AS other_name")
    canonical = fresh_name(declared.name, [c.lower() for c in scope.canonical.values()])
    wider = replace(read, scope=_with_relation(scope, alias, declared, canonical))
    add = _with_stream if isinstance(declared, Stream) else _with_lookup
    return add(join, wider, canonical, view)


def _with_lookup(join: exp.Join, read: FromClause, canonical: str, view: View) -> FromClause:
    on = resolve_inputs(_condition(join, view, "stream.column = table.column"), read.scope, "JOIN ON")
    _check_equality(on, canonical, view)
    streams = {read.owners[c.table] for c in on.find_all(exp.Column) if c.table != canonical}
    if len(streams) > 1:
        raise view.text.error(
            f"{join.this.name!r} is looked up by columns of two streams",
            on,
            hint="look it up by the columns of one stream; for both, join it twice under two names",
        )
    table = read.scope.relations[join.this.alias_or_name]
    lookup = Lookup(table.name, canonical, render(on), _how(join, view))
    return replace(read, lookups=(*read.lookups, lookup), owners={**read.owners, canonical: streams.pop()})


def _with_stream(join: exp.Join, read: FromClause, canonical: str, view: View) -> FromClause:
    """Add the second stream; its condition is checked in `catchment.query.planning.joined`."""
    stream = read.scope.relations[join.this.alias_or_name]
    assert isinstance(stream, Stream)
    if read.joined is not None:
        raise view.text.error(
            f"{join.this.name!r} is the third stream of this view",
            join.this,
            hint="a view joins two streams, and any number of tables",
        )
    if _words(join) not in ([], ["INNER"]):
        raise view.text.error(
            f"{' '.join(_words(join))} JOIN of two streams is not possible",
            join,
            hint="write JOIN: pairs of records of one window; LEFT JOIN is for tables",
        )
    on = resolve_inputs(_condition(join, view, "a.column = b.column"), read.scope, "JOIN ON")
    return replace(read, joined=StreamJoin(stream, canonical, on), owners={**read.owners, canonical: canonical})


def _with_relation(scope: Scope, alias: str, relation: DeclaredRelation, canonical: str) -> Scope:
    return Scope(scope.text, {**scope.relations, alias: relation}, {**scope.canonical, alias: canonical})


def _words(join: exp.Join) -> list[str]:
    return [w for w in (join.args.get("method"), join.side, join.kind) if w]


def _how(join: exp.Join, view: View) -> str:
    words = _words(join)
    if words in (["LEFT"], ["LEFT", "OUTER"]):
        return "left"
    if words in ([], ["INNER"]):
        return "inner"
    raise view.text.error(
        f"{' '.join(words)} JOIN is not possible", join, hint="possible: JOIN and LEFT JOIN with a table"
    )


def _condition(join: exp.Join, view: View, form: str) -> exp.Expr:
    on = join.args.get("on")
    if not isinstance(on, exp.Expr) or isinstance(on, exp.Boolean):
        found = "USING (...)" if join.args.get("using") else "no condition"
        raise view.text.error(f"this JOIN has {found}", join, hint=f"write ON {form}")
    return on


def _check_equality(on: exp.Expr, table: str, view: View) -> None:
    """Refuse a condition unless each part equates an expression of the table with one of what was read before."""
    for part in conjuncts(on):
        sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
        owners = [{c.table for c in side.find_all(exp.Column)} for side in sides]
        if not all(owners) or sorted(owners == {table} for owners in owners) != [False, True]:
            raise view.text.error(
                f"a lookup is by equality, not by {render(part)}",
                part,
                hint="write ON stream.column = table.column [AND ...], the rest in WHERE",
            )


def _table(node: object, view: View) -> exp.Table:
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        at = node if isinstance(node, exp.Expr) else view.select
        raise view.text.error("only a stream or a table can be read here", at, hint="write the name of one")
    if node.args.get("db"):
        raise view.text.error(f"{show(node)} has a prefix", node, hint=f"names have none: write {node.name}")
    return node


def _find_declared(table: exp.Table, view: View, catalog: Catalog) -> Stream | Table | View:
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
