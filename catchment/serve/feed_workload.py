"""Open the workload of a feed project: its recorded streams, or a made-up world where it asks for one.

A device imports this, so it needs neither SciPy nor Spark.
"""

from __future__ import annotations

from pathlib import Path

from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.project import FeedProject, open_project
from catchment.feeds.runs.workload import Workload, WorldChoice, open_workload


def load_workload(
    folder: Path,
    users: int | None = None,
    seed: int | None = None,
    rate_unit: float | None = None,
    upload_cost: float | None = None,
    download_cost: float | None = None,
    *,
    needs_records: bool = True,
) -> Workload:
    """Open a project's workload, with what is given in place of its settings."""
    project = WorldChoice(users, seed, rate_unit).apply(open_project(folder, upload_cost, download_cost))
    return open_workload(project, _make_world, needs_records=needs_records)


def _make_world(project: FeedProject) -> Workload:
    """Make up a world; only a project that asks for one needs the simulator."""
    from catchment.sim.nearby_world import make_nearby_world

    return make_nearby_world(project)


def graph_of(workload: Workload) -> ViewGraph:
    """Generate the views of a workload."""
    return generate_views(workload.program, workload.read_reference())
