"""Results: what was published, every revision of it, as Delta tables that any engine reads.

Two tables a query. `results/<query>`: one row a (window, key, revision), only the rows that a revision changed,
with the aggregate state that late partials are merged into. `windows/<query>`: one row a published revision or
status of a window, with its reason. A third, `late/<query>`, registers partials that are not merged: they came after
the repair horizon, or the query asks for no repair.

A row's `bound` is the error of its sketch and of what is not in yet. What is not in is known for whole windows: in a
query with keys, a row's bound is unknown while something is, unless the key is the source of the records.

Every append carries the number of the enactment it belongs to as its application transaction, so that enacting
again writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from numpy.typing import NDArray

from catchment.aggregates import partials
from catchment.aggregates.shed_terms import ShedTerms, shed_terms
from catchment.center.events import EARLY, EXACT, FINAL, Expired, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.recent import RecentRows
from catchment.errors import CenterError
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.terms import scaled

INSTANT = pa.timestamp("us", tz="UTC")
APPLICATION = "catchment"
DELTA = 0.05

# Columns that every result table has beside the user's own.
RESERVED = (
    "window_start", "window_end", "coverage", "bound", "status", "revision",
    "published_at", "missing_sites", "missing_sources", "retracted", "state",
)  # fmt: skip
COMPACT_ABOVE_FILES = 64
_NAMES = pa.list_(pa.string())
_NOTHING = "nothing"  # the one field of an empty struct: Delta has no struct without fields

Finish = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class ResultTables:
    """The tables of one query. `finish` turns (window_start, window_end, keys..., aggregates...) into the user's
    columns and a boolean `retracted`: whether HAVING leaves the row out."""

    folder: Path
    query: str
    fragment: Fragment
    finish: Finish = field(compare=False)
    bounds: tuple[tuple[str, float | None], ...] = ()  # user's column -> own error of its aggregate, if it has one
    sources: tuple[tuple[str, str], ...] = ()  # user's column -> the aggregate that it is, where it is one
    delta: float = DELTA  # the chance that a sampled answer misses its bound
    source_key: str | None = None  # the key that is the source of the records, if one is
    recent: RecentRows = field(default_factory=RecentRows, compare=False)
    kinds: ClassVar[tuple[str, ...]] = ("results", "windows")  # the tables that grow with every window

    def publish(self, sequence: int, revisions: Sequence[Publish]) -> None:
        """Append what one enactment publishes; nothing if it was appended before."""
        changed = [r for r in revisions if r.rows.num_rows]
        if changed:
            self._append("results", sequence, lambda: self._result_rows(changed))
        for revision in changed:
            self.recent.note(revision.window.start_us, revision.rows)
        if revisions:
            self._append("windows", sequence, lambda: self._window_rows(sequence, revisions))

    def register_late(self, sequence: int, expired: Sequence[Expired]) -> None:
        """Register partials that came too late to be merged."""
        if expired:
            parts = [_late_rows(e) for e in expired]
            self._append("late", sequence, lambda: pa.concat_tables(parts))

    def recall(self, wanted: pa.Table) -> pa.Table:
        """The newest published state of (window_start_us, keys...): a table of those with the states."""
        known = self.recent.recall(wanted)
        if known is None:
            return self._recall("results", self.fragment, wanted)
        schema = _recalled_schema(self.fragment)
        return known.select(schema.names).cast(schema)

    def _recall(self, kind: str, fragment: Fragment, wanted: pa.Table) -> pa.Table:
        schema = _recalled_schema(fragment)
        table = self._open(kind)
        if table is None:
            return schema.empty_table()
        starts = pc.unique(wanted[WINDOW_COLUMN]).cast(pa.timestamp("us")).cast(INSTANT)
        found = table.to_pyarrow_table(
            columns=["window_start", "revision", "state"], filters=pc.field("window_start").isin(starts)
        )
        return partials.select_matching(_flatten(_newest(found)), wanted).cast(schema)

    def compact(self) -> None:
        """Fold many small files into few; readers are not disturbed."""
        for kind in self.kinds:
            table = self._open(kind)
            if table is not None and len(table.file_uris()) > COMPACT_ABOVE_FILES:
                table.optimize.compact()

    def _result_rows(self, revisions: Sequence[Publish]) -> pa.Table:
        """The rows of all revisions; finished together, because finishing may be a job of its own."""
        lowered = [self._lowered(r) for r in revisions]
        # In one piece: of hundreds of small ones fewer rows once came back from Spark, and each would be a task.
        together = pa.concat_tables([table for table, _ in lowered]).combine_chunks()
        user, at, tables = self.finish(together), 0, []
        if user.num_rows != together.num_rows:
            raise CenterError(
                f"{together.num_rows} rows of {self.query!r} were finished, and {user.num_rows} came back"
            )
        for revision, (_, errors) in zip(revisions, lowered, strict=True):
            tables.append(self._rows(revision, user.slice(at, revision.rows.num_rows), errors))
            at += revision.rows.num_rows
        return pa.concat_tables(tables)

    def _lowered(self, revision: Publish) -> tuple[pa.Table, dict[str, NDArray[np.float64]]]:
        rows = revision.rows
        lowered = partials.lower(rows, self.fragment.key_names, self.fragment.aggregates)
        lowered, errors = self._scaled(rows, lowered, self._lowest_rates(revision))
        return _with_bounds(lowered, revision), errors

    def _rows(self, revision: Publish, user: pa.Table, errors: Mapping[str, NDArray[np.float64]]) -> pa.Table:
        rows, n = revision.rows, revision.rows.num_rows
        meta = {
            "window_start": instants(revision.window.start_us, n),
            "window_end": instants(revision.window.end_us, n),
            **{c: user[c] for c in user.column_names if c not in ("retracted", "window_start", "window_end")},
            "coverage": self._row_coverage(revision),
            "bound": self._row_bound(revision, n, errors),
            "status": pa.array([revision.status] * n, pa.string()),
            "revision": pa.array([revision.revision] * n, pa.int32()),
            "published_at": instants(revision.published_us, n),
            "missing_sites": pa.array([list(revision.missing_sites)] * n, _NAMES),
            "missing_sources": pa.array([_source_names(revision)] * n, _NAMES),
            "retracted": user["retracted"],
            "state": state_of(rows, self.fragment),
        }
        return pa.table(meta)

    def _window_rows(self, sequence: int, revisions: Sequence[Publish]) -> pa.Table:
        rows = _window_rows(sequence, revisions)
        return rows.add_column(rows.column_names.index("reason"), "bound", self._bound(revisions))

    def _lowest_rates(self, revision: Publish) -> float | NDArray[np.float64]:
        """The lowest rate at which the records of each row were sampled: by group, where rates were by group."""
        if revision.group_rates is None:
            return revision.lowest_rate
        others, named = revision.group_rates
        groups = partials.one_array(revision.rows[self.fragment.key_names[0]]).cast(pa.string())
        places = pc.index_in(groups, value_set=pa.array([group for group, _ in named], pa.string()))
        rates = np.array([*(rate for _, rate in named), others])
        return np.asarray(rates[np.asarray(places.fill_null(len(named)))])

    def _scaled(
        self, rows: pa.Table, lowered: pa.Table, lowest_rate: float | NDArray[np.float64]
    ) -> tuple[pa.Table, dict[str, NDArray[np.float64]]]:
        """The lowered rows with what was sampled scaled up, and by how much each aggregate may therefore be off."""
        beside = {a.name for a in self.fragment.aggregates if isinstance(a, ShedTerms)}
        errors = {}
        for aggregate in self.fragment.aggregates:
            if shed_terms(aggregate).name in beside:
                values, errors[aggregate.name] = scaled(rows, aggregate, self.delta, lowest_rate)
                place = lowered.column_names.index(aggregate.name)
                lowered = lowered.set_column(place, lowered.schema.field(place), values)
        return lowered, errors

    def _row_bound(self, revision: Publish, n: int, errors: Mapping[str, NDArray[np.float64]]) -> pa.Array:
        """As for a window, with what sampling adds to each row's error; a column that is computed from several
        sampled ones has no bound."""
        worst = np.max([*errors.values()], axis=0) if errors else np.zeros(n)
        computed = np.where(worst > 0.0, np.inf, 0.0)
        columns, sources = {}, dict(self.sources)
        for column, own in self.bounds:
            added = errors.get(sources.get(column, ""), computed) + self._late_rows(column, revision)
            unknown = ~np.isfinite(added) | (own is None or bool(revision.missing_sites))
            columns[column] = pa.array(np.where(unknown, 0.0, added + (own or 0.0)), mask=unknown)
        return _struct(columns, n)

    def _bound(self, revisions: Sequence[Publish]) -> pa.Array:
        """The error of each column over all rows: that of its sketch and of what is not in yet."""
        columns = {c: [self._error(c, own, r) for r in revisions] for c, own in self.bounds}
        return _struct({c: pa.array(errors, pa.float64()) for c, errors in columns.items()}, len(revisions))

    def _error(self, column: str, own: float | None, revision: Publish) -> float | None:
        """Unknown while a site, or what it has shed, is missing; else what is late adds to what the sketch has."""
        if revision.missing_sites or own is None or revision.lowest_rate < 1.0:
            return None
        late = self._late_error(column, revision)
        return None if late is None else own + late

    def _late_error(self, column: str, revision: Publish) -> float | None:
        """What the records that are not in yet may change of a column; None where that is not known."""
        if not revision.errors:
            return None if revision.status == EARLY else 0.0
        return dict(revision.errors).get(dict(self.sources).get(column, ""))

    def _late_rows(self, column: str, revision: Publish) -> NDArray[np.float64]:
        """The same row by row, infinite where it is not known: in a query with keys only of whole rows."""
        n, late = revision.rows.num_rows, self._late_error(column, revision)
        if self.fragment.keys and revision.errors:
            whole = self._row_coverage(revision).to_numpy() == 1.0 if self.source_key else np.zeros(n, dtype=bool)
            return np.where(whole, 0.0, np.inf)
        return np.full(n, np.inf if late is None else late)

    def _row_coverage(self, revision: Publish) -> pa.Array:
        """The window's coverage; row by row where the key is the source of the records and the sites are all in."""
        n = revision.rows.num_rows
        if self.source_key is None or not revision.sources or revision.missing_sites:
            return pa.array([revision.coverage] * n, pa.float64())
        lacking: dict[str, float] = {}
        for _, source, share in revision.sources:
            lacking[source] = max(lacking.get(source, 0.0), share)
        keys = revision.rows[self.source_key].cast(pa.string()).to_pylist()
        return pa.array([1.0 - lacking.get(str(k), 0.0) for k in keys], pa.float64())

    def _open(self, kind: str) -> DeltaTable | None:
        return open_table(self.folder / kind / self.query)

    def _append(self, kind: str, sequence: int, make: Callable[[], pa.Table]) -> None:
        table = self._open(kind)
        done = table.transaction_version(APPLICATION) if table is not None else None
        if done is not None and done >= sequence:
            return
        write_deltalake(
            self.folder / kind / self.query,
            _rebuilt(make()),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, sequence)]),
        )


