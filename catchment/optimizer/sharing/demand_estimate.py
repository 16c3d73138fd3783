"""What one demand sends, estimated from what is known of its stream.

Two ways to know how many groups the records of a slice form. From counts per column: values are then assumed to be
equally likely and independent, which is an upper bound for skewed keys. From a sample of the records, where there is
one: `catchment.optimizer.sharing.record_sample`.

Without a sample bytes are those before compression, so that one ratio corrects them all. What hardly shrinks counts for
more: sketches, and what goes around each message however few rows it has. With a sample some partials are packed, in
which the columns behind an expression stand in for it; where they cannot, bytes are guessed to shrink as usual.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import pyarrow as pa

from catchment.aggregates.shed_terms import terms_in
from catchment.aggregates.sketches import SketchAggregate
from catchment.errors import CatchmentError
from catchment.optimizer.normal_form.expressions import columns_of
from catchment.optimizer.normal_form.predicates import read_comparison
from catchment.optimizer.sharing.demand import FragmentDemand, width_of
from catchment.optimizer.sharing.equally_likely import expected_groups
from catchment.optimizer.sharing.record_sample import LEAST_RECORDS, RecordSample
from catchment.query.sql.dialect import read_expression
from catchment.timeline import SECOND_US

DEFAULT_DISTINCT = 100  # distinct values of a column about which nothing is declared
DEFAULT_SELECTIVITY = 1 / 3  # selectivity of a condition that is not an equality
SLICE_BYTES = 8  # size of the slice column of a partial
PACKED_SHARE = 0.4  # about what is left of columns of keys and numbers when they are compressed
MESSAGE_BYTES = 300 / PACKED_SHARE  # what goes around the rows of a message: the schema, sizes and counts per slice
HEADER_BYTES = 100  # the part of it that is not in the packed table


@dataclass(frozen=True)
class StreamStatistics:
    """What is known about one stream; columns are named by their names, those of tables as TABLE.COLUMN."""

    rows_per_s: Mapping[str, float]
    row_bytes: float
    distinct: Mapping[str, float] = field(default_factory=dict)
    selectivity: Mapping[str, float] = field(default_factory=dict)
    wire_ratio: float = 1.0
    batches_per_s: float | None = None  # micro-batches per second of event time; None where it is not measured
    samples: Mapping[str, RecordSample] = field(default_factory=dict)  # by site
    _merged: dict[tuple[str, ...], RecordSample] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rows_at(self, sites: Sequence[str]) -> float:
        """Return the records per second at some sites together."""
        return sum(self.rows_per_s.get(site, 0.0) for site in sites)

    def sample_of(self, sites: Sequence[str]) -> RecordSample | None:
        """Return the sample of the records at some sites together; None where one has none, or they are too few."""
        place = tuple(sites)
        if not place or not self.samples.keys() >= set(place):
            return None
        if place not in self._merged:
            self._merged[place] = RecordSample.merge([self.samples[site] for site in place])
        found = self._merged[place]
        return found if found.rows >= LEAST_RECORDS else None


@dataclass(frozen=True)
class DemandEstimate:
    """Estimates the groups and bytes of one demand, by a sample of its records if there is one."""

    demand: FragmentDemand
    known: StreamStatistics
    sample: RecordSample | None

    def bytes_per_s(self, rows_per_s: float) -> float:
        """Return the bytes per second of the partials: each group of each slice once."""
        kept = self._kept(rows_per_s / self._slices_per_s)  # per slice
        groups = self._groups_of([k.sql for k in self.demand.keys], kept)
        if not groups:
            return 0.0
        groups_per_s = groups * self._slices_per_s
        messages_per_s = self._messages_per_s(groups_per_s)
        packed = self._packed_row_bytes(kept, self._slices_per_s / messages_per_s)
        if packed is not None:
            return (groups_per_s * packed + messages_per_s * HEADER_BYTES) * self.known.wire_ratio
        sent = groups_per_s * self._row_bytes(kept, groups) + messages_per_s * MESSAGE_BYTES
        return sent * self.known.wire_ratio * (1.0 if self.sample is None else PACKED_SHARE)

    def groups(self, rows: float) -> float:
        """Return how many groups the records that the conditions keep meet."""
        return self._groups_of([k.sql for k in self.demand.keys], self._kept(rows))

    @property
    def _slices_per_s(self) -> float:
        slicing = self.demand.slicing
        return len(slicing.cuts_us) * SECOND_US / slicing.period_us

    def _groups_of(self, expressions: Sequence[str], kept: float) -> float:
        """Return how many groups by some expressions so many records meet, of those that the conditions keep.

        Of an expression that is no column of the sample two bounds are known: as many groups as the columns that it
        depends on have, and as many values of it for each group of the others.
        """
        if self.sample is None:
            return expected_groups(math.prod(map(self._distinct, expressions)), kept)
        counted = {column for sql in expressions if (column := self.sample.column_of(sql)) is not None}
        others = [sql for sql in expressions if self.sample.column_of(sql) is None]
        found = self._sampled(counted, kept)
        if not others:
            return found
        apart = min(kept, found * math.prod(map(self._distinct, others)))
        behind = {column for sql in others for column in self._columns_behind(sql)}
        return min(apart, self._sampled(counted | behind, kept)) if None not in behind else apart

    def _sampled(self, columns: Collection[str | None], kept: float) -> float:
        assert self.sample is not None
        return self.sample.estimate_groups([c for c in columns if c is not None], self._decided, kept)

    def _columns_behind(self, sql: str) -> list[str | None]:
        """Return the columns of the stream that decide an expression: a look-up is decided by what it is joined on."""
        assert self.sample is not None
        found: list[str | None] = []
        for column in columns_of(sql):
            own = self.sample.column_of(column)
            table = read_expression(column).parts[0].name  # type: ignore[attr-defined]
            joined = [c for k in self.demand.source.lookups if k.alias == table for c in columns_of(k.on)]
            through = [c for c in map(self.sample.column_of, joined) if c is not None]
            found += [own] if own is not None else through or [None]
        return found

    @cached_property
    def _decided(self) -> tuple[str, ...]:
        """The conditions that the records of the sample decide."""
        sample = self.sample
        return () if sample is None else tuple(c for c in self.demand.conditions if sample.can_decide(c))

    def _kept(self, rows: float) -> float:
        """Return how many of some records the conditions keep."""
        kept = rows * math.prod(self._selectivity(c) for c in self.demand.conditions if c not in self._decided)
        if self.sample is None or not self._decided:
            return kept
        return kept * max(self.sample.count_kept(self._decided), 1) / self.sample.rows

    def _messages_per_s(self, groups_per_s: float) -> float:
        """Return how many messages carry the groups: one per slice, or per micro-batch where one ends several."""
        batches_per_s = self.known.batches_per_s
        return min(self._slices_per_s, groups_per_s, math.inf if batches_per_s is None else batches_per_s)

    def _row_bytes(self, kept: float, groups: float) -> float:
        """Return about how many bytes one partial takes on the wire, before compression, of some groups of a slice."""
        sketches = [a for a in self.demand.aggregates if isinstance(a, SketchAggregate)]
        states = (s.type for a in self.demand.aggregates if a not in sketches for s in a.states)
        sketched = sum(a.size_bytes(self._values_in_group(a.argument or "", kept, groups)) for a in sketches)
        plain = sum(map(width_of, (*(k.type for k in self.demand.keys), *states)))
        return SLICE_BYTES + plain + sketched / PACKED_SHARE

    def _packed_row_bytes(self, kept: float, message_slices: float) -> float | None:
        """Return the bytes of a partial as it is packed, by the sample; None where that does not tell it."""
        if self.sample is None or terms_in(self.demand.aggregates):
            return None
        keys = {k.name: self._stand_in(k.sql) for k in self.demand.keys}
        arguments = {a: self._stand_in(a.argument or "") for a in self.demand.aggregates}
        columns = {name: column for name, column in keys.items() if column is not None}
        if len(columns) < len(keys) or any(c is None for a, c in arguments.items() if isinstance(a, SketchAggregate)):
            return None
        try:
            return self.sample.packed_row_bytes(columns, arguments, self._decided, kept, message_slices)
        except (pa.ArrowException, CatchmentError):  # such values cannot stand in
            return None

    def _stand_in(self, sql: str) -> str | None:
        """Return a column whose values an expression has, or that decides it."""
        assert self.sample is not None
        behind = [c for c in self._columns_behind(sql) if c is not None] if sql else []
        return self.sample.column_of(sql) or next(iter(behind), None)

    def _values_in_group(self, argument: str, kept: float, groups: float) -> float:
        """Return how many values of an expression a group has on average, if so many records form so many groups."""
        if self.sample is None or self.sample.column_of(argument) is None:
            return min(kept / groups, self._distinct(argument))
        return self._groups_of([*(k.sql for k in self.demand.keys), argument], kept) / groups

    def _distinct(self, sql: str) -> float:
        """Return the distinct values of an expression: the product of those of its columns, fewer under an equality."""
        columns = [short_name(c, self.demand.source.stream) for c in columns_of(sql)]
        possible = math.prod(self.known.distinct.get(c, DEFAULT_DISTINCT) for c in columns)
        for condition in self.demand.conditions:
            found = read_comparison(condition)
            if found is not None and found.subject == sql and found.operator in ("=", "in"):
                possible = min(possible, len(found.values))
        return max(possible, 1.0)

    def _selectivity(self, condition: str) -> float:
        columns = [short_name(c, self.demand.source.stream) for c in columns_of(condition)]
        declared = [self.known.selectivity[c] for c in columns if c in self.known.selectivity]
        if declared:
            return min(declared)
        found = read_comparison(condition)
        if found is not None and found.operator in ("=", "in"):
            distinct = math.prod(self.known.distinct.get(c, DEFAULT_DISTINCT) for c in columns)
            return min(1.0, len(found.values) / max(1.0, distinct))
        return DEFAULT_SELECTIVITY


@cache
def short_name(column: str, stream: str) -> str:
    """Return the name of a column in `statistics.toml`: x for `stream`.`x`, table.x for `table`.`x`."""
    parts = [p.name for p in read_expression(column).parts]  # type: ignore[attr-defined]
    return str(parts[-1]) if parts[0] == stream else ".".join(parts[:2])
