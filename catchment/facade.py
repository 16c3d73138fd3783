"""The Python interface of catchment: open a project folder, run it, read its answers."""

from __future__ import annotations

import html
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.results.layout import RESERVED
from catchment.center.results.read import newest_windows, published_views, read_results, read_windows
from catchment.center.results.sql import query_results
from catchment.project.config import Project
from catchment.query.catalog import Catalog, load_catalog
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Explain

if TYPE_CHECKING:
    import pandas as pd

    from catchment.serve.open_feeds import Feeds
    from catchment.spark.pipelines.runner import Runner

# The beginning of a statement that reads results, after any comments and brackets.
_READS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(?:SELECT|WITH|FROM|VALUES)\b", re.IGNORECASE | re.DOTALL)


SHOWN_ROWS = 20  # of results, where a notebook shows them
FOLLOW_EVERY_S = 0.5
BEFORE_ALL = (-1, -1)  # a place in the log of windows before its first entry
STATUS_COLUMNS = ("name", "state", "age_s", "rows", "quarantined", "bytes_sent", "pending_rows")


class Results:
    """The published rows of one view, as an Arrow table, a pandas frame or a Spark frame.

    `engine_columns=False` leaves the columns of the view itself and the status of each row, without those that the
    engine adds (coverage, bounds, revisions, what is missing).
    """

    def __init__(self, state: Path, view: str, revisions: str) -> None:
        self._state = state
        self._view = view
        self._revisions = revisions

    def to_arrow(self, *, engine_columns: bool = True) -> pa.Table:
        """Return the rows as an Arrow table."""
        rows = read_results(self._state, self._view, revisions=self._revisions)
        if engine_columns:
            return rows
        return rows.drop_columns([name for name in RESERVED if name != "status" and name in rows.column_names])

    def to_pandas(self, *, engine_columns: bool = True) -> pd.DataFrame:
        """Return the rows as a pandas frame."""
        return self.to_arrow(engine_columns=engine_columns).to_pandas()

    def to_spark(self, spark: Any) -> Any:
        """Return the rows as a frame of a Spark session."""
        return spark.createDataFrame(self.to_arrow())

    def __repr__(self) -> str:
        return f"<results of {self._view}, {self._revisions} revisions: {self.to_arrow().num_rows} rows>"

    def _repr_html_(self) -> str:
        rows = self.to_arrow()
        length = f"{rows.num_rows:,} rows, the newest {SHOWN_ROWS}" if rows.num_rows > SHOWN_ROWS else "newest first"
        return _html_table(f"{self._view}: {length}", rows)


@dataclass(frozen=True)
class Change:
    """One published revision of one window: why it was published, and the rows that it changed."""

    view: str
    window_start: datetime
    window_end: datetime
    revision: int
    status: str
    coverage: float
    reason: str
    rows: pa.Table = field(repr=False)

    def __str__(self) -> str:
        head = f"{self.window_start:%Y-%m-%d %H:%M:%S} revision {self.revision} {self.status}"
        coverage = "" if self.coverage == 1 else f" {self.coverage:.0%}"
        return f"{head}{coverage}: {self.reason} ({self.rows.num_rows:,} rows)"

    def _repr_html_(self) -> str:
        return _html_table(str(self), self.rows)


def _html_table(title: str, rows: pa.Table) -> str:
    """Return the newest rows of a result for a notebook: each value with its bound, each row with its status."""
    from catchment.center.results.columns import newest_first
    from catchment.cli.tables import result_columns, window_length

    shown = newest_first(rows).slice(0, SHOWN_ROWS).to_pylist()
    columns = result_columns(shown)
    heads = "".join(f"<th>{html.escape(head).replace(chr(10), '<br>')}</th>" for head, _, _ in columns)
    lines = zip(*(cells for _, cells, _ in columns), strict=True)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in line)}</tr>" for line in lines)
    return f"<p><b>{html.escape(title + window_length(shown))}</b></p><table><tr>{heads}</tr>{body}</table>"


