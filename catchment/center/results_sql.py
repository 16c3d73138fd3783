"""SQL over what was published, without Spark: DuckDB over the latest revisions of every view."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from catchment.center.results import read_results
from catchment.errors import QueryError


def query_results(state: Path, statement: str) -> pa.Table:
    """Run a SELECT; `NAME` is a view's latest revisions, `NAME__revisions` all of them."""
    names = sorted(p.name for p in (state / "results").glob("*") if p.is_dir())
    with duckdb.connect() as session:
        for name in names:
            session.register(name, read_results(state, name))
            session.register(f"{name}__revisions", read_results(state, name, revisions="all"))
        try:
            return session.sql(statement).to_arrow_table()
        except duckdb.Error as error:
            views = ", ".join(names) or "none has published yet"
            raise QueryError(str(error).strip(), where=statement, hint=f"views are: {views}") from error
