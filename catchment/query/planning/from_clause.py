"""FROM and JOIN: the streams that a view reads, the tables that it looks up, and their names in the plan.

A subquery, or a query of WITH, that only filters and computes columns is read through: its columns are expressions over
the streams and tables that it reads, and its conditions are conditions of the view. So is a view without GROUP BY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from catchment.project.options import did_you_mean
from catchment.query.catalog import Catalog
from catchment.query.fragment import Explode, Lookup
from catchment.query.join import LEFT, MAX_STREAMS, RIGHT, SIDES
from catchment.query.plan import QueryPlan
from catchment.query.planning.calls import fresh_name, resolve_inputs
from catchment.query.planning.composed import ViewWindows, relation_of, windows_of
from catchment.query.planning.explodes import read_explode
from catchment.query.planning.scope import DerivedRelation, Scope, infer_type
from catchment.query.planning.subqueries import (
    NamedQueries,
    QuerySource,
    derive_relation,
    find_query,
    named_queries,
    selects_records,
)
from catchment.query.planning.view_sites import common_sites, read_at_sites
from catchment.query.sql.dialect import conjuncts, render, show
from catchment.query.sql.statements import DeclaredRelation, Stream, Table, View


@dataclass(frozen=True)
class StreamJoin:
    """One more stream, its name in the plan, and the condition of the join (resolved); None: WHERE has it.

    `preserved` are the sides whose records are rows also without a partner, `before` the conditions that hold before
    the join: those of the subqueries that are joined (resolved). `inner` is the join of the streams before, if they are
    several, and `at` where the join is written.
    """

    stream: Stream
    canonical: str
    on: exp.Expr | None
    preserved: tuple[str, ...] = ()
    before: tuple[exp.Expr, ...] = ()
    inner: StreamJoin | None = None
    at: exp.Expr | None = None

    def may_lack(self, stream: str) -> bool:
        """Return whether records of a stream may be missing in what the join gives."""
        if stream == self.canonical:
            return LEFT in self.preserved
        return RIGHT in self.preserved or (self.inner is not None and self.inner.may_lack(stream))


@dataclass(frozen=True)
class FromClause:
    """What a SELECT reads; `owners` is the stream that each relation belongs to, by their names in the plan.

    `conditions` are those of the subqueries that it reads (resolved). Of a UNION ALL it is one branch of `branches`.
    `finds_several`: a look-up may find several rows for a record.
    """

    stream: Stream
    canonical: str
    scope: Scope
    lookups: tuple[Lookup, ...] = ()
    joined: StreamJoin | None = None
    owners: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[exp.Expr, ...] = ()
    branches: int = 1
    explodes: tuple[Explode, ...] = ()
    finds_several: bool = False

    @property
    def may_multiply(self) -> bool:
        """Whether a record may become several rows."""
        return bool(self.explodes) or self.finds_several

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The streams by their names in the plan."""
        return self.scope.streams


PlanView = Callable[[View, Catalog], QueryPlan]


def read_from(view: View, catalog: Catalog, plan_view: PlanView, branch: int = 0) -> FromClause:
    """Return the streams and the lookups of a view; of a UNION ALL, those of one branch.

    `plan_view` plans the views that it reads.
    """
    return _FromReader(view, catalog, plan_view, branch, view.options.sites).read(view.select, {}, frozenset())


