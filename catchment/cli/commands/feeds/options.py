"""Options that the feeds commands share, and how they open a project and a cloud."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchment.cli.output import notes

if TYPE_CHECKING:
    from catchment.feeds.cloud.cloud import FeedCloud
    from catchment.feeds.language.view_graph import ViewGraph
    from catchment.feeds.project import FeedProject
    from catchment.feeds.runs.workload import Workload


class CloudKind(StrEnum):
    """What the cloud runs on."""

    LOCAL = "local"
    SPARK = "spark"


class StrategyChoice(StrEnum):
    """Where views are computed."""

    OURS = "ours"
    CLOUD = "cloud"
    BOTH = "both"


Folder = Annotated[Path, typer.Argument(help="A feed project: a folder with feeds.sql.", show_default=False)]
Users = Annotated[int | None, typer.Option(help="Users of a made-up world, in place of the project's number.")]
Unit = Annotated[
    float | None,
    typer.Option(help="Events per second of the slowest user of a made-up world; the fastest has 10 times as many."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of a made-up world.")]
UploadCost = Annotated[float | None, typer.Option(help="Cost of one uploaded message, in place of the project's.")]
DownloadCost = Annotated[float | None, typer.Option(help="Cost of one downloaded message.")]
CloudOption = Annotated[CloudKind, typer.Option(help="What the cloud runs on: this process, or Spark.")]
Broker = Annotated[str | None, typer.Option("--mqtt", help="An MQTT broker, HOST:PORT.")]
Page = Annotated[
    int | None, typer.Option(help="Serve a live page on this port of the loopback address; 0 takes any free port.")
]


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
    """Open a project's workload, with what the command line says in place of its settings."""
    from catchment.feeds.project import open_project
    from catchment.feeds.runs.workload import WorldChoice, open_workload

    project = WorldChoice(users, seed, rate_unit).apply(open_project(folder, upload_cost, download_cost))
    return open_workload(project, _make_world, needs_records=needs_records)


def _make_world(project: FeedProject) -> Workload:
    """Make up a world; only a project that asks for one needs the simulator."""
    from catchment.sim.nearby_world import make_nearby_world

    return make_nearby_world(project)


def graph_of(workload: Workload) -> ViewGraph:
    """Generate the views of a workload."""
    from catchment.feeds.language.view_graph import generate_views

    return generate_views(workload.program, workload.read_reference())


@contextmanager
def cloud_for(workload: Workload, kind: CloudKind) -> Iterator[FeedCloud]:
    """Give a cloud with the views of a workload, none of them deployed."""
    from catchment.feeds.cloud.reoptimize import ReoptimizeRule

    rule = ReoptimizeRule(workload.costs)
    if kind is CloudKind.LOCAL:
        from catchment.feeds.cloud.cloud import Cloud
        from catchment.feeds.cloud.router import Router
        from catchment.feeds.language.evaluate import CompiledProgram

        yield Cloud(graph_of(workload), Router(CompiledProgram(workload.program)), workload.feed_rates, rule)
    else:
        from catchment.spark.feeds.cloud import spark_cloud

        notes.print("starting Spark for the cloud ...")
        with spark_cloud(workload.program, workload.read_reference(), workload.feed_rates, rule) as cloud:
            yield cloud
