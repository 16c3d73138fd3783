"""Answers over pairs, computed from the partials of all streams of a join: tables in, tables out.

A pairing is a table of partials of all streams (`catchment.query.join`). Law: `answer` of the pairing of any records
equals the aggregates over all pairs of a left and a right record of the window with equal join keys that meet the
comparisons of the join; a null equals and compares with nothing. In an outer join it also has the records of a
preserved side that have no partner, with nulls for the other side. Partials are paired, never records, in blocks of at
most `MAX_PAIRS` (or the pairs of one partial, if it has more), so that memory is bounded by the partials and answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catchment.aggregates import partials
from catchment.aggregates.pair_states import compare, multiply, no_records, repeat
from catchment.arrays import Mask
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.join import BOTH, LEFT, RIGHT, SIDE_COLUMN, SIDES, Join, PairAggregate, own_name

MAX_PAIRS = 500_000  # pairs of partials per block

Rows = NDArray[np.int64]


def widen(join: Join, place: str, table: pa.Table) -> pa.Table:
    """Return the partials of one stream (slice, keys, states) as rows of the pairing."""
    n = table.num_rows
    found = {own_name(place, c): table[c] for c in table.column_names if c != SLICE_COLUMN}
    found |= {SLICE_COLUMN: table[SLICE_COLUMN], SIDE_COLUMN: pa.array([place] * n, pa.string())}
    schema = join.pairing.schema
    return pa.table([found.get(f.name, pa.nulls(n, f.type)) for f in schema], names=schema.names).cast(schema)


def answer(join: Join, rows: pa.Table) -> pa.Table:
    """Return the answers (keys, states) of a window from its rows of the pairing."""
    return _combine(join, _all_blocks(join, side_of(join, LEFT, rows), side_of(join, RIGHT, rows)))


def changed_answers(join: Join, rows: pa.Table, changed: pa.Table, whole: pa.Table) -> pa.Table:
    """Return those of all answers that the changed rows have a part in."""
    touched = _touched(join, rows, changed)
    keys = list(join.answers.key_names)
    if not touched.num_rows:
        return touched
    return partials.select_matching(whole, touched.select(keys)) if keys else whole


def _touched(join: Join, rows: pa.Table, changed: pa.Table) -> pa.Table:
    """Return answers with the keys that the changed rows have a pair of; their states mean nothing."""
    inner = join.left
    left = _touched(inner, _within(rows), _within(changed)) if isinstance(inner, Join) else side_of(join, LEFT, changed)
    parts = [
        pair(join, left, side_of(join, RIGHT, rows)),
        pair(join, side_of(join, LEFT, rows), side_of(join, RIGHT, changed)),
    ]
    return pa.concat_tables(parts)


def side_of(join: Join, side: str, rows: pa.Table) -> pa.Table:
    """Return the partials (keys, states) of a side, under the side's own names; of a join, its answers."""
    if side == LEFT and isinstance(join.left, Join):
        return answer(join.left, _within(rows))
    mine = rows.filter(pc.equal(rows[SIDE_COLUMN], side))
    names = [f.name for f in join.side(side).schema if f.name != SLICE_COLUMN]
    return mine.select([own_name(side, n) for n in names]).rename_columns(names)


def _within(rows: pa.Table) -> pa.Table:
    """Return the rows of a pairing that are of the join on its left side, as a pairing of that join."""
    prefix = own_name(LEFT, "")
    mine = rows.filter(pc.starts_with(rows[SIDE_COLUMN], prefix))
    own = mine.select([name for name in mine.column_names if name.startswith(prefix)])
    places = pc.utf8_slice_codeunits(mine[SIDE_COLUMN], len(prefix))
    return own.rename_columns([name.removeprefix(prefix) for name in own.column_names]).append_column(
        SIDE_COLUMN, places
    )


def pair(join: Join, left: pa.Table, right: pa.Table) -> pa.Table:
    """Return the answers over all pairs of the partials of two sides."""
    return _combine(join, (_pairs_block(join, left, right, i, j) for i, j in _matches(join, left, right)))


def _all_blocks(join: Join, left: pa.Table, right: pa.Table) -> Iterator[pa.Table]:
    """Yield the answers over all pairs, in blocks, then over the partials of preserved sides without a partner."""
    sides = {LEFT: left, RIGHT: right}
    is_alone = {side: np.ones(table.num_rows, dtype=bool) for side, table in sides.items()}
    for i, j in _matches(join, left, right):
        is_alone[LEFT][i] = False
        is_alone[RIGHT][j] = False
        yield _pairs_block(join, left, right, i, j)
    for side in join.preserved:
        yield _alone_block(join, side, sides[side].filter(pa.array(is_alone[side])))


