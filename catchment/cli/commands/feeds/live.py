"""`catchment feeds cloud` and `catchment feeds devices`: the two sides of a live deployment, each a process."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchment.cli.commands.feeds.options import (
    Broker,
    BrokerAuthority,
    BrokerPassword,
    BrokerUser,
    CloudKind,
    CloudOption,
    FeedProject,
    Page,
    Seed,
    StateFolder,
    StrategyChoice,
    Unit,
    Users,
    open_broker,
    state_folder,
)
from catchment.cli.commands.feeds.page import open_page, page_data
from catchment.cli.commands.feeds.tables import at_edges, follow_runs
from catchment.cli.output import JsonFlag, emit, notes
from catchment.cli.process_usage import usage
from catchment.cli.project_folder import FolderWord, project_folder
from catchment.errors import FeedError

if TYPE_CHECKING:
    from catchment.feeds.project import EdgeSettings
    from catchment.feeds.runs.batch_runner import BatchRunner
    from catchment.feeds.runs.durable_cloud import DurableCloud
    from catchment.feeds.runs.workload import Workload

_CLOUD_EPILOG = """Examples:

catchment feeds cloud -p examples/nearby_friends --mqtt 127.0.0.1:1883 --page 8765

catchment feeds cloud -p my-feeds --mqtt mqtts://broker:8883 --cloud spark --seconds 600 --json

It ends after --seconds or when interrupted. Changes to the CSV file of a reference table take effect at once; a wrong
row is set aside alone, in state/cloud/quarantine.jsonl."""

_RETIRE_EPILOG = """Examples:

catchment feeds retire 17 -p my-feeds

The cloud does it within a second, or when it starts. A device that is retired and says hello again is registered anew,
unless the table devices of feeds.toml no longer admits it."""

_DEVICES_EPILOG = """Examples:

catchment feeds devices -p examples/nearby_friends --mqtt 127.0.0.1:1883 --part 1/4

catchment feeds devices -p examples/nearby_friends --mqtt 127.0.0.1:1883 --part 2/4 --seconds 300 --log fleet-2.jsonl

