"""The Python interface of catchment: open a project folder, run it, read its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from catchment.center.results.read import newest_windows, read_results, read_windows
from catchment.center.results.sql import query_results
from catchment.project.config import Project
from catchment.query.catalog import Catalog, load_catalog
from catchment.query.explain import explain as explain_plan
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Explain

if TYPE_CHECKING:
    import pandas as pd

# The beginning of a statement that reads results, after any comments and brackets.
_READS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(?:SELECT|WITH|FROM|VALUES)\b", re.IGNORECASE | re.DOTALL)


class Results:
    """The published rows of one view, as an Arrow table, a pandas frame or a Spark frame."""

    def __init__(self, state: Path, view: str, revisions: str) -> None:
        self._state = state
        self._view = view
        self._revisions = revisions

    def to_arrow(self) -> pa.Table:
        return read_results(self._state, self._view, revisions=self._revisions)

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def to_spark(self, spark: Any) -> Any:
        return spark.createDataFrame(self.to_arrow())


class Catchment:
    """A project, with its statements, its runs and its answers."""

    def __init__(self, folder: str | Path) -> None:
        self.project = Project.load(folder)
        self.catalog: Catalog = load_catalog(self.project)

    def sql(self, text: str) -> pa.Table | str | None:
        """Execute statements of SQL.

        CREATE and DROP change what the next `run` does, EXPLAIN returns a text, and SELECT queries what was published.
        """
        if _READS.match(text):
            return query_results(self.project.state_folder, text)
        statements = parse_sql(text)
        self.catalog = self.catalog.add(*statements)
        asked = [s for s in statements if isinstance(s, Explain)]
        return "\n\n".join(self.explain(s.name) for s in asked) if asked else None

    def explain(self, view: str) -> str:
        """Return a text that says what runs where for a view."""
        return explain_plan(plan_view(self.catalog.view(view), self.catalog), self.project)

    def run(self, *, once: bool = False, seconds: float | None = None, spark: Any = None) -> Mapping[str, Any]:
        """Run every site and the center in this process, until all streams have ended or the time is over.

        `once` reads what is there now and stops. A session that is given is used and left open.
        """
        from catchment.deploy.deployment import Deployment
        from catchment.spark.pipelines.runner import run_deployment

        return run_deployment(Deployment.plan(self.catalog), once=once, seconds=seconds, spark=spark)

    def results(self, view: str, *, revisions: str = "latest") -> Results:
        """Return the published rows of a view: the 'latest' revisions, or 'all'."""
        return Results(self.project.state_folder, view, revisions)

    def windows(self, view: str) -> pa.Table:
        """Return the newest entry of each published window of a view: status, coverage, what is missing."""
        return newest_windows(read_windows(self.project.state_folder, view))


def open(folder: str | Path) -> Catchment:
    """Open a project folder."""
    return Catchment(folder)
