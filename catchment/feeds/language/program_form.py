"""The form of a program: its SQL as trees, so that devices can compute its views without SQL."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from catchment.feeds.forms.compiled import CompiledProgram
from catchment.feeds.forms.program import FeedForm, ProgramForm, StreamForm, ViewForm
from catchment.feeds.language.expressions import Layout, sql_to_tree
from catchment.feeds.language.functions import Functions
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.statements import Declared
from catchment.feeds.language.template import EVENT_TIME, FeedProgram, FeedTemplate, feed_kind, stream_of


def form_of(program: FeedProgram) -> ProgramForm:
    """Return a program as devices are told it."""
    return ProgramForm(
        tuple(_stream_form(stream) for stream in program.streams.values()),
        tuple(_feed_forms(program)),
        tuple(_view_form(t, program) for t in program.templates.values() if not _is_unfolded(t, program)),
    )


def _is_unfolded(template: FeedTemplate, program: FeedProgram) -> bool:
    """Return whether a view exists only within the views that read it."""
    return not template.is_pair and template.name in program.consumed


def _stream_form(stream: Declared) -> StreamForm:
    """Return a stream as devices are told it; the position means nothing for one that is born at the cloud."""
    position = 0 if stream.device is None else stream.column_names.index(stream.device)
    return StreamForm(stream.name, stream.columns, position)


def _feed_forms(program: FeedProgram) -> list[FeedForm]:
    inputs = [i for template in program.templates.values() for i in template.inputs if i.is_stream]
    conditions = {feed_kind(i.source, i.where): i.where for i in inputs}
    found = []
    for kind, columns in program.pushed_columns.items():
        names = program.streams[stream_of(kind)].column_names
        layout = {f".{column}": (0, at) for at, column in enumerate(names)}
        keep = sql_to_tree(conditions[kind], layout, program.functions)
        found.append(FeedForm(kind, stream_of(kind), keep, tuple(names.index(c) for c in columns)))
    return found


def _view_form(template: FeedTemplate, program: FeedProgram) -> ViewForm:
    layout = _layout(template, program)
    return ViewForm(
        name=template.name,
        inputs=tuple(feed_kind(i.source, i.where) if i.is_stream else i.source for i in template.inputs),
        lifetimes_us=tuple(i.lifetime_us for i in template.inputs),
        notify_every_us=template.notify_every_us,
        notifies=template.name not in program.consumed,
        match=sql_to_tree(template.match, layout, program.functions),
        outputs=tuple((o.name, sql_to_tree(o.sql, layout, program.functions)) for o in template.outputs),
    )


def _layout(template: FeedTemplate, program: FeedProgram) -> Layout:
    """Return where a view finds each column: the values of its inputs, then parameters, devices, and times."""
    layout: dict[str, tuple[int, int]] = {}
    params = len(template.inputs)
    devices = len(template.inputs) + 1
    times = len(template.inputs) + 2
    for slot, item in enumerate(template.inputs):
        columns = program.columns_of(item.source, item.where)
        layout.update((f"{item.alias}.{c}", (slot, at)) for at, c in enumerate(columns))
        layout[f"{item.alias}.{EVENT_TIME}"] = (times, slot)
        device = program.streams[item.source].device if item.is_stream else None
        if device is not None:
            layout[f"{item.alias}.{device}"] = (devices, slot)
    layout.update((name, (params, at)) for at, name in enumerate(template.params))
    return layout


def compile_feeds(program: FeedProgram) -> CompiledProgram:
    """Return a program that is ready to run where its functions are known."""
    windows = {t.name: t.window for t in program.templates.values() if t.window is not None}
    return CompiledProgram(form_of(program), program.functions, windows)


@lru_cache(maxsize=16)
def _compile(text: str, functions: tuple[tuple[str, Any], ...]) -> CompiledProgram:
    return compile_feeds(read_program(text, dict(functions)))


def compile_program(text: str, functions: Functions) -> CompiledProgram:
    """Return the compiled program of a text; those who compile the same text share it."""
    return _compile(text, tuple(sorted(functions.items())))
