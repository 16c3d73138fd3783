"""SQL over what was published, without Spark: DuckDB over the latest revisions of every view."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.results.read import published_views, read_results
from catchment.center.results.reader_confidence import asks_confidence, register_confidence, rewrite_confidence
from catchment.errors import QueryError
from catchment.project.options import did_you_mean
from catchment.units import format_size

_UNKNOWN_TABLE = re.compile(r"Catalog Error: Table with name (\S+) does not exist")

# Results only: no files, no network, no Python variables that happen to have a table's name, no other settings.
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "temp_directory": "",  # what does not fit into memory is refused, not written into the working folder
    "max_temp_directory_size": "0B",
    "lock_configuration": True,
}


@dataclass(frozen=True)
class SqlLimits:
    """How much one statement may take; at a limit it ends with an error that names the option."""

    memory_bytes: int = 2 * 10**9
    time_s: float = 60.0


DEFAULT_LIMITS = SqlLimits()


def query_results(state: Path, statement: str, limits: SqlLimits = DEFAULT_LIMITS) -> pa.Table:
    """Run a SELECT; `NAME` is a view's latest revisions, `NAME__revisions` all of them.

    `confidence(column, 0.99)` is the bound of a column at another confidence than the view's.
    """
    names = published_views(state)
    settings = {**SETTINGS, "memory_limit": f"{limits.memory_bytes}B"}
    with duckdb.connect(config=settings) as session, _time_limit(session, limits.time_s):
        try:
            _check_select(session, statement)
            terms = asks_confidence(statement)
            for name in names:
                session.register(name, read_results(state, name, terms=terms))
                session.register(f"{name}__revisions", read_results(state, name, revisions="all", terms=terms))
            if terms:
                register_confidence(session)
            asked = rewrite_confidence(statement) if terms else statement
            return _with_integers(session.sql(asked), limits.memory_bytes)
        except duckdb.InterruptException as error:
            hint = "ask for less, or give it longer with --time-limit"
            raise QueryError(f"no answer within {limits.time_s:g} s", where=statement, hint=hint) from error
        except duckdb.OutOfMemoryException as error:
            hint = "ask for less, or give it more with --memory-limit"
            message = f"the answer needs more than {format_size(limits.memory_bytes)} of memory"
            raise QueryError(message, where=statement, hint=hint) from error
        except duckdb.CatalogException as error:
            raise _unknown_name(str(error), statement, names) from error
        except (duckdb.Error, ValueError) as error:
            views = ", ".join(names) or "none has published yet"
            raise QueryError(str(error).strip(), where=statement, hint=f"views are: {views}") from error


def _unknown_name(said: str, statement: str, names: Sequence[str]) -> QueryError:
    """Return an error for a table or function that is not there, with a hint from the views that are."""
    unknown = _UNKNOWN_TABLE.match(said)
    if unknown is None:
        return QueryError(said.splitlines()[0], where=statement)
    if not names:
        return QueryError(
            f"{unknown[1]!r} cannot be read: no view has published a window yet",
            where=statement,
            hint="results are there after `catchment run`; until then `catchment show status` tells what is happening",
        )
    return QueryError(f"no view {unknown[1]!r} has published", where=statement, hint=did_you_mean(unknown[1], names))


@contextmanager
def _time_limit(session: duckdb.DuckDBPyConnection, time_s: float) -> Iterator[None]:
    """Interrupt a session that takes longer."""
    timer = threading.Timer(time_s, session.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_select(session: duckdb.DuckDBPyConnection, statement: str) -> None:
    kinds = [s.type for s in session.extract_statements(statement)]
    if kinds != [duckdb.StatementType.SELECT]:
        found = ", ".join(str(k).rsplit(".", 1)[-1] for k in kinds) or "nothing"
        raise ValueError(f"one SELECT was expected, and this is {found}")


def _read_bounded(found: duckdb.DuckDBPyRelation, max_bytes: int) -> pa.Table:
    """Return the answer; it is read in batches, because DuckDB's own limit does not count what it has given away."""
    reader = found.to_arrow_reader()
    batches = []
    size_bytes = 0
    for batch in reader:
        size_bytes += batch.nbytes
        if size_bytes > max_bytes:
            raise duckdb.OutOfMemoryException("the answer is too large")
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _with_integers(found: duckdb.DuckDBPyRelation, max_bytes: int) -> pa.Table:
    """Return the answer with 128 bit integers, which DuckDB gives for sums, as 64 bit ones where they fit."""
    table = _read_bounded(found, max_bytes)
    for place, (name, kind) in enumerate(zip(table.column_names, found.types, strict=True)):
        column = table.column(place)
        if kind == "HUGEINT" and (pc.max(pc.abs(column)).as_py() or 0) < 2**63:
            table = table.set_column(place, name, column.cast(pa.int64()))
    return table