@dataclass(frozen=True)
class _FromReader:
    """Reads the FROM clauses of a view and of its subqueries."""

    view: View
    catalog: Catalog
    plan_view: PlanView
    branch: int
    sites: tuple[str, ...] | None  # where its streams are read; None: wherever they are born

    def read(self, select: exp.Select, named: NamedQueries, taken: frozenset[str]) -> FromClause:
        """Return what a SELECT reads; `named` are the queries of WITH around it, `taken` the names in use around it."""
        clause = select.args.get("from_")
        if clause is None:
            raise self.view.text.error(
                f"view {self.view.name!r} reads nothing",
                select,
                hint=f"add FROM and a stream; {did_you_mean('', self.catalog.streams)}",
            )
        known = named_queries(select, named, self.view.text)
        source = self._find_query(clause.this, known)
        read = self._read_query(source, taken) if source else self._read_stream(clause.this, taken)
        for join in select.args.get("joins") or ():
            if isinstance(join.this, exp.Lateral):
                read = self._read_lateral(join.this, read, taken)
            else:
                read = self._read_join(join, read, known, taken)
        for lateral in select.args.get("laterals") or ():
            read = self._read_lateral(lateral, read, taken)
        return read

    def _read_lateral(self, lateral: exp.Lateral, read: FromClause, taken: frozenset[str]) -> FromClause:
        """Return the FROM clause with the rows that an array or a map of each record gives."""
        if read.joined is not None:
            raise self.view.text.error(
                "the pairs of streams are not made into more rows",
                lateral,
                hint="write it in a subquery of one of the streams",
            )
        relation, explode = read_explode(lateral, read.scope, len(read.lookups))
        _check_alias(relation.name, lateral, read.scope, self.view)
        columns = {c.name.lower() for stream in read.scope.streams.values() for c in stream.columns}
        canonical = fresh_name(explode.alias, taken | columns | {name.lower() for name in read.owners})
        scope = _with_relation(read.scope, relation.name, relation, canonical)
        return replace(
            read,
            scope=scope,
            explodes=(*read.explodes, replace(explode, alias=canonical)),
            owners={**read.owners, canonical: read.canonical},
        )

    def _find_query(self, node: object, named: NamedQueries) -> QuerySource | None:
        """Return the query that a relation stands for: a subquery, one of WITH, or a view that gives records."""
        found = find_query(node, named, self.view.text)
        if found is not None or not isinstance(node, exp.Table):
            return found
        declared = self.catalog.find(node.name)
        if isinstance(declared, View) and selects_records(declared.select):
            return QuerySource((declared.select,), node.alias_or_name, {}, declared.options.sites)
        return None

    def _read_query(self, source: QuerySource, taken: frozenset[str]) -> FromClause:
        """Return what a subquery reads, with its columns in place of the relations that it reads."""
        if len(source.selects) > 1:
            return self._read_branch(source, taken)
        return self._derive(source, taken)

    def _read_branch(self, source: QuerySource, taken: frozenset[str]) -> FromClause:
        """Return what the branch of a UNION ALL reads that this reader is for."""
        text = self.view.text
        first = self._derive(source.branch(0), taken, is_branch=True)
        if first.branches > 1:
            raise text.error(
                "a branch of UNION ALL reads another one", source.selects[0], hint="list all branches in one UNION ALL"
            )
        (relation,) = first.scope.relations.values()
        names = [column.name for column in relation.columns]
        read = self._derive(source.branch(self.branch), taken, names, is_branch=True) if self.branch else first
        if read.joined is not None or isinstance(read.stream, ViewWindows):
            found = "joins streams" if read.joined is not None else "reads a view that aggregates"
            raise text.error(
                f"a branch of UNION ALL {found}",
                source.selects[self.branch],
                hint="a branch reads one stream, and any number of tables",
            )
        return replace(read, branches=len(source.selects))

    def _derive(
        self, source: QuerySource, taken: frozenset[str], names: Sequence[str] = (), is_branch: bool = False
    ) -> FromClause:
        (select,) = source.selects
        reader = replace(self, sites=common_sites(self.sites, source.sites))
        inner = reader.read(select, source.named, taken)
        relation, conditions = derive_relation(source, inner.scope, names, is_branch)
        scope = replace(inner.scope, relations={source.alias: relation}, canonical={source.alias: inner.canonical})
        return replace(inner, scope=scope, conditions=(*inner.conditions, *conditions))

    def _read_stream(self, node: object, taken: frozenset[str]) -> FromClause:
        table = _table(node, self.view)
        stream = _find_declared(table, self.view, self.catalog)
        if isinstance(stream, View):
            return self._read_view(table, stream, taken)
        if not isinstance(stream, Stream):
            raise self.view.text.error(
                f"{table.name!r} is a {_kind(stream)}, and a view reads FROM a stream",
                table,
                hint=did_you_mean(table.name, self.catalog.streams),
            )
        stream = read_at_sites(stream, self.sites, self.view, self.catalog)
        canonical = fresh_name(stream.name, taken)
        alias = table.alias_or_name
        scope = Scope(self.view.text, {alias: stream}, {alias: canonical}, {canonical: stream})
        return FromClause(stream, canonical, scope, owners={canonical: canonical})

    def _read_view(self, table: exp.Table, lower: View, taken: frozenset[str]) -> FromClause:
        """Return the windows that another view publishes, as a stream."""
        plan = self.plan_view(lower, self.catalog)
        stream = windows_of(plan)
        canonical = fresh_name(stream.name, taken)
        alias = table.alias_or_name
        relation = relation_of(alias, canonical, plan, stream)
        scope = Scope(self.view.text, {alias: relation}, {alias: canonical}, {canonical: stream})
        return FromClause(stream, canonical, scope, owners={canonical: canonical})

    def _read_join(self, join: exp.Join, read: FromClause, named: NamedQueries, taken: frozenset[str]) -> FromClause:
        """Return the FROM clause with one more relation."""
        view = self.view
        in_use = taken | {name.lower() for name in read.owners}
        source = self._find_query(join.this, named)
        if source is not None:
            _check_alias(source.alias, join.this, read.scope, view)
            return _with_stream(join, read, self._read_query(source, in_use), view)
        table = _table(join.this, view)
        declared = _find_declared(table, view, self.catalog)
        if isinstance(declared, View):
            raise view.text.error(
                f"{table.name!r} is a view: joining it is not possible",
                table,
                hint=f"a stream is joined with a STREAM or a TABLE; {did_you_mean(table.name, self.catalog.tables)}",
            )
        _check_alias(table.alias_or_name, table, read.scope, view)
        if isinstance(declared, Stream):
            return _with_stream(join, read, self._read_stream(table, in_use), view)
        canonical = fresh_name(declared.name, in_use)
        wider = replace(read, scope=_with_relation(read.scope, table.alias_or_name, declared, canonical))
        return _with_lookup(join, wider, canonical, view)


