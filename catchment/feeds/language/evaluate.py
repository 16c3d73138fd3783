"""A template made ready to run without Spark: does this pair of events match, and what row does it give?"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.language.expressions import Evaluate, compile_sql
from catchment.feeds.language.functions import Functions
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.template import FeedProgram, FeedTemplate, feed_kind, stream_of
from catchment.feeds.language.view_graph import ViewRow

Values = tuple[Any, ...]


class CompiledTemplate:
    """The match and the outputs of one template as closures over (values of each input, params, devices)."""

    def __init__(self, template: FeedTemplate, program: FeedProgram) -> None:
        self.template = template
        layout = self._layout(program)
        self.match = compile_sql(template.match, layout, program.functions)
        self.outputs = [compile_sql(o.sql, layout, program.functions) for o in template.outputs]

    def _layout(self, program: FeedProgram) -> dict[str, tuple[int, int]]:
        layout: dict[str, tuple[int, int]] = {}
        params = len(self.template.inputs)
        devices = len(self.template.inputs) + 1
        for slot, item in enumerate(self.template.inputs):
            columns = program.columns_of(item.source, item.where)
            layout.update((f"{item.alias}.{c}", (slot, at)) for at, c in enumerate(columns))
            if item.is_stream:
                layout[f"{item.alias}.{program.streams[item.source].device}"] = (devices, slot)
        layout.update((name, (params, at)) for at, name in enumerate(self.template.params))
        return layout

    def evaluate(self, row: ViewRow, *values: Values) -> Values | None:
        """Return the output row of events with these values, or None when they do not match."""
        slots = (*values, row.params, row.devices)
        if self.match(slots) is not True:
            return None
        return tuple(output(slots) for output in self.outputs)


class CompiledProgram:
    """The templates of a program, compiled, and the filters that its streams pass on their device."""

    def __init__(self, program: FeedProgram) -> None:
        self.program = program
        self.templates = {t.name: CompiledTemplate(t, program) for t in program.templates.values()}
        self.kinds: dict[str, list[tuple[str, Evaluate, tuple[int, ...]]]] = {}
        wheres = {
            feed_kind(i.source, i.where): i.where
            for template in program.templates.values()
            for i in template.inputs
            if i.is_stream
        }
        for kind, columns in program.pushed_columns.items():
            names = program.streams[stream_of(kind)].column_names
            keep = compile_sql(wheres[kind], {f".{c}": (0, at) for at, c in enumerate(names)}, program.functions)
            positions = tuple(names.index(c) for c in columns)
            self.kinds.setdefault(stream_of(kind), []).append((kind, keep, positions))

    def feeds_of(self, stream: str, row: Values) -> list[tuple[str, Values]]:
        """Return the feed kinds that a record of a stream belongs to, with the values that may leave the device."""
        if stream not in self.program.streams:
            known = ", ".join(sorted(self.program.streams))
            raise FeedError(f"a device produced a record of {stream!r}; possible: {known}")
        width = len(self.program.streams[stream].columns)
        if len(row) != width:
            raise FeedError(f"a record of {stream!r} has {len(row)} values, expected {width}: {row!r}")
        return [
            (kind, tuple(row[p] for p in positions))
            for kind, keep, positions in self.kinds.get(stream, [])
            if keep((row,)) is True
        ]


@lru_cache(maxsize=16)
def _compile(text: str, functions: tuple[tuple[str, Any], ...]) -> CompiledProgram:
    return CompiledProgram(read_program(text, dict(functions)))


def compile_program(text: str, functions: Functions) -> CompiledProgram:
    """Return the compiled program; the devices of one process share it."""
    return _compile(text, tuple(sorted(functions.items())))
