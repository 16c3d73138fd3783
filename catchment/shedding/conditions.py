"""What fragments ask of a reader: records that meet a condition on raw columns and pass at a rate.

Conditions are limited to what Arrow decides exactly as Spark does (`predicates.can_evaluate`). Of a conjunction, the
parts that qualify are enough, because fragments filter again what a reader hands on. Where nothing qualifies, the
reader lets every record pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import quote
from catchment.optimizer.normal_form.expressions import operands, parse_bare, to_text
from catchment.optimizer.normal_form.predicates import can_evaluate, read_comparison
from catchment.query.fragment import Fragment, Key
from catchment.shedding.reader_filter import Condition, ReadRequest, both, is_large
from catchment.shedding.sampler import Sampler


def condition_of(fragment: Fragment, schema: pa.Schema) -> Condition | None:
    """Return the part of a fragment's condition that a reader of this schema can evaluate; None if there is none."""
    if fragment.where is None or fragment.lookups or fragment.explodes:
        return None
    alias = quote(fragment.stream)
    keys = tuple(Key(field.name, f"{alias}.{quote(field.name)}", field.type) for field in schema)
    names = {key.sql: key.name for key in keys}
    found: Condition | None = None
    for part in operands(parse_bare(fragment.where), exp.And):
        if can_evaluate(to_text(part), keys):
            made = _condition(part, names)
            found = made if found is None else ["and", found, made]
    return found


def column_of(argument: str, stream: str | None = None) -> str | None:
    """Return the column that an expression is, if it is a plain column; of a stream, if that is named."""
    node = parse_bare(argument)
    if not isinstance(node, exp.Column) or (stream is not None and node.table not in ("", stream)):
        return None
    return str(node.name)


def read_requests(condition: Condition | None, sampler: Sampler) -> list[ReadRequest]:
    """Return what a fragment with this condition and sampler asks of the reader."""
    spared = [ReadRequest(1.0, both(condition, is_large(column_of(sql) or "", limit))) for sql, limit in sampler.spared]
    groups = sampler.groups
    if groups is None:
        return [ReadRequest(sampler.rate, condition), *spared]
    key = column_of(groups.key) or ""
    requests = []
    for rate in sorted({rate for _, rate in groups.rates}):
        values = [value for value, own in groups.rates if own == rate]
        requests.append(ReadRequest(rate, both(condition, ["in", key, values])))
    unnamed = ReadRequest(1.0, both(condition, ["not", ["in", key, groups.values]]))
    return [*requests, unnamed, *spared]


def _condition(node: exp.Expr, names: Mapping[str, str]) -> Condition:
    if isinstance(node, exp.And | exp.Or):
        operator = "and" if isinstance(node, exp.And) else "or"
        return [operator, _condition(node.left, names), _condition(node.right, names)]
    if isinstance(node, exp.Not):
        return ["not", _condition(node.this, names)]
    if isinstance(node, exp.Is):
        return ["null", names[to_text(node.this)]]
    if isinstance(node, exp.Boolean):
        return ["constant", bool(node.this)]
    if to_text(node) in names:
        return ["is", names[to_text(node)]]
    compared = read_comparison(to_text(node))
    assert compared is not None, f"can_evaluate accepted {to_text(node)}"
    values = [v if isinstance(v, str) else int(v) for v in compared.values]
    return [compared.operator, names[compared.subject], values if compared.operator == "in" else values[0]]
