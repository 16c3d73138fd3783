"""The project of examples/wan_workload as it runs on one machine: fourteen sites, their links slowed, twelve queries.

Each way to deploy it is a project of its own over the same records and links. What a way decides:

- *shared*: all queries read one stream, whose records each source sends once, and the sharing of fragments is `full`.
  Not shared: each query reads a stream of its own (a copy with the same records), and no fragment is shared, as if each
  query were a job of its own.
- *network-aware*: the records of a source are evaluated at the end of its widest link, the nearer one of two that are
  alike. Not: the sites that compute are dealt to the sources, in an order drawn from a seed.

All links are slowed by one factor, which follows from what the fullest link to a site that evaluates is asked for by a
network-aware way (`Slowing`). Records cross links as the engine packs them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.data import data_file
from benchmarks.sharing.world import EXAMPLE, FILES, maker
from catchment.light.packing import pack_lines
from catchment.optimizer.choices import Strength
from catchment.project.config import Project
from catchment.project.sections import Link

SEED = 20261118
RECORDS_PER_S = 500.0  # of all sources together, by the wall clock
SPEED = 10.0  # seconds of event time per second of the wall clock
BEGIN = datetime(2015, 9, 12, tzinfo=UTC)
STREAM = "edits"
TRIGGER_S = 1.0
_NAME = re.compile(r"MATERIALIZED VIEW (\w+)")
_SINK = re.compile(r"sink = '(\w+)'")
_WINDOW = re.compile(r"window\(time, '(\d+) seconds'\)")


@dataclass(frozen=True)
class LiveWay:
    """A way to deploy queries that runs."""

    name: str
    is_shared: bool
    is_network_aware: bool


LIVE_WAYS = (
    LiveWay("even spread", False, False),
    LiveWay("network", False, True),
    LiveWay("sharing", True, False),
    LiveWay("ours", True, True),
)


@dataclass(frozen=True)
class LiveQuery:
    """A query of the workload."""

    statement: str
    number: int

    @property
    def name(self) -> str:
        return _found(_NAME, self.statement)

    @property
    def sink(self) -> str:
        return _found(_SINK, self.statement)

    @property
    def window_s(self) -> int:
        """The length of its windows, in seconds of event time."""
        return int(_found(_WINDOW, self.statement))

    def stream(self, way: LiveWay) -> str:
        """Return the stream that it reads."""
        return STREAM if way.is_shared else f"{STREAM}_{self.number}"

    def to_sql(self, way: LiveWay) -> str:
        """Return the statement that is submitted."""
        return re.sub(rf"\b{STREAM} (?=(GROUP|JOIN|WHERE))", f"{self.stream(way)} AS {STREAM} ", self.statement)


def workload_queries() -> list[LiveQuery]:
    """Return the twelve queries, in the order of submission."""
    text = (EXAMPLE / "queries" / "views.sql").read_text()
    parts = [part.strip() for part in text.split("CREATE ")[1:]]
    return [LiveQuery(f"CREATE {part}", number) for number, part in enumerate(parts)]


@dataclass(frozen=True)
class LiveEdit:
    """A record, and when it is born: seconds since the sources began."""

    site: str
    born_s: float
    row: Mapping[str, Any]

    @cached_property
    def line(self) -> str:
        return json.dumps(self.row) + "\n"


def live_edits(span_s: float) -> list[LiveEdit]:
    """Return the edits of the day in their order, at a steady pace, again from the first after the last."""
    make = maker()
    rows = sorted(make.edits(data_file("wiki_edits").parents[1]), key=lambda edit: str(edit["time"]))
    found = []
    for number in range(int(span_s * RECORDS_PER_S)):
        row = rows[number % len(rows)]
        born_s = number / RECORDS_PER_S
        at = BEGIN + timedelta(seconds=born_s * SPEED)
        found.append(LiveEdit(make.site_of(row), born_s, {**row, "time": at.isoformat().replace("+00:00", "Z")}))
    return found


@dataclass(frozen=True)
class Slowing:
    """A rule by which links are slowed, and the ways that are compared on them.

    Of a network-aware way that sends so many copies of the stream, the fullest link is asked for so many times what it
    carries.
    """

    name: str
    streams: int
    asked: float
    ways: tuple[LiveWay, ...]


def slowings(queries: int) -> tuple[Slowing, ...]:
    """Return the links of a run: too slow for ways that do not share, and just fast enough for those that do."""
    shared = tuple(way for way in LIVE_WAYS if way.is_shared)
    return (
        Slowing("without sharing asked for 200 %", queries, 2.0, LIVE_WAYS),
        Slowing("with sharing asked for 90 %", 1, 0.9, shared),
    )


@dataclass(frozen=True)
class FourteenSites:
    """What all ways have in common: sites, links as they are declared, and by which factor they are slowed."""

    declared: Project
    slowed: float

    @classmethod
    def of(cls, edits: Sequence[LiveEdit], slowing: Slowing) -> FourteenSites:
        """Slow all links by one factor."""
        declared = Project.load(EXAMPLE)
        rates = packed_bytes_per_s(edits)
        hubs = widest_ends(declared)
        fullest = max(rate / bandwidth_of(declared.link(site, hubs[site])) for site, rate in rates.items())
        return cls(declared, slowing.streams * fullest / slowing.asked)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(site for site in self.declared.sites if self.declared.is_light(site))

    def evaluated_at(self, way: LiveWay) -> dict[str, str]:
        """Return where the records of each source are evaluated."""
        if way.is_network_aware:
            return widest_ends(self.declared)
        computing = [site for site in self.declared.sites if not self.declared.is_light(site)]
        random.Random(SEED).shuffle(computing)
        return dict(zip(self.sources, computing, strict=False))

    def write(self, folder: Path, way: LiveWay, first: LiveQuery, queries: Sequence[LiveQuery]) -> None:
        """Lay out the project of a way: its first query is declared, and the streams of all."""
        (folder / "queries").mkdir(parents=True)
        (folder / "catchment.toml").write_text(self._project(way))
        (folder / "categories.csv").write_text((EXAMPLE / "categories.csv").read_text())
        streams = list(dict.fromkeys(query.stream(way) for query in queries))
        (folder / "queries" / "streams.sql").write_text(_declare(streams))
        (folder / "queries" / "views.sql").write_text(first.to_sql(way))
        (folder / "statistics.toml").write_text(_statistics(streams))
        for stream in streams:
            for site in self.sources:
                (folder / "data" / stream / site).mkdir(parents=True)

    def _project(self, way: LiveWay) -> str:
        evaluated_at = self.evaluated_at(way)
        sites = ""
        for site in self.declared.sites:
            light = f'compute = false\nevaluate_at = "{evaluated_at[site]}"\n' if site in evaluated_at else ""
            sites += f"[sites.{site}]\n{light}"
        links = ""
        for link in self.declared.links.values():
            links += (
                f'[[links]]\nfrom = "{link.origin}"\nto = "{link.destination}"\n'
                f'bandwidth = "{bandwidth_of(link) * self.slowed:.1f} bytes/s"\nlatency = "{link.latency_us} us"\n'
            )
        sharing = Strength.FULL if way.is_shared else Strength.NONE
        return (
            f'[project]\nname = "fourteen"\ncenter = "{self.declared.center}"\n{sites}{links}'
            f'[defaults]\nsharing = "{sharing.value}"\nfreshness = "none"\ntrigger = "{TRIGGER_S:g} s"\n'
            'history = false\n[spark]\nmaster = "local[2]"\n'
        )


def widest_ends(project: Project) -> dict[str, str]:
    """Return the end of each source's widest link, the nearer one of two that are alike."""
    found = {}
    for site in (site for site in project.sites if project.is_light(site)):
        links = [link for link in project.running_links if link.origin == site]
        best = max(links, key=lambda link: (bandwidth_of(link), -link.latency_us))
        found[site] = best.destination
    return found


