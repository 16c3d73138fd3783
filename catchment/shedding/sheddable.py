"""Which fragments of a stream may be sampled, and how: what their queries allow, and what is visible of the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from catchment.aggregates.shed_terms import ShedTerms, terms_in
from catchment.query.fragment import Fragment
from catchment.query.sql.view_options import ALWAYS
from catchment.shedding.conditions import column_of
from catchment.shedding.fragment_stats import SheddableFragment
from catchment.shedding.terms import law_of_sample

_IsType = Callable[[pa.DataType], bool]
_NUMBER_TYPES: tuple[_IsType, ...] = (pa.types.is_integer, pa.types.is_floating)  # columns whose values can be large
_GROUP_TYPES: tuple[_IsType, ...] = (pa.types.is_integer, pa.types.is_string)  # columns whose values name groups


@dataclass(frozen=True)
class ShedChoice:
    """What the queries of a fragment allow: the error of answers, their weight, and when shed records are repaired."""

    max_error: float | None = None
    confidence: float = 0.95
    weight: float = 1.0
    any_aggregate: bool = False  # sample also aggregates whose sampled answers have no bound
    repair: str = ALWAYS
    queries: tuple[str, ...] = ()
    never: bool = False  # some query forbids sampling

    def is_repaired(self, requested: frozenset[str]) -> bool:
        """Return whether shed records are repaired, given the queries whose repair was requested."""
        return self.repair == ALWAYS or any(q in requested for q in self.queries)


@dataclass(frozen=True)
class VisibleColumns:
    """What is visible of records where they are sampled.

    Where samples are read again from the source, that is the columns that the reader sees (None: it sees none); where
    history is written first and sampled from there, every column.
    """

    schema: pa.Schema | None
    are_reread: bool

    def has(self, sql: str | None, stream: str, types: Sequence[_IsType]) -> bool:
        """Return whether an expression is a visible column of a stream.

        A reader can use it only if it is of one of these types.
        """
        name = None if sql is None else column_of(sql, stream)
        if name is None or not self.are_reread:
            return name is not None
        if self.schema is None or name not in self.schema.names:
            return False
        return any(is_type(self.schema.field(name).type) for is_type in types)


def sheddable_fragment(
    fragment: Fragment, choice: ShedChoice, visible: VisibleColumns, *, filterable: bool
) -> SheddableFragment:
    """Return a fragment as the planner sees it."""
    terms = terms_in(fragment.aggregates)
    is_bounded = choice.any_aggregate or all(t.bounded for t in terms)
    is_clustered = any(t.clustered for t in terms)  # then a record has several values, and is in several groups
    spareable = (t for t in terms if not is_clustered and _is_spareable(t, fragment, visible))
    return SheddableFragment(
        fragment.name,
        tuple((t.name, str(law_of_sample(t)) if t.bounded else "count") for t in terms),
        min(w.size_us for w in fragment.windows) / 1e6,
        choice.max_error,
        choice.weight,
        fixed=not terms or choice.never or not is_bounded,
        filterable=filterable,
        spareable=tuple((t.name, t.argument or "") for t in spareable),
        group_key=None if is_clustered else _group_key(fragment, visible),
    )


def _is_spareable(terms: ShedTerms, fragment: Fragment, visible: VisibleColumns) -> bool:
    return terms.of in ("sum", "avg") and visible.has(terms.argument, fragment.stream, _NUMBER_TYPES)


def _group_key(fragment: Fragment, visible: VisibleColumns) -> str | None:
    if len(fragment.keys) != 1 or not any(is_type(fragment.keys[0].type) for is_type in _GROUP_TYPES):
        return None
    return fragment.keys[0].sql if visible.has(fragment.keys[0].sql, fragment.stream, _GROUP_TYPES) else None
