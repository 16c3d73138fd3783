"""An edge cloud whose state survives a kill at any time, and the loop that serves it.

As in a cloud, every message is in a journal before anything follows from it, and is acknowledged after what follows was
handed over; here to two brokers. The one of the devices must be there; while the one of the cloud is not, devices are
served on, and what is for the cloud waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from catchment.errors import StorageError
from catchment.feeds.cloud.broker_queue import SendDown
from catchment.feeds.cloud.core import MessageArrived, MessagesTaken
from catchment.feeds.cloud.edge_cloud import EdgeCloud
from catchment.feeds.cloud.edge_core import CloudSpoke, EdgeBegun, EdgeCore, EdgeEvent, TimePassed, UplinkTaken
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.protocol.channel import LinkTraffic
from catchment.feeds.runs.cloud_host import CloudHost
from catchment.feeds.runs.processes import POLL_S, Every
from catchment.storage.files import make_folder, write_durably
from catchment.storage.journal import Journal
from catchment.storage.lock import lock_folder
from catchment.timeline import Clock

NAME_FILE = "edge"  # whose state a folder has


class EdgeLinks(Protocol):
    """The links of an edge cloud in one direction: to its devices, or to the cloud."""

    @property
    def taken_before(self) -> int: ...

    def take(self) -> list[tuple[str, bytes]]: ...

    def publish(self, messages: Iterable[SendDown]) -> None: ...

    def acknowledge(self) -> None: ...


class PolledLinks(EdgeLinks, Protocol):
    """Links that a loop serves."""

    def reach(self) -> None: ...

    def poll(self, timeout_s: float = 0.0) -> None: ...

    def let_go(self) -> None: ...


class DurableEdge:
    """An edge cloud with its state in a folder."""

    def __init__(self, edge: EdgeCloud, folder: Path, clock: Clock) -> None:
        make_folder(folder)
        lock_folder(folder, self)
        _refuse_other_state(folder, edge.config.name)
        self.edge = edge
        self.clock = clock
        self.core = EdgeCore(edge)
        self.outgoing: list[SendDown] = []  # for devices
        self.outgoing_up: list[SendDown] = []  # for the cloud
        self.host: CloudHost[EdgeEvent, SendDown] = CloudHost(
            self.core, Journal(folder / "journal"), self._enact, clock
        )
        self.host.recover()
        self.core.reset_traffic()
        self.outgoing = list(self.core.sending.messages)
        self.outgoing_up = list(self.core.above.messages)

    def close(self) -> None:
        """Write the state down, so that the next start replays nothing."""
        self.host.checkpoint()
        self.host.journal.close()

    def _enact(self, number: int, actions: Sequence[SendDown]) -> int:
        self.outgoing += [action for action in actions if action.device != CLOUD]
        self.outgoing_up += [action for action in actions if action.device == CLOUD]
        return len(actions)

    def begin(self) -> None:
        """Say hello to the cloud."""
        self.host.submit("begin", [EdgeBegun()])

    def take(self, below: EdgeLinks, above: EdgeLinks) -> None:
        """Make durable what has arrived; it may be acknowledged when what follows was handed over."""
        events: list[EdgeEvent] = [MessageArrived(device, data) for device, data in below.take()]
        events += [CloudSpoke(data) for _, data in above.take()]
        if self.core.sending.first_number < below.taken_before:
            events.append(MessagesTaken(below.taken_before))
        if self.core.above.first_number < above.taken_before:
            events.append(UplinkTaken(above.taken_before))
        if self.edge.is_due(self.clock.now_us()):
            events.append(TimePassed())
        if events:
            self.host.submit("messages", events)

    def hand_over(self, below: EdgeLinks, above: EdgeLinks) -> None:
        """Hand over what follows from what was taken, and only then acknowledge that."""
        below.publish(self.outgoing)
        above.publish(self.outgoing_up)
        self.outgoing = []
        self.outgoing_up = []
        below.acknowledge()
        above.acknowledge()

    def status(self) -> dict[str, Any]:
        """Return what it does, as plain data."""
        edge = self.edge
        router = edge.router
        up = self.core.uplink_traffic()
        return {
            "edge": edge.config.name,
            "admitted": edge.refusal is None and edge.hello_again_us is None,
            "refusal": edge.refusal,
            "devices": len(edge.attached),
            "views": 0 if router is None else len(router.publisher.host.installed),
            "waiting_for_cloud": len(self.core.above.messages),
            "sent_to_cloud": _count(up)[0],
            "received_from_cloud": _count(up)[1],
            "refused": edge.refused,
            "dropped": self.core.sending.dropped + self.core.above.dropped,
            "forgotten": 0 if router is None else router.forgotten,
        }


def _count(link: LinkTraffic) -> tuple[int, int]:
    return sum(link.up.messages.values()), sum(link.down.messages.values())


def _refuse_other_state(folder: Path, name: str) -> None:
    """Refuse a folder that has the state of something else."""
    path = folder / NAME_FILE
    known = path.read_text(encoding="utf-8") if path.exists() else None
    if known == name:
        return
    if known is not None or (folder / "journal").exists():
        what = "a cloud" if known is None else f"edge cloud {known!r}"
        raise StorageError(
            f"the state is that of {what}, not of edge cloud {name!r}", where=str(folder), hint="give another --state"
        )
    write_durably(path, name.encode())


def serve_edge(
    edge: DurableEdge,
    below: PolledLinks,
    above: PolledLinks,
    goes_on: Callable[[], bool],
    each_second: Callable[[], None] = lambda: None,
) -> None:
    """Serve devices until told to end; what brokers lack of an earlier life is sent first."""
    below.reach()
    edge.begin()
    edge.hand_over(below, above)
    second = Every(1.0)
    while goes_on():
        below.poll(POLL_S / 2)
        above.poll(POLL_S / 2)
        edge.take(below, above)
        edge.hand_over(below, above)
        if second.elapsed_s():
            each_second()
    below.let_go()
    above.let_go()