Devices have persistent sessions: messages for a device that is away wait at the broker, and its own records wait on
the device."""

RETENTION_EVERY_S = 10  # how often a cloud looks whether it can keep what its views need

Seconds = Annotated[float | None, typer.Option(help="Stop after this many seconds; by default when interrupted.")]


def register(feeds: typer.Typer) -> None:
    """Add the commands."""
    feeds.command("cloud", epilog=_CLOUD_EPILOG)(cloud)
    feeds.command("devices", epilog=_DEVICES_EPILOG)(devices)
    feeds.command("retire", epilog=_RETIRE_EPILOG)(retire)


def cloud(
    folder: FolderWord = None,
    project: FeedProject = None,
    mqtt: Broker = None,
    mqtt_user: BrokerUser = None,
    mqtt_password_file: BrokerPassword = None,
    mqtt_ca: BrokerAuthority = None,
    seconds: Seconds = None,
    strategy: Annotated[
        StrategyChoice, typer.Option(help="Who computes the views: ours or cloud.")
    ] = StrategyChoice.OURS,
    cloud: CloudOption = CloudKind.LOCAL,
    spark_memory: Annotated[
        str, typer.Option(help="Heap of Spark's JVM; large batches, of fast fleets, need more.")
    ] = "512m",
    page: Page = None,
    log: Annotated[Path | None, typer.Option(help="Append traffic and placement to this file, as JSON lines.")] = None,
    state: StateFolder = None,
    users: Users = None,
    rate_unit: Unit = None,
    seed: Seed = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the cloud of a live deployment: place views, route feeds and compute the cloud's views.

    It starts from the program and the reference tables. Devices register themselves; the table devices of feeds.toml
    says which are admitted. A view begins when all its devices are there. The cloud keeps its state in a folder and
    goes on from it, however it ended.
    """
    from catchment.feeds.cloud.retention import RetentionWatch
    from catchment.feeds.project import read_edges
    from catchment.feeds.runs.cloud_watch import CloudWatch
    from catchment.feeds.runs.durable_links import DurableLinks
    from catchment.feeds.runs.open_cloud import open_registrar
    from catchment.feeds.runs.processes import serve_durable_cloud
    from catchment.serve.feed_workload import load_workload

    if strategy is StrategyChoice.BOTH:
        raise FeedError("one cloud follows one strategy", hint="give --strategy ours or --strategy cloud")
    folder = project_folder(folder, project)
    broker = open_broker(folder, mqtt, mqtt_user, mqtt_password_file, mqtt_ca)
    world = load_workload(folder, users, seed, rate_unit, needs_records=False)
    where = state_folder(folder, state)
    with ExitStack() as stack:
        served, batches = _open_cloud(cloud, world, strategy.value, where, stack, spark_memory, read_edges(folder))
        links = DurableLinks(broker, served.core)
        stack.callback(links.close)
        registrar = open_registrar(folder, where, world, served, _say)
        written = None if log is None else stack.enter_context(log.open("a", buffering=1, encoding="utf-8"))
        watch = CloudWatch(world, served, links, strategy.value, usage=usage, log=written)
        show = stack.enter_context(follow_runs(as_json))
        live_page = open_page(page, stack)
        keeps = RetentionWatch(world.retention)

        def each_second() -> None:
            snapshot = watch.sample()
            if watch.second % RETENTION_EVERY_S == 0:
                for told in keeps.look(served.graph, served.controller.rates, served.forgotten):
                    _say(told)
            show([snapshot], watch.second, None)
            if live_page is not None:
                transport = f"MQTT through {links.config.address}"
                live_page.show(
                    page_data(folder, world, served.graph, [snapshot], transport=transport, cloud=cloud.value)
                )

        first = [*registrar.follow(time.time_ns() // 1000), *registrar.restart()]
        if registrar.declared is not None:
            world.retention.check(registrar.declared, served.controller.rates)
        every = 5.0 if strategy is StrategyChoice.OURS else None
        goes_on = keep_running_until(seconds)
        serve_durable_cloud(
            served,
            links,
            registrar,
            first,
            goes_on,
            each_second=each_second,
            review_every_s=every,
            batches=batches,
        )
        answer = watch.report() | {"devices": len(registrar.registered), "devices_refused": registrar.gate.refused}
    emit(answer, as_json, _render_cloud)


def _open_cloud(
    kind: CloudKind, world: Workload, strategy: str, state: Path, stack: ExitStack, memory: str, edges: EdgeSettings
) -> tuple[DurableCloud, BatchRunner | None]:
    """Open a cloud in this process, or one on Spark with what runs its batches; both go on from their folder."""
    from catchment.feeds.runs.open_cloud import open_durable_cloud
    from catchment.timeline import SystemClock

    if kind is CloudKind.LOCAL:
        durable = open_durable_cloud(world, state, strategy, SystemClock(), edges=edges)
        stack.callback(durable.close)
        return durable, None
    if edges.clouds:
        hint = "run it with --cloud local, or remove [edges] from feeds.toml"
        raise FeedError("a cloud on Spark has no edge clouds", hint=hint)
    if not re.fullmatch("[0-9]+[kmgKMG]", memory):
        raise FeedError(f"found {memory!r} in --spark-memory; expected an amount of memory such as '512m' or '2g'")
    from catchment.spark.feeds.cloud import feed_session
    from catchment.spark.feeds.durable import open_spark_cloud

    _say("starting Spark for the cloud ...")
    spark = stack.enter_context(feed_session(memory=memory))
    on_spark, batches = open_spark_cloud(spark, world, state, strategy, SystemClock())
    stack.callback(on_spark.close)
    stack.callback(batches.close)
    return on_spark, batches


def retire(
    device: Annotated[str, typer.Argument(help="The name of a device that has left for good.", show_default=False)],
    folder: FolderWord = None,
    project: FeedProject = None,
    state: StateFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """Retire a device: its views end, and the cloud frees what it held for it."""
    from catchment.feeds.runs.registrar import ask_to_retire

    ask_to_retire(state_folder(project_folder(folder, project), state), device)
    emit({"asked_to_retire": device}, as_json, lambda answer: f"asked the cloud to retire {answer['asked_to_retire']}")


def devices(
    folder: FolderWord = None,
    project: FeedProject = None,
    mqtt: Broker = None,
    mqtt_user: BrokerUser = None,
    mqtt_password_file: BrokerPassword = None,
    mqtt_ca: BrokerAuthority = None,
    part: Annotated[str, typer.Option(help="Which devices: K/N is the K-th of N equal parts.")] = "1/1",
    seconds: Seconds = None,
    begin_at: Annotated[
        float | None, typer.Option(help="When to start, in seconds since 1970; by default now.")
    ] = None,
    change_at: Annotated[
        float | None, typer.Option(help="Seconds after the start at which the rates of a made-up world change.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Append records and notifications to this file.")] = None,
    users: Users = None,
    rate_unit: Unit = None,
    seed: Seed = None,
    as_json: JsonFlag = False,
) -> None:
    """Run many light devices in one process, which record their feeds, compute their views and notify."""
    from catchment.feeds.device.device import DeviceConfig, boot_number
    from catchment.feeds.device.fleet import Fleet
    from catchment.feeds.device.spool import spool_for
    from catchment.feeds.protocol.mqtt import MqttDevices
    from catchment.feeds.runs.processes import FleetLog, serve_fleet
    from catchment.feeds.runs.workload import with_change
    from catchment.serve.feed_workload import load_workload
    from catchment.timeline import SystemClock

    folder = project_folder(folder, project)
    world = load_workload(folder, users, seed, rate_unit)
    mine = _part_of(list(world.rates), part)
    clock = SystemClock()
    boot = boot_number(time.time_ns() // 1000)
    links = MqttDevices(open_broker(folder, mqtt, mqtt_user, mqtt_password_file, mqtt_ca))
    written = None if log is None else FleetLog(log)
    limits = world.retention.device
    configs = [DeviceConfig(name, boot, report_every_us=5_000_000, limits=limits) for name in mine]
    notify = written.notice if written else None
    fleet = Fleet(configs, links, world.program.functions, notify, make_spool=lambda name: spool_for(limits))
    for name in mine:
        links.add(name, boot)
    begin_us = clock.now_us() if begin_at is None else round(begin_at * 1e6)
    change_us = None if change_at is None else begin_us + round(change_at * 1e6)
    notes.print(f"{len(mine)} devices of {len(world.rates)}", highlight=False)
    records = world.records(begin_us, set(mine))
    end_s = None if seconds is None else max(0.0, begin_us / 1e6 - time.time()) + seconds
    serve_fleet(
        fleet,
        links,
        records if change_us is None else with_change(world, records, change_us),
        clock,
        keep_running_until(end_s),
        None if written is None else lambda record: written.record(replace(record, boot=boot)),
    )
    links.close()
    emit(
        {
            "devices": len(mine),
            "notices": len(fleet.notices),
            "dropped": sum(d.dropped for d in fleet.devices.values()),
            "forgotten": fleet.forgotten,
            "missing": sum(r.missing for r in links.receivers.values()),
            "usage": usage(),
        },
        as_json,
        lambda a: f"{a['devices']} devices notified {a['notices']} times; {a['dropped']} events dropped at full logs",
    )


def _say(text: str) -> None:
    notes.print(text, highlight=False, markup=False)


def keep_running_until(seconds: float | None) -> Callable[[], bool]:
    """Return a check that holds until the time is over or the process is asked to stop."""
    end_s = float("inf") if seconds is None else time.monotonic() + seconds
    asked: list[int] = []
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda number, frame: asked.append(number))
    return lambda: not asked and time.monotonic() < end_s


def _part_of(names: list[str], part: str) -> list[str]:
    which, _, of = part.partition("/")
    if not (which.isdigit() and of.isdigit() and 1 <= int(which) <= int(of)):
        raise FeedError(f"cannot read {part!r} as a part", hint="write K/N with K from 1 to N, such as 2/4")
    mine = names[int(which) - 1 :: int(of)]
    if not mine:
        raise FeedError(f"part {part} of {len(names)} devices is empty", hint="take fewer parts")
    return mine


def _render_cloud(answer: Mapping[str, Any]) -> str:
    used = answer["usage"]
    return (
        f"{answer['views_at_cloud']:,} views at the cloud, {at_edges(answer)}"
        f"{answer['views_on_devices']:,} on devices; "
        f"{answer['redeployments']} redeployments; {answer['notices']:,} notices; "
        f"{used['cpu_s']:.1f} s of processor time, {used['peak_memory_mb']:,} MB"
    )