def _recalled_schema(fragment: Fragment) -> pa.Schema:
    states = (f for f in fragment.schema if f.name != SLICE_COLUMN)
    return pa.schema([pa.field(WINDOW_COLUMN, pa.int64()), *states])


def _rebuilt(table: pa.Table) -> pa.Table:
    """The same table in fresh buffers: deltalake aborts the process on nested columns that are views into others."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def open_table(path: Path) -> DeltaTable | None:
    """A Delta table, or None where there is none yet."""
    return DeltaTable(path) if DeltaTable.is_deltatable(str(path)) else None


def read_results(folder: Path, query: str, *, revisions: str = "latest", state: bool = False) -> pa.Table:
    """Published rows. 'latest': the newest revision of each row, with the window's newest status and coverage,
    without rows that HAVING leaves out; 'all': every revision, as it was published."""
    if revisions not in ("latest", "all"):
        raise CenterError(f"revisions are 'latest' or 'all', not {revisions!r}")
    rows = _published(folder, "results", query).to_pyarrow_table()
    if revisions == "latest":
        rows = _newest(rows)
        rows = rows.filter(pc.invert(rows["retracted"])).drop_columns(["retracted"])
        rows = _with_newest_status(rows, read_windows(folder, query))
    rows = rows.sort_by([("window_start", "ascending"), ("revision", "ascending")])
    return rows if state else rows.drop_columns(["state"])


def read_windows(folder: Path, query: str) -> pa.Table:
    """Every published revision and status of every window, oldest first."""
    log = _published(folder, "windows", query).to_pyarrow_table()
    return log.sort_by([("entry", "ascending"), ("step", "ascending")])


def published_queries(folder: Path) -> list[str]:
    """The queries that have published."""
    return sorted(p.name for p in (folder / "results").glob("*") if DeltaTable.is_deltatable(str(p)))


def _published(folder: Path, kind: str, query: str) -> DeltaTable:
    found = open_table(folder / kind / query)
    if found is None:
        names = ", ".join(published_queries(folder)) or "none"
        hint = f"those that have: {names}"
        raise CenterError(f"query {query!r} has not published a window yet", where=str(folder), hint=hint)
    return found


def newest_windows(log: pa.Table) -> pa.Table:
    """The newest entry of each window in the log of windows."""
    codes, distinct = partials.group_codes(log, ["window_start"])
    last = np.zeros(distinct.num_rows, dtype=np.int64)
    np.maximum.at(last, codes, np.arange(log.num_rows))
    return log.take(pa.array(last)).sort_by("window_start")


def _with_newest_status(rows: pa.Table, log: pa.Table) -> pa.Table:
    """Rows with the newest word on their window; one whose window is not in the log yet keeps its own."""
    newest = newest_windows(log)
    place = pc.index_in(rows["window_start"], value_set=newest["window_start"].combine_chunks())
    fresh = {"status": place, "missing_sites": place, "missing_sources": place}
    # A row's coverage and bound are its own, unless the window has become whole since, or a site was missing: then
    # they are the window's. Its coverage does not tell: a row of which all is in may have waited for another batch.
    whole = pc.take(pc.is_in(newest["status"], value_set=pa.array([EXACT, FINAL])), place).combine_chunks()
    stale = pc.or_(whole, pc.greater(pc.list_value_length(rows["missing_sites"]), 0).combine_chunks())
    fresh["coverage"] = fresh["bound"] = pc.if_else(pc.fill_null(stale, False), place.combine_chunks(), None)
    for name, at in fresh.items():
        both = pa.concat_arrays([newest[name].combine_chunks(), rows[name].combine_chunks().cast(newest[name].type)])
        own = pa.array(np.arange(rows.num_rows) + newest.num_rows)
        rows = rows.set_column(rows.column_names.index(name), name, both.take(pc.coalesce(at, own)))
    return rows


def state_of(rows: pa.Table, fragment: Fragment) -> pa.Array:
    """A row's key and mergeable state, as one struct<key, partial>."""
    keys = {c: rows[c] for c in fragment.key_names}
    states = {c: rows[c] for c in rows.column_names if c not in keys}
    return _struct({"key": _struct(keys, rows.num_rows), "partial": _struct(states, rows.num_rows)}, rows.num_rows)