class RunningProject:
    """A project that runs in the background of this process, until its `with` block ends."""

    def __init__(self, opened: Catchment, runner: Runner, session: ExitStack) -> None:
        self._opened = opened
        self._runner = runner
        self._session = session  # is closed after the run: a session that was made for it ends with it
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="catchment", daemon=True)
        self._thread.start()

    @property
    def status(self) -> Mapping[str, Any]:
        """What every site and the center are doing now."""
        return self._runner.status()

    @property
    def is_running(self) -> bool:
        """Whether it still runs: it ends by itself when its streams have ended, or when it fails."""
        return self._thread.is_alive()

    def follow(self, view: str) -> Iterator[Change]:
        """Yield every revision of every window of a view as it is published, until the run has ended."""
        last = BEFORE_ALL
        ended = False
        while not ended:
            ended = not self.is_running  # asked first: what is published until then is read after it
            for place, change in self._opened._changes_since(view, last):
                last = place
                yield change
            self._thread.join(FOLLOW_EVERY_S)
        self.wait()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the streams have ended, at most so long; raise what ended the run, if it failed."""
        self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop; what has been read is kept, and a later run continues."""
        self._runner.stop()
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{self._runner.project.name}, {'running' if self.is_running else 'stopped'}>"

    def _run(self) -> None:
        try:
            try:
                self._runner.start()
                self._runner.run()
            finally:
                self._runner.close()
                self._session.close()
        except BaseException as failure:  # noqa: BLE001 - it is raised again where somebody waits
            self._failure = failure


class Explanation(str):
    """What runs where: a text that a notebook shows as a picture."""

    svg: str

    @classmethod
    def make(cls, text: str, svg: str) -> Explanation:
        """Make an explanation of a text and its picture."""
        made = cls(text)
        made.svg = svg
        return made

    def _repr_svg_(self) -> str:
        return self.svg


