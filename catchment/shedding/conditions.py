"""Conditions that a reader can evaluate on the columns of raw records, in the form that travels to it.

Only what Arrow decides exactly as Spark does (`predicates.can_evaluate`); of a conjunction also a part will do, for
what a reader lets pass is filtered again. Anything else is not known here, and the reader lets every record pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import quote
from catchment.optimizer.normal_form.expressions import operands, parse_bare, to_text
from catchment.optimizer.normal_form.predicates import can_evaluate, read_comparison
from catchment.query.fragment import Fragment, Key
from catchment.shedding.reader_filter import Test


def condition_of(fragment: Fragment, schema: pa.Schema) -> Test | None:
    """What a reader of records of this schema can tell of the fragment's condition; None: nothing."""
    if fragment.where is None or fragment.lookups:
        return None
    alias = quote(fragment.stream)
    keys = tuple(Key(field.name, f"{alias}.{quote(field.name)}", field.type) for field in schema)
    names = {key.sql: key.name for key in keys}
    found: Test | None = None
    for part in operands(parse_bare(fragment.where), exp.And):
        if can_evaluate(to_text(part), keys):
            made = _test(part, names)
            found = made if found is None else ["and", found, made]
    return found


def column_of(argument: str) -> str | None:
    """The column that an argument is, if it is one as it stands."""
    node = parse_bare(argument)
    return str(node.name) if isinstance(node, exp.Column) else None


def _test(node: exp.Expr, names: Mapping[str, str]) -> Test:
    if isinstance(node, exp.And | exp.Or):
        return ["and" if isinstance(node, exp.And) else "or", _test(node.left, names), _test(node.right, names)]
    if isinstance(node, exp.Not):
        return ["not", _test(node.this, names)]
    if isinstance(node, exp.Is):
        return ["null", names[to_text(node.this)]]
    if isinstance(node, exp.Boolean):
        return ["constant", bool(node.this)]
    if to_text(node) in names:
        return ["is", names[to_text(node)]]
    compared = read_comparison(to_text(node))
    assert compared is not None, f"{to_text(node)} was said to be decidable"
    values = [v if isinstance(v, str) else int(v) for v in compared.values]
    return [compared.operator, names[compared.subject], values if compared.operator == "in" else values[0]]
