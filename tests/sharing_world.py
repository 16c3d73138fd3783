"""Sites and a center that run shared queries without Spark: the real cores and journals, a clock that tests move.

Spark's group-by is replaced by DuckDB and the laws of the aggregates (`sharing_support`), the wire by lists, result
tables by lists of what was published. `restart` brings every role back from its journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sharing_support import lift_fragment

from catchment import partials as tables
from catchment.center.core import CenterCore
from catchment.center.events import CenterQuery, Landed, Merged, Publish, Recalled, Ticked
from catchment.center.journalled import JOURNALLED as CENTER_JOURNALLED
from catchment.center.windows import WINDOW_COLUMN
from catchment.durable.events import EventCodec
from catchment.durable.host import Host
from catchment.durable.journal import Journal
from catchment.optimizer.demand import Query
from catchment.optimizer.deployed import Deployed
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, LowMarkRaised
from catchment.site.journalled import JOURNALLED as SITE_JOURNALLED
from catchment.site.policies import policy_by_name
from catchment.spark import center_deploy, site_deploy
from catchment.spark.site_deploy import FragmentPlan
from catchment.timeline import END_OF_TIME_US, ManualClock
from catchment.wire.messages import Progress, Updates

STREAM = "hits"
HORIZON_US = 150_000_000  # beyond how late any record of the tests comes


class LiveSite:
    def __init__(self, folder: Path, name: str, policy: str, slack_us: int, clock: ManualClock) -> None:
        self.folder, self.name, self.policy, self.slack_us, self.clock = folder, name, policy, slack_us, clock
        self.newest: int | None = None
        self.batches = 0
        self.out: dict[int, list[Any]] = {}
        self.open()

    def open(self) -> None:
        self.core = SiteCore()
        journal = Journal(self.folder, EventCodec(SITE_JOURNALLED))
        self.host: Host[Any, Any] = Host(self.core, journal, self._enact, self.clock)
        self.host.recover()

    def restart(self) -> None:
        self.host.journal.close()
        self.open()

    def deploy(self, deployed: Deployed) -> None:
        plans = [
            FragmentPlan(deployed.sharing.fragment(n), policy_by_name(self.policy), n in deployed.begun,
                         deployed.leaving.get(n))
            for n in deployed.sharing.fragments
        ]  # fmt: skip
        events = list(site_deploy.changes(self.core, STREAM, plans, self.newest))
        if events:
            self.host.submit("deploy", events)

    def batch(self, records: pa.Table) -> None:
        events: list[Any] = [absorbed(records, f) for f in self.core.definitions]
        if records.num_rows:
            newest = int(np.max(records["ts"].to_numpy()))
            self.newest = newest if self.newest is None else max(newest, self.newest)
            events.append(LowMarkRaised(STREAM, self.newest - self.slack_us))
        self.host.submit(STREAM, events, batch=self.batches)
        self.host.submit(STREAM, events, batch=self.batches)  # a replayed batch changes nothing
        self.batches += 1
        self.core.validate()

    def end(self) -> None:
        self.host.submit("end", [LowMarkRaised(STREAM, END_OF_TIME_US)])

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        self.out.setdefault(number, [m for a in actions for m in a.messages])
        return 1


def absorbed(records: pa.Table, fragment: Fragment) -> Absorbed:
    table = lift_fragment(records, fragment)
    counts = Counter(fragment.slicing.starts_of(np.asarray(records["ts"], dtype=np.int64)).tolist())
    return Absorbed(fragment.name, table, tuple(sorted(counts.items())))


class LiveCenter:
    def __init__(self, folder: Path, sites: Sequence[LiveSite], clock: ManualClock) -> None:
        self.folder, self.sites, self.clock = folder, sites, clock
        self.seen = {s.name: 0 for s in sites}
        self.published: list[Publish] = []
        self.done: set[int] = set()
        self.fragments: dict[str, Fragment] = {}
        self.own: dict[str, Query] = {}
        self.batches = 0
        self.open()

    def open(self) -> None:
        self.core = CenterCore()
        journal = Journal(self.folder, EventCodec(CENTER_JOURNALLED))
        self.host: Host[Any, Any] = Host(self.core, journal, self._enact, self.clock)
        self.host.recover()

    def restart(self) -> None:
        self.host.checkpoint()
        self.host.journal.close()
        self.open()

    def deploy(self, deployed: Deployed) -> None:
        self.fragments = deployed.known
        self.own |= deployed.sharing.queries
        queries = [
            CenterQuery(n, q.own, q.window, ("us", "eu"), HORIZON_US, None, deployed.derivation(n))
            for n, q in deployed.sharing.queries.items()
        ]
        events = list(center_deploy.changes(self.core, queries, deployed.begun))
        if events:
            self.host.submit("deploy", events)

    def consume(self, site: LiveSite, upto: int) -> None:
        """One micro-batch over what a site has sent up to a segment."""
        numbers = range(self.seen[site.name], min(upto, len(site.out)))
        events: list[Any] = []
        for number in numbers:
            events += self._landed(site, number)
        self.seen[site.name] = numbers.stop if len(numbers) else self.seen[site.name]
        merged = [e for e in events if isinstance(e, Merged)]
        landed = [e for e in events if isinstance(e, Landed)]
        self.host.submit("inbox", [*_united(merged, self.fragments), *landed, Ticked()], batch=self.batches)
        self.batches += 1
        self.repair()
        self.core.validate()

    def repair(self, everything: bool = False) -> None:
        """The repairs that are due, or all, and what they allow."""
        due = list(self.core.repairs(self.clock.now_us(), everything))
        recalled = [Recalled(r.query, r.windows, self._recall(r.query, r.wanted), r.reason) for r in due]
        if recalled:
            self.host.submit("repair", [*recalled, Ticked()])

    def _landed(self, site: LiveSite, number: int) -> list[Any]:
        messages = site.out[number]
        updates = [m for m in messages if isinstance(m, Updates)]
        rows = Counter[str]()
        for update in updates:
            rows[update.fragment] += update.rows
        header = Landed(site.name, number, tuple(rows.items()), tuple(m for m in messages if isinstance(m, Progress)))
        return [
            *(Merged(u.fragment, u.table, tuple((site.name, s, n) for s, n in u.records)) for u in updates),
            header,
        ]

    def _recall(self, name: str, wanted: pa.Table) -> pa.Table:
        fragment = self.own[name].own
        latest = {(p.window.start_us, *key): row for p in self.published if p.query == name
                  for key, row in _rows(p.rows, fragment)}  # fmt: skip
        asked = {(row[WINDOW_COLUMN], *key) for key, row in _rows(wanted, fragment)}  # several slices may ask for a row
        found = [(place[0], latest[place]) for place in latest if place in asked]
        fields = [pa.field(WINDOW_COLUMN, pa.int64()), *(f for f in fragment.schema if f.name != SLICE_COLUMN)]
        return pa.Table.from_pylist([{WINDOW_COLUMN: w, **row} for w, row in found], pa.schema(fields))

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        if number not in self.done:
            self.done.add(number)
            self.published += [a for a in actions if isinstance(a, Publish)]
        return 1

    def answers(self, name: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The newest value of each (window, key) of a query."""
        fragment = self.own[name].own
        rows = {(p.window.start_us, *key): row for p in self.published if p.query == name
                for key, row in _rows(p.rows, fragment)}  # fmt: skip
        return {place: lowered([row], fragment)[place[1:]] for place, row in rows.items()}

    def log(self, name: str) -> list[tuple[Any, ...]]:
        """Everything that was ever published of a query, with its revisions."""
        fragment = self.own[name].own
        mine = [(p, [r for _, r in _rows(p.rows, fragment)]) for p in self.published if p.query == name]
        return [(p.window.start_us, p.revision, p.status, p.reason, lowered(rows, fragment)) for p, rows in mine]