def _check_alias(alias: str, at: exp.Expr, scope: Scope, view: View) -> None:
    if alias.lower() in (a.lower() for a in scope.relations):
        raise view.text.error(f"{alias!r} names two relations", at, hint=f"write {at.name or '(...)'} AS other_name")


def _with_stream(join: exp.Join, read: FromClause, inner: FromClause, view: View) -> FromClause:
    """Add one more stream, or a subquery of one; the condition is checked in `catchment.query.planning.joined`."""
    ((alias, relation),) = inner.scope.relations.items()
    if inner.joined is not None:
        raise view.text.error(
            f"{alias!r} joins streams itself",
            join.this,
            hint="let it come first: FROM (SELECT ...) JOIN stream; or list all in one FROM: a JOIN b ON ... JOIN c ON "
            "...",
        )
    _refuse_explodes(join, view, read, inner)
    _refuse_union(join, view, read, inner)
    scope = _with_relation(read.scope, alias, relation, inner.canonical)
    scope = replace(scope, streams={**scope.streams, **inner.scope.streams})
    wider = replace(
        read,
        scope=scope,
        lookups=(*read.lookups, *inner.lookups),
        finds_several=read.finds_several or inner.finds_several,
        owners={**read.owners, **inner.owners},
        conditions=(*read.conditions, *inner.conditions),
    )
    return _with_join(join, wider, inner.stream, inner.canonical, view)