def _newest(rows: pa.Table) -> pa.Table:
    """The newest revision of each (window, key)."""
    if not rows.num_rows:
        return rows
    keys = pa.table({"window_start": rows["window_start"], **_fields(rows["state"], "key")})
    codes, distinct = partials.group_codes(keys, keys.column_names)
    order = np.lexsort((rows["revision"].to_numpy(), codes))
    last = np.zeros(distinct.num_rows, dtype=np.int64)
    last[codes[order]] = order  # later assignments win: the greatest revision of each code
    return rows.take(pa.array(np.sort(last)))


def _flatten(rows: pa.Table) -> pa.Table:
    starts = rows["window_start"].cast(pa.timestamp("us")).cast(pa.int64())
    return pa.table({WINDOW_COLUMN: starts, **_fields(rows["state"], "key"), **_fields(rows["state"], "partial")})


def _fields(state: pa.ChunkedArray, part: str) -> dict[str, pa.Array]:
    """The columns of one part of the state; none where a query has no keys."""
    inner = pc.struct_field(state.combine_chunks(), part)
    return {f.name: pc.struct_field(inner, f.name) for f in inner.type if f.name != _NOTHING}


def _with_bounds(lowered: pa.Table, revision: Publish) -> pa.Table:
    n = lowered.num_rows
    lowered = lowered.add_column(0, "window_end", instants(revision.window.end_us, n))
    return lowered.add_column(0, "window_start", instants(revision.window.start_us, n))


