"""Plans in their normal form: plans of equal meaning have equal fingerprints.

The normal form is what a tuple of rules makes of a plan, one after another. Each rule returns a plan with the same
answers, column by column, under the same result names. Plans that still differ have different meanings, or are beyond
the rules: nothing here proves that two arbitrary expressions are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from catchment.aggregates import Aggregate
from catchment.optimizer.normal_form.expressions import columns_of, normal_text, rename_columns, split_conjunctions
from catchment.optimizer.normal_form.normalize_join import normalize_join, rename_column, rename_sort_key, with_keys
from catchment.query.fragment import Key
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import (
    ExplodeRecords,
    Filter,
    Finish,
    LookupJoin,
    Node,
    Scan,
    Sink,
    WindowAggregate,
    describe_aggregate,
    transform,
)

Rule = Callable[[QueryPlan], QueryPlan]


def normalize_inputs(plan: QueryPlan) -> QueryPlan:
    """Write every expression over records in its normal form: constants folded, predicates and operands in order."""
    return _with_nodes(plan, _normal_input)


def normalize_results(plan: QueryPlan) -> QueryPlan:
    """Write SELECT and HAVING in their normal form; after the renaming, because operands are ordered by their texts."""
    columns = tuple(replace(c, sql=normal_text(c.sql)) for c in plan.columns)
    having = normal_text(plan.having) if plan.having else None
    top = with_keys(plan.top, lambda key: replace(key, sql=normal_text(key.sql)))
    return QueryPlan(replace(plan.root, input=replace(plan.finish, columns=columns, having=having, top=top)))


def split_filters(plan: QueryPlan) -> QueryPlan:
    """Split each filter into its conjuncts, sorted by their texts; a filter that always holds is removed."""
    return _with_nodes(plan, _split_filter)


def rename_keys_and_aggregates(plan: QueryPlan) -> QueryPlan:
    """Name keys and aggregates by what they compute, so that equal ones are one; the result keeps its names."""
    aggregate = plan.aggregate
    keys = {key_name(k): replace(k, name=key_name(k)) for k in aggregate.keys}
    aggregates = {aggregate_name(a): replace(a, name=aggregate_name(a)) for a in aggregate.aggregates}
    names = {k.name: key_name(k) for k in aggregate.keys} | {a.name: aggregate_name(a) for a in aggregate.aggregates}
    made = WindowAggregate(aggregate.input, aggregate.window, tuple(keys.values()), tuple(aggregates.values()))
    finish = Finish(
        made,
        tuple(rename_column(c, names) for c in plan.columns),
        rename_columns(plan.having, names) if plan.having else None,
        with_keys(plan.top, lambda key: rename_sort_key(key, names)),
    )
    return QueryPlan(replace(plan.root, input=finish))


def order_columns(plan: QueryPlan) -> QueryPlan:
    """Sort keys, aggregates and the columns of the scan by their names."""
    return _with_nodes(plan, _order_node)


RULES: tuple[Rule, ...] = (
    normalize_inputs,
    split_filters,
    rename_keys_and_aggregates,
    normalize_results,
    order_columns,
)


def normalize(plan: QueryPlan) -> QueryPlan:
    """Return the plan after every rule; of a join, both its sides after every rule.

    The branches of a union keep the names that they have in common.
    """
    if plan.join is not None:
        return normalize_results(normalize_join(plan, normalize))
    for rule in RULES:
        if not (plan.is_union and rule is rename_keys_and_aggregates):
            plan = rule(plan)
    return plan


def fingerprint(plan: QueryPlan) -> str:
    """Return a digest that is equal for plans of equal meaning, whatever the result names, their order and the sink."""
    normal = normalize(plan)
    columns = sorted({c.sql for c in normal.columns})
    return digest([normal.answer.to_text(), *columns, f"having {normal.having}", f"top {normal.top}"])


def digest(texts: Iterable[str]) -> str:
    """Return a short name for a list of texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def key_name(key: Key) -> str:
    """Return a name that depends on the key's expression alone."""
    return f"{_word(key.sql)}_{digest([key.sql])[:6]}"


def aggregate_name(aggregate: Aggregate) -> str:
    """Return a name that depends on the aggregate's call alone."""
    argument = _word(aggregate.argument) if aggregate.argument else "all"
    return f"{aggregate.function}_{argument}_{digest([describe_aggregate(aggregate)])[:6]}"


def _word(sql: str) -> str:
    """Return the name of a column of an expression, for people to recognise it by."""
    names = [c.rpartition(".")[2].strip("`") for c in sorted(columns_of(sql))]
    return names[0].lower() if names and names[0].isidentifier() else "value"


def _with_nodes(plan: QueryPlan, rule: Callable[[Node], Node]) -> QueryPlan:
    root = transform(plan.root, rule)
    assert isinstance(root, Sink)
    return QueryPlan(root)


def _normal_input(node: Node) -> Node:
    if isinstance(node, Filter):
        return replace(node, conditions=tuple(normal_text(c) for c in node.conditions))
    if isinstance(node, LookupJoin):
        return replace(node, lookup=replace(node.lookup, on=normal_text(node.lookup.on)))
    if isinstance(node, ExplodeRecords):
        return replace(node, explode=replace(node.explode, sql=normal_text(node.explode.sql)))
    if isinstance(node, WindowAggregate):
        keys = tuple(replace(k, sql=normal_text(k.sql)) for k in node.keys)
        return replace(node, keys=keys, aggregates=tuple(_normal_argument(a) for a in node.aggregates))
    return node


def _normal_argument(aggregate: Aggregate) -> Aggregate:
    return replace(aggregate, argument=normal_text(aggregate.argument)) if aggregate.argument else aggregate


def _split_filter(node: Node) -> Node:
    if not isinstance(node, Filter):
        return node
    parts = sorted({part for c in node.conditions for part in split_conjunctions(c)})
    return replace(node, conditions=tuple(parts)) if parts else node.input


def _order_node(node: Node) -> Node:
    if isinstance(node, WindowAggregate):
        keys = tuple(sorted(node.keys, key=lambda k: k.name))
        return replace(node, keys=keys, aggregates=tuple(sorted(node.aggregates, key=lambda a: a.name)))
    return replace(node, columns=tuple(sorted(node.columns))) if isinstance(node, Scan) else node