class ServedDashboard:
    """The live page of a project, served by this process until it is closed, or its `with` block ends."""

    def __init__(self, project: Project, port: int) -> None:
        from catchment.serve.dashboard import DashboardServer

        self._server = DashboardServer(project, port=port)
        self._server.__enter__()
        self.url = self._server.url()

    def close(self) -> None:
        """Serve it no more."""
        self._server.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dashboard at {self.url}>"

    def _repr_html_(self) -> str:
        return f'<a href="{html.escape(self.url)}" target="_blank">dashboard</a>'


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
        return "\n\n".join(self.explain(s.name, analyze=s.analyze) for s in asked) if asked else None

    def explain(self, view: str | None = None, *, analyze: bool = False) -> Explanation:
        """Return what runs where for a view or for all, what it sends and promises; a notebook shows it as a picture.

        With `analyze`, what was measured stands beside what is predicted.
        """
        from catchment.control.answers import explained_part
        from catchment.deploy.deployment import Deployment
        from catchment.serve.explanation import explain_deployment
        from catchment.serve.explanation_text import explanation_text
        from catchment.serve.plan_picture import plan_svg

        views = None if view is None else [self.catalog.view(view).name]
        part = explained_part(Deployment.plan(self.catalog), view, None)
        told = explain_deployment(part, views, analyze=analyze)
        return Explanation.make(explanation_text(told), plan_svg(told, told["at"]))

    def dashboard(self, port: int = 0) -> ServedDashboard:
        """Serve the live page of this project, until it is closed; a notebook shows where it is."""
        return ServedDashboard(self.project, port)

    def run(self, *, once: bool = False, seconds: float | None = None, spark: Any = None) -> Mapping[str, Any]:
        """Run every site and the center in this process, until all streams have ended or the time is over.

        `once` reads what is there now and stops. A session that is given is used and left open.
        """
        from catchment.deploy.deployment import Deployment
        from catchment.spark.pipelines.runner import run_deployment

        deployment = Deployment.plan(self.catalog)
        with self._session(spark) as session:
            return run_deployment(deployment, once=once, seconds=seconds, spark=session)

    def start(self, *, once: bool = False, spark: Any = None) -> RunningProject:
        """Run every site and the center in the background: `with geo.start(): ...` stops it at the end of the block."""
        from catchment.deploy.deployment import Deployment
        from catchment.spark.pipelines.runner import Runner

        deployment = Deployment.plan(self.catalog)
        with ExitStack() as stack:
            session = stack.enter_context(self._session(spark))
            runner = Runner(deployment, session, deployment.sites, True, once=once)
            return RunningProject(self, runner, stack.pop_all())

    @contextmanager
    def _session(self, given: Any) -> Iterator[Any]:
        """Give the session that was given, or one of its own whose Java prints to a log and not into a notebook."""
        if given is not None:
            yield given
            return
        from catchment.cli.library_output import divert_library_output
        from catchment.spark.session import make_session

        state = self.project.state_folder
        with divert_library_output(state / "logs" / "python.libraries.log"):
            made = make_session(
                self.project.name, self.project.spark, warehouse=state / "warehouse", folder=self.project.folder
            )
        try:
            yield made
        finally:
            made.stop()

    def status(self) -> pd.DataFrame:
        """Return what every site and the center are doing, as they last said so, whichever process runs them."""
        import pandas as pd

        from catchment.serve.overview import OverviewReader

        sites = OverviewReader(self.project).read()["sites"]
        return pd.DataFrame(sites, columns=list(STATUS_COLUMNS)).set_index("name")

    def submit(self, text: str) -> Mapping[str, Any]:
        """Deploy CREATE MATERIALIZED VIEW statements beside the views that run; say what they share."""
        from catchment.deploy.submit import submit_text

        return submit_text(self.project, text)

    def drop(self, view: str) -> Mapping[str, Any]:
        """Drop a view from what runs; its published answers are kept."""
        from catchment.deploy.submit import drop

        return drop(self.project, view)

    def follow(self, view: str, *, seconds: float | None = None) -> Iterator[Change]:
        """Yield every revision of every window as it is published, those that are published already first.

        It ends when nothing was published for so many seconds, and never without them.
        """
        last = BEFORE_ALL
        heard_s = time.monotonic()
        while True:
            for place, change in self._changes_since(view, last):
                last = place
                heard_s = time.monotonic()
                yield change
            if seconds is not None and time.monotonic() - heard_s >= seconds:
                return
            time.sleep(FOLLOW_EVERY_S)

    def _changes_since(self, view: str, last: tuple[int, int]) -> Iterator[tuple[tuple[int, int], Change]]:
        if view not in published_views(self.project.state_folder):
            return
        log = read_windows(self.project.state_folder, view)
        fresh = [row for row in log.to_pylist() if (row["entry"], row["step"]) > last]
        rows = self.results(view, revisions="all").to_arrow() if fresh else None
        for row in fresh:
            assert rows is not None
            own = (pc.field("window_start") == row["window_start"]) & (pc.field("revision") == row["revision"])
            change = Change(
                view,
                row["window_start"],
                row["window_end"],
                row["revision"],
                row["status"],
                row["coverage"],
                row["reason"],
                rows.filter(own) if row["rows_changed"] else rows.slice(0, 0),
            )
            yield (row["entry"], row["step"]), change

    def results(self, view: str, *, revisions: str = "latest", sink: str | None = None) -> Results:
        """Return the published rows of a view: the 'latest' revisions, or 'all'; at the center, or at another sink."""
        return Results(self.project.answering_at(sink).state_folder, view, revisions)

    def __repr__(self) -> str:
        return f"<{self.project.name}: {', '.join(sorted(self.catalog.views)) or 'no views'}>"

    def _repr_html_(self) -> str:
        known = set(published_views(self.project.state_folder))
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{'published' if name in known else 'nothing published yet'}</td></tr>"
            for name in sorted(self.catalog.views)
        )
        return f"<p><b>{html.escape(self.project.name)}</b></p><table><tr><th>view</th><th></th></tr>{rows}</table>"

    def windows(self, view: str) -> pa.Table:
        """Return the newest entry of each published window of a view: status, coverage, what is missing."""
        return newest_windows(read_windows(self.project.state_folder, view))


def open(folder: str | Path) -> Catchment:
    """Open a project folder."""
    return Catchment(folder)


def open_feeds(folder: str | Path, *, users: int | None = None, seed: int | None = None) -> Feeds:
    """Open a folder of feeds, views that devices compute; `users` and `seed` are those of a made-up world."""
    from catchment.serve.open_feeds import Feeds

    return Feeds(folder, users=users, seed=seed)
