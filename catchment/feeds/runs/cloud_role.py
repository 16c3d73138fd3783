"""The cloud of feeds as a part of a running project: it serves devices, and hands notices to the project's streams.

It runs in a thread of the center's process. Devices come over the broker that `feeds.toml` names; a project without one
whose streams are recorded plays the recording in this process. With `once`, a recording is played to its end in virtual
time, and only by a cloud that has not run before.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from catchment.errors import ConfigError, FeedError
from catchment.feeds.language.view_answers import shown_keys_of
from catchment.feeds.project import FeedProject, open_project, read_broker, read_edges
from catchment.feeds.runs.answer_rows import ViewAnswers
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.durable_links import DurableLinks
from catchment.feeds.runs.notice_tables import LandedNotices
from catchment.feeds.runs.open_cloud import open_durable_cloud, open_registrar
from catchment.feeds.runs.processes import CloudLinks, exchange, serve_durable_cloud
from catchment.feeds.runs.recorded_devices import RecordedDevices, recorded_instants
from catchment.feeds.runs.registrar import Registrar
from catchment.feeds.runs.submissions import Submissions
from catchment.feeds.runs.workload import Recording, Workload, open_workload
from catchment.project.config import Project
from catchment.query.catalog import Catalog
from catchment.query.feed_matches import matches_name
from catchment.receivers.landing import LandingFolder
from catchment.timeline import Clock, ManualClock
from catchment.units import SECOND_US

STATE_FOLDER = "feeds"  # of the cloud, within the state folder of the project
MAX_KEYS = 100_000  # entries of the cloud's journal whose notices are recognised when they are kept again
RECORDING_BEGINS_US = 1_700_000_000 * SECOND_US  # where virtual time begins
REVIEW_EVERY_S = 5.0


class FeedCloudRole:
    """Serves the devices of a project for as long as its center runs."""

    def __init__(self, project: Project, catalog: Catalog, clock: Clock, *, once: bool = False) -> None:
        self.project = project
        self.feeds = open_project(project.folder)
        self.workload = open_workload(self.feeds, _refuse_world, needs_records=False)
        self.broker = read_broker(project.folder)
        self.once = once
        self.clock: Clock = ManualClock(RECORDING_BEGINS_US) if once else clock
        streams = {
            view.lower(): catalog.streams[matches_name(view)] for view in catalog.feed_views if view in catalog.views
        }
        self.folders = {
            view: LandingFolder(project.landing_folder(project.center, stream.name), "json", 10**9, MAX_KEYS)
            for view, stream in streams.items()
        }
        self.keys = shown_keys_of(catalog)
        self._closing = ExitStack()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.cloud: DurableCloud | None = None
        self.registrar: Registrar | None = None
        self.said: list[str] = []

    @property
    def serves(self) -> bool:
        """Whether there is a broker, or a recording, that devices could come from."""
        return self.broker is not None or bool(_recording(self.workload))

    def start(self) -> None:
        """Begin to serve; with `once`, play the recording, and return when its notices have landed."""
        if not self.serves:
            raise ConfigError(
                "feed views need devices, and there is no broker and no recording",
                where=str(self.project.folder),
                hint='name a broker in feeds.toml: [mqtt] broker = "127.0.0.1:1883"',
            )
        tables = LandedNotices(self.feeds.program, self.folders)
        state = self.project.state_folder / STATE_FOLDER
        answers = ViewAnswers(self.project.state_folder, self.keys)
        edges = read_edges(self.project.folder)
        self.cloud = open_durable_cloud(self.workload, state, "ours", self.clock, tables, answers, edges)
        self._closing.callback(self.cloud.close)
        self.registrar = open_registrar(self.project.folder, state, self.workload, self.cloud, self.said.append)
        if self.once:
            self._play_once(self.cloud, self.registrar)
            self._closing.close()
            return
        self.cloud.take_answers()  # before sites begin: a new stream of answers has the first ones too
        links = self._open_links(self.cloud)
        self._thread = threading.Thread(target=self._serve, args=(links,), name="feeds", daemon=True)
        self._thread.start()

    def _open_links(self, cloud: DurableCloud) -> CloudLinks:
        links: CloudLinks
        if self.broker is not None:
            links = DurableLinks(self.broker, cloud.core)
        else:
            recording = _recording(self.workload)
            assert recording is not None
            links = RecordedDevices(recording, self.clock, cloud.publish_recorded)
        self._closing.callback(links.close)
        return links

    def _serve(self, links: CloudLinks) -> None:
        assert self.cloud is not None
        assert self.registrar is not None
        try:
            self.registrar.follow(self.clock.now_us())
            serve_durable_cloud(
                self.cloud,
                links,
                self.registrar,
                self.registrar.restart(),
                lambda: not self._stop.is_set(),
                each_second=lambda: None,
                review_every_s=REVIEW_EVERY_S,
            )
        except BaseException as failure:  # noqa: BLE001 - it is raised where the project is ticked
            self._failure = failure

    def _play_once(self, cloud: DurableCloud, registrar: Registrar) -> None:
        """Play the recording in virtual time; where the cloud has run before, its notices have landed already."""
        recording = _recording(self.workload)
        if recording is None or not cloud.is_new:
            return
        assert isinstance(self.clock, ManualClock)
        devices = RecordedDevices(recording, self.clock, cloud.publish_recorded)
        registrar.follow(self.clock.now_us())
        self._settle(cloud, devices, registrar)
        last_us = self.clock.now_us() + recording.recorded[-1].at_us
        for now_us in recorded_instants(recording, self.clock):
            if now_us <= last_us:
                devices.produce_until(now_us)
            devices.tick(now_us)
            self._settle(cloud, devices, registrar)

    def _settle(self, cloud: DurableCloud, devices: RecordedDevices, registrar: Registrar) -> None:
        """Carry messages until nothing is under way."""
        while devices.bus.busy_up or cloud.outgoing:
            exchange(cloud, devices, registrar)
            devices.receive(self.clock.now_us())
            if not devices.bus.busy_up:
                registrar.follow(self.clock.now_us())

    def tick(self) -> None:
        """Raise what ended the cloud, if it failed."""
        if self._failure is not None:
            raise self._failure

    def status(self) -> Mapping[str, Any]:
        """Return what the cloud does, as plain JSON."""
        if self.cloud is None or self.registrar is None:
            return {"devices": 0, "views": 0, "at_cloud": 0, "at_edges": 0, "notices": 0}
        hosts = list(self.cloud.controller.current_hosts().values())
        tables = self.cloud.tables
        return {
            "devices": len(self.registrar.registered),
            "views": len(self.cloud.graph.views),
            "at_cloud": sum(host == "cloud" for host in hosts),
            "at_edges": sum(host in self.registrar.tree.clouds for host in hosts),
            "notices": tables.kept if isinstance(tables, LandedNotices) else 0,
        }

    def stop(self) -> None:
        """Serve no more; the state is written down."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._closing.close()


def submissions_of(folder: Path) -> Submissions:
    """Return what was submitted to the cloud of a project."""
    return Submissions(cloud_state(folder), open_project(folder))


def cloud_state(folder: Path) -> Path:
    """Return where the cloud of a project keeps its state."""
    return Project.load(folder).state_folder / STATE_FOLDER


def _recording(workload: Workload) -> Recording | None:
    return workload if isinstance(workload, Recording) and workload.recorded else None


def _refuse_world(project: FeedProject) -> Workload:
    hint = "run it with catchment feeds run, or record its streams in CSV files"
    raise FeedError("a made-up world is for feeds alone, not for a project", where=str(project.folder), hint=hint)
