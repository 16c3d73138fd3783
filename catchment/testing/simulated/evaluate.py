"""The fragments of a project evaluated without Spark: expressions by DuckDB, states by the laws of the aggregates.

A fragment's conditions, keys and arguments are computed once over all records of a stream at a site; a micro-batch is
then a range of them. Expressions are translated from Spark's dialect, so a project can be simulated as far as its
expressions mean the same in both: what DuckDB cannot read is refused by name.
"""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from duckdb.func import FunctionNullHandling, PythonUDFType
from sqlglot import exp

from catchment.aggregates import Aggregate, make_aggregate, partials
from catchment.aggregates.grouped import floats_of
from catchment.aggregates.partials import one_array
from catchment.aggregates.shed_terms import terms_in
from catchment.arrays import Ints, Mask
from catchment.errors import ConfigError, QueryError
from catchment.functions.installed import functions_in, scalar
from catchment.query.fragment import SLICE_COLUMN, Explode, Fragment, count_records
from catchment.query.plan import QueryPlan
from catchment.query.sql.connectors import FilesConnector
from catchment.query.sql.statements import VERSION_COLUMN, Table
from catchment.query.types import sql_type
from catchment.records.unique_rows import check_unique
from catchment.shedding.terms import add_terms
from catchment.site.slack import SlackPlan, watched_values
from catchment.testing.simulated.records import ArrivingRecords
from catchment.timeline import WindowSpec
from catchment.wire.messages import LookedUp

SIMULATED_VERSION = "simulated"  # of every table
NUMBER = "_number"  # of the record that a row comes from
ONE_SOURCE = "stream"  # the source of all records, where a stream has no source column
RETRACTED = "retracted"

_RECORDS = make_aggregate("count", None, None, name="_records")


@dataclass(frozen=True)
class FragmentRows:
    """What a fragment takes of all records of one stream at one site, in the order of their numbers."""

    fragment: Fragment
    numbers: Ints
    times_us: Ints
    table: pa.Table  # keys and arguments
    arguments: Mapping[str, str | None]  # by aggregate
    counted: FragmentRows | None = None  # its records, where each of them may be several rows

    def between(self, start: int, end: int) -> FragmentRows:
        """Return the rows of the records with these numbers."""
        low, high = np.searchsorted(self.numbers, [start, end])
        table = self.table.slice(low, high - low)
        counted = None if self.counted is None else self.counted.between(start, end)
        numbers = self.numbers[low:high]
        return replace(self, numbers=numbers, times_us=self.times_us[low:high], table=table, counted=counted)

    def of_records(self, chosen: Mask) -> FragmentRows:
        """Return the rows of the records that are chosen, by their numbers."""
        counted = None if self.counted is None else self.counted.of_records(chosen)
        return replace(self.where(chosen[self.numbers]), counted=counted)

    def where(self, chosen: Mask) -> FragmentRows:
        """Return the chosen rows."""
        table = self.table.filter(pa.array(chosen))
        return replace(self, numbers=self.numbers[chosen], times_us=self.times_us[chosen], table=table)

    def lift(self, rate: float = 1.0) -> tuple[pa.Table, tuple[tuple[int, int], ...]]:
        """Return partials per (slice, keys) of rows that passed at a rate, and how many records each slice has."""
        starts = self.fragment.slicing.starts_of(self.times_us)
        rows = self.table.append_column(SLICE_COLUMN, pa.array(starts, pa.int64()))
        keys = [SLICE_COLUMN, *self.fragment.key_names]
        found = partials.lift(rows, keys, [_RECORDS, *_measured(self.fragment)], self.arguments)
        counts = one_array(found[_RECORDS.states[0].name]).cast(pa.int64())
        if any(terms.clustered for terms in terms_in(self.fragment.aggregates)):
            found, counts = self._total_records(rows, found)
        table = add_terms(found, self.fragment.aggregates, counts, rate)
        counted = starts if self.counted is None else self.fragment.slicing.starts_of(self.counted.times_us)
        slices, numbers = np.unique(counted, return_counts=True)
        records = tuple(zip(slices.tolist(), numbers.tolist(), strict=True))
        return table.select(self.fragment.schema.names).cast(self.fragment.schema), records

    def _total_records(self, rows: pa.Table, found: pa.Table) -> tuple[pa.Table, pa.Array]:
        """Return partials with the totals of their records, and how many records each has."""
        keys = [SLICE_COLUMN, *self.fragment.key_names]
        groups, _ = partials.number_groups(rows, keys)
        named = rows.append_column(NUMBER, pa.array(self.numbers))
        records, first = partials.number_groups(named, [*keys, NUMBER])
        group_of_record = groups[first]
        for terms in terms_in(self.fragment.aggregates):
            column = self.arguments[terms.name]
            given = None if column is None else one_array(rows[column])
            has_value = np.ones(len(records), dtype=np.bool_) if given is None else np.asarray(given.is_valid())
            values = None if given is None or terms.of == "count" else floats_of(given)
            assert terms.totals is not None
            sums = terms.totals.sum_up(records, group_of_record, found.num_rows, values, has_value)
            for name, total in zip(terms.totals.columns, sums, strict=True):
                found = found.append_column(name, pa.array(total))
        return found, pa.array(np.bincount(group_of_record, minlength=found.num_rows))

    def aggregate(self, window: WindowSpec) -> dict[int, pa.Table]:
        """Return the states per key of every window, each from all its records at once, by the start of the window."""
        measured = [a for a in self.fragment.aggregates if a not in terms_in(self.fragment.aggregates)]
        starts = windows_of(window, self.times_us)
        keys = list(self.fragment.key_names)
        return {
            start: partials.lift(self.table.filter(pa.array(mine)), keys, measured, self.arguments)
            for start, mine in starts.items()
        }


