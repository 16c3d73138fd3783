"""The second round of a final window: what of its estimates can be made exact, and the rows in which they are.

When a window is final, every estimate in it is of certain records. A second round asks the sites for the few values
that decide a percentile, and for all distinct hashes of a distinct count, as far as `repair_max_bytes` allows, by a
view of its own (`catchment.query.narrowed_view`). Its rows are compared here with what was published: an exact answer
takes the place of an estimate only if no site is missing and it is over equally many records, so that all columns of a
row are of the same ones: records that came too late are in the histories and in no answer. Where a view with a distinct
count does not count its records, no late one of the row may be registered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.bounded_sets import CountDistinct
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.second_round import RankIntervals, find_intervals, settle
from catchment.center.events import Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.write import ResultTables
from catchment.query.fragment import Fragment
from catchment.query.narrowed_view import HELD_RECORDS, NarrowedRow, count_of_records, place_of_estimate
from catchment.units import format_size

HASH_BYTES = 8
DUE = "its estimates are about to be made exact in a second round"
DONE = "its estimates were made exact in a second round, from the histories of the sites"
STAYS = "it stays an estimate"


@dataclass(frozen=True)
class RoundRule:
    """How the estimates of a view are made exact: how much may travel for a window; or why they stay estimates.

    `copies` is how often a distinct value may travel: once per site and slice. With `whole_windows` a revision has all
    rows of its window, because only some of them are published.
    """

    max_bytes: int
    copies: int = 1
    refusal: str | None = None
    whole_windows: bool = False


@dataclass(frozen=True)
class WindowRound:
    """Which aggregates of a window a second round makes exact, by their place, and what the window is told of it."""

    places: tuple[int, ...]
    words: str


def assess_round(fragment: Fragment, rule: RoundRule, rows: pa.Table) -> WindowRound | None:
    """Return what a second round is to do for the rows of a final window; None if nothing in them is an estimate.

    Aggregates are taken in order as long as all that travels for them is at most what is allowed.
    """
    estimated = {place: mask for place, mask in _estimates(fragment, rows) if mask.any()}
    if not estimated:
        return None
    if rule.refusal is not None:
        return WindowRound((), f"{STAYS}: {rule.refusal}")
    places: list[int] = []
    refused: list[str] = []
    left = rule.max_bytes
    for place, mask in estimated.items():
        aggregate = fragment.aggregates[place]
        needed = _needed_bytes(aggregate, partials_of(aggregate, rows.filter(pa.array(mask))), rule.copies)
        if needed <= left:
            places.append(place)
            left -= needed
        else:
            refused.append(f"{aggregate.name} would take {format_size(needed)}")
    stays = f"{STAYS}: {', '.join(refused)} of the {format_size(rule.max_bytes)} that repair_max_bytes allows"
    told = [*([DUE] if places else []), *([stays] if refused else [])]
    return WindowRound(tuple(places), "; ".join(told))


def has_estimates(fragment: Fragment, rows: pa.Table) -> bool:
    """Return whether anything in some rows is an estimate that a second round could make exact."""
    return any(mask.any() for _, mask in _estimates(fragment, rows))


def narrowed_rows(fragment: Fragment, places: Sequence[int], rows: pa.Table) -> Iterator[NarrowedRow]:
    """Yield the rows (window_start_us, keys, states) in which one of these aggregates is an estimate."""
    masks = {place: mask for place, mask in _estimates(fragment, rows) if place in places}
    keys = [rows[name].to_pylist() for name in fragment.key_names]
    starts = rows[WINDOW_COLUMN].to_pylist()
    sketches = {
        place: partials.one_array(rows[aggregate.states[1].name])
        for place, aggregate in enumerate(fragment.aggregates)
        if place in masks and isinstance(aggregate, Percentile)
    }
    for row in np.flatnonzero(np.logical_or.reduce(list(masks.values()))).tolist() if masks else ():
        mine = tuple(place for place, mask in masks.items() if mask[row])
        intervals: dict[int, RankIntervals] = {}
        for place, states in sketches.items():
            aggregate = fragment.aggregates[place]
            assert isinstance(aggregate, Percentile)
            if masks[place][row]:
                intervals[place] = find_intervals(aggregate, states[row].as_py())
        yield NarrowedRow(starts[row], tuple(column[row] for column in keys), mine, intervals)


def settle_window(
    again: Publish, target: ResultTables, source: ResultTables, former: Mapping[str, Any] | None, whole_windows: bool
) -> Publish | None:
    """Return the revision of a window in which estimates are exact; None if it was never published.

    Where nothing of it could be made exact, its answer stands, and the reason says why.
    """
    if former is None:
        return None
    start_us = again.window.start_us
    rows = target.recall_answers([start_us]).drop_columns([WINDOW_COLUMN])
    found = source.recall_answers([start_us])
    stated = replace(
        again,
        query=target.query,
        status=former["status"],
        coverage=former["coverage"],
        missing_sites=tuple(former["missing_sites"]),
        late=None,
    )
    if again.missing_sites:
        lacking = ", ".join(again.missing_sites)
        return _unchanged(stated, rows, former, f"{STAYS}: histories lack records of {lacking}")
    settled = _Settled(target.fragment, source.fragment, rows, found, target.late_keys(start_us))
    settled.settle()
    why = _why_stays(settled.reasons)
    if not settled.changed:
        return _unchanged(stated, rows, former, f"{STAYS}: {why}" if why else DONE)
    new = settled.table()
    if not whole_windows:
        new = new.take(pa.array(sorted(settled.changed)))
    reason = f"{DONE}; {STAYS} in part: {why}" if why else DONE
    return replace(
        stated, revision=former["revision"] + 1, reason=reason, rows=new, replaces=whole_windows, has_answer=True
    )


def _unchanged(stated: Publish, rows: pa.Table, former: Mapping[str, Any], reason: str) -> Publish:
    return replace(
        stated, revision=former["revision"], reason=reason, rows=rows.slice(0, 0), replaces=False, has_answer=False
    )


class _Settled:
    """The rows of a window, in which estimates are replaced by what the rows of a second round say."""

    def __init__(
        self,
        fragment: Fragment,
        narrowed: Fragment,
        rows: pa.Table,
        found: pa.Table,
        late_keys: Sequence[tuple[Any, ...]],
    ) -> None:
        self._fragment = fragment
        self._narrowed = narrowed
        self._rows = rows
        self._found = found
        keys = zip(*(found[name].to_pylist() for name in narrowed.key_names), strict=True)
        self._row_of: dict[tuple[str, ...], int] = {_hashable(key): row for row, key in enumerate(keys)}
        if not narrowed.keys and found.num_rows:
            self._row_of[()] = 0
        self._late = {_hashable(key) for key in late_keys}
        self._states: dict[str, list[Any]] = {}
        self.changed: set[int] = set()
        self.reasons: Counter[str] = Counter()

    def settle(self) -> None:
        """Replace what can be."""
        keys = [self._rows[name].to_pylist() for name in self._fragment.key_names]
        masks = dict(_estimates(self._fragment, self._rows))
        for aggregate in (a for a in self._narrowed.aggregates if a.name != HELD_RECORDS):
            place = place_of_estimate(aggregate.name)
            for row in np.flatnonzero(masks[place]).tolist():
                key = _hashable(tuple(column[row] for column in keys))
                other = self._row_of.get(key)
                if other is not None:  # else it is of another round
                    self._settle_row(place, aggregate, row, other, key in self._late)

    def table(self) -> pa.Table:
        """Return the rows with what was replaced."""
        rows = self._rows
        for name, values in self._states.items():
            index = rows.column_names.index(name)
            rows = rows.set_column(index, rows.schema.field(index), pa.array(values, rows.schema.field(index).type))
        return rows

    def _settle_row(self, place: int, narrowed: Aggregate, row: int, other: int, has_late: bool) -> None:
        aggregate = self._fragment.aggregates[place]
        states = partials_of(narrowed, self._found.slice(other, 1))
        if narrowed.are_estimates(states)[0]:
            self.reasons["more values lie where its answer is than may travel"] += 1
        elif isinstance(aggregate, CountDistinct):
            counted = set(self._rows[aggregate.states[0].name][row].as_py())
            found = set(states[0][0].as_py() or ())
            others = self._why_other_records(row, other, has_late)
            if others is not None:
                self.reasons[others] += 1
            elif counted <= found:
                self._replace(aggregate, row, [aggregate.counted(len(found))])
            else:
                self.reasons["histories lack values that were counted"] += 1
        elif isinstance(aggregate, Percentile):
            sketch = self._rows[aggregate.states[1].name][row].as_py()
            items = states[0][0].as_py() or []
            values = np.array([item["value"] for item in items], dtype=np.float64)
            counts = np.array([item["count"] for item in items], dtype=np.int64)
            settled = settle(aggregate, find_intervals(aggregate, sketch), values, counts)
            if isinstance(settled, str):
                self.reasons[settled] += 1
            else:
                self._replace(aggregate, row, [[{"value": v, "count": c} for v, c in settled], None])

    def _why_other_records(self, row: int, other: int, has_late: bool) -> str | None:
        """Return why the histories hold other records of a row than were merged; None if they hold the same."""
        counts = count_of_records(self._fragment)
        if counts is None or HELD_RECORDS not in (a.name for a in self._narrowed.aggregates):
            return "records that came too late for it are in the histories" if has_late else None
        (state,) = counts.states
        merged = self._rows[state.name][row].as_py()
        held = self._found[next(a for a in self._narrowed.aggregates if a.name == HELD_RECORDS).states[0].name][other]
        if held.as_py() == merged:
            return None
        return f"histories hold {held.as_py()} records of it, and {merged} were merged"

    def _replace(self, aggregate: Aggregate, row: int, state: Sequence[Any]) -> None:
        for column, value in zip(aggregate.states, state, strict=True):
            self._states.setdefault(column.name, self._rows[column.name].to_pylist())[row] = value
        self.changed.add(row)


def partials_of(aggregate: Aggregate, rows: pa.Table) -> list[pa.Array]:
    """Return the states of an aggregate in some rows."""
    return [partials.one_array(rows[state.name]) for state in aggregate.states]


def _estimates(fragment: Fragment, rows: pa.Table) -> Iterator[tuple[int, Any]]:
    for place, aggregate in enumerate(fragment.aggregates):
        if isinstance(aggregate, Percentile | CountDistinct):
            yield place, aggregate.are_estimates(partials_of(aggregate, rows))


def _needed_bytes(aggregate: Aggregate, states: list[pa.Array], copies: int) -> int:
    if isinstance(aggregate, Percentile):
        return sum(find_intervals(aggregate, sketch).most_bytes for sketch in states[1].to_pylist())
    values = sum(aggregate.lower(states).to_pylist())
    return int(HASH_BYTES * copies * values)


def _why_stays(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} ({count} rows)" if count > 1 else reason for reason, count in sorted(reasons.items()))


def _hashable(key: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(map(repr, key))
