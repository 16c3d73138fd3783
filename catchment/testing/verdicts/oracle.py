"""The oracle: what a view should answer, recomputed from all its raw records by its definition.

Every record goes into every window that contains it; a window is aggregated from all its records at once, and the
windows of a join from all its pairs of records. Nothing is sliced, merged, sent or closed. The oracle shares with a
simulated deployment the evaluation of expressions and the laws of the aggregates, which have tests of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials
from catchment.aggregates.shed_terms import terms_in
from catchment.arrays import Mask
from catchment.query.fragment import Fragment
from catchment.query.join import BOTH, KINDS, LEFT, OTHER, RIGHT, SIDES, Join, JoinedKey, PairAggregate, RowCondition
from catchment.query.plan import QueryPlan
from catchment.testing.simulated.evaluate import FragmentRows, PureEvaluator, as_duckdb, duckdb_connection, windows_of
from catchment.testing.simulated.records import Workload
from catchment.timeline import WindowSpec

Accepted = Mapping[tuple[str, str], Mask]  # by stream and site: the records that count


class ViewOracle:
    """Recomputes views over the records that count."""

    def __init__(self, evaluator: PureEvaluator, workload: Workload, accepted: Accepted) -> None:
        self._evaluator = evaluator
        self._workload = workload
        self._accepted = accepted

    def states(self, plan: QueryPlan, without: Sequence[str] = ()) -> dict[int, pa.Table]:
        """Return (keys, states) of every window of a view, by its start; some sites may be left out."""
        if plan.options.sites is not None:
            without = [*without, *(site for _, site in self._workload if site not in plan.options.sites)]
        if plan.join is not None:
            return self._joined(plan.join, plan.window, without)
        keys = list(plan.fragment.key_names)
        found: dict[int, list[pa.Table]] = {}
        for side in plan.sides:  # several, if it is a union
            rows = self._rows(side.fragment, without)
            for start, states in (rows.aggregate(plan.window) if rows is not None else {}).items():
                found.setdefault(start, []).append(states)
        measured = [a for a in plan.fragment.aggregates if a not in terms_in(plan.fragment.aggregates)]
        return {
            s: t[0] if len(t) == 1 else partials.combine(pa.concat_tables(t), keys, measured) for s, t in found.items()
        }

    def values(self, plan: QueryPlan, without: Sequence[str] = ()) -> dict[int, pa.Table]:
        """Return (keys, aggregates) of every window of a view, by its start."""
        fragment = plan.fragment
        aggregates = [a for a in fragment.aggregates if a not in terms_in(fragment.aggregates)]
        lower = partial(partials.lower, keys=list(fragment.key_names), aggregates=aggregates)
        return {start: lower(states) for start, states in self.states(plan, without).items() if states.num_rows}

    def _rows(self, fragment: Fragment, without: Sequence[str]) -> FragmentRows | None:
        """Return what a fragment takes of the records of all sites."""
        parts = []
        for (stream, site), arrivals in self._workload.items():
            if stream == fragment.stream:
                rows = self._evaluator.rows(arrivals, fragment)
                parts.append(rows.of_records(self._accepted[stream, site] & (site not in without)))
        if not parts:
            return None
        return FragmentRows(
            fragment,
            np.concatenate([p.numbers for p in parts]),
            np.concatenate([p.times_us for p in parts]),
            pa.concat_tables([p.table for p in parts]),
            parts[0].arguments,
        )

    def _joined(self, join: Join, window: WindowSpec, without: Sequence[str]) -> dict[int, pa.Table]:
        streams = {place: self._rows(fragment, without) for place, fragment in join.streams.items()}
        known = {place: rows for place, rows in streams.items() if rows is not None}
        if len(known) < len(streams):
            return {}
        inside = {place: windows_of(window, rows.times_us) for place, rows in known.items()}
        found = {}
        for start in {start for starts in inside.values() for start in starts}:
            rows = {place: _inside(known[place], inside[place], start) for place in known}
            states = _join_states(join, iter(rows.values()))
            if states.num_rows:
                found[start] = states
        return found


@dataclass(frozen=True)
class _SideRows:
    """The records of a side, or the pairs of a join that it is; `arguments` are the columns of its aggregates."""

    table: pa.Table
    arguments: Mapping[str, str | None]


def _inside(rows: FragmentRows, windows: Mapping[int, Mask], start_us: int) -> _SideRows:
    mine = rows.where(windows.get(start_us, np.zeros(len(rows.times_us), dtype=bool)))
    return _SideRows(mine.table, mine.arguments)


def _join_states(join: Join, streams: Iterator[_SideRows]) -> pa.Table:
    """Return the states over all pairs of the records of a window, and over those without a partner that are rows."""
    pairs = _join_rows(join, streams)
    return partials.lift(
        pairs.table, list(join.answers.key_names), [p.aggregate for p in join.pairs], dict(pairs.arguments)
    )


def _join_rows(join: Join, streams: Iterator[_SideRows]) -> _SideRows:
    """Return the pairs of a join as rows; the records of its streams come in the order of their places."""
    left = _join_rows(join.left, streams) if isinstance(join.left, Join) else next(streams)
    sides = {LEFT: left, RIGHT: next(streams)}
    connection = duckdb_connection()
    for side, rows in sides.items():
        connection.register(f"{side}_rows", rows.table)
    columns = [f'{_either(k)} AS "{k.name}"' for k in join.keys]
    arguments: dict[str, str | None] = {}
    for number, pair in enumerate(join.pairs):
        has_argument = pair.aggregate.argument is not None
        arguments[pair.aggregate.name] = f"pair_{number}" if has_argument else None
        columns += [f"{_value(pair, sides)} AS pair_{number}"] if has_argument else []
    on = [f'l."{a}" = r."{b}"' for a, b in join.on]
    on += [f'l."{c.left}" {as_duckdb_operator(c.operator)} r."{c.right}"' for c in join.compared]
    where = [_either(c) for c in join.conditions]
    pairs = connection.sql(
        f"SELECT {', '.join([*columns, '1 AS pair'])} FROM (SELECT *, true AS here FROM left_rows) l "
        f"{KINDS[join.preserved]} JOIN (SELECT *, true AS here FROM right_rows) r ON {' AND '.join(on)} "
        f"WHERE {' AND '.join([*where, 'true'])}"
    ).to_arrow_table()
    for key in join.answers.keys:
        pairs = pairs.set_column(pairs.column_names.index(key.name), key.name, pairs[key.name].cast(key.type))
    return _SideRows(pairs, arguments)


def _value(pair: PairAggregate, sides: Mapping[str, _SideRows]) -> str:
    """Return the argument of an aggregate over pairs, for a pair and for a record without a partner."""
    left, right = (_argument(sides[side], side, name) for side, name in ((LEFT, pair.left), (RIGHT, pair.right)))
    own, other = (right, left) if pair.carries == RIGHT else (left, right)
    value = f"{left} * {right}" if pair.carries == BOTH else f"CASE WHEN {other} IS NOT NULL THEN {own} END"
    alone = {side: _argument(sides[side], side, pair.alone(side)) for side in SIDES}
    return f"CASE WHEN r.here IS NULL THEN {alone[LEFT]} WHEN l.here IS NULL THEN {alone[RIGHT]} ELSE {value} END"


def _either(key: JoinedKey | RowCondition) -> str:
    """Return a key of a side, or that of the other side which stands for it where the side is missing."""
    alone = _column(OTHER[key.side], key.alone)
    return f"CASE WHEN {key.side[0]}.here THEN {_column(key.side, key.source)} ELSE {alone} END"


def _column(side: str, name: str | None) -> str:
    return "NULL" if name is None else f'{side[0]}."{name}"'


def as_duckdb_operator(operator: str) -> str:
    """Return a comparison as DuckDB writes it."""
    return as_duckdb(f"a {operator} b").removeprefix("a ").removesuffix(" b")


def _argument(rows: _SideRows, side: str, aggregate: str | None) -> str:
    """Return the argument of an aggregate of a side; 1 where every record counts, null where none does."""
    if aggregate is None:
        return "NULL"
    column = rows.arguments[aggregate]
    return "1" if column is None else f"{side[0]}.{column}"