def _with_lookup(join: exp.Join, read: FromClause, canonical: str, view: View) -> FromClause:
    on = resolve_inputs(_condition(join, read.scope, view, "stream.column = table.column"), read.scope, "JOIN ON")
    _check_equality(on, canonical, view)
    streams = {read.owners[c.table] for c in on.find_all(exp.Column) if c.table != canonical}
    if len(streams) > 1:
        raise view.text.error(
            f"{join.this.name!r} is looked up by columns of two streams",
            on,
            hint="look it up by the columns of one stream; for both, join it twice under two names",
        )
    table = read.scope.relations[join.this.alias_or_name]
    assert isinstance(table, Table)
    lookup = Lookup(table.name, canonical, render(on), _how(join, view), table.refresh_us)
    (owner,) = streams
    _check_missing_side(join, read, owner, lookup, on, view)
    return replace(
        read,
        lookups=(*read.lookups, lookup),
        owners={**read.owners, canonical: owner},
        finds_several=read.finds_several or not _finds_one(table, canonical, on),
    )


def _finds_one(table: Table, canonical: str, on: exp.Expr) -> bool:
    """Return whether a condition finds one row of a table at most: it has values for all columns that are unique.

    The types have to agree: of a text that is compared with a number, several values may be equal to it.
    """
    given = set()
    for part in (part for part in conjuncts(on) if isinstance(part, exp.EQ)):
        for own, other in ((part.left, part.right), (part.right, part.left)):
            is_own = isinstance(own, exp.Column) and [node.name for node in own.parts[:-1]] == [canonical]
            if is_own and all(column.parts[0].name != canonical for column in other.find_all(exp.Column)):
                column = table.column(own.name)
                if column is not None and _agree(column.type, infer_type(other)):
                    given.add(column.name)
    return bool(table.unique) and given.issuperset(table.unique)


def _agree(column: pa.DataType, value: pa.DataType | None) -> bool:
    """Return whether no two values of a column are equal to one value that they are compared with."""
    return value is not None and (column == value or (pa.types.is_integer(column) and pa.types.is_integer(value)))


def _check_missing_side(join: exp.Join, read: FromClause, owner: str, lookup: Lookup, on: exp.Expr, view: View) -> None:
    """Refuse a look-up by a side that may be missing, unless it then certainly finds nothing and leaves the row."""
    if read.joined is None or not read.joined.may_lack(owner):
        return
    by_columns = all(isinstance(side, exp.Column) for part in conjuncts(on) for side in (part.this, part.expression))
    if lookup.how != "left" or not by_columns:
        raise view.text.error(
            f"{join.this.name!r} is looked up by a stream whose records may be missing here",
            join,
            hint="write LEFT JOIN ... ON stream.column = table.column, or look it up in a subquery of that stream",
        )


def _with_join(join: exp.Join, read: FromClause, stream: Stream, canonical: str, view: View) -> FromClause:
    """Join a stream with those before it; a column of a subquery is null as a whole where its side is missing."""
    if len(read.streams) > MAX_STREAMS:
        raise view.text.error(
            f"{join.this.name or join.this.alias!r} is one stream too many",
            join.this,
            hint=f"a view joins {MAX_STREAMS} streams at most, and any number of tables",
        )
    preserved = _preserved(join, view)
    relations = dict(read.scope.relations)
    for alias, relation in relations.items():
        if isinstance(relation, DerivedRelation) and relation.side is None:
            relations[alias] = _of_one_side(relation, alias, join, read, canonical, preserved, view)
    scope = replace(read.scope, relations=relations)
    given = _stream_condition(join, scope, view)
    on = resolve_inputs(given, scope, "JOIN ON") if given is not None else None
    joined = StreamJoin(stream, canonical, on, preserved, read.conditions, read.joined, join)
    return replace(read, scope=scope, joined=joined, conditions=())


def _of_one_side(
    relation: DerivedRelation,
    alias: str,
    join: exp.Join,
    read: FromClause,
    canonical: str,
    preserved: tuple[str, ...],
    view: View,
) -> DerivedRelation:
    """Return a subquery that is joined, with the stream whose absence makes its columns null."""
    own = read.scope.canonical[alias]
    if read.joined is None or own == canonical:
        return replace(relation, side=own)
    if RIGHT in preserved:
        raise view.text.error(
            f"{alias!r} joins streams itself, and may be missing here",
            join,
            hint="write all joins in one FROM: a JOIN b ON ... FULL JOIN c ON ...",
        )
    return relation  # of several streams, and never missing as a whole


