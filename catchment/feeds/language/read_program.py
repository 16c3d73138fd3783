"""Read a feed program: its text becomes templates in normal form, each checked against what is declared.

Views may be written in any order; a cycle of views is refused, with the views in it named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from sqlglot import exp

from catchment.errors import FeedError
from catchment.feeds.forms.window import WindowForm
from catchment.feeds.language.collected import split_collected
from catchment.feeds.language.functions import BUILT_IN, Functions
from catchment.feeds.language.many_inputs import split_inputs
from catchment.feeds.language.notified import name_notified, tie_to_notified
from catchment.feeds.language.plan_template import plan_template
from catchment.feeds.language.statements import Declared, Statement, ViewStatement, read_statements
from catchment.feeds.language.submitted import SubmittedView, submitted_statements
from catchment.feeds.language.template import DEVICES, FeedProgram, FeedTemplate
from catchment.feeds.language.view_scope import FeedCatalog
from catchment.feeds.language.windowed import WindowedView, split_window


def read_program(
    text: str, functions: Functions = BUILT_IN, file: str = "<program>", submitted: Sequence[SubmittedView] = ()
) -> FeedProgram:
    """Read the streams, tables and templates of a program; `file` is the name that errors give it."""
    statements = list(read_statements(text, file))
    statements += submitted_statements(submitted, [s for s in statements if isinstance(s, Declared)])
    return plan_program(statements, with_submitted(text, submitted), functions)


def with_submitted(text: str, submitted: Sequence[SubmittedView]) -> str:
    """Return the text of a program together with those of submitted views."""
    return ";\n".join([text, *(view.sql for view in submitted)])


def plan_program(
    statements: list[Statement], text: str, functions: Functions = BUILT_IN, collected: frozenset[str] = frozenset()
) -> FeedProgram:
    """Plan the views of a program; the notices of `collected` views are kept at the cloud."""
    _refuse_taken_names(statements)
    declared = [s for s in statements if isinstance(s, Declared)]
    views = {s.name: s for s in statements if isinstance(s, ViewStatement)}
    catalog = FeedCatalog(
        streams={d.name: d for d in declared if d.is_stream},
        tables={d.name: d for d in declared if not d.is_stream},
        templates={},
        views=frozenset(views),
        functions=functions,
    )
    consumed = {name for view in views.values() for name in _reads(view) & set(views)}
    for name in _inputs_first(views):
        windowed = split_window(views[name], catalog)
        matches, upper = windowed.matches if windowed else views[name], None
        if name in collected:
            matches, upper = split_collected(views[name], catalog)
        chain = split_inputs(matches, catalog)
        consumed.update(part.name for part in (chain if windowed or upper else chain[:-1]))
        for part in chain:
            catalog.templates[part.name] = _plan_part(part, catalog, is_read=part.name in consumed)
        if windowed is not None:
            catalog.templates[name] = _plan_windowed(windowed, catalog)
        elif upper is not None:
            catalog.templates[name] = replace(plan_template(upper, catalog), collected=True)
    for template in catalog.templates.values():
        _refuse_nobody_notified(template, catalog, is_read=template.name in consumed)
    tied = {name: tie_to_notified(template, catalog.templates) for name, template in catalog.templates.items()}
    return FeedProgram(text, catalog.streams, catalog.tables, tied, frozenset(consumed), functions)


def _plan_part(part: ViewStatement, catalog: FeedCatalog, is_read: bool) -> FeedTemplate:
    template = plan_template(part, catalog)
    if not is_read or not template.is_pair:
        return template
    stream = catalog.streams.get(template.inputs[0].source)
    return name_notified(template, catalog.templates, stream.device if stream else None)


def _refuse_nobody_notified(template: FeedTemplate, catalog: FeedCatalog, is_read: bool) -> None:
    """Refuse a view whose first input is born at the cloud; one that only filters such a stream may be read."""
    first = catalog.streams.get(template.inputs[0].source)
    if first is not None and first.born_at_cloud and (template.is_pair or not is_read):
        raise FeedError(
            f"the first input is {first.name!r}, which is born at the cloud: nobody would be notified",
            where=f"{template.where}, view {template.name!r}",
            hint="begin FROM with a stream of devices: the user of the first input is notified",
        )


def _plan_windowed(windowed: WindowedView, catalog: FeedCatalog) -> FeedTemplate:
    """Plan the view that aggregates matches, and whose lifetime is its window."""
    window_us = windowed.view.window_us
    assert window_us is not None
    template = plan_template(windowed.view, catalog)
    return replace(template, window=WindowForm(window_us, windowed.functions))


def _refuse_taken_names(statements: list[Statement]) -> None:
    taken = {DEVICES: "reserved for the known devices"}
    for item in statements:
        if item.name in taken:
            raise FeedError(f"the name {item.name!r} is {taken[item.name]}", where=item.where)
        taken[item.name] = f"already declared at {item.where}"


def _inputs_first(views: dict[str, ViewStatement]) -> Iterator[str]:
    """Yield the names of views, each after the views that it reads."""
    graph = {name: _reads(view) & set(views) for name, view in views.items()}
    try:
        yield from tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        first = next(view for view in views.values() if view.name in error.args[1])
        raise FeedError(
            f"found a cycle of views: {cycle}",
            where=first.where,
            hint="a view may read streams, tables and views that do not read it",
        ) from error


def _reads(view: ViewStatement) -> set[str]:
    return {table.name.lower() for table in view.select.find_all(exp.Table)}
