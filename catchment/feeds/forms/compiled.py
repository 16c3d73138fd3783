"""A program made ready to run: which events a record becomes, whether events match, and what row they give."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.forms.expression import CALL, Evaluate, UnknownFunctionError, compile_tree
from catchment.feeds.forms.physical_view import ViewRow
from catchment.feeds.forms.program import ProgramForm, ViewForm
from catchment.feeds.forms.window import WindowForm
from catchment.feeds.language.functions import Functions
from catchment.feeds.language.operators import FeedOperator, OperatorFunction

Values = tuple[Any, ...]


class CompiledView:
    """The match and the outputs of one view as closures over (values of each input, parameters, devices, times)."""

    def __init__(self, form: ViewForm, functions: Functions) -> None:
        self.form = form
        self.match = compile_tree(form.match, functions)
        self.outputs = [compile_tree(tree, functions) for _, tree in form.outputs]
        self.operator = _operator_of(form, functions)
        if self.operator is not None:
            self.outputs = self.outputs[:1]  # each is the same call, whose value are the inputs of the operator

    def evaluate(self, row: ViewRow, values: Sequence[Values], times_us: Values) -> Values | None:
        """Return the output row of events with these values and times, or None when they do not match."""
        if any(len(given) < needed for given, needed in zip(values, self.form.fewest_values, strict=True)):
            return None  # recorded under an earlier program, which asked for fewer columns
        slots = (*values, row.params, row.devices, times_us)
        if self.match(slots) is not True:
            return None
        return tuple(finite_or_null(output(slots)) for output in self.outputs)


def _operator_of(form: ViewForm, functions: Functions) -> FeedOperator | None:
    """Return the operator that a view consists of."""
    trees = [tree for _, tree in form.outputs]
    if not trees or not isinstance(trees[0], tuple) or trees[0][0] != CALL:
        return None
    found = functions.get(trees[0][1])
    return found.operator if isinstance(found, OperatorFunction) else None


def finite_or_null(value: Any) -> Any:
    """Return a value that can be written as JSON: a number that is not finite becomes NULL."""
    return None if type(value) is float and not math.isfinite(value) else value


class CompiledProgram:
    """The views of a program, compiled, and what becomes of records.

    A view that calls a function that is not known here is in `lacking`, with the error that names the function.
    """

    def __init__(
        self, form: ProgramForm, functions: Functions, windows: Mapping[str, WindowForm] | None = None
    ) -> None:
        self.form = form
        self.windows = windows or {}  # of views that only a cloud computes
        self.views: dict[str, CompiledView] = {}
        self.lacking: dict[str, UnknownFunctionError] = {}
        self.streams = {s.name: s for s in form.streams}
        self.kinds: dict[str, list[tuple[str, Evaluate, tuple[int, ...]]]] = {}
        for view in form.views:
            try:
                self.views[view.name] = CompiledView(view, functions)
            except UnknownFunctionError as error:
                self.lacking[view.name] = error
        for feed in form.feeds:
            keep = compile_tree(feed.keep, functions)
            self.kinds.setdefault(feed.stream, []).append((feed.kind, keep, feed.columns))

    def feeds_of(self, stream: str, row: Values) -> list[tuple[str, Values]]:
        """Return the feed kinds that a record of a stream belongs to, with the values that may leave the device."""
        if stream not in self.streams:
            known = ", ".join(sorted(self.streams))
            raise FeedError(f"a device produced a record of {stream!r}; possible: {known}")
        self.streams[stream].check(row)
        return [
            (kind, tuple(row[p] for p in positions))
            for kind, keep, positions in self.kinds.get(stream, [])
            if keep((row,)) is True
        ]

    def view(self, name: str) -> CompiledView:
        """Return a view by name; refuse one that is not known, or cannot be computed here."""
        if name in self.lacking:
            raise self.lacking[name]
        if name not in self.views:
            raise FeedError(f"found the view {name!r}; possible: {', '.join(self.views)}")
        return self.views[name]


@lru_cache(maxsize=16)
def _compile(text: str, functions: tuple[tuple[str, Any], ...]) -> CompiledProgram:
    return CompiledProgram(ProgramForm.read(json.loads(text)), dict(functions))


def compile_form(form: ProgramForm, functions: Functions) -> CompiledProgram:
    """Return the compiled program; the devices of one process share it.

    Forms are told apart by their text: 1 and true are equal in Python, but not in an expression.
    """
    return _compile(form.text, tuple(sorted(functions.items())))
