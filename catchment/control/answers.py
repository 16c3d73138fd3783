"""What readers may ask of a deployment: each function takes the project folder and returns plain values to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.deploy.unknown_view import asking_about
from catchment.errors import ConfigError
from catchment.project.config import SINKS_FOLDER, Project
from catchment.query.definition_names import view_of

if TYPE_CHECKING:
    import pyarrow as pa

    from catchment.deploy.deployment import Deployment

Answer = Mapping[str, Any]


def show_status(folder: Path) -> Answer:
    """Return the last reported status of each site, relay and the center, and how old it is."""
    from catchment.deploy.reports.role_status import read_project_status
    from catchment.timeline import SystemClock

    project = Project.load(folder)
    found = read_project_status(project)
    if not found.has_run:
        raise ConfigError(
            "nothing has run here yet", where=str(project.state_folder), hint=f"catchment run -p {folder}"
        )
    return found.to_json(SystemClock().now_us())


def _project_answering(folder: Path, query: str, sink: str | None) -> Project:
    """Return the project as it is to the site whose answers of a view are read: to the one that is named.

    If none is, to the center, or to the first other sink that has published the view, if the center has not.
    """
    from catchment.center.results.read import published_views

    project = Project.load(folder)
    if sink is not None:
        return project.answering_at(sink)
    kept = sorted(path.name for path in (project.state_folder / SINKS_FOLDER).glob("*"))
    parts = [project, *(project.at_sink(name, {}) for name in kept if name in project.sites)]
    view = view_of(query)
    return next((part for part in parts if len(parts) > 1 and view in published_views(part.state_folder)), project)


def show_results(folder: Path, query: str, limit: int = 20, sink: str | None = None) -> Answer:
    """Return the newest rows of a view, each in its latest revision."""
    from catchment.center.results.columns import newest_first
    from catchment.center.results.read import read_results

    project = _project_answering(folder, query, sink)
    with asking_about(project, query):
        newest = newest_first(read_results(project.state_folder, query)).slice(0, limit)
    return {"query": query, "rows": newest.to_pylist()}


def show_windows(folder: Path, query: str, limit: int = 20, sink: str | None = None) -> Answer:
    """Return the newest windows of a view: status, coverage, revision, and what is missing."""
    from catchment.center.results.read import newest_windows, read_windows

    project = _project_answering(folder, query, sink)
    with asking_about(project, query):
        log = newest_windows(read_windows(project.state_folder, query))
    newest = log.sort_by([("window_start", "descending")]).slice(0, limit)
    return {"query": query, "windows": newest.drop_columns(["entry", "step", "rows_changed"]).to_pylist()}


def show_revisions(
    folder: Path, query: str, window: str | None = None, limit: int = 50, sink: str | None = None
) -> Answer:
    """Return every published revision of a view's windows, and why each was made."""
    import pyarrow.compute as pc

    from catchment.center.results.read import read_windows

    project = _project_answering(folder, query, sink)
    with asking_about(project, query):
        log = read_windows(project.state_folder, query)
    if window is not None:
        log = log.filter(pc.equal(log["window_start"], _instant(window)))
        if not log.num_rows:
            raise ConfigError(
                f"view {query!r} has published no window that starts at {window!r} (UTC)",
                where=str(folder),
                hint=f"catchment show windows {query} -p {folder} lists the windows",
            )
    rows = log.slice(max(0, log.num_rows - limit)).drop_columns(["entry", "step"]).to_pylist()
    return {"query": query, "revisions": rows}


def show_quarantine(folder: Path, limit: int = 20) -> Answer:
    """Return records that could not be used, as they arrived, with the reason, of sites that run from this folder."""
    import pyarrow.dataset as ds

    counts: Counter[str] = Counter()
    records: list[dict[str, Any]] = []
    for kept_in in sorted(Project.load(folder).state_folder.glob("sites/*/quarantine/*")):
        if not any(kept_in.glob("**/*.parquet")):
            continue  # all that was there was replayed or removed
        kept = ds.dataset(kept_in, format="parquet")
        for batch in kept.to_batches(columns=["_problem"]):  # one at a time: there may be more than fits into memory
            counts.update({str(c["values"]): c["counts"] for c in batch["_problem"].value_counts().to_pylist()})
        records += [
            {"site": r["site"], "stream": kept_in.name, "reason": r["_problem"], "record": r["_raw"]}
            for r in kept.head(limit, columns=["site", "_problem", "_raw"]).to_pylist()
        ]
    return {"counts": counts, "records": records[:limit]}


def show_contracts(folder: Path) -> Answer:
    """Return, per site and view with a contract, how long it waits, whether it is kept and who holds it up."""
    from catchment.deploy.reports.role_status import read_project_status

    project = Project.load(folder)
    found = [
        {"site": site.name, "view": view, **contract}
        for site in read_project_status(project).sites.values()
        for view, contract in site.told.get("contracts", {}).items()
    ]
    if not found:
        raise ConfigError(
            "no view with a contract has run here yet",
            where=str(project.state_folder),
            hint="write WITH (max_error = 0.05, confidence = 0.95) in a CREATE MATERIALIZED VIEW",
        )
    return {"contracts": found}


