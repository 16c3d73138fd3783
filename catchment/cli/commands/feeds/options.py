"""What the commands about feeds share: options, opening a project, and a cloud of either make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchment.cli.output import notes

if TYPE_CHECKING:
    from catchment.feeds.cloud.cloud import Cloud
    from catchment.feeds.language.view_graph import ViewGraph
    from catchment.feeds.project import World
    from catchment.spark.feeds.cloud import SparkCloud


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
Users = Annotated[int | None, typer.Option(help="Users of a made world, in place of the project's number.")]
Unit = Annotated[
    float | None, typer.Option(help="Events a second of the slowest user of a made world; the fastest has 10 times it.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of a made world.")]
UploadCost = Annotated[float | None, typer.Option(help="Cost of one uploaded message, in place of the project's.")]
DownloadCost = Annotated[float | None, typer.Option(help="Cost of one downloaded message.")]
CloudOption = Annotated[CloudKind, typer.Option(help="What the cloud runs on.")]
Broker = Annotated[str | None, typer.Option("--mqtt", help="An MQTT broker, HOST:PORT.")]
Page = Annotated[int | None, typer.Option(help="Serve a live page on this port of the loopback; 0: any free one.")]


def open_project(
    folder: Path,
    users: int | None = None,
    seed: int | None = None,
    rate_unit: float | None = None,
    upload_cost: float | None = None,
    download_cost: float | None = None,
) -> World:
    """The world of a project, with what the command line says in place of its settings."""
    from catchment.sim.feeds.open_world import WorldChoice, open_world

    return open_world(folder, WorldChoice(users, seed, rate_unit, upload_cost, download_cost))


def graph_of(world: World) -> ViewGraph:
    """The views of a world."""
    from catchment.feeds.language.view_graph import generate_views

    return generate_views(world.program, world.read_reference())


@contextmanager
def cloud_for(world: World, kind: CloudKind) -> Iterator[Cloud | SparkCloud]:
    """A cloud with the views of a world, none of them deployed."""
    from catchment.feeds.cloud.reoptimize import ReoptimizeRule

    rule = ReoptimizeRule(world.costs)
    if kind is CloudKind.LOCAL:
        from catchment.feeds.cloud.cloud import Cloud
        from catchment.feeds.cloud.router import Router
        from catchment.feeds.language.evaluate import CompiledProgram

        yield Cloud(graph_of(world), Router(CompiledProgram(world.program)), world.feed_rates, rule)
    else:
        from catchment.spark.feeds.cloud import spark_cloud

        notes.print("starting Spark for the cloud ...")
        with spark_cloud(world.program, world.read_reference(), world.feed_rates, rule) as cloud:
            yield cloud