def _combine(join: Join, blocks: Iterable[pa.Table]) -> pa.Table:
    keys = join.answers.key_names
    aggregates = join.answers.aggregates
    parts = [partials.combine(block, keys, aggregates) for block in blocks if block.num_rows]
    return partials.combine(pa.concat_tables(parts), keys, aggregates) if parts else _schema(join).empty_table()


def _schema(join: Join) -> pa.Schema:
    return pa.schema([f for f in join.answers.schema if f.name != SLICE_COLUMN])


def _join_keys(join: Join, side: str) -> list[str]:
    return [names[SIDES.index(side)] for names in join.on]


def _matches(join: Join, left: pa.Table, right: pa.Table) -> Iterator[tuple[Rows, Rows]]:
    """Yield the pairs of rows with equal join keys that meet the comparisons, in blocks."""
    names = [f"on_{i}" for i in range(len(join.on))]
    asked = [t.select(_join_keys(join, s)).rename_columns(names) for s, t in zip(SIDES, (left, right), strict=True)]
    codes, _ = partials.number_groups(pa.concat_tables(asked), names)
    mine = np.where(_has_all(asked[0]), codes[: left.num_rows], -1)
    theirs = np.where(_has_all(asked[1]), codes[left.num_rows :], -2)
    order = np.argsort(theirs, kind="stable")
    first = np.searchsorted(theirs[order], mine, side="left")
    count = np.searchsorted(theirs[order], mine, side="right") - first
    for rows in _blocks(count):
        each = count[rows]
        within = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
        i, j = np.repeat(rows, each), order[np.repeat(first[rows], each) + within]
        holds = _compared(join, left, right, i, j)
        yield i[holds], j[holds]


def _has_all(keys: pa.Table) -> Mask:
    """Return which rows have no null."""
    found = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        found &= np.asarray(column.is_valid())
    return found


def _blocks(count: Rows) -> Iterator[Rows]:
    """Yield the rows that have pairs, in runs of at most `MAX_PAIRS` pairs."""
    rows = np.flatnonzero(count)
    if rows.size:
        ends = np.cumsum(count[rows])
        yield from np.split(rows, np.flatnonzero(np.diff(ends // MAX_PAIRS)) + 1)


def _compared(join: Join, left: pa.Table, right: pa.Table, i: Rows, j: Rows) -> Mask:
    """Return which pairs meet the comparisons of the join; a null compares with nothing."""
    holds = np.ones(len(i), dtype=bool)
    for c in join.compared:
        mine, theirs = left[c.left].take(pa.array(i)), right[c.right].take(pa.array(j))
        holds &= np.asarray(compare(partials.one_array(mine), c.operator, partials.one_array(theirs)))
    return holds


def _pairs_block(join: Join, left: pa.Table, right: pa.Table, i: Rows, j: Rows) -> pa.Table:
    """Return one answer per pair of rows, of those that WHERE keeps."""
    kept = np.ones(len(i), dtype=bool)
    for c in join.conditions:
        holds = left[c.source].take(pa.array(i)) if c.side == LEFT else right[c.source].take(pa.array(j))
        kept &= np.asarray(holds.fill_null(False))
    left, right = left.take(pa.array(i[kept])), right.take(pa.array(j[kept]))
    sides = {LEFT: left, RIGHT: right}
    columns = [sides[k.side][k.source] for k in join.keys]
    columns += [state for p in join.pairs for state in _states(join, p, left, right)]
    return pa.table(columns, schema=_schema(join))


def _alone_block(join: Join, side: str, table: pa.Table) -> pa.Table:
    """Return one answer per partial of a side that has no partner, of those that WHERE keeps."""
    for c in join.conditions:
        table = table.filter(table[c.source if c.side == side else c.alone].fill_null(False))
    schema = _schema(join)
    columns = []
    for key in join.keys:
        name = key.source if key.side == side else key.alone
        columns.append(pa.nulls(table.num_rows, schema.field(key.name).type) if name is None else table[name])
    for made in join.pairs:
        name = made.alone(side)
        if name is None:
            columns += no_records(made.aggregate, table.num_rows)
        else:
            columns += _own_states(join, side, name, table)
    return pa.table(columns, schema=schema)


def _states(join: Join, made: PairAggregate, left: pa.Table, right: pa.Table) -> Sequence[pa.Array]:
    lefts = _own_states(join, LEFT, made.left, left)
    rights = _own_states(join, RIGHT, made.right, right)
    if made.carries == BOTH:
        return multiply(made.aggregate, lefts, rights)
    own, counts = (lefts, rights) if made.carries == LEFT else (rights, lefts)
    return repeat(made.aggregate, own, np.asarray(counts[0].fill_null(0)))


def _own_states(join: Join, side: str, name: str, table: pa.Table) -> list[pa.Array]:
    aggregate = next(a for a in join.side(side).aggregates if a.name == name)
    return [partials.one_array(table[s.name]) for s in aggregate.states]