def show_late(folder: Path, query: str, sink: str | None = None) -> Answer:
    """Return the late records of a view: merged, waiting for repair, or registered because they came too late."""
    from catchment.center.results.names import newest_name
    from catchment.center.results.newest_rows import dataset_of, open_table
    from catchment.deploy.reports.role_status import read_project_status

    project = _project_answering(folder, query, sink)
    state = project.state_folder
    queries = read_project_status(project).center.told.get("queries", {})
    name = newest_name(state, query)
    if name not in queries:
        names = ", ".join(sorted(queries)) or "none"
        with asking_about(project, query):
            raise ConfigError(
                f"the view {query!r} has not run here yet", where=str(state), hint=f"views that have run: {names}"
            )
    query = name
    counts = {k: queries[query].get(k, 0) for k in ("late_records", "outstanding_records", "unmerged_records")}
    table = open_table(state / "late" / query)
    columns = ["window_start", "window_end", "registered_at"]
    rows = dataset_of(table).to_table(columns=columns).to_pylist() if table is not None else []
    return {"query": query, **counts, "registered": rows}


def show_quality(folder: Path, query: str, limit: int = 1000) -> Answer:
    """Return how soon windows were answered and exact, what bounds promised against what came true, and bytes sent."""
    from catchment.center.results.quality import view_quality
    from catchment.deploy.reports.view_traffic import view_traffic
    from catchment.query.catalog import load_catalog
    from catchment.query.sql.view_options import ViewOptions

    project = Project.load(folder)
    view = load_catalog(project).views.get(query)
    confidence = view.options.confidence if view is not None else ViewOptions().confidence
    with asking_about(project, query):
        answer = view_quality(project.state_folder, query, confidence, limit)
    return {**answer, "traffic": view_traffic(project, query)}


def show_queries(folder: Path) -> Answer:
    """Return every view: whether it runs, reads its past or is suspended, and the views that share its fragments."""
    from catchment.deploy.repairing.suspended import describe_queries

    return {"queries": describe_queries(Project.load(folder))}


def show_submitted_feeds(folder: Path) -> Answer:
    """Return the feed views that were submitted, and whom each is for."""
    from catchment.feeds.runs.cloud_role import submissions_of

    return submissions_of(folder).describe()


def show_sinks(folder: Path) -> Answer:
    """Return every sink: what it delivers where, since when it is up to date or failing, and why."""
    from catchment.deploy.reports.role_status import read_project_status
    from catchment.query.catalog import load_catalog

    project = Project.load(folder)
    told = read_project_status(project).center.told.get("sinks", {})
    unknown = {"state": "not started", "since_us": None, "rows": 0, "failures": 0, "error": None}
    rows = [
        {
            "sink": sink.name,
            "view": sink.view,
            "connector": sink.connector.kind,
            "changes": sink.connector.changes,
            **told.get(sink.name, unknown),
        }
        for sink in load_catalog(project).sinks.values()
    ]
    return {"sinks": rows}


def show_audit(folder: Path, limit: int = 50) -> Answer:
    """Return who changed what, and when; the newest changes, oldest first."""
    from dataclasses import asdict

    from catchment.control.audit import AuditLog

    entries = [asdict(entry) for entry in AuditLog(Project.load(folder).state_folder).read()]
    return {"changes": entries[-limit:]}


def explain(folder: Path, query: str | None = None, analyze: bool = False, sink: str | None = None) -> Answer:
    """Return what runs at each site, what crosses each link and what the center or another sink does."""
    from catchment.deploy.deployment import Deployment
    from catchment.query.catalog import load_catalog
    from catchment.serve.explanation import explain_deployment

    part = explained_part(Deployment.plan(load_catalog(Project.load(folder))), query, sink)
    views = [part.deployed.query_name(part.catalog.view(query).name)] if query else None
    return explain_deployment(part, views, analyze=analyze)


def explained_part(deployment: Deployment, query: str | None, sink: str | None) -> Deployment:
    """Return the part of a deployment that is to be explained: that of a sink, or the one that answers a view."""
    if sink is not None:
        return deployment if sink == deployment.project.center else deployment.part_at(sink)
    if query is not None:
        return deployment.of_view(query)
    return next((part for part in deployment.parts if part.plans), deployment)


def sql(
    folder: Path,
    statement: str,
    memory_bytes: int = 2 * 10**9,
    time_s: float = 60.0,
    sink: str | None = None,
) -> Answer:
    """Return the rows of a SELECT over published results."""
    from catchment.center.results.sql import SqlLimits, query_results

    state = Project.load(folder).answering_at(sink).state_folder
    found = query_results(state, statement, SqlLimits(memory_bytes, time_s))
    return {"rows": found.to_pylist()}


def list_sites(folder: Path) -> Answer:
    """Return every site: what it does, since when it counts, how far it has come."""
    from catchment.deploy import sites

    return sites.list_sites(folder)


def _instant(text: str) -> pa.Scalar:
    import pyarrow as pa

    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ConfigError(f"cannot read the time {text!r}", hint="write it as '2017-01-01 02:00' (UTC)") from error
    return pa.scalar(read if read.tzinfo else read.replace(tzinfo=UTC), pa.timestamp("us", tz="UTC"))