def windows_of(window: WindowSpec, times_us: Ints) -> dict[int, Mask]:
    """Return which of some instants each window holds, by its start."""
    starts = {w.start_us for t in np.unique(times_us).tolist() for w in window.containing(t)}
    return {s: (times_us >= s) & (times_us < s + window.size_us) for s in sorted(starts)}


class PureEvaluator:
    """Evaluates fragments over the records of a workload."""

    def __init__(self, folder: Path, tables: Mapping[str, Table]) -> None:
        self._declared = dict(tables)
        self._tables = {name: _read_table(folder, table) for name, table in tables.items()}
        self._known: dict[tuple[int, Fragment], FragmentRows] = {}
        self._asked: dict[tuple[int, int], FragmentRows] = {}  # by identity, which is found faster
        self._good: dict[int, pa.Table] = {}  # the records that can be read, by the identity of all that arrive
        self._chosen: dict[tuple[int, str, str], pa.ChunkedArray] = {}  # of those, the numbers of a condition

    def rows(self, arrivals: ArrivingRecords, fragment: Fragment) -> FragmentRows:
        """Return what a fragment takes of all records."""
        asked = id(arrivals), id(fragment)
        if asked not in self._asked:  # what is known holds the fragment, so that no other one has its identity
            self._asked[asked] = replace(self._find(arrivals, fragment), fragment=fragment)
        return self._asked[asked]

    def looked_up(self, arrivals: ArrivingRecords, fragment: Fragment, chosen: Mask) -> list[LookedUp]:
        """Return in which versions of tables that may change the chosen records were looked up."""
        tables = [k.table for k in fragment.lookups if self._declared[k.table].refresh_us is not None]
        if not tables:
            return []
        rows = self._find(arrivals, count_records(fragment)).of_records(chosen)
        slices = tuple(np.unique(fragment.slicing.starts_of(rows.times_us)).tolist())
        return [LookedUp(fragment.name, name, SIMULATED_VERSION, slices) for name in dict.fromkeys(tables) if slices]

    def _find(self, arrivals: ArrivingRecords, fragment: Fragment) -> FragmentRows:
        """Return what any fragment takes of all records that differs in its name alone, evaluated once."""
        key = id(arrivals), replace(fragment, name="")
        if key not in self._known:
            self._known[key] = self._evaluate(arrivals, fragment)
        return self._known[key]

    def observe(
        self, arrivals: ArrivingRecords, fragment: Fragment, slack: SlackPlan, start: int, end: int, taken: Mask
    ) -> pa.Table:
        """Return what slack controllers observe: (source, slice_us, newest_us, oldest_us, count, total_N, square_N)."""
        values = watched_values(slack)
        source = arrivals.stream.source
        named = make_aggregate("count", None, None, name="count")
        watched = [make_aggregate("sum", value, pa.float64(), name=f"w{i}") for i, value in enumerate(values)]
        asked = replace(fragment, keys=(), aggregates=(named, *watched))
        rows = self._find(arrivals, asked).between(start, end)
        rows = rows.where(taken[rows.numbers])
        sources = [ONE_SOURCE] * len(rows.numbers)
        if source is not None:
            column = arrivals.table[source].cast(pa.string()).to_pylist()
            sources = ["null" if column[n] is None else column[n] for n in rows.numbers.tolist()]
        return _group_observations(rows, sources, [rows.arguments[w.name] for w in watched])

    def _evaluate(self, arrivals: ArrivingRecords, fragment: Fragment) -> FragmentRows:
        measured = [_RECORDS, *_measured(fragment)]
        clustered = [terms for terms in terms_in(fragment.aggregates) if terms.clustered]
        named = [*measured, *clustered]
        columns = {sql: f"argument_{i}" for i, sql in enumerate(dict.fromkeys(a.argument for a in named)) if sql}
        found = self._take_columns(arrivals, fragment, columns)
        if found is None:
            found = self._ask_duckdb(arrivals, fragment, columns)
        numbers = np.asarray(found[NUMBER], dtype=np.int64)
        table = found.drop_columns([NUMBER])
        for key in fragment.keys:
            table = table.set_column(table.column_names.index(key.name), key.name, found[key.name].cast(key.type))
        arguments = {a.name: columns[a.argument] if a.argument else None for a in named}
        if not table.num_columns:  # count(*) without keys: keep the number of rows
            table = pa.table({"_row": found[NUMBER]})
        counted = self._find(arrivals, count_records(fragment)) if fragment.explodes else None
        return FragmentRows(fragment, numbers, arrivals.times_us[numbers], table, arguments, counted)

    def _ask_duckdb(self, arrivals: ArrivingRecords, fragment: Fragment, arguments: Mapping[str, str]) -> pa.Table:
        """Return the numbers of the records that a fragment takes, its keys and its arguments."""
        asked = [f"{as_duckdb(k.sql)} AS {_quote(k.name)}" for k in fragment.keys]
        asked += [f"{as_duckdb(sql)} AS {name}" for sql, name in arguments.items()]
        connection = duckdb_connection()
        connection.register("records", self._good_records(arrivals))
        joins = " ".join(self._joins(connection, fragment))
        where = f"WHERE {as_duckdb(fragment.where)}" if fragment.where else ""
        number = f"{_quote(fragment.stream)}.{NUMBER}"
        return connection.sql(
            f"SELECT {', '.join([number, *asked])} FROM records AS {_quote(fragment.stream)} {joins} {where} "
            f"ORDER BY {number}"
        ).to_arrow_table()

    def _take_columns(
        self, arrivals: ArrivingRecords, fragment: Fragment, arguments: Mapping[str, str]
    ) -> pa.Table | None:
        """Return the same where nothing is computed but a condition: asking DuckDB costs more than such a fragment."""
        wanted = {k.name: column_of(k.sql, fragment.stream) for k in fragment.keys}
        wanted |= {name: column_of(sql, fragment.stream) for sql, name in arguments.items()}
        if fragment.lookups or fragment.explodes or None in wanted.values():
            return None
        records = self._good_records(arrivals)
        if fragment.where:
            chosen = id(arrivals), fragment.stream, fragment.where
            if chosen not in self._chosen:
                bare = replace(fragment, keys=(), aggregates=())
                self._chosen[chosen] = self._ask_duckdb(arrivals, bare, {})[NUMBER]
            records = records.take(pc.index_in(self._chosen[chosen], records[NUMBER]))
        return pa.table({NUMBER: records[NUMBER], **{name: records[column] for name, column in wanted.items()}})

    def _good_records(self, arrivals: ArrivingRecords) -> pa.Table:
        """Return the records that can be read, with their numbers."""
        if id(arrivals) not in self._good:
            records = _without_zone(arrivals.table).append_column(NUMBER, pa.array(np.arange(len(arrivals))))
            self._good[id(arrivals)] = records.filter(pa.array(arrivals.are_good))
        return self._good[id(arrivals)]

    def _joins(self, connection: duckdb.DuckDBPyConnection, fragment: Fragment) -> Iterator[str]:
        for number in range(len(fragment.lookups) + 1):
            yield from (_explode(explode) for explode in fragment.explodes if explode.after == number)
            if number < len(fragment.lookups):
                yield self._join(connection, fragment, number)

    def _join(self, connection: duckdb.DuckDBPyConnection, fragment: Fragment, number: int) -> str:
        lookup = fragment.lookups[number]
        rows = self._tables[lookup.table]
        if VERSION_COLUMN not in rows.column_names:
            rows = rows.append_column(VERSION_COLUMN, pa.repeat(pa.scalar(SIMULATED_VERSION), rows.num_rows))
        connection.register(f"table_{number}", rows)
        return f"{lookup.how} JOIN table_{number} AS {_quote(lookup.alias)} ON {as_duckdb(lookup.on)}"