def _window_rows(sequence: int, revisions: Sequence[Publish]) -> pa.Table:
    return pa.table({
        "window_start": pa.array([r.window.start_us for r in revisions], pa.timestamp("us")).cast(INSTANT),
        "window_end": pa.array([r.window.end_us for r in revisions], pa.timestamp("us")).cast(INSTANT),
        "revision": pa.array([r.revision for r in revisions], pa.int32()),
        "status": pa.array([r.status for r in revisions], pa.string()),
        "coverage": pa.array([r.coverage for r in revisions], pa.float64()),
        "missing_sites": pa.array([list(r.missing_sites) for r in revisions], _NAMES),
        "missing_sources": pa.array([_source_names(r) for r in revisions], _NAMES),
        "rows_changed": pa.array([r.rows.num_rows for r in revisions], pa.int64()),
        "reason": pa.array([r.reason for r in revisions], pa.string()),
        "published_at": pa.array([r.published_us for r in revisions], pa.timestamp("us")).cast(INSTANT),
        "entry": pa.array([sequence] * len(revisions), pa.int64()),
        "step": pa.array(range(len(revisions)), pa.int64()),
    })  # fmt: skip


def _late_rows(expired: Expired) -> pa.Table:
    n = expired.rows.num_rows
    return pa.table({
        "window_start": instants(expired.window.start_us, n),
        "window_end": instants(expired.window.end_us, n),
        "registered_at": instants(expired.registered_us, n),
        "state": _struct({c: expired.rows[c] for c in expired.rows.column_names}, n),
    })  # fmt: skip


def _source_names(revision: Publish) -> list[str]:
    """Sources that are known to lack something, as site/source."""
    return sorted({f"{site}/{source}" for site, source, _ in revision.sources})


def instants(at_us: int, n: int) -> pa.Array:
    return pa.array([at_us] * n, pa.timestamp("us")).cast(INSTANT)


def _struct(columns: dict[str, pa.Array | pa.ChunkedArray], n: int) -> pa.Array:
    if not columns:
        return pa.nulls(n, pa.struct([pa.field(_NOTHING, pa.float64())]))
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns.values()]
    return pa.StructArray.from_arrays(arrays, names=list(columns))