def bandwidth_of(link: Link) -> float:
    """Return what a link carries, which every link of the example declares."""
    assert link.bandwidth_bytes_per_s is not None
    return link.bandwidth_bytes_per_s


def packed_bytes_per_s(edits: Sequence[LiveEdit]) -> dict[str, float]:
    """Return how many bytes per second each source sends of one stream, packed once per trigger."""
    span_s = edits[-1].born_s
    packed: dict[str, int] = {}
    for site, lines in _by_trigger(edits):
        packed[site] = packed.get(site, 0) + len(pack_lines(STREAM, lines.encode(), begins_file=False).block)
    return {site: size / span_s for site, size in packed.items()}


def _by_trigger(edits: Sequence[LiveEdit]) -> Iterator[tuple[str, str]]:
    """Yield the lines of each source and trigger."""
    gathered: dict[tuple[str, int], list[str]] = {}
    for edit in edits:
        gathered.setdefault((edit.site, int(edit.born_s / TRIGGER_S)), []).append(edit.line)
    for (site, _), lines in gathered.items():
        yield site, "".join(lines)


def _declare(streams: Sequence[str]) -> str:
    """Return the statements that declare the streams, as the example declares its one."""
    text = (EXAMPLE / "queries" / "streams.sql").read_text()
    declared, table = text.split("CREATE TABLE")
    begin = declared.index("CREATE STREAM")
    made = [
        declared[begin:]
        .replace(f"STREAM {STREAM} ", f"STREAM {stream} ")
        .replace(FILES, f"connector = 'files', growing = true, path = 'data/{stream}/{{site}}'")
        for stream in streams
    ]
    return "".join(made) + f"CREATE TABLE{table}"


def _statistics(streams: Sequence[str]) -> str:
    """Return the statistics of the example, at the pace of this run, for each stream."""
    text = (EXAMPLE / "statistics.toml").read_text()
    text = re.sub(r"rows_per_s = \d+", f"rows_per_s = {RECORDS_PER_S / SPEED:g}", text)
    return "\n".join(text.replace(f"[streams.{STREAM}", f"[streams.{stream}") for stream in streams)


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    assert found is not None, text
    return found[1]
