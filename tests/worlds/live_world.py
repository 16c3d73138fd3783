"""Sites, relays and a center that run shared queries without Spark: the real cores and journals, a clock tests move.

Spark's group-by is replaced by DuckDB and the laws of the aggregates (`sharing_support`), the wire by lists of
messages, result tables by lists of what was published. `restart` brings a role back from its journal. A sender is
whoever has `out`: what it sends, by number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials as tables
from catchment.center.core import CenterCore
from catchment.center.deployed_changes import query_changes
from catchment.center.events import Publish, Recalled
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.query import CenterQuery
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.reconcile import site_changes
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.deployed import Deployed
from catchment.progress.admission import Admission
from catchment.progress.consumer import gather
from catchment.progress.events import Landed, Ticked
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.project.routings import Routings
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.query.plan import QueryPlan
from catchment.relay.events import Carried
from catchment.relay.pipeline import RelayPipeline
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, LowMarkRaised
from catchment.site.policies.registry import policy_by_name
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import END_OF_TIME_US, ManualClock
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.messages import Message, Segment
from catchment.wire.receiving.inbox import LocalUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from tests.worlds.sharing_support import lift_fragment

EARLY_US = 10_000_000  # how often joins answer open windows
FRESHNESS_US = 20_000_000  # how long they wait for a site that is behind
LIFE = "life"


class Speaker(Protocol):
    """A role whose messages go on to another."""

    name: str
    out: dict[int, list[Message]]


def segments(sender: Speaker, start: int, upto: int) -> list[Segment]:
    numbers = range(start, min(upto, len(sender.out)))
    return [Segment(sender.name, LIFE, number, tuple(sender.out[number])) for number in numbers]


class LiveSite:
    """A site with its streams."""

    def __init__(
        self, folder: Path, name: str, streams: Sequence[str], policy: str, slack_us: int, clock: ManualClock
    ) -> None:
        self.folder, self.name, self.streams, self.policy = folder, name, streams, policy
        self.slack_us, self.clock = slack_us, clock
        self.newest: dict[str, int] = {}
        self.batches = Counter[str]()
        self.out: dict[int, list[Message]] = {}
        self.open()

    def open(self) -> None:
        self.core = SiteCore()
        journal = Journal(self.folder)
        self.host: Host[Any, Any] = Host(self.core, journal, self._enact, self.clock)
        self.host.recover()

    def restart(self) -> None:
        self.host.journal.close()
        self.open()

    def deploy(self, deployed: Deployed) -> None:
        plans = [
            FragmentPlan(
                deployed.sharing.fragment(n),
                policy_by_name(self.policy),
                n in deployed.begun,
                deployed.leaving.get(n),
                ends=deployed.handovers.get(n, ()),
            )
            for n, demand in deployed.sharing.fragments.items()
            if self.name in demand.source.sites
        ]
        for stream in self.streams:
            events = list(site_changes(self.core, stream, plans, self.newest.get(stream)))
            if events:
                self.host.submit("deploy", events)

    def batch(self, stream: str, records: pa.Table) -> None:
        events: list[Any] = [absorbed(records, f) for f in self.core.definitions if f.stream == stream]
        if records.num_rows:
            newest = int(np.max(records["ts"].to_numpy()))
            self.newest[stream] = max(newest, self.newest.get(stream, newest))
            events.append(LowMarkRaised(stream, self.newest[stream] - self.slack_us))
        for _ in range(2):  # a replayed batch changes nothing
            self.host.submit(stream, events, batch=self.batches[stream])
        self.batches[stream] += 1
        self.core.validate()

    def end(self) -> None:
        self.host.submit("end", [LowMarkRaised(s, END_OF_TIME_US) for s in self.streams])

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        self.out.setdefault(number, [m for a in actions for m in a.messages])
        return 1


def absorbed(records: pa.Table, fragment: Fragment) -> Absorbed:
    counts = Counter(fragment.slicing.starts_of(np.asarray(records["ts"], dtype=np.int64)).tolist())
    return Absorbed(fragment.name, lift_fragment(records, fragment), tuple(sorted(counts.items())))


class LiveRelay:
    """A real relay whose sender is never started: `take` brings segments to it, `out` has what it sends on."""

    def __init__(self, project: Project, name: str, policy: str, clock: ManualClock) -> None:
        self.project, self.name, self.policy, self.clock = project, name, policy, clock
        self.routes = Routes.of(project)
        self.seen = Counter[str]()
        self.out: dict[int, list[Message]] = {}
        self.deployed: Deployed | None = None
        self.open()

    def open(self) -> None:
        self.pipeline = RelayPipeline(self.project, self.name, self._check, self._sender, self.clock)

    def restart(self) -> None:
        self.pipeline.host.journal.close()
        self.open()
        assert self.deployed is not None
        self.deploy(self.deployed)

    def deploy(self, deployed: Deployed) -> None:
        self.deployed, carried = deployed, list[Carried]()
        for name, demand in deployed.sharing.fragments.items():
            senders = ((s, self.routes.sender(self.name, s)) for s in demand.source.sites)
            origins = tuple((s, sender) for s, sender in senders if sender is not None)
            if origins:
                carried.append(Carried(deployed.sharing.fragment(name), policy_by_name(self.policy), origins))
        self.pipeline.carry(carried)

    def take(self, sender: Speaker, upto: int) -> None:
        """What a site has sent up to a segment lands, and is merged and sent on as it may be."""
        for segment in segments(sender, self.seen[sender.name], upto):
            self.pipeline.inbox.accept(encode_segment(segment).data)
            self.seen[sender.name] = segment.sequence + 1
        self.tick()

    def tick(self) -> None:
        self.pipeline.tick()
        self.pipeline.core.validate()
        for pending in list(self.pipeline.outbox.pending()):
            data = self.pipeline.outbox.read(pending.sequence)
            assert data is not None
            self.out[pending.sequence] = list(decode_segment(data).messages)
            self.pipeline.outbox.ack(pending.sequence)

    def _check(self, segment: Segment) -> None:
        assert self.deployed is not None
        births = {f.stream: (*self.routes.hops, self.routes.center) for f in self.deployed.known.values()}
        Admission(self.deployed.known, Routings.only(self.routes), births).check(segment)

    def _sender(self, outbox: Outbox) -> Sender:
        def unused() -> LocalUplink:
            raise AssertionError("tests carry the segments")

        return Sender(outbox, unused, clock=self.clock)


class LiveCenter:
    """A center that keeps what it publishes in memory; `published` and `done` are of an earlier life, if it had one."""

    def __init__(
        self,
        folder: Path,
        clock: ManualClock,
        horizon_us: int,
        published: Sequence[Publish] = (),
        done: Iterable[int] = (),
    ) -> None:
        self.folder, self.clock, self.horizon_us = folder, clock, horizon_us
        self.seen = Counter[str]()
        self.published = list(published)
        self.done = set(done)
        self.fragments: dict[str, Fragment] = {}
        self.kept: dict[str, Fragment] = {}  # what is recalled of a view: its states, or the partials of its pairing
        self.answered: dict[str, Fragment] = {}
        self.batches = 0
        self.open()

    def open(self) -> None:
        self.core = CenterCore()
        journal = Journal(self.folder)
        self.host: Host[Any, Any] = Host(self.core, journal, self._enact, self.clock)
        self.host.recover()

    def restart(self, checkpoint: bool = True) -> None:
        if checkpoint:
            self.host.checkpoint()
        self.host.journal.close()
        self.open()

    def deploy(self, deployed: Deployed, plans: Mapping[str, QueryPlan] | None = None) -> None:
        """Bring it to what is deployed; the plans of views that are joins are given with it."""
        self.fragments = deployed.known
        queries = [self._query(view, deployed, (plans or {}).get(view)) for view in deployed.views]
        events = list(query_changes(self.core, queries, deployed.begun_after))
        if events:
            self.host.submit("deploy", events)

    def _query(self, view: str, deployed: Deployed, plan: QueryPlan | None) -> CenterQuery:
        asked = [(name, deployed.sharing.queries[name]) for name in deployed.parts(view)]
        sides = tuple(
            CenterQuery(n, q.own, q.window, q.demand.source.sites, self.horizon_us, None, deployed.derivation(n))
            for n, q in asked
        )
        join = plan.join if plan is not None else None
        if plan is not None and plan.is_union:
            self.kept[view] = self.answered[view] = plan.fragment
            sites = tuple(dict.fromkeys(site for side in sides for site in side.sites))
            return replace(sides[0], name=view, fragment=plan.fragment, sites=sites, derivation=None, sides=sides)
        if join is None:
            self.kept[view] = self.answered[view] = asked[0][1].own
            return sides[0]
        self.kept[view], self.answered[view] = join.pairing, join.answers
        sites = tuple(dict.fromkeys(site for side in sides for site in side.sites))
        return CenterQuery(
            view,
            join.pairing,
            sides[0].window,
            sites,
            self.horizon_us,
            FRESHNESS_US,
            early_us=EARLY_US,
            join=join,
            sides=sides,
        )

    def consume(self, sender: Speaker, upto: int) -> None:
        """One micro-batch over what a site or a relay has sent up to a segment."""
        landed = segments(sender, self.seen[sender.name], upto)
        self.seen[sender.name] += len(landed)
        events = [*gather(landed, self.fragments), *map(Landed.of, landed), Ticked()]
        self.host.submit("inbox", events, batch=self.batches)
        self.batches += 1
        self.repair()
        self.core.validate()

    def repair(self, everything: bool = False) -> None:
        """The repairs that are due, or all, and what they allow."""
        due = list(self.core.repairs(self.clock.now_us(), everything))
        recalled = [Recalled(r.query, r.windows, self._recall(r.query, r.wanted), r.reason) for r in due]
        if recalled:
            self.host.submit("repair", [*recalled, Ticked()])

    def _recall(self, name: str, wanted: pa.Table) -> pa.Table:
        """The newest of what was kept of each row that is wanted."""
        fragment = self.kept[name]
        latest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for p in (p for p in self.published if p.query == name):
            rows = p.rows if fragment is self.answered[name] else p.kept
            if p.replaces and rows is not None:
                latest = {key: row for key, row in latest.items() if key[0] != p.window.start_us}
            for row in rows.to_pylist() if rows is not None else ():
                start = p.window.start_us
                latest[start, *(row[k] for k in fragment.key_names)] = {WINDOW_COLUMN: start, **row}
        fields = [pa.field(WINDOW_COLUMN, pa.int64()), *(f for f in fragment.schema if f.name != SLICE_COLUMN)]
        return tables.select_matching(pa.Table.from_pylist(list(latest.values()), pa.schema(fields)), wanted)

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        if number not in self.done:
            self.done.add(number)
            self.published += [a for a in actions if isinstance(a, Publish)]
        return 1

    def answers(self, view: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The newest value of each (window, key) of a view."""
        newest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for p in (p for p in self.published if p.query == view):
            start = p.window.start_us
            if p.replaces:
                newest = {key: row for key, row in newest.items() if key[0] != start}
            newest |= {(start, *key): row for key, row in lowered(p.rows, self.answered[view]).items()}
        return newest

    def log(self, view: str) -> list[tuple[Any, ...]]:
        """Everything that was ever published of a view, with its revisions."""
        mine = [p for p in self.published if p.query == view]
        shape = self.answered[view]
        return [(p.window.start_us, p.revision, p.status, p.reason, lowered(p.rows, shape)) for p in mine]


def lowered(rows: pa.Table, shape: Fragment) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The values of rows of states, by their keys."""
    values = tables.lower(rows, list(shape.key_names), shape.aggregates).to_pylist()
    return {tuple(v[k] for k in shape.key_names): tuple(v[a.name] for a in shape.aggregates) for v in values}


def expected_answers(records: pa.Table, query: SharedQuery, from_us: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The oracle: the query's own fragment over all records, slices merged into every window from an instant on."""
    own = lift_fragment(records, query.own)
    keys = list(query.own.key_names)
    windows: dict[int, list[pa.Table]] = {}
    for slice_us in sorted(set(own[SLICE_COLUMN].to_pylist())):
        rows = own.filter(pa.compute.equal(own[SLICE_COLUMN], slice_us)).drop_columns([SLICE_COLUMN])
        for window in query.window.containing(slice_us):
            if window.start_us >= from_us:
                windows.setdefault(window.start_us, []).append(rows)
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for start, parts in windows.items():
        merged = tables.combine(pa.concat_tables(parts), keys, query.own.aggregates)
        found |= {(start, *k): v for k, v in lowered(merged, query.own).items()}
    return found
