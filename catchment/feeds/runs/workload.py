"""What devices record during a run: streams that were recorded in files, or a world that is made up.

A recorded stream is a file `<stream>.csv` of the project: a column at_s (seconds from the start of the recording), then
the declared columns. A recording is repeated when a run is longer than it, with a pause of its mean interval. A made-up
world is the same for the same settings in every process, so that fleets in processes of their own share one world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from catchment.errors import FeedError
from catchment.feeds.cloud.budgets import Budgets
from catchment.feeds.cloud.choose_hosts import Strategy, least_traffic
from catchment.feeds.cloud.edges import EdgeTree
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.retention import Retention
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.template import CLOUD_FEED, FeedProgram
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.project import RECORDING, EdgeSettings, FeedProject, read_rows


class Workload(Protocol):
    """Where the records of devices come from, and the reference data that says who meets whom."""

    @property
    def source(self) -> str:
        """Where it is from, for people."""

    @property
    def program(self) -> FeedProgram: ...

    @property
    def costs(self) -> LinkCosts: ...

    @property
    def retention(self) -> Retention:
        """How much the cloud and its devices keep for their views."""

    @property
    def budgets(self) -> Budgets:
        """What each device may be asked to carry."""

    @property
    def rates(self) -> dict[str, float]:
        """Events per second of each known device."""

    @property
    def feed_rates(self) -> dict[str, float]:
        """Events per second of each feed."""

    def read_reference(self) -> ReferenceData: ...

    def records(self, from_us: int = 0, devices: Collection[str] | None = None) -> Iterator[DeviceRecord]:
        """Yield what (some) devices record, from an instant on, in order of time, without end."""

    def change_rates(self) -> None:
        """Change the rates of devices in mid-run, as experiments do."""


def placement_rule(
    workload: Workload, strategy: Strategy = least_traffic, edges: EdgeSettings | None = None
) -> ReoptimizeRule:
    """Return how the views of a workload are placed, by what its project says of costs, budgets and retention."""
    edges = edges or EdgeSettings()
    of_links = {**workload.costs.of_device, **dict.fromkeys(edges.clouds, (edges.cost, edges.cost))}
    return ReoptimizeRule(
        replace(workload.costs, of_device=of_links),
        strategy=strategy,
        retention=workload.retention,
        budgets=workload.budgets,
        tree=EdgeTree(edges.clouds),
    )


MakeWorkload = Callable[[FeedProject], Workload]


@dataclass(frozen=True)
class WorldChoice:
    """What a command line says in place of the options of [world]; None leaves them."""

    users: int | None = None
    seed: int | None = None
    rate_unit: float | None = None

    def apply(self, project: FeedProject) -> FeedProject:
        """Return the project with what was chosen."""
        chosen = {name: value for name, value in vars(self).items() if value is not None}
        if chosen and project.world["kind"] == RECORDING:
            raise FeedError(
                "the streams of this project are recorded: it has the users and rates that it has",
                where=str(project.folder),
                hint="users, seed and rate unit are for a project with [world] in feeds.toml",
            )
        return replace(project, world={**project.world, **chosen})


def open_workload(project: FeedProject, make_world: MakeWorkload, *, needs_records: bool = True) -> Workload:
    """Open what a project says about its records; `make_world` makes a world that is not recorded.

    A cloud needs no records: its devices have them, and are those that the reference tables name.
    """
    if project.world["kind"] != RECORDING:
        return make_world(project)
    if not needs_records and not any((project.folder / f"{name}.csv").exists() for name in project.program.streams):
        return Recording(project, [], {}, {})
    return open_recording(project)


def with_change(workload: Workload, records: Iterable[DeviceRecord], change_us: int) -> Iterator[DeviceRecord]:
    """Yield the records of a workload, whose rates change at an instant."""
    changed = False
    for record in records:
        if not changed and record.at_us >= change_us:
            changed = True
            workload.change_rates()
        yield record


@dataclass
class Recording:
    """The recorded streams of a project."""

    project: FeedProject
    recorded: list[DeviceRecord] = field(repr=False)
    rates: dict[str, float] = field(repr=False)
    feed_rates: dict[str, float] = field(repr=False)

    @property
    def source(self) -> str:
        return str(self.project.folder)

    @property
    def program(self) -> FeedProgram:
        return self.project.program

    @property
    def costs(self) -> LinkCosts:
        return self.project.costs

    @property
    def retention(self) -> Retention:
        return self.project.retention

    @property
    def budgets(self) -> Budgets:
        return self.project.budgets

    def read_reference(self) -> ReferenceData:
        """Read the reference tables as they are in the folder now."""
        return self.project.read_reference(self.rates or None)

    def records(self, from_us: int = 0, devices: Collection[str] | None = None) -> Iterator[DeviceRecord]:
        """Yield what (some) devices recorded, moved to begin at an instant, and again when it has ended."""
        kept = [r for r in self.recorded if devices is None or r.device in devices]
        while kept:
            for r in kept:
                yield DeviceRecord(from_us + r.at_us, r.device, r.stream, r.row)
            from_us += self.recorded[-1].at_us + max(1, self.recorded[-1].at_us // len(self.recorded))

    def change_rates(self) -> None:
        raise FeedError("a recording has the rates that it has", hint="rates change in mid-run in a made world only")


def open_recording(project: FeedProject) -> Recording:
    """Read the recorded streams of a project."""
    recorded = sorted(_read_records(project), key=lambda r: r.at_us)
    if not recorded:
        raise FeedError("no stream of the project has a record", where=str(project.folder))
    return Recording(project, recorded, *_measure_rates(project.program, recorded))


def _read_records(project: FeedProject) -> Iterator[DeviceRecord]:
    for name, stream in project.program.streams.items():
        if stream.born_at_cloud and not (project.folder / stream.file_name).exists():
            continue  # it is published when the cloud runs
        at = None if stream.device is None else stream.column_names.index(stream.device)
        for number, (at_s, row) in enumerate(read_rows(project.folder, stream, ("at_s",)), start=2):
            if (at is not None and row[at] is None) or at_s is None or not 0 <= at_s < 1e9:
                where = f"{project.folder / f'{name}.csv'}, line {number}"
                raise FeedError(f"a record needs a device and a time of 0 or more: {at_s}, {row!r}", where=where)
            device = CLOUD_FEED if stream.born_at_cloud or at is None else str(row[at])
            yield DeviceRecord(round(at_s * 1e6), device, name, row)


def _measure_rates(program: FeedProgram, recorded: list[DeviceRecord]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the events per second of each device, and of each of its feeds after the filters of the program."""
    compiled = compile_feeds(program)
    seconds = (recorded[-1].at_us / 1e6) or 1.0
    devices: Counter[str] = Counter()
    feeds: Counter[str] = Counter()
    for record in recorded:
        if record.device != CLOUD_FEED:
            devices[record.device] += 1
        part = program.streams[record.stream].part_of(record.row)
        feeds.update(f"{kind}@{part}" for kind, _ in compiled.feeds_of(record.stream, record.row))
    return _per_second(devices, seconds), _per_second(feeds, seconds)


def _per_second(counts: Counter[str], seconds: float) -> dict[str, float]:
    return {name: count / seconds for name, count in counts.items()}
