"""`catchment feeds edge`: an edge cloud, between its devices and the cloud, as a process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.commands.feeds.live import Seconds, keep_running_until
from catchment.cli.commands.feeds.options import BrokerAuthority, BrokerPassword, BrokerUser, FeedProject, open_broker
from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.process_usage import usage
from catchment.cli.project_folder import project_folder
from catchment.errors import FeedError

_EPILOG = """Examples:

catchment feeds edge north -p my-feeds --mqtt 10.1.0.1:1883

catchment feeds edge north -p my-feeds --mqtt 127.0.0.1:1883 --app north --cloud-mqtt 127.0.0.1:1883

The cloud is started with catchment feeds cloud, and feeds.toml names its edge clouds in the table edges. Devices of
an edge cloud are started with its broker, and its --app, in place of the cloud's."""


def register(feeds: typer.Typer) -> None:
    """Add the command."""
    feeds.command("edge", epilog=_EPILOG)(edge)


def edge(
    name: Annotated[str, typer.Argument(help="The name of the edge cloud, as feeds.toml has it in the table edges.")],
    mqtt: Annotated[
        str, typer.Option("--mqtt", help="The broker of its devices: HOST:PORT, or mqtts://HOST:PORT for TLS.")
    ],
    project: FeedProject = None,
    cloud_mqtt: Annotated[
        str | None, typer.Option("--cloud-mqtt", help="The broker of the cloud; by default that of feeds.toml.")
    ] = None,
    app: Annotated[str, typer.Option(help="The first level of the topics of its devices.")] = "catchment",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token by which it registers at the cloud.")
    ] = None,
    mqtt_user: BrokerUser = None,
    mqtt_password_file: BrokerPassword = None,
    mqtt_ca: BrokerAuthority = None,
    state: Annotated[
        Path | None, typer.Option(help="Where it keeps its state; by default state/edge-NAME of the project.")
    ] = None,
    seconds: Seconds = None,
    as_json: JsonFlag = False,
) -> None:
    """Run an edge cloud: it serves the devices of a region, and is to the cloud what a device is.

    The cloud decides which views it computes and what it uploads. Its state survives a kill, and while the cloud cannot
    be reached, its devices are served on.
    """
    from catchment.feeds.cloud.edge_cloud import EdgeCloud, EdgeConfig
    from catchment.feeds.device.spool import spool_for
    from catchment.feeds.project import load_functions, open_project, read_edges
    from catchment.feeds.runs.durable_edge import DurableEdge, serve_edge
    from catchment.feeds.runs.durable_links import DurableLinks, uplink_of
    from catchment.keys.private_files import read_secret
    from catchment.timeline import SystemClock

    folder = project_folder(None, project)
    known = read_edges(folder).clouds
    if name not in known:
        hint = f"it names {', '.join(known)}" if known else f'add: [edges] clouds = ["{name}"]'
        raise FeedError(f"{name!r} is not among the edge clouds of feeds.toml", where=str(folder), hint=hint)
    above = open_broker(folder, cloud_mqtt, mqtt_user, mqtt_password_file, mqtt_ca, option="--cloud-mqtt")
    below = open_broker(folder, mqtt, mqtt_user, mqtt_password_file, mqtt_ca, app)
    if above.address == below.address and above.app == below.app:
        hint = f"give its devices a broker of their own, or another --app, such as {name}"
        raise FeedError("the devices of an edge cloud would be heard by the cloud too", where=below.address, hint=hint)
    limits = open_project(folder).retention.cloud
    token = None if token_file is None else read_secret(token_file, f"the token of {name!r}").decode().strip()
    made = EdgeCloud(EdgeConfig(name, token, limits), load_functions(folder), spool_for(limits))
    durable = DurableEdge(made, state or folder / "state" / f"edge-{name}", SystemClock())
    links = DurableLinks(below, durable.core)
    uplink = uplink_of(above, name, durable.core.above)
    say = _Sayer()
    try:
        serve_edge(durable, links, uplink, keep_running_until(seconds), lambda: say.look(durable.status()))
        answer = {**durable.status(), "usage": usage()}
    finally:
        links.close()
        uplink.close()
        durable.close()
    emit(answer, as_json, _render)


class _Sayer:
    """Says when the cloud takes the edge cloud in, or does not, and how many devices there are."""

    def __init__(self) -> None:
        self.said: tuple[Any, ...] = ()

    def look(self, status: Mapping[str, Any]) -> None:
        state = (status["admitted"], status["refusal"], status["devices"], status["views"])
        if state == self.said:
            return
        self.said = state
        refusal = f"refused: {status['refusal']}" if status["refusal"] else "asking the cloud"
        reached = "admitted" if status["admitted"] else refusal
        notes.print(f"{reached}; {status['devices']} devices, {status['views']} views", highlight=False, markup=False)


def _render(answer: Mapping[str, Any]) -> str:
    return (
        f"{answer['devices']} devices, {answer['views']} views; {answer['sent_to_cloud']:,} messages to the cloud, "
        f"{answer['received_from_cloud']:,} from it; {answer['waiting_for_cloud']:,} wait"
    )
