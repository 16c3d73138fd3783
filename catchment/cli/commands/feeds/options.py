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
    from catchment.feeds.protocol.mqtt_config import MqttConfig
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
Broker = Annotated[
    str | None,
    typer.Option("--mqtt", help="An MQTT broker: HOST:PORT, or mqtts://HOST:PORT for TLS; else that of feeds.toml."),
]
BrokerUser = Annotated[
    str | None, typer.Option("--mqtt-user", help="Log in by this name; by default each client by its own.")
]
BrokerPassword = Annotated[
    str | None,
    typer.Option(
        "--mqtt-password-file",
        help="A file with the password, in whose path {client} is the name of the client; "
        "by default the password is in CATCHMENT_MQTT_PASSWORD.",
    ),
]
BrokerAuthority = Annotated[
    str | None, typer.Option("--mqtt-ca", help="Who signed the broker's certificate; by default who the system trusts.")
]
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


def open_broker(
    folder: Path,
    broker: str | None,
    user: str | None,
    password_file: str | None,
    ca: str | None,
    app: str = "catchment",
) -> MqttConfig:
    """Return the broker of a command: what the command line says, else what the project says."""
    from catchment.errors import FeedError
    from catchment.feeds.project import read_broker

    found = read_broker(folder, app, broker=broker, user=user, password_file=_absolute(password_file), ca=_absolute(ca))
    if found is None:
        hint = "give --mqtt HOST:PORT, or set broker in [mqtt] of feeds.toml"
        raise FeedError("no MQTT broker is named", where=str(folder), hint=hint)
    return found


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


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
