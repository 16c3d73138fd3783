"""Which fragments of a stream may be sampled, and how, given the columns that its reader sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from catchment.aggregates.shed_terms import terms_in
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.query.fragment import Fragment
from catchment.shedding.conditions import column_of, condition_of
from catchment.shedding.fragment_stats import SheddableFragment
from catchment.shedding.reader_filter import Condition
from catchment.spark.sources.streams import OpenedStream

_IsType = Callable[[pa.DataType], bool]
_NUMBER_TYPES: tuple[_IsType, ...] = (pa.types.is_integer, pa.types.is_floating)  # columns whose values can be large
_GROUP_TYPES: tuple[_IsType, ...] = (pa.types.is_integer, pa.types.is_string)  # columns whose values name groups


def reader_conditions(opened: OpenedStream, plans: Sequence[FragmentPlan]) -> dict[str, Condition | None]:
    """Return the part of each fragment's condition that the reader can evaluate."""
    columns = opened.columns
    return {p.fragment.name: None if columns is None else condition_of(p.fragment, columns) for p in plans}


def sheddable_fragment(
    plan: FragmentPlan, conditions: Mapping[str, Condition | None], opened: OpenedStream
) -> SheddableFragment:
    """Return a fragment as the planner sees it."""
    fragment = plan.fragment
    choice = plan.shed
    terms = terms_in(fragment.aggregates)
    is_bounded = choice.any_aggregate or all(t.bounded for t in terms)
    spareable = (t for t in terms if t.of in ("sum", "avg") and is_seen(t.argument, opened, _NUMBER_TYPES))
    return SheddableFragment(
        fragment.name,
        tuple((t.name, t.of if t.bounded else "count") for t in terms),
        min(w.size_us for w in fragment.windows) / 1e6,
        choice.max_error,
        choice.weight,
        fixed=not terms or choice.never or not is_bounded,
        filterable=conditions[fragment.name] is not None,
        spareable=tuple((t.name, t.argument or "") for t in spareable),
        group_key=_group_key(fragment, opened),
    )


def is_seen(sql: str | None, opened: OpenedStream, types: Sequence[_IsType]) -> bool:
    """Return whether the value of an expression is visible where records are sampled.

    Where samples are read again, that is a column of these types that the reader sees; where history is written first
    and sampled from there, any column.
    """
    name = None if sql is None else column_of(sql)
    if name is None or opened.reread_rows is None:
        return name is not None
    if opened.columns is None or name not in opened.columns.names:
        return False
    return any(is_type(opened.columns.field(name).type) for is_type in types)


def _group_key(fragment: Fragment, opened: OpenedStream) -> str | None:
    if len(fragment.keys) != 1 or not any(is_type(fragment.keys[0].type) for is_type in _GROUP_TYPES):
        return None
    return fragment.keys[0].sql if is_seen(fragment.keys[0].sql, opened, _GROUP_TYPES) else None
