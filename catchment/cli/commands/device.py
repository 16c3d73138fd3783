"""`catchment device`: one device of a feed deployment, as a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.commands.feeds.options import BrokerAuthority, BrokerPassword, BrokerUser
from catchment.cli.output import JsonFlag, emit, notes

_EPILOG = """Examples:

cat positions.jsonl | catchment device 7 --mqtt 127.0.0.1:1883

catchment device 7 --mqtt mqtts://broker.example.org --token-file secrets/7 --json

cat positions.jsonl | catchment device 7 --mqtt 127.0.0.1:1883 --state /var/lib/catchment/7 --until-sent

A line of input is {"stream": "location", "row": {"lat": 48.1, "lon": 2.3}}; the device's own column may be left out."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("device", epilog=_EPILOG)(device)


def device(
    name: Annotated[str, typer.Argument(help="The name of the device, as the reference tables know it.")],
    mqtt: Annotated[str, typer.Option("--mqtt", help="An MQTT broker: HOST:PORT, or mqtts://HOST:PORT for TLS.")],
    state: Annotated[
        Path | None, typer.Option(help="The folder of its log; by default device-NAME in this folder.")
    ] = None,
    app: Annotated[str, typer.Option(help="The first level of the topics, as the cloud uses it.")] = "catchment",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token by which the device registers.")
    ] = None,
    mqtt_user: BrokerUser = None,
    mqtt_password_file: BrokerPassword = None,
    mqtt_ca: BrokerAuthority = None,
    functions: Annotated[
        Path | None, typer.Option(help="A folder whose functions.py has the functions of the project.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after this many seconds; by default when interrupted.")
    ] = None,
    until_sent: Annotated[
        bool, typer.Option("--until-sent", help="Stop when the input has ended and the broker has everything.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run one device: it registers, computes its views, records JSON lines of its input and prints its notices.

    Its log survives a kill: records that were not yet sent, what it was told, and which notices it has printed. With
    `--json` every line of output is a JSON document.
    """
    from catchment.cli.commands.feeds.live import keep_running_until
    from catchment.feeds.device.feed_device import FeedDevice
    from catchment.feeds.device.process import DeviceProcess, LineReader
    from catchment.feeds.language.functions import BUILT_IN
    from catchment.feeds.protocol.mqtt_config import MqttConfig
    from catchment.keys.private_files import read_secret

    known = BUILT_IN
    if functions is not None:
        from catchment.feeds.project import load_functions

        known = load_functions(functions)
    password = None if mqtt_password_file is None else Path(mqtt_password_file)
    authority = None if mqtt_ca is None else Path(mqtt_ca)
    broker = MqttConfig.parse(mqtt, app, username=mqtt_user, password_file=password, ca_certs=authority)
    token = None if token_file is None else read_secret(token_file, f"the token of {name!r}").decode().strip()
    folder = state or Path(f"device-{name}")
    with FeedDevice(name, broker, folder, token=token, functions=known) as made:
        process = DeviceProcess(made, LineReader(sys.stdin), _report_json if as_json else _report_text)
        process.run(keep_running_until(seconds), until_sent)
        status = made.status
    answer = {
        "event": "end",
        "recorded": status.recorded,
        "refused": process.refused,
        "notices": process.notices,
        "waiting": status.waiting,
        "dropped": status.dropped,
    }
    if as_json:
        _report_json(answer)
    else:
        emit(answer, False, _render)


def _report_json(line: dict[str, Any]) -> None:
    """Print one line, and let it reach its reader before the log says that it did."""
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _report_text(line: dict[str, Any]) -> None:
    if line["event"] == "notice":
        values = " ".join(f"{name}={value}" for name, value in line["row"].items())
        sys.stdout.write(f"notice {line['number']}: {line['view']} {values}\n")
        sys.stdout.flush()
    elif line["event"] == "refused":
        notes.print(f"line {line['line']} is refused: {line['reason']}", highlight=False, markup=False)
    elif line["event"] == "begin":
        notes.print(f"{line['recorded']} records so far", highlight=False)
    else:
        notes.print(_state_text(line), highlight=False, markup=False)


def _state_text(state: dict[str, Any]) -> str:
    if state["refusal"] is not None:
        return f"the cloud refuses this device: {state['refusal']}"
    if not state["connected"]:
        return f"no link to the broker{': ' + state['error'] if state['error'] else ''}"
    if not state["told"]:
        return "connected; the cloud has not yet said what to do"
    return f"connected; {state['views']} views are computed here"


def _render(answer: Mapping[str, Any]) -> str:
    return f"{answer['recorded']} records in all, {answer['waiting']} not yet sent; {answer['notices']} notices"
