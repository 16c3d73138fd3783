"""A light site and the arrivals of its records, driven by hand: no threads, no sockets, and any order of answers."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from catchment.light.arrivals import RecordArrivals
from catchment.light.source import LightSource
from catchment.light.streams import LightStream
from catchment.project.config import Project
from catchment.query.sql.connectors import FilesConnector
from catchment.timeline import ManualClock
from catchment.wire.sending.link_meter import LinkCounters
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender

CONFIG = """\
[project]
name = "light"
center = "center"
[sites.edge]
compute = false
[sites.center]
listen = "127.0.0.1:9410"
[[links]]
from = "edge"
to = "center"
[limits]
free_disk = "1 B"
"""
STREAM = LightStream("events", FilesConnector("data/{site}"))


class NoSender:
    """Stands where a sender does, and leaves everything in the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def notify(self) -> None: ...

    def raise_failure(self) -> None: ...

    def snapshot(self) -> LinkCounters:
        return LinkCounters(connected=True)


@dataclass
class LightWorld:
    """A project with one light site; `folder` is both machines."""

    folder: Path
    stream: LightStream = STREAM
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000_000_000))
    chunk_bytes: int = 40

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "catchment.toml").write_text(CONFIG)
        (self.folder / "data" / "edge").mkdir(parents=True, exist_ok=True)
        self.project = Project.load(self.folder)

    def write(self, name: str, numbers: range, *, end: str = "\n") -> None:
        """Put a file of records into the folder of the stream, or more of them into it."""
        text = "\n".join(json.dumps({"n": n}) for n in numbers) + end
        with (self.folder / "data" / "edge" / name).open("a") as file:
            file.write(text)

    def open_source(self) -> LightSource:
        source = LightSource(
            self.project,
            "edge",
            [self.stream],
            lambda outbox: cast(Sender, NoSender(outbox)),
            self.clock,
            chunk_bytes=self.chunk_bytes,
        )
        source.start()
        return source

    def open_arrivals(self) -> RecordArrivals:
        arrivals = RecordArrivals(self.project, "edge", self.clock)
        arrivals.follow([self.stream])
        return arrivals

    def arrived(self) -> Counter[int]:
        """Return the records in the files that the site which evaluates would read, and how often each is there."""
        folder = self.project.arrived_folder("edge", self.stream.name)
        files = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
        return Counter(json.loads(line)["n"] for path in files for line in path.read_text().splitlines())

    def arrived_in_order(self) -> list[int]:
        folder = self.project.arrived_folder("edge", self.stream.name)
        files = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
        return [json.loads(line)["n"] for path in files for line in path.read_text().splitlines()]


def deliver(source: LightSource, arrivals: RecordArrivals, chance: random.Random, loss: float = 0.3) -> None:
    """Let the segments of an outbox arrive in any order, some twice, and some without an answer that is heard."""
    outbox = source.outbox
    waiting = [pending.sequence for pending in outbox.pending()]
    chance.shuffle(waiting)
    for number in waiting:
        data = outbox.read(number)
        assert data is not None
        for _ in range(chance.choice([1, 1, 2])):
            assert arrivals.inbox.accept(data, peer="edge") == number
        if chance.random() >= loss:
            outbox.ack(number)
