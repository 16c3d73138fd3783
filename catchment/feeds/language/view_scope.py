"""The names in one feed view: its sources, their columns, and the conditions that tie them.

Every column is resolved to alias.column. A view over one input is never a source: it is unfolded into its stream, its
tables and its conditions, and its columns are replaced by what defines them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.language.functions import Functions
from catchment.feeds.language.operator_calls import operator_in
from catchment.feeds.language.statements import Declared, ViewStatement
from catchment.feeds.language.template import DEVICES, EVENT_TIME, FeedTemplate
from catchment.query.sql.dialect import conjuncts, read_expression, show

SAMPLE = "sample"  # sample(alias, share) is a sampling filter, not a function


@dataclass(frozen=True)
class FeedCatalog:
    """What a view may refer to; `templates` fills up as views are planned."""

    streams: dict[str, Declared]
    tables: dict[str, Declared]
    templates: dict[str, FeedTemplate]
    views: frozenset[str]
    functions: Functions


@dataclass
class FromSource:
    """A name in FROM: its alias and the columns that it has."""

    alias: str
    name: str
    columns: tuple[str, ...]
    device: str | None = None  # device column of a stream, or the key of one that is born at the cloud
    born_at_cloud: bool = False
    static: frozenset[str] = frozenset()  # columns that the reference tables determine
    is_view: bool = False
    where: list[exp.Expr] = field(default_factory=list)
    shares: list[exp.Expr] = field(default_factory=list)

    @property
    def is_input(self) -> bool:
        """Whether events come from it: it is a stream, or a view over two inputs."""
        return self.is_stream or self.is_view

    @property
    def is_stream(self) -> bool:
        return self.device is not None or self.born_at_cloud


@dataclass
class FeedScope:
    """The sources of one view by alias, the unfolded views among them, and the conditions found so far."""

    view: ViewStatement
    catalog: FeedCatalog
    sources: dict[str, FromSource] = field(default_factory=dict)
    unfolded: dict[str, dict[str, exp.Expr]] = field(default_factory=dict)  # alias -> its outputs, by definition
    conditions: list[exp.Expr] = field(default_factory=list)

    def error(self, message: str, node: exp.Expr, hint: str | None = None) -> FeedError:
        """Return an error at a node of the view."""
        where = f"{self.view.text.place(node)}, view {self.view.name!r}"
        return FeedError(message, where=where, hint=hint)

    def add_source(self, table: exp.Expr) -> None:
        """Add a stream, table or view that FROM names."""
        if not isinstance(table, exp.Table):
            raise self.error(f"found {show(table)!r} in FROM; possible: the name of a stream, table or view", table)
        name = table.name.lower()
        alias = (table.alias or table.name).lower()
        if alias in self.sources:
            raise self.error(f"found the alias {alias!r} twice", table, hint="give each use its own alias")
        if name in self.catalog.streams:
            self._add_stream(alias, name)
        elif name in self.catalog.tables:
            self._add_table(alias, name)
        elif name in self.catalog.templates:
            self._add_view(alias, self.catalog.templates[name])
        else:
            known = sorted({*self.catalog.streams, *self.catalog.tables, *self.catalog.views})
            raise self.error(f"found {name!r} in FROM; possible: {', '.join(known)}", table)

    def _add_stream(self, alias: str, name: str) -> FromSource:
        stream = self.catalog.streams[name]
        self.sources[alias] = FromSource(
            alias, name, stream.column_names, device=stream.device, born_at_cloud=stream.born_at_cloud
        )
        return self.sources[alias]

    def _add_table(self, alias: str, name: str) -> None:
        columns = self.catalog.tables[name].column_names
        self.sources[alias] = FromSource(alias, name, columns, static=frozenset(columns))

    def _add_view(self, alias: str, template: FeedTemplate) -> None:
        if template.window is not None:
            hint = "views may read streams, tables and views without a window"
            raise self.error(f"found {template.name!r} in FROM, which has a window", self.view.select, hint=hint)
        if operator_in(read_expression(template.outputs[0].sql), self.catalog.functions) is not None:
            hint = "views may read streams, tables and views without an operator"
            raise self.error(f"found {template.name!r} in FROM, which has an operator", self.view.select, hint=hint)
        if template.is_pair:
            self._add_pairs(alias, template)
        else:
            self._unfold(alias, template)

    def _add_pairs(self, alias: str, template: FeedTemplate) -> FromSource:
        static = frozenset(o.name for o in template.outputs if o.static_sql is not None)
        self.sources[alias] = FromSource(alias, template.name, template.output_names, static=static, is_view=True)
        return self.sources[alias]

    def _unfold(self, alias: str, template: FeedTemplate) -> None:
        """Replace a view over one input by that input, its tables and its conditions, under names of their own."""
        inner = template.inputs[0]
        tables = [use for use in template.tables if not use.is_view]
        renamed = {**{t.alias: f"{alias}__{t.alias}" for t in tables}, inner.alias: alias}

        def rename(sql: str) -> exp.Expr:
            return rename_aliases(read_expression(sql), renamed)

        if inner.is_stream:
            source = self._add_stream(alias, inner.source)
        else:
            source = self._add_pairs(alias, self.catalog.templates[inner.source])
        source.where = list(conjuncts(read_expression(inner.where))) if inner.where else []
        source.shares = [rename(inner.share)]
        for use in tables:
            if use.table != DEVICES:
                self._add_table(renamed[use.alias], use.table)
        if source.device is not None and all(use.table != DEVICES for use in tables):
            assert inner.device is not None
            device = make_column(alias, source.device)
            self.conditions.append(exp.EQ(this=device, expression=rename(inner.device)))
        for sql in (template.static, template.match):
            self.conditions += [rename_aliases(c, renamed) for c in conjuncts(read_expression(sql))] if sql else []
        self.unfolded[alias] = {o.name: rename(o.sql) for o in template.outputs}

    def resolve(self, node: exp.Expr) -> exp.Expr:
        """Return an expression over columns of sources; those of unfolded views are replaced by what defines them."""
        return self._define(self.qualify(node))

    def qualify(self, node: exp.Expr) -> exp.Expr:
        """Return the same expression with every column as alias.column of a source, each checked to exist."""

        def resolve(part: exp.Expr) -> exp.Expr:
            names_an_alias = is_sample(part.parent) and part.index == 0
            return self._resolve_column(part) if isinstance(part, exp.Column) and not names_an_alias else part

        return node.copy().transform(resolve, copy=False)

    def _resolve_column(self, column: exp.Column) -> exp.Column:
        name = column.name.lower()
        alias = column.table.lower()
        if name == EVENT_TIME and alias in self.sources and self.sources[alias].is_input:
            return make_column(alias, name)
        if alias and alias not in self.sources:
            raise self.error(f"found the alias {alias!r}; possible: {', '.join(self.sources)}", column)
        owners = [s.alias for s in self.sources.values() if name in self._columns_of(s) and alias in ("", s.alias)]
        if len(owners) > 1:
            raise self.error(f"{name!r} is ambiguous: {', '.join(f'{o}.{name}' for o in owners)}", column)
        if not owners:
            if alias:
                possible = list(self._columns_of(self.sources[alias]))
            else:
                possible = sorted({c for s in self.sources.values() for c in s.columns})
            raise self.error(f"found the column {show(column)!r}; possible: {', '.join(possible)}", column)
        resolved = make_column(owners[0], name)
        resolved.this.meta.update(column.this.meta)
        return resolved

    def _columns_of(self, source: FromSource) -> tuple[str, ...]:
        return tuple(self.unfolded.get(source.alias, {})) or source.columns

    def _define(self, node: exp.Expr) -> exp.Expr:
        """Replace the columns of unfolded views by what defines them."""

        def define(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and part.table in self.unfolded:
                defined = self.unfolded[part.table][part.name].copy()
                return defined if isinstance(defined, exp.Column) else exp.Paren(this=defined)
            return part

        return node.transform(define, copy=False)

    def is_static(self, node: exp.Expr) -> bool:
        """Return whether the reference tables determine an expression, given the devices of the streams."""
        return self.has_only(node, lambda source, column: column in source.static or column == source.device)

    def has_only(self, node: exp.Expr, test: Callable[[FromSource, str], bool]) -> bool:
        """Return whether the test holds for every column of an expression."""
        return all(test(self.sources[c.table], c.name) for c in node.find_all(exp.Column))


def make_column(alias: str, name: str) -> exp.Column:
    """Return a column, without its table where the alias is empty."""
    return exp.column(name, table=alias or None)


def rename_aliases(node: exp.Expr, aliases: dict[str, str]) -> exp.Expr:
    """Return the same expression over columns under other aliases."""

    def rename(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.table in aliases:
            return make_column(aliases[part.table], part.name)
        return part

    return node.copy().transform(rename, copy=False)


def is_sample(node: exp.Expr | None) -> bool:
    """Return whether a node is a sampling filter."""
    return isinstance(node, exp.Anonymous) and node.name.lower() == SAMPLE
