"""From one feed view as written to its normal form: resolve, unfold, bind devices, split the conditions.

The steps, in order: name every column by alias; replace views over one input by their definition; tie each
device stream to the reference tables (`a.user = f.user`); then sort each condition by what it needs to know:
reference tables only (static), one stream only (checked on its device), or both events (match).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.language.expressions import (
    NotEvaluableError,
    column_name,
    compile_expression,
    conjunction,
)
from catchment.feeds.language.functions import Functions
from catchment.feeds.language.statements import Declared, ViewStatement
from catchment.feeds.language.template import (
    DEFAULT_LIFETIME_US,
    DEVICES,
    FeedInput,
    FeedOutput,
    FeedTemplate,
    TableUse,
)
from catchment.query.sql.dialect import conjuncts, read_expression, show, write_expression

SAMPLE = "sample"
_REFUSED = ("group", "having", "order", "limit", "distinct", "qualify", "windows", "laterals", "with_")


@dataclass(frozen=True)
class FeedCatalog:
    """What a view may refer to; `templates` fills up as views are planned."""

    streams: dict[str, Declared]
    tables: dict[str, Declared]
    templates: dict[str, FeedTemplate]
    views: frozenset[str]
    functions: Functions


@dataclass
class _Source:
    """A name in FROM: its alias and the columns it offers."""

    alias: str
    name: str
    columns: tuple[str, ...]
    device: str | None = None  # device column of a stream
    static: frozenset[str] = frozenset()  # columns that the reference tables determine
    is_view: bool = False
    where: list[exp.Expr] = field(default_factory=list)
    shares: list[exp.Expr] = field(default_factory=list)

    @property
    def is_input(self) -> bool:
        return self.device is not None or self.is_view


def plan_template(view: ViewStatement, catalog: FeedCatalog) -> FeedTemplate:
    """Return the normal form of one view."""
    return _Planner(view, catalog).plan()


class _Planner:
    """Holds the state of planning one view."""

    def __init__(self, view: ViewStatement, catalog: FeedCatalog) -> None:
        self.view = view
        self.catalog = catalog
        self.sources: dict[str, _Source] = {}
        self.unfolded: dict[str, dict[str, exp.Expr]] = {}  # alias -> its outputs, by definition
        self.bound: dict[str, exp.Column] = {}  # stream alias -> table column that names its device
        self.conditions: list[exp.Expr] = []

    def plan(self) -> FeedTemplate:
        self._refuse_clauses()
        joined = self._read_from()
        written = [*joined, *conjuncts(getattr(self.view.select.args.get("where"), "this", None))]
        outputs = self._read_outputs()
        self._check_functions(written, outputs)
        self.conditions += [self._define(self._resolve(c)) for c in written]
        named = {name: self._define(self._resolve(e)) for name, e in outputs.items()}
        self._take_samples()
        self._bind_devices()
        return self._assemble(named)

    # ---- reading what was written

    def _refuse_clauses(self) -> None:
        for clause in _REFUSED:
            if self.view.select.args.get(clause):
                raise self._error(
                    f"found {clause.strip('_').upper()}; possible: SELECT, FROM, JOIN ... ON, WHERE",
                    self.view.select,
                    hint="a feed view keeps matches; aggregate them where they arrive",
                )

    def _read_from(self) -> list[exp.Expr]:
        """Register the sources, and return the terms of their ON conditions."""
        select = self.view.select
        if select.args.get("from_") is None:
            raise self._error("a feed view needs FROM", select)
        self._add_source(select.args["from_"].this)
        terms: list[exp.Expr] = []
        for join in select.args.get("joins") or []:
            if join.side or join.kind not in ("", "INNER", "CROSS") or join.args.get("using"):
                raise self._error(f"found {join.side or join.kind or 'USING'} JOIN; possible: JOIN ... ON", join)
            self._add_source(join.this)
            terms += conjuncts(join.args.get("on"))
        return terms

    def _add_source(self, table: exp.Expr) -> None:
        if not isinstance(table, exp.Table):
            raise self._error(f"found {show(table)!r} in FROM; possible: the name of a stream, table or view", table)
        name = table.name.lower()
        alias = (table.alias or table.name).lower()
        if alias in self.sources:
            raise self._error(f"found the alias {alias!r} twice", table, hint="give each use its own alias")
        if name in self.catalog.streams:
            stream = self.catalog.streams[name]
            self.sources[alias] = _Source(alias, name, stream.column_names, device=stream.device)
        elif name in self.catalog.tables:
            columns = self.catalog.tables[name].column_names
            self.sources[alias] = _Source(alias, name, columns, static=frozenset(columns))
        elif name in self.catalog.templates:
            self._add_view(alias, self.catalog.templates[name])
        else:
            known = sorted({*self.catalog.streams, *self.catalog.tables, *self.catalog.views})
            raise self._error(f"found {name!r} in FROM; possible: {', '.join(known)}", table)

    def _add_view(self, alias: str, template: FeedTemplate) -> None:
        if template.is_pair:
            static = frozenset(o.name for o in template.outputs if o.static_sql is not None)
            self.sources[alias] = _Source(alias, template.name, template.output_names, static=static, is_view=True)
        else:
            self._unfold(alias, template)

    def _unfold(self, alias: str, template: FeedTemplate) -> None:
        """Replace a view over one input by its stream, its tables and its conditions, renamed apart."""
        inner = template.inputs[0]
        renamed = {inner.alias: alias, **{t.alias: f"{alias}__{t.alias}" for t in template.tables}}

        def rename(sql: str) -> exp.Expr:
            return _rename(read_expression(sql), renamed)

        stream = self.catalog.streams[inner.source]
        source = _Source(alias, inner.source, stream.column_names, device=stream.device)
        source.where = list(conjuncts(read_expression(inner.where))) if inner.where else []
        source.shares = [rename(inner.share)]
        self.sources[alias] = source
        for use in template.tables:
            if use.table != DEVICES:
                columns = self.catalog.tables[use.table].column_names
                self.sources[renamed[use.alias]] = _Source(
                    renamed[use.alias], use.table, columns, static=frozenset(columns)
                )
        if all(use.table != DEVICES for use in template.tables):
            assert inner.device is not None
            assert stream.device is not None
            self.conditions.append(exp.EQ(this=_column(alias, stream.device), expression=rename(inner.device)))
        for sql in (template.static, template.match):
            self.conditions += [_rename(c, renamed) for c in conjuncts(read_expression(sql))] if sql else []
        self.unfolded[alias] = {o.name: rename(o.sql) for o in template.outputs}

    def _read_outputs(self) -> dict[str, exp.Expr]:
        outputs: dict[str, exp.Expr] = {}
        for item in self.view.select.expressions:
            name = item.alias_or_name.lower()
            if isinstance(item, exp.Star) or not name:
                raise self._error(f"found {show(item)!r} in SELECT; possible: columns, or expressions with AS", item)
            if name in outputs:
                raise self._error(f"found two output columns called {name!r}", item, hint="use AS")
            outputs[name] = item.this if isinstance(item, exp.Alias) else item
        return outputs

    def _check_functions(self, written: Iterable[exp.Expr], outputs: dict[str, exp.Expr]) -> None:
        for node in [*written, *outputs.values()]:
            for call in node.find_all(exp.Anonymous):
                self._check_call(call)
            if not _is_sample(node):
                self._check_evaluable(node)

    def _check_evaluable(self, node: exp.Expr) -> None:
        try:
            compile_expression(node, _AnyLayout(), self.catalog.functions)
        except NotEvaluableError as error:
            raise self._error(error.message, error.node) from error

    def _check_call(self, call: exp.Anonymous) -> None:
        name = call.name.lower()
        function = self.catalog.functions.get(name)
        if name == SAMPLE:
            if call.parent is not None and not isinstance(call.parent, exp.And | exp.Where | exp.Join | exp.Paren):
                raise self._error(f"found {show(call)!r} inside an expression; possible: a term of AND", call)
        elif function is None:
            known = ", ".join(sorted([*self.catalog.functions, SAMPLE]))
            raise self._error(f"found the function {name!r}; possible: {known}", call)
        elif len(call.expressions) != function.arity:
            raise self._error(f"{name} takes {function.arity} arguments, found {len(call.expressions)}", call)

    # ---- columns

    def _resolve(self, node: exp.Expr) -> exp.Expr:
        """Return the same expression with every column as alias.column, each checked to exist."""

        def resolve(part: exp.Expr) -> exp.Expr:
            names_an_alias = _is_sample(part.parent) and part.index == 0
            return self._resolve_column(part) if isinstance(part, exp.Column) and not names_an_alias else part

        return node.copy().transform(resolve, copy=False)

    def _resolve_column(self, column: exp.Column) -> exp.Column:
        name = column.name.lower()
        alias = column.table.lower()
        if alias and alias not in self.sources:
            raise self._error(f"found the alias {alias!r}; possible: {', '.join(self.sources)}", column)
        owners = [s.alias for s in self.sources.values() if name in self._offered(s) and alias in ("", s.alias)]
        if len(owners) > 1:
            raise self._error(f"{name!r} is ambiguous: {', '.join(f'{o}.{name}' for o in owners)}", column)
        if not owners:
            offered = self.sources[alias] if alias else None
            possible = (
                self._offered(offered) if offered else sorted({c for s in self.sources.values() for c in s.columns})
            )
            raise self._error(f"found the column {show(column)!r}; possible: {', '.join(possible)}", column)
        resolved = _column(owners[0], name)
        resolved.this.meta.update(column.this.meta)
        return resolved

    def _offered(self, source: _Source) -> tuple[str, ...]:
        return tuple(self.unfolded.get(source.alias, {})) or source.columns

    def _define(self, node: exp.Expr) -> exp.Expr:
        """Replace the columns of unfolded views by what defines them."""

        def define(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and part.table in self.unfolded:
                defined = self.unfolded[part.table][part.name].copy()
                return defined if isinstance(defined, exp.Column) else exp.Paren(this=defined)
            return part

        return node.transform(define, copy=False)

    # ---- sampling filters and devices

    def _take_samples(self) -> None:
        kept = []
        for term in self.conditions:
            if not _is_sample(term):
                kept.append(term)
                continue
            alias, share = self._sample_arguments(term)
            self.sources[alias].shares.append(share)
        self.conditions = kept

    def _sample_arguments(self, term: exp.Expr) -> tuple[str, exp.Expr]:
        inputs = [s.alias for s in self.sources.values() if s.is_input]
        if len(term.expressions) != 2 or show(term.expressions[0]).lower() not in inputs:
            raise self._error(
                f"found {show(term)!r}; possible: sample(alias, share) with alias one of {', '.join(inputs)}",
                term,
            )
        share = term.expressions[1]
        if not self._only(share, lambda s, c: not s.is_input):
            raise self._error(f"the share {show(share)!r} must come from reference tables or be a number", term)
        return show(term.expressions[0]).lower(), share

    def _bind_devices(self) -> None:
        """Tie each stream's device to a column of a table, by the equalities that are written."""
        ties = _Ties()
        for term in [c for c in self.conditions if isinstance(c, exp.EQ) and self._only(c, self._is_static)]:
            if isinstance(term.left, exp.Column) and isinstance(term.right, exp.Column):
                ties.join(column_name(term.left), column_name(term.right))
        free: dict[str, list[str]] = {}
        for source in [s for s in self.sources.values() if s.device is not None]:
            group = ties.group(f"{source.alias}.{source.device}")
            tables = sorted(c for c in group if self.sources[c.split(".")[0]].device is None)
            if tables:
                self.bound[source.alias] = _column(*tables[0].split("."))
            else:
                free.setdefault(min(group), []).append(source.alias)
        self._bind_free(free)

    def _bind_free(self, free: dict[str, list[str]]) -> None:
        """Bind streams that no table ties to every device, which is only sensible for one device at a time."""
        if not free:
            return
        alias = next(iter(free.values()))[0]
        if len(free) > 1 or self.bound or any(not s.is_input for s in self.sources.values()):
            source = self.sources[alias]
            raise self._error(
                f"nothing says which devices {alias!r} comes from",
                self.view.select,
                hint=f"tie it to a reference table: {alias}.{source.device} = table.column",
            )
        self.sources[DEVICES] = _Source(DEVICES, DEVICES, ("device",), static=frozenset({"device"}))
        for tied in free[next(iter(free))]:
            self.bound[tied] = _column(DEVICES, "device")

    def _is_static(self, source: _Source, column: str) -> bool:
        return column in source.static or column == source.device

    def _only(self, node: exp.Expr, test: Callable[[_Source, str], bool]) -> bool:
        return all(test(self.sources[c.table], c.name) for c in node.find_all(exp.Column))

    # ---- assembling the normal form

    def _assemble(self, outputs: dict[str, exp.Expr]) -> FeedTemplate:
        static, match = self._split_conditions()
        read = [*match, *outputs.values()]
        return FeedTemplate(
            name=self.view.name,
            inputs=tuple(self._input(s, read) for s in self.sources.values() if s.is_input),
            tables=tuple(TableUse(s.alias, s.name, s.is_view) for s in self.sources.values() if s.device is None),
            static=conjunction([c for c in map(self._over_tables, static) if not _says_nothing(c)]),
            match=conjunction(match),
            params=self._params(read),
            outputs=tuple(self._output(name, node) for name, node in outputs.items()),
            lifetime_us=self.view.lifetime_us or DEFAULT_LIFETIME_US,
            notify_every_us=self.view.notify_every_us,
            where=self.view.where,
        )

    def _split_conditions(self) -> tuple[list[exp.Expr], list[exp.Expr]]:
        static = []
        match = []
        for term in self.conditions:
            owners = {c.table for c in term.find_all(exp.Column)}
            if self._only(term, self._is_static):
                static.append(term)
                if any(self.sources[o].is_view for o in owners):
                    match.append(term)  # one physical view has rows of several users: check again per event
            elif len(owners) == 1 and self.sources[next(iter(owners))].device is not None:
                self.sources[next(iter(owners))].where.append(_rename(term, {next(iter(owners)): ""}))
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

    def _input(self, source: _Source, read: list[exp.Expr]) -> FeedInput:
        columns = {c.name for node in read for c in node.find_all(exp.Column) if c.table == source.alias}
        bound = self.bound.get(source.alias)
        shares = [text for s in source.shares if (text := write_expression(s)) != "1"]
        return FeedInput(
            alias=source.alias,
            source=source.name,
            device=column_name(bound) if bound is not None else None,
            where=conjunction(source.where),
            share=" * ".join(f"({s})" for s in shares) if len(shares) > 1 else (shares or ["1"])[0],
            columns=tuple(c for c in source.columns if c in columns),
        )

    def _params(self, read: list[exp.Expr]) -> tuple[str, ...]:
        found = {
            column_name(c) for node in read for c in node.find_all(exp.Column) if not self.sources[c.table].is_input
        }
        return tuple(sorted(found))

    def _output(self, name: str, node: exp.Expr) -> FeedOutput:
        static = write_expression(self._over_tables(node)) if self._only(node, self._is_static) else None
        return FeedOutput(name, write_expression(node), static)

    def _error(self, message: str, node: exp.Expr, hint: str | None = None) -> FeedError:
        where = f"{self.view.text.place(node)}, view {self.view.name!r}"
        return FeedError(message, where=where, hint=hint)


class _AnyLayout(dict[str, tuple[int, int]]):
    """A layout that knows every column: to check an expression before its columns are placed."""

    def __missing__(self, key: str) -> tuple[int, int]:
        return (0, 0)


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


def _column(alias: str, name: str) -> exp.Column:
    return exp.column(name, table=alias or None)


def _rename(node: exp.Expr, aliases: dict[str, str]) -> exp.Expr:
    def rename(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.table in aliases:
            return _column(aliases[part.table], part.name)
        return part

    return node.copy().transform(rename, copy=False)


def _says_nothing(term: exp.Expr) -> bool:
    return isinstance(term, exp.EQ) and term.left == term.right


def _is_sample(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == SAMPLE
