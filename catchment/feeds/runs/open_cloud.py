"""What a live cloud of feeds is made of: its settings, its reference data, and who may register."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from catchment.errors import FeedError
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate, TokenOf
from catchment.feeds.cloud.choose_hosts import STRATEGIES
from catchment.feeds.cloud.cloud import Cloud, PlacingCloud
from catchment.feeds.cloud.router import Router
from catchment.feeds.device.spool import spool_for
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.project import EdgeSettings, open_project, read_device_settings
from catchment.feeds.runs.durable_cloud import AnswerSource, DurableCloud
from catchment.feeds.runs.notice_tables import NoticeTables
from catchment.feeds.runs.reference_tables import MadeReference, ReferenceSource, ReferenceTables
from catchment.feeds.runs.registrar import Registrar
from catchment.feeds.runs.submissions import Submissions
from catchment.feeds.runs.workload import Recording, Workload, placement_rule
from catchment.keys.private_files import read_secret
from catchment.timeline import Clock

_FILE_NAME = re.compile(r"[^/\\\x00.][^/\\\x00]{0,63}")  # a device's name as part of a path


def open_durable_cloud(
    workload: Workload,
    state: Path,
    strategy: str,
    clock: Clock,
    tables: NoticeTables | None = None,
    answers: AnswerSource | None = None,
    edges: EdgeSettings | None = None,
) -> DurableCloud:
    """Return a cloud in this process that goes on from the state in a folder; a new one has no views yet."""
    if answers is None:
        refuse_answers(workload.program)
    limits = workload.retention.cloud
    router = Router(compile_feeds(workload.program), limits, spool_for(limits))
    rule = placement_rule(workload, STRATEGIES[strategy], edges)
    cloud = Cloud(ViewGraph(workload.program, {}, {}), router, workload.feed_rates, rule)
    return DurableCloud(cloud, router, state, clock, tables, answers)


def refuse_answers(program: FeedProgram) -> None:
    """Refuse a program that reads answers of views, where nobody computes these."""
    of_views = [stream for stream in program.streams.values() if stream.view is not None]
    if of_views:
        raise FeedError(
            f"the records of {of_views[0].name!r} are the answers of view {of_views[0].view!r}, which nobody computes",
            hint="serve the devices together with the views: catchment run, or catchment center",
        )


def open_registrar(
    folder: Path, state: Path, workload: Workload, cloud: PlacingCloud, say: Callable[[str], None] = lambda text: None
) -> Registrar:
    """Return who takes devices in for a cloud, by the settings of a project."""
    settings = read_device_settings(folder)
    rule = AdmissionRule(settings["admit"], settings["max"], settings["retire_after"])
    gate = DeviceGate(workload.program, rule, tokens_in(folder, settings["token_file"]))
    source: ReferenceSource
    if isinstance(workload, Recording):
        source = ReferenceTables(folder, workload.program)
    else:
        source = MadeReference(workload.read_reference())
    heard_us = cloud.heard_us if isinstance(cloud, DurableCloud) else {}
    submissions = Submissions(state, open_project(folder), say)
    now_us = time.time_ns() // 1000
    return Registrar(cloud, gate, source, state, say, now_us, heard_us, submissions)


def tokens_in(folder: Path, pattern: str | None) -> TokenOf:
    """Return how the token of a device is found: in a file of its own, which only its owner may read."""
    if pattern is None:
        return lambda device: None
    if "{device}" not in pattern:
        hint = "such as 'tokens/{device}': one file per device"
        raise FeedError(f"token_file is {pattern!r} in [devices]; expected {{device}} in it", hint=hint)

    def token_of(device: str) -> str | None:
        if not _FILE_NAME.fullmatch(device):
            raise FeedError(f"a device with a token cannot be called {device!r}")
        path = folder / pattern.replace("{device}", device)
        return read_secret(path, "the token").decode().strip() if path.exists() else None

    return token_of