def _united(merged: Sequence[Merged], fragments: dict[str, Fragment]) -> list[Merged]:
    """One event a fragment, merged per (slice, keys), as a center makes it."""
    united = []
    for name in dict.fromkeys(m.fragment for m in merged if m.fragment in fragments):
        mine, fragment = [m for m in merged if m.fragment == name], fragments[name]
        table = pa.concat_tables([m.partials.cast(fragment.schema) for m in mine])
        keys = [SLICE_COLUMN, *fragment.key_names]
        records = tuple(r for m in mine for r in m.records)
        united.append(Merged(name, tables.combine(table, keys, fragment.aggregates), records))
    return united


def _rows(rows: pa.Table, fragment: Fragment) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [(tuple(r[k] for k in fragment.key_names), r) for r in rows.to_pylist()]


def lowered(rows: list[dict[str, Any]], fragment: Fragment) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The values of rows of states, by their keys."""
    if not rows:
        return {}
    schema = pa.schema([f for f in fragment.schema if f.name != SLICE_COLUMN])
    table = pa.Table.from_pylist(rows, schema)
    values = tables.lower(table, list(fragment.key_names), fragment.aggregates).to_pylist()
    return {tuple(v[k] for k in fragment.key_names): tuple(v[a.name] for a in fragment.aggregates) for v in values}


def expected(records: pa.Table, query: Query, from_us: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The oracle: the query's own fragment over all records, slices merged into every window from an instant on."""
    own = lift_fragment(records, query.own)
    keys = list(query.own.key_names)
    windows: dict[int, list[pa.Table]] = {}
    for slice_us in sorted(set(own[SLICE_COLUMN].to_pylist())):
        rows = own.filter(pa.compute.equal(own[SLICE_COLUMN], slice_us)).drop_columns([SLICE_COLUMN])
        for window in query.window.containing(slice_us):
            if window.start_us >= from_us:
                windows.setdefault(window.start_us, []).append(rows)
    found = {}
    for start, parts in windows.items():
        merged = tables.combine(pa.concat_tables(parts), keys, query.own.aggregates)
        found |= {(start, *k): v for k, v in lowered(merged.to_pylist(), query.own).items()}
    return found
