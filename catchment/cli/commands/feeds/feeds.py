"""`catchment feeds`: run and measure per-user views over many devices."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchment.cli.commands.feeds import edge as edge_command
from catchment.cli.commands.feeds import live as live_commands
from catchment.cli.commands.feeds import place
from catchment.cli.commands.feeds import submitted as submitted_commands
from catchment.cli.commands.feeds.options import (
    Broker,
    CloudKind,
    CloudOption,
    DownloadCost,
    FeedProject,
    Page,
    Seed,
    StrategyChoice,
    Unit,
    UploadCost,
    Users,
    cloud_for,
    open_broker,
)
from catchment.cli.commands.feeds.page import open_page, page_data
from catchment.cli.commands.feeds.tables import follow_runs, render_explained, render_runs
from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.project_folder import FolderWord, project_folder

if TYPE_CHECKING:
    from catchment.feeds.runs.measured_run import FeedRun, RunOptions
    from catchment.feeds.runs.workload import Workload

_RUN_EPILOG = """Examples:

catchment feeds run -p examples/nearby_friends --seconds 60

catchment feeds run -p examples/nearby_friends --users 100 --seconds 120 --strategy ours --change-at 40 --json

catchment feeds run -p examples/nearby_friends --cloud spark --page 8765

catchment feeds run -p my-feeds --mqtt 127.0.0.1:1883

A project folder holds feeds.sql, one CSV file per reference table and one per recorded stream: docs/guides/feeds.md"""

_EXPLAIN_EPILOG = """Examples:

catchment feeds explain -p examples/nearby_friends

catchment feeds explain -p my-feeds --upload-cost 2 --download-cost 1 --json"""

feeds = typer.Typer(
    help="Run per-user views over many devices, placed so that the devices send and receive least.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(feeds, name="feeds")
    live_commands.register(feeds)
    edge_command.register(feeds)
    submitted_commands.register(feeds)
    place.register(feeds)
    place.register_alias(app)


@feeds.command("run", epilog=_RUN_EPILOG)
def run(
    folder: FolderWord = None,
    project: FeedProject = None,
    seconds: Annotated[int, typer.Option(help="How long to run, in seconds of the devices' time.", min=6)] = 60,
    strategy: Annotated[
        StrategyChoice, typer.Option(help="ours: where least is sent; cloud: all at the cloud; both: one run of each.")
    ] = StrategyChoice.BOTH,
    cloud: CloudOption = CloudKind.LOCAL,
    mqtt: Broker = None,
    live: Annotated[bool, typer.Option("--live", help="Run in real time; Spark, MQTT and a page imply it.")] = False,
    page: Page = None,
    change_at: Annotated[int | None, typer.Option(help="Second at which the rates of a made-up world change.")] = None,
    check: Annotated[bool, typer.Option(help="Compare notifications with a naive recomputation.")] = True,
    users: Users = None,
    rate_unit: Unit = None,
    upload_cost: UploadCost = None,
    download_cost: DownloadCost = None,
    seed: Seed = None,
    as_json: JsonFlag = False,
) -> None:
    """Run devices and a cloud in one process and compare predicted with measured traffic.

    Messages go over an in-process bus, or with `--mqtt` through a broker. Time is virtual and runs as fast as it can,
    unless `--live`. With `--cloud spark` routes and the cloud's views are computed in micro-batches of native Spark
    SQL, and `both` runs only ours, because one session serves one cloud.
    """
    from catchment.feeds.runs.measured_run import RunOptions
    from catchment.serve.feed_workload import load_workload

    folder = project_folder(folder, project)
    chosen = [StrategyChoice.OURS, StrategyChoice.CLOUD] if strategy is StrategyChoice.BOTH else [strategy]
    if cloud is CloudKind.SPARK and len(chosen) > 1:
        chosen = [StrategyChoice.OURS]
    options = [RunOptions(seconds, c.value, change_at, check=check) for c in chosen]
    worlds = [load_workload(folder, users, seed, rate_unit, upload_cost, download_cost) for _ in chosen]
    paced = live or page is not None or mqtt is not None or cloud is CloudKind.SPARK
    emit({"runs": _play(folder, worlds, options, cloud, mqtt, paced, page, as_json)}, as_json, render_runs)


@feeds.command("explain", epilog=_EXPLAIN_EPILOG)
def explain(
    folder: FolderWord = None,
    project: FeedProject = None,
    users: Users = None,
    rate_unit: Unit = None,
    upload_cost: UploadCost = None,
    download_cost: DownloadCost = None,
    seed: Seed = None,
    as_json: JsonFlag = False,
) -> None:
    """Show who would compute what, and how many messages that takes, before anything runs."""
    from catchment.serve.feed_workload import load_workload
    from catchment.serve.open_feeds import explain_workload

    chosen = project_folder(folder, project)
    world = load_workload(chosen, users, seed, rate_unit, upload_cost, download_cost, needs_records=False)
    emit(explain_workload(world), as_json, render_explained)


# ---- building and driving runs


def _play(
    folder: Path,
    worlds: list[Workload],
    options: list[RunOptions],
    kind: CloudKind,
    mqtt: str | None,
    paced: bool,
    page: int | None,
    quiet: bool,
) -> list[dict[str, Any]]:
    from catchment.feeds.runs.measured_run import play_side_by_side

    transport = f"MQTT through {mqtt}" if mqtt else "in-process bus"
    with ExitStack() as stack:
        pairs = zip(worlds, options, strict=True)
        runs = [_prepare(folder, world, option, kind, mqtt, stack) for world, option in pairs]
        show = stack.enter_context(follow_runs(quiet))
        live_page = open_page(page, stack)
        first = runs[0]
        for _ in play_side_by_side(runs, paced):
            snapshots = [run.board.snapshot() for run in runs]
            show(snapshots, first.second, options[0].seconds)
            if live_page is not None:
                notices = first.fleet.notices
                cloud = kind.value
                live_page.show(
                    page_data(
                        folder, first.world, first.graph, snapshots, transport=transport, cloud=cloud, notices=notices
                    )
                )
        if options[0].check:
            notes.print("comparing with the naive recomputation ...")
        return [run.report() for run in runs]


def _prepare(
    folder: Path, world: Workload, option: RunOptions, kind: CloudKind, mqtt: str | None, stack: ExitStack
) -> FeedRun:
    from catchment.feeds.runs.measured_run import BOOT, FeedRun

    cloud = stack.enter_context(cloud_for(world, kind))
    bus = None
    if mqtt is not None:
        from catchment.feeds.protocol.mqtt import MqttBus

        bus = MqttBus(open_broker(folder, mqtt, None, None, None, f"catchment-run-{option.strategy}"), BOOT)
        stack.callback(bus.close)
    return FeedRun(cloud.graph, world, cloud, option, bus)
