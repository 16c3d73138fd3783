"""SQL over what was published, without Spark: DuckDB over the latest revisions of every view."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.results.read import published_queries, read_results
from catchment.errors import QueryError
from catchment.project.options import did_you_mean

_UNKNOWN_TABLE = re.compile(r"Catalog Error: Table with name (\S+) does not exist")

# Results only: no files, no network, no Python variables that happen to have a table's name.
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
}


def query_results(state: Path, statement: str) -> pa.Table:
    """Run a SELECT; `NAME` is a view's latest revisions, `NAME__revisions` all of them."""
    names = published_queries(state)
    with duckdb.connect(config=SETTINGS) as session:
        try:
            _check_select(session, statement)
            for name in names:
                session.register(name, read_results(state, name))
                session.register(f"{name}__revisions", read_results(state, name, revisions="all"))
            return _with_integers(session.sql(statement))
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


def _check_select(session: duckdb.DuckDBPyConnection, statement: str) -> None:
    kinds = [s.type for s in session.extract_statements(statement)]
    if kinds != [duckdb.StatementType.SELECT]:
        found = ", ".join(str(k).rsplit(".", 1)[-1] for k in kinds) or "nothing"
        raise ValueError(f"one SELECT was expected, and this is {found}")


def _with_integers(found: duckdb.DuckDBPyRelation) -> pa.Table:
    """Return the answer with 128 bit integers, which DuckDB gives for sums, as 64 bit ones where they fit."""
    table = found.to_arrow_table()
    for place, (name, kind) in enumerate(zip(table.column_names, found.types, strict=True)):
        column = table.column(place)
        if kind == "HUGEINT" and (pc.max(pc.abs(column)).as_py() or 0) < 2**63:
            table = table.set_column(place, name, column.cast(pa.int64()))
    return table