def _explode(explode: Explode) -> str:
    """Return the join that makes rows of an array or a map, as DuckDB writes it."""
    given = as_duckdb(explode.sql)
    names = [_quote(name) for name, _ in explode.columns]
    elements = f"map_entries({given})" if explode.is_map else given
    parts = ["e.key", "e.value"] if explode.is_map else ["e"]
    parts = ["CAST(i AS INTEGER)", *parts] if explode.has_position else parts
    columns = ", ".join(f"{part} AS {name}" for part, name in zip(parts, names, strict=True))
    made = f"SELECT unnest({elements}) AS e, unnest(range(len({elements}))) AS i"
    how = "LEFT" if explode.outer else "INNER"
    return f"{how} JOIN LATERAL (SELECT {columns} FROM ({made})) AS {_quote(explode.alias)} ON true"


def finish(plan: QueryPlan, rows: pa.Table) -> pa.Table:
    """Return the columns of a view from its lowered aggregates, and whether HAVING leaves a row out."""
    if plan.trivial:
        columns = {c.name: rows[c.source] for c in plan.columns if c.source is not None}
        return pa.table({**columns, RETRACTED: pa.repeat(pa.scalar(False), rows.num_rows)})
    connection = duckdb_connection()
    numbered = _without_zone(rows).append_column(NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    connection.register("lowered", numbered)
    kept = f"coalesce({as_duckdb(plan.having)}, false)" if plan.having else "true"
    asked = [f"{as_duckdb(c.sql)} AS {_quote(c.name)}" for c in plan.columns]
    done = connection.sql(f"SELECT {', '.join(asked)}, NOT {kept} AS {RETRACTED} FROM lowered ORDER BY {NUMBER}")
    schema = pa.schema([*(pa.field(c.name, c.type) for c in plan.columns), pa.field(RETRACTED, pa.bool_())])
    return done.to_arrow_table().cast(schema)


def evaluate_rows(fragment: Fragment, rows: pa.Table) -> pa.Table:
    """Return the partials of a view of a view, over rows of the view that it reads."""
    if fragment.lookups or fragment.explodes:
        raise QueryError(
            f"the view {fragment.name!r} looks up tables or explodes arrays of another view, which is not simulated",
            hint="test this view on Spark",
        )
    asked = [f"{as_duckdb(k.sql)} AS {_quote(k.name)}" for k in fragment.keys]
    arguments: dict[str, str | None] = {}
    for number, aggregate in enumerate(fragment.aggregates):
        arguments[aggregate.name] = f"argument_{number}" if aggregate.argument else None
        asked += [f"{as_duckdb(aggregate.argument)} AS argument_{number}"] if aggregate.argument else []
    where = f"WHERE {as_duckdb(fragment.where)}" if fragment.where else ""
    connection = duckdb_connection()
    connection.register("rows_read", _without_zone(rows))
    time = f"epoch_us({_quote(fragment.stream)}.{_quote(fragment.event_time)}) AS {SLICE_COLUMN}"
    found = connection.sql(f"SELECT {', '.join([time, *asked])} FROM rows_read AS {_quote(fragment.stream)} {where}")
    table = found.to_arrow_table()
    starts = fragment.slicing.starts_of(np.asarray(table[SLICE_COLUMN], dtype=np.int64))
    table = table.set_column(0, SLICE_COLUMN, pa.array(starts, pa.int64()))
    for key in fragment.keys:
        table = table.set_column(table.column_names.index(key.name), key.name, table[key.name].cast(key.type))
    keys = [SLICE_COLUMN, *fragment.key_names]
    lifted = partials.lift(table, keys, list(fragment.aggregates), arguments)
    return lifted.select(fragment.schema.names).cast(fragment.schema)


@cache
def as_duckdb(sql: str) -> str:
    """Return an expression of Spark SQL as DuckDB reads it; it knows the functions of the project that are called."""
    for name in functions_in(sql):
        _teach(name)
    try:
        return sqlglot.transpile(sql, read="spark", write="duckdb")[0]
    except sqlglot.errors.SqlglotError as cause:
        raise QueryError(
            f"the expression {sql!r} cannot be simulated: DuckDB has nothing that means the same",
            hint="test this view on Spark",
        ) from cause


@cache
def column_of(sql: str, stream: str) -> str | None:
    """Return the column of a stream that an expression is; None if it is anything else."""
    parsed = sqlglot.parse_one(sql, read="spark")
    is_plain = type(parsed) is exp.Column and parsed.table in (stream, "") and len(parsed.parts) <= 2
    return parsed.name if is_plain else None


@cache
def _teach(name: str) -> None:
    """Let DuckDB call a scalar function of the project."""
    declared = scalar(name)
    if declared is None:
        return

    def evaluate(*columns: pa.ChunkedArray | pa.Array) -> pa.Array:
        return _naive(declared.evaluate([one_array(column) for column in columns]))

    # DuckDB looks at how many parameters a function has.
    names = (f"x{number}" for number in range(len(declared.takes)))
    given = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    evaluate.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    duckdb_connection().create_function(
        name,
        evaluate,
        [sql_type(type_) for type_ in declared.takes],
        sql_type(declared.returns),
        type=PythonUDFType.ARROW,
        null_handling=FunctionNullHandling.SPECIAL,
    )


@cache
def duckdb_connection() -> duckdb.DuckDBPyConnection:
    """Return the engine of this process: starting one costs more than what it is asked."""
    atexit.register(
        duckdb_connection.cache_clear
    )  # DuckDB reports a connection that outlives the interpreter as leaked
    return duckdb.connect(config={"threads": 1})


def _measured(fragment: Fragment) -> list[Aggregate]:
    """Return what is lifted for a fragment: its aggregates, and the moments of what may be sampled."""
    terms = terms_in(fragment.aggregates)
    moments = [m for m in (t.moments for t in terms) if m is not None]
    return [*(a for a in fragment.aggregates if a not in terms), *moments]


def _group_observations(rows: FragmentRows, sources: Sequence[str], values: Sequence[str | None]) -> pa.Table:
    starts = rows.fragment.slicing.starts_of(rows.times_us)
    groups: dict[tuple[str, int], list[int]] = {}
    for place, (source, start) in enumerate(zip(sources, starts.tolist(), strict=True)):
        groups.setdefault((source, start), []).append(place)
    places = list(groups.values())
    columns: dict[str, pa.Array] = {
        "source": pa.array([s for s, _ in groups], pa.string()),
        SLICE_COLUMN: pa.array([s for _, s in groups], pa.int64()),
        "newest_us": pa.array([int(rows.times_us[p].max()) for p in places], pa.int64()),
        "oldest_us": pa.array([int(rows.times_us[p].min()) for p in places], pa.int64()),
        "count": pa.array([len(p) for p in places], pa.int64()),
    }
    for number, value in enumerate(values):
        assert value is not None
        column = np.nan_to_num(np.asarray(rows.table[value].cast(pa.float64()).fill_null(0.0)))
        columns[f"total_{number}"] = pa.array([float(column[p].sum()) for p in places], pa.float64())
        columns[f"square_{number}"] = pa.array([float((column[p] ** 2).sum()) for p in places], pa.float64())
    return pa.table(columns)


def _read_table(folder: Path, table: Table) -> pa.Table:
    if not isinstance(table.connector, FilesConnector):
        raise ConfigError(
            f"table {table.name!r} is read by connector {table.connector.kind!r}, which is not simulated",
            where=table.where,
            hint="declare it with the path of a file for simulations",
        )
    path = folder / table.connector.path
    files = sorted(path.rglob(f"*.{table.connector.format}")) if path.is_dir() else [path]
    reader = {"csv": "read_csv", "json": "read_json", "parquet": "read_parquet"}[table.connector.format]
    names = ", ".join(f"'{file}'" for file in files)
    rows = duckdb_connection().sql(f"SELECT * FROM {reader}([{names}])").to_arrow_table().cast(table.schema)
    check_unique(table, rows)
    return rows


def _without_zone(table: pa.Table) -> pa.Table:
    """Return a table whose instants have no zone: all are UTC, and DuckDB needs no calendar for them."""
    for place, column in enumerate(table.schema):
        table = table.set_column(place, column.name, _naive(table[column.name]))
    return table


def _naive(column: pa.ChunkedArray) -> pa.ChunkedArray:
    is_instant = pa.types.is_timestamp(column.type) and column.type.tz is not None
    return column.cast(pa.timestamp("us")) if is_instant else column


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
