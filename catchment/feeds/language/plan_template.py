"""From one feed view as written to its normal form: resolve, unfold, bind devices, split the conditions.

The steps, in order: name every column by alias; replace views over one input by their definition; tie each
device stream to the reference tables (`a.user = f.user`); then sort each condition by what it needs to know:
reference tables only (static), one stream only (checked on its device), or both events (match).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.language.expressions import (
    NotEvaluableError,
    column_name,
    compile_expression,
    conjunction,
)
from catchment.feeds.language.operator_calls import expand_operator, operator_in
from catchment.feeds.language.statements import ViewStatement
from catchment.feeds.language.template import (
    CLOUD_FEED,
    DEVICES,
    FeedInput,
    FeedOutput,
    FeedTemplate,
    TableUse,
)
from catchment.feeds.language.view_scope import (
    SAMPLE,
    FeedCatalog,
    FeedScope,
    FromSource,
    is_sample,
    make_column,
    rename_aliases,
)
from catchment.query.sql.dialect import conjuncts, show, write_expression

_REFUSED = ("group", "having", "order", "limit", "distinct", "qualify", "windows", "laterals", "with_")


def plan_template(view: ViewStatement, catalog: FeedCatalog) -> FeedTemplate:
    """Return the normal form of one view."""
    scope = FeedScope(view, catalog)
    refuse_clauses(scope)
    joined = read_from(scope)
    written = [*joined, *conjuncts(getattr(view.select.args.get("where"), "this", None))]
    outputs = read_outputs(scope)
    _check_functions(scope, [*written, *outputs.values()])
    outputs = _take_operator(scope, written, outputs)
    scope.conditions += [scope.resolve(condition) for condition in written]
    resolved = {name: scope.resolve(expression) for name, expression in outputs.items()}
    _take_samples(scope)
    return _Assembly(scope, _bind_devices(scope)).template(resolved)


# ---- reading what was written


def refuse_clauses(scope: FeedScope) -> None:
    """Refuse what a feed view cannot have."""
    select = scope.view.select
    for clause in _REFUSED:
        if select.args.get(clause):
            raise scope.error(
                f"found {clause.strip('_').upper()}; possible: SELECT, FROM, JOIN ... ON, WHERE",
                select,
                hint="a feed view keeps matches; with window = '1 minute' it aggregates them",
            )


def read_from(scope: FeedScope) -> list[exp.Expr]:
    """Add the sources to the scope, and return the terms of their ON conditions."""
    select = scope.view.select
    if select.args.get("from_") is None:
        raise scope.error("a feed view needs FROM", select)
    scope.add_source(select.args["from_"].this)
    terms: list[exp.Expr] = []
    for join in select.args.get("joins") or []:
        if join.side or join.kind not in ("", "INNER", "CROSS") or join.args.get("using"):
            raise scope.error(f"found {join.side or join.kind or 'USING'} JOIN; possible: JOIN ... ON", join)
        scope.add_source(join.this)
        terms += conjuncts(join.args.get("on"))
    return terms


def read_outputs(scope: FeedScope) -> dict[str, exp.Expr]:
    """Return the expressions of SELECT by their names."""
    outputs: dict[str, exp.Expr] = {}
    for item in scope.view.select.expressions:
        name = item.alias_or_name.lower()
        if isinstance(item, exp.Star) or not name:
            raise scope.error(f"found {show(item)!r} in SELECT; possible: columns, or expressions with AS", item)
        if name in outputs:
            raise scope.error(f"found two output columns called {name!r}", item, hint="use AS")
        outputs[name] = item.this if isinstance(item, exp.Alias) else item
    return outputs


def _check_functions(scope: FeedScope, nodes: Iterable[exp.Expr]) -> None:
    for node in nodes:
        for call in node.find_all(exp.Anonymous):
            _check_call(scope, call)
        if not is_sample(node):
            _check_evaluable(scope, node)


def _check_evaluable(scope: FeedScope, node: exp.Expr) -> None:
    try:
        compile_expression(node, _AnyLayout(), scope.catalog.functions)
    except NotEvaluableError as error:
        raise scope.error(error.message, error.node) from error


def _check_call(scope: FeedScope, call: exp.Anonymous) -> None:
    name = call.name.lower()
    function = scope.catalog.functions.get(name)
    if name == SAMPLE:
        if call.parent is not None and not isinstance(call.parent, exp.And | exp.Where | exp.Join | exp.Paren):
            raise scope.error(f"found {show(call)!r} inside an expression; possible: a term of AND", call)
    elif function is None:
        known = ", ".join(sorted([*scope.catalog.functions, SAMPLE]))
        raise scope.error(f"found the function {name!r}; possible: {known}", call)
    elif len(call.expressions) != function.arity:
        raise scope.error(f"{name} takes {function.arity} arguments, found {len(call.expressions)}", call)


class _AnyLayout(dict[str, tuple[int, int]]):
    """A layout that knows every column: to check an expression before its columns are placed."""

    def __missing__(self, key: str) -> tuple[int, int]:
        return (0, 0)


def _take_operator(scope: FeedScope, written: list[exp.Expr], outputs: dict[str, exp.Expr]) -> dict[str, exp.Expr]:
    """Return the columns of a view, those of its operator if it calls one; refuse a call that has no meaning."""
    functions = scope.catalog.functions
    misplaced = next((node for node in written if operator_in(node, functions)), None)
    if misplaced is not None:
        raise scope.error("an operator stands in a condition; possible: the SELECT list", misplaced)
    try:
        columns = expand_operator(outputs, functions)
    except FeedError as error:
        raise scope.error(error.message, scope.view.select, hint=error.hint) from error
    if columns is None:
        return outputs
    streams = [source for source in scope.sources.values() if source.is_input]
    if len(streams) != 1 or not streams[0].is_stream or streams[0].born_at_cloud:
        hint = "it has a state per feed: let it read one stream of devices, and tables"
        raise scope.error("an operator reads something else than one stream of devices", scope.view.select, hint=hint)
    return columns


# ---- sampling filters and devices


def _take_samples(scope: FeedScope) -> None:
    """Move the sampling filters from the conditions to their sources."""
    kept = []
    for term in scope.conditions:
        if not is_sample(term):
            kept.append(term)
            continue
        alias, share = _sample_arguments(scope, term)
        scope.sources[alias].shares.append(share)
    scope.conditions = kept


def _sample_arguments(scope: FeedScope, term: exp.Expr) -> tuple[str, exp.Expr]:
    inputs = [s.alias for s in scope.sources.values() if s.is_input]
    if len(term.expressions) != 2 or show(term.expressions[0]).lower() not in inputs:
        raise scope.error(
            f"found {show(term)!r}; possible: sample(alias, share) with alias one of {', '.join(inputs)}",
            term,
        )
    share = term.expressions[1]
    if not scope.has_only(share, lambda source, _: not source.is_input):
        raise scope.error(f"the share {show(share)!r} must come from reference tables or be a number", term)
    return show(term.expressions[0]).lower(), share


def _bind_devices(scope: FeedScope) -> dict[str, exp.Column]:
    """Return for each stream the table column that names its device, by the equalities that are written."""
    ties = _Ties()
    for term in [c for c in scope.conditions if isinstance(c, exp.EQ) and scope.is_static(c)]:
        if isinstance(term.left, exp.Column) and isinstance(term.right, exp.Column):
            ties.join(column_name(term.left), column_name(term.right))
    bound: dict[str, exp.Column] = {}
    free: dict[str, list[str]] = {}
    for source in [s for s in scope.sources.values() if s.device is not None]:
        group = ties.group(f"{source.alias}.{source.device}")
        tables = sorted(c for c in group if not scope.sources[c.split(".")[0]].is_stream)
        if tables:
            bound[source.alias] = make_column(*tables[0].split("."))
        else:
            free.setdefault(min(group), []).append(source.alias)
    return bound if not free else _bind_free(scope, bound, list(free.values()))


def _bind_free(scope: FeedScope, bound: dict[str, exp.Column], free: list[list[str]]) -> dict[str, exp.Column]:
    """Bind streams that no table ties to every device, which is only sensible for one device at a time."""
    alias = free[0][0]
    if len(free) > 1 or bound or any(not s.is_input for s in scope.sources.values()):
        raise scope.error(
            f"nothing says which devices {alias!r} comes from",
            scope.view.select,
            hint=f"tie it to a reference table: {alias}.{scope.sources[alias].device} = table.column",
        )
    scope.sources[DEVICES] = FromSource(DEVICES, DEVICES, ("device",), static=frozenset({"device"}))
    return {tied: make_column(DEVICES, "device") for tied in free[0]}


class _Ties:
    """Groups of columns that are equal to each other."""

    def __init__(self) -> None:
        self.groups: dict[str, set[str]] = {}

    def join(self, left: str, right: str) -> None:
        merged = self.group(left) | self.group(right)
        for member in merged:
            self.groups[member] = merged

    def group(self, column: str) -> set[str]:
        return self.groups.get(column, {column})


# ---- assembling the normal form


@dataclass(frozen=True)
class _Assembly:
    """The parts of a template, made of a complete scope and the table columns that name the devices of streams."""

    scope: FeedScope
    bound: dict[str, exp.Column]  # by the alias of the stream

    def template(self, outputs: dict[str, exp.Expr]) -> FeedTemplate:
        view = self.scope.view
        sources = self.scope.sources.values()
        static, match = self._split_conditions()
        read = [*match, *outputs.values()]
        inputs = [s for s in sources if s.is_input]
        lifetimes_us = view.lifetimes.resolve([s.alias for s in inputs], f"{view.where}, view {view.name!r}")
        return FeedTemplate(
            name=view.name,
            inputs=tuple(self._input(s, read, lifetimes_us[s.alias]) for s in inputs),
            tables=tuple(TableUse(s.alias, s.name, s.is_view) for s in sources if not s.is_stream),
            static=conjunction([c for c in map(self._over_tables, static) if not _says_nothing(c)]),
            match=conjunction(match),
            params=self._params(read),
            outputs=tuple(self._output(name, node) for name, node in outputs.items()),
            notify_every_us=view.notify_every_us,
            where=view.where,
        )

    def _split_conditions(self) -> tuple[list[exp.Expr], list[exp.Expr]]:
        """Return the static and the match conditions; those of one stream go to that stream."""
        sources = self.scope.sources
        static = []
        match = []
        for term in self.scope.conditions:
            owners = {c.table for c in term.find_all(exp.Column)}
            if self.scope.is_static(term):
                static.append(term)
                if any(sources[o].is_view for o in owners):
                    match.append(term)  # one physical view has rows of several users: check again per event
            elif len(owners) == 1 and sources[next(iter(owners))].is_stream:
                owner = next(iter(owners))
                sources[owner].where.append(rename_aliases(term, {owner: ""}))
            else:
                match.append(term)
        return static, match

    def _over_tables(self, node: exp.Expr) -> exp.Expr:
        """Return a static expression with device columns replaced by the table columns that they equal."""

        def bind(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and part.table in self.bound:
                return self.bound[part.table].copy()
            return part

        return node.copy().transform(bind, copy=False)

    def _input(self, source: FromSource, read: list[exp.Expr], lifetime_us: int) -> FeedInput:
        columns = {c.name for node in read for c in node.find_all(exp.Column) if c.table == source.alias}
        bound = self.bound.get(source.alias)
        device = column_name(bound) if bound is not None else None
        if source.born_at_cloud and source.device is None:
            device = f"'{CLOUD_FEED}'"
        shares = [text for s in source.shares if (text := write_expression(s)) != "1"]
        return FeedInput(
            alias=source.alias,
            source=source.name,
            device=device,
            where=conjunction(source.where),
            share=" * ".join(f"({s})" for s in shares) if len(shares) > 1 else (shares or ["1"])[0],
            columns=tuple(c for c in source.columns if c in columns),
            lifetime_us=lifetime_us,
        )

    def _params(self, read: list[exp.Expr]) -> tuple[str, ...]:
        sources = self.scope.sources
        columns = (c for node in read for c in node.find_all(exp.Column))
        return tuple(sorted({column_name(c) for c in columns if not sources[c.table].is_input}))

    def _output(self, name: str, node: exp.Expr) -> FeedOutput:
        static = write_expression(self._over_tables(node)) if self.scope.is_static(node) else None
        return FeedOutput(name, write_expression(node), static)


def _says_nothing(term: exp.Expr) -> bool:
    return isinstance(term, exp.EQ) and term.left == term.right
