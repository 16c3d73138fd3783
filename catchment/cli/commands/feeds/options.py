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


FeedProject = Annotated[
    Path | None,
    typer.Option("--project", "-p", help="A feed project: a folder with feeds.sql; by default this folder."),
]
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
StateFolder = Annotated[
    Path | None, typer.Option("--state", help="Where the cloud keeps its state; by default state/cloud of the project.")
]
Page = Annotated[
    int | None, typer.Option(help="Serve a live page on this port of the loopback address; 0 takes any free port.")
]


def state_folder(project: Path, given: Path | None) -> Path:
    """Return where the cloud of a project keeps its state."""
    return given or project / "state" / "cloud"


def open_broker(
    folder: Path,
    broker: str | None,
    user: str | None,
    password_file: str | None,
    ca: str | None,
    app: str = "catchment",
    option: str = "--mqtt",
) -> MqttConfig:
    """Return the broker of a command: what the command line says in an option, else what the project says."""
    from catchment.errors import FeedError
    from catchment.feeds.project import read_broker

    found = read_broker(folder, app, broker=broker, user=user, password_file=_absolute(password_file), ca=_absolute(ca))
    if found is None:
        hint = f"give {option} HOST:PORT, or set broker in [mqtt] of feeds.toml"
        raise FeedError("no MQTT broker is named", where=str(folder), hint=hint)
    return found


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


@contextmanager
def cloud_for(workload: Workload, kind: CloudKind) -> Iterator[FeedCloud]:
    """Give a cloud with the views of a workload, none of them deployed."""
    if kind is CloudKind.LOCAL:
        from catchment.serve.open_feeds import local_cloud

        yield local_cloud(workload)
    else:
        from catchment.feeds.runs.workload import placement_rule
        from catchment.spark.feeds.cloud import spark_cloud

        notes.print("starting Spark for the cloud ...")
        rule = placement_rule(workload)
        with spark_cloud(workload.program, workload.read_reference(), workload.feed_rates, rule) as cloud:
            yield cloud
