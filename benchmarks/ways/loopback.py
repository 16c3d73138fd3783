"""One site that sends steadily, a forwarder and a center on loopback, each with servers and senders of its own.

The direct link is a proxy that is throttled or cut. Freshness is the age of the newest segment below which nothing is
missing at the center, as a reader of its answers would see it: a segment that is stuck holds up all that come after it.
Senders use the rules that they use in every run.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.deploy.processes.connections import Connections, reached_at
from catchment.deploy.processes.forwarding import ForwardServers
from catchment.project.config import Project
from catchment.project.sections import Link, Site
from catchment.testing.simulated.throttled_link import ThrottledLink
from catchment.timeline import SystemClock
from catchment.wire.messages import Progress, Updates
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender

LINK_BYTES_PER_S = 250_000.0  # 2 Mbit/s
BYTES_PER_S = 60_000.0  # what the site sends
SEGMENT_S = 0.25  # a segment is made this often
SAMPLE_S = 0.05
STEADY_S = 10.0  # how long freshness must stay within the bound to be back
AGAIN = 2.0  # within this many times what it was before


@dataclass
class _Site:
    """Appends segments at a steady pace, and knows when each was made."""

    outbox: Outbox
    sender: Sender
    made_s: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        start_s = time.monotonic()
        while not self._stop.wait(max(0.0, start_s + len(self.made_s) * SEGMENT_S - time.monotonic())):
            number = self.outbox.next_sequence
            values = np.random.default_rng(number).integers(0, 2**62, round(BYTES_PER_S * SEGMENT_S / 8))
            table = pa.table({"slice_us": np.zeros(len(values), np.int64), "n": values})
            self.made_s.append(time.monotonic())
            self.outbox.append(number, [Updates("f", table, ((0, 1),)), Progress("f", 1, number)])
            self.sender.notify()

    def stop(self) -> None:
        self._stop.set()


def measure_ways(change: str, *, around: bool, quick: bool) -> dict[str, Any]:
    """Throttle or cut the direct link of a site that sends steadily; return how fresh what landed was."""
    before_s, after_s = (5.0, 40.0) if quick else (30.0, 120.0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        project = _project(Path(folder), around)
        inbox = Inbox(project.folder / "in")
        server = Connections(project, SystemClock()).make_server("center", inbox)
        server.start()
        closing.callback(server.close)
        forwarding = ForwardServers(Connections(project, SystemClock()))
        forwarding.connections.addresses["center"] = reached_at(project, "center", server)
        forwarding.start(["b"])
        closing.callback(forwarding.close)
        link = ThrottledLink(reached_at(project, "center", server), LINK_BYTES_PER_S)
        closing.callback(link.close)
        connections = Connections(project, SystemClock())
        connections.addresses.update(forwarding.connections.addresses)
        outbox = Outbox(project.folder / "out", "a", "center", 10**9)
        sender = connections.make_sender(Link("a", "center"), "a", link.address, outbox)
        closing.callback(sender.stop)
        sender.start()
        site = _Site(outbox, sender)
        feeding = threading.Thread(target=site.run, daemon=True)
        feeding.start()
        closing.callback(site.stop)
        _sample(site, inbox, 5.0)  # connections come about
        before = _sample(site, inbox, before_s)
        changed_s = time.monotonic()
        if change == "cut":
            link.cut()
        else:
            link.bytes_per_s = LINK_BYTES_PER_S / 10
        bound_s = AGAIN * float(np.quantile([age for _, age in before], 0.95))
        after = _sample(site, inbox, after_s, bound_s)
        used = sender.ways.status()
        site.stop()
        feeding.join()
        link.mend()
        link.bytes_per_s = None
        sender.wait_until_empty(600.0)
        landed = [segment.sequence for segment in inbox.read_segments(0, inbox.last_position + 1)]
        return {
            "freshness_before_s": bound_s / AGAIN,
            "worst_after_s": max(age for _, age in after),
            "fresh_again_s": _back_s(after, bound_s, changed_s),
            "way": used["used"],
            "reason": used["reason"],
            "sent_segments": outbox.next_sequence,
            "lost": len(set(range(outbox.next_sequence)) - set(landed)),
            "twice": len(landed) - len(set(landed)),
        }


def _project(folder: Path, around: bool) -> Project:
    sites = {name: Site(name) for name in ("a", "b", "center")}
    if around:
        sites["b"] = Site("b", listen=("127.0.0.1", 0))
    pairs = [("a", "center"), ("a", "b"), ("b", "center")]
    links = {pair: Link(*pair, LINK_BYTES_PER_S) for pair in pairs}
    return Project("ways", folder, "center", sites, links)


def _sample(site: _Site, inbox: Inbox, seconds: float, bound_s: float | None = None) -> list[tuple[float, float]]:
    """Return times and ages for some seconds; with a bound, only until the age has been within it for a while."""
    samples: list[tuple[float, float]] = []
    end_s = time.monotonic() + seconds
    while (now_s := time.monotonic()) < end_s:
        newest = inbox.lowest_missing("a") - 1
        if newest >= 0:
            samples.append((now_s, now_s - site.made_s[newest]))
        if bound_s is not None and _is_back(samples, bound_s):
            return samples
        time.sleep(SAMPLE_S)
    return samples


def _is_back(samples: list[tuple[float, float]], bound_s: float) -> bool:
    """Return whether what landed became too old, and has been fresh for a while since."""
    if all(age <= bound_s for _, age in samples):
        return False
    last_s = samples[-1][0]
    recent = [age for at_s, age in samples if at_s > last_s - STEADY_S]
    return all(age <= bound_s for age in recent)


def _back_s(samples: list[tuple[float, float]], bound_s: float, changed_s: float) -> float | None:
    """Return how long after the change freshness was within the bound for good; None if it was not."""
    if not _is_back(samples, bound_s):
        return None if any(age > bound_s for _, age in samples) else 0.0
    return max(at_s for at_s, age in samples if age > bound_s) - changed_s