def _refuse_explodes(join: exp.Join, view: View, *sides: FromClause) -> None:
    if any(side.explodes for side in sides):
        raise view.text.error(
            "a side of this join makes several rows of a record",
            join.this,
            hint="explode is for views of one stream, with any number of tables",
        )


def _refuse_union(join: exp.Join, view: View, *sides: FromClause) -> None:
    if any(isinstance(side.stream, ViewWindows) for side in sides):
        raise view.text.error(
            "a view is not joined with a stream", join.this, hint="a view that is read FROM is joined with tables"
        )
    if any(side.branches > 1 for side in sides):
        raise view.text.error(
            "a side of this join is a UNION ALL", join.this, hint="join streams, or unite them without a join"
        )


def _preserved(join: exp.Join, view: View) -> tuple[str, ...]:
    """Return the sides of a join of two streams whose records are rows also without a partner."""
    words = [word for word in _words(join) if word != "OUTER"]
    kinds = {(): (), ("INNER",): (), ("CROSS",): (), ("LEFT",): (LEFT,), ("RIGHT",): (RIGHT,), ("FULL",): SIDES}
    found = kinds.get(tuple(words))
    if found is None:
        raise view.text.error(
            f"{' '.join(words)} JOIN of two streams is not possible",
            join,
            hint="possible: JOIN, LEFT JOIN, RIGHT JOIN and FULL JOIN, of records of one window",
        )
    return found


def _with_relation(scope: Scope, alias: str, relation: DeclaredRelation, canonical: str) -> Scope:
    relations = {**scope.relations, alias: relation}
    return replace(scope, relations=relations, canonical={**scope.canonical, alias: canonical})


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


def _stream_condition(join: exp.Join, scope: Scope, view: View) -> exp.Expr | None:
    """Return the condition of a join of streams; None where WHERE is to have it: FROM a, b WHERE a.x = b.x."""
    if join.kind == "CROSS" and join.args.get("on") is None:
        return None
    return _condition(join, scope, view, "a.column = b.column")


def _condition(join: exp.Join, scope: Scope, view: View, form: str) -> exp.Expr:
    on = join.args.get("on")
    if join.args.get("using"):
        return exp.and_(*(_equal_names(name, join, scope, view) for name in join.args["using"]))
    if not isinstance(on, exp.Expr) or isinstance(on, exp.Boolean):
        raise view.text.error("this JOIN has no condition", join, hint=f"write ON {form}")
    return on


def _equal_names(name: exp.Expr, join: exp.Join, scope: Scope, view: View) -> exp.Expr:
    """Return what USING (name) means: that both relations agree in a column."""
    *before, last = scope.relations
    owners = [alias for alias in before if scope.relations[alias].column(name.name)]
    if len(owners) != 1:
        found = f"{' and '.join(owners)} have it" if owners else "nothing before it has it"
        raise view.text.error(
            f"USING ({name.name}) does not say which column is meant: {found}", join, hint="write ON a.x = b.y"
        )
    return exp.EQ(this=exp.column(name.name, table=owners[0]), expression=exp.column(name.name, table=last))


def _check_equality(on: exp.Expr, table: str, view: View) -> None:
    """Refuse a condition unless a part of it equates an expression of the table with one of what was read before."""
    for part in conjuncts(on):
        sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
        owners = [{c.table for c in side.find_all(exp.Column)} for side in sides]
        if all(owners) and sorted(owners == {table} for owners in owners) == [False, True]:
            return
    raise view.text.error(
        f"a lookup needs an equality, and has {render(on)}",
        on,
        hint="write ON stream.column = table.column, then AND with what else must hold, such as "
        "stream.ts >= table.valid_from",
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
    if found is None or not isinstance(found, Stream | Table | View):
        raise view.text.error(
            f"view {view.name!r} reads {table.name!r}, which is not declared",
            table,
            hint=did_you_mean(table.name, (*catalog.streams, *catalog.tables)),
        )
    return found


def _kind(declared: Stream | Table | View) -> str:
    return type(declared).__name__.lower()
