"""Joins of two streams without Spark: random records, sites and a center on their real cores and journals, an oracle.

The oracle is DuckDB over all raw records: every window, every pair of records in it that agrees. It shares nothing with
the engine but the text of the keys, the aggregates and the conditions, which mean the same in both dialects.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from query_support import make_project
from sharing_support import SECOND, duck, lift_fragment

from catchment import partials as tables
from catchment.center.core import CenterCore
from catchment.center.events import CenterQuery, Landed, Merged, Publish, Recalled, Ticked
from catchment.center.journalled import JOURNALLED as CENTER_JOURNALLED
from catchment.center.repair import WINDOW_COLUMN
from catchment.config import Link, Site
from catchment.durable.events import EventCodec
from catchment.durable.host import Host
from catchment.durable.journal import Journal
from catchment.optimizer.demand import Query, queries_of
from catchment.optimizer.deployed import Deployed
from catchment.query.build import plan_view
from catchment.query.catalog import Catalog
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.join import Join
from catchment.query.parse import parse_sql
from catchment.query.plan import QueryPlan
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, LowMarkRaised
from catchment.site.journalled import JOURNALLED as SITE_JOURNALLED
from catchment.site.policies import policy_by_name
from catchment.spark import center_deploy, site_deploy
from catchment.spark.site_deploy import FragmentPlan
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.messages import Progress, Updates

SITES = {"clicks": ("us", "eu"), "views": ("asia",), "taps": ("us", "asia")}
SCHEMA = "\n".join(
    f"CREATE STREAM {name} (ts TIMESTAMP, user {user}, page STRING, bytes BIGINT, ms DOUBLE) WITH "
    f"(event_time = 'ts', sites = '{','.join(SITES[name])}', path = '{name}/{{site}}');"
    for name, user in {"clicks": "INT", "views": "BIGINT", "taps": "INT"}.items()
)
HORIZON_US = 600 * SECOND
EARLY_US = 10 * SECOND  # how often joins answer open windows
FRESHNESS_US = 20 * SECOND  # how long they wait for a site that is behind


@dataclass(frozen=True)
class Case:
    """A join as both engines read it; the oracle's aggregates are those of the query unless they are given."""

    aggregates: str
    keys: tuple[str, ...] = ()
    on: str = "a.user = b.user"
    where: str = ""
    streams: tuple[str, str] = ("clicks", "views")
    window: tuple[int, int] = (60, 60)  # size and slide, in seconds
    oracle: str = ""

    @property
    def sql(self) -> str:
        size, slide = self.window
        window = f"window(b.ts, '{size} seconds', '{slide} seconds')"
        return (
            f"SELECT {', '.join(['window.start', *self.keys, self.aggregates])} "
            f"FROM {self.streams[0]} a JOIN {self.streams[1]} b ON {self.on} {self.where} "
            f"GROUP BY {', '.join([window, *self.keys])}"
        )

    def expected(self, records: Mapping[str, pa.Table]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """(window start, keys...) -> the aggregates, over all pairs of records."""
        spec, connection = WindowSpec(*(s * SECOND for s in self.window)), duck()
        for name, stream in zip(("a", "b"), self.streams, strict=True):
            connection.register(f"raw_{name}", records[stream])
        starts = {w.start_us for s in self.streams for t in records[s]["ts"].to_pylist() for w in spec.containing(t)}
        connection.register("windows", pa.table({"start": pa.array(sorted(starts), pa.int64())}))
        inside = " AND ".join(f"{x}.ts >= w.start AND {x}.ts < w.start + {spec.size_us}" for x in ("a", "b"))
        rows = connection.sql(
            f"SELECT {', '.join(['w.start', *self.keys, self.oracle or self.aggregates])} "
            f"FROM windows w, raw_a a JOIN raw_b b ON {self.on} "
            f"{self.where + ' AND' if self.where else 'WHERE'} {inside} GROUP BY {', '.join(['w.start', *self.keys])}"
        ).fetchall()
        width = 1 + len(self.keys)
        return {row[:width]: row[width:] for row in rows}


@cache
def base_catalog() -> Catalog:
    names = ("us", "eu", "asia", "center")
    links = {(n, "center"): Link(n, "center") for n in names[:-1]}
    return Catalog(make_project(sites={n: Site(n) for n in names}, links=links)).add(*parse_sql(SCHEMA, "schema.sql"))


def plans_of(*selects: str) -> dict[str, QueryPlan]:
    """The plans of the views q0, q1, ... of some SELECTs."""
    text = "\n".join(f"CREATE MATERIALIZED VIEW q{i} AS {s};" for i, s in enumerate(selects))
    catalog = base_catalog().add(*parse_sql(text, "q.sql"))
    return {name: plan_view(view, catalog) for name, view in catalog.views.items()}


def side_queries(plans: Iterable[QueryPlan]) -> list[Query]:
    return [q for p in plans for q in queries_of(p, base_catalog())]


def make_records(rng: np.random.Generator, count: int, stream: str) -> pa.Table:
    """Random records over some minutes: few users, nulls, duplicates."""

    def some(values: Sequence[Any]) -> list[Any]:
        return [values[i] for i in rng.integers(0, len(values), count)]

    table = pa.table({
        "ts": pa.array(rng.integers(0, 300, count) * SECOND, pa.int64()),
        "user": pa.array(some([1, 2, 3, 40, -5, None]), pa.int64() if stream == "views" else pa.int32()),
        "page": pa.array(some(["a", "b", "ä", None]), pa.string()),
        "bytes": pa.array(some([0, 10, 500, -7, None]), pa.int64()),
        "ms": pa.array(some([0.5, 1.25, -100.0, None]), pa.float64()),
    })  # fmt: skip
    return pa.concat_tables([table, table.slice(0, count // 4)])  # some records come twice


def close(found: Mapping[Any, Sequence[Any]], expected: Mapping[Any, Sequence[Any]]) -> bool:
    """Equal; doubles within 1e-9 of each other."""
    return found.keys() == expected.keys() and all(
        a == b or (isinstance(a, float) and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6))
        for key, row in found.items()
        for a, b in zip(row, expected[key], strict=True)
    )


def lowered(rows: pa.Table, join: Join) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The values of answers, by their keys."""
    answers = join.answers
    values = tables.lower(rows, answers.key_names, answers.aggregates).to_pylist()
    return {tuple(v[k] for k in answers.key_names): tuple(v[a.name] for a in answers.aggregates) for v in values}


class EdgeSite:
    """A site with its streams."""

    def __init__(self, folder: Path, name: str, slack_us: int, clock: ManualClock) -> None:
        self.folder, self.name, self.slack_us, self.clock = folder, name, slack_us, clock
        self.streams = [s for s, sites in SITES.items() if name in sites]
        self.newest: dict[str, int] = {}
        self.batches = Counter[str]()
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

    def deploy(self, deployed: Deployed, policy: str) -> None:
        plans = [
            FragmentPlan(
                deployed.sharing.fragment(n), policy_by_name(policy), n in deployed.begun, deployed.leaving.get(n)
            )
            for n, demand in deployed.sharing.fragments.items()
            if self.name in demand.source.sites
        ]
        for stream in self.streams:
            events = list(site_deploy.changes(self.core, stream, plans, self.newest.get(stream)))
            if events:
                self.host.submit("deploy", events)

    def batch(self, stream: str, records: pa.Table) -> None:
        events: list[Any] = []
        for fragment in (f for f in self.core.definitions if f.stream == stream):
            counts = Counter(fragment.slicing.starts_of(np.asarray(records["ts"], dtype=np.int64)).tolist())
            events.append(Absorbed(fragment.name, lift_fragment(records, fragment), tuple(sorted(counts.items()))))
        newest = int(np.max(records["ts"].to_numpy()))
        self.newest[stream] = max(newest, self.newest.get(stream, newest))
        events.append(LowMarkRaised(stream, self.newest[stream] - self.slack_us))
        self.host.submit(stream, events, batch=self.batches[stream])
        self.host.submit(stream, events, batch=self.batches[stream])  # a replayed batch changes nothing
        self.batches[stream] += 1

    def end(self) -> None:
        self.host.submit("end", [LowMarkRaised(s, END_OF_TIME_US) for s in self.streams])

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        self.out.setdefault(number, [m for a in actions for m in a.messages])
        return 1


class JoinCenter:
    """A center that keeps what it publishes in memory."""

    def __init__(self, folder: Path, sites: Sequence[EdgeSite], clock: ManualClock) -> None:
        self.folder, self.sites, self.clock = folder, sites, clock
        self.seen = {s.name: 0 for s in sites}
        self.published: list[Publish] = []
        self.done: set[int] = set()
        self.plans: dict[str, QueryPlan] = {}
        self.deployed: Deployed | None = None
        self.open()

    def open(self) -> None:
        self.core = CenterCore()
        journal = Journal(self.folder, EventCodec(CENTER_JOURNALLED))
        self.host: Host[Any, Any] = Host(self.core, journal, self._enact, self.clock)
        self.host.recover()

    def restart(self, checkpoint: bool) -> None:
        if checkpoint:
            self.host.checkpoint()
        self.host.journal.close()
        self.open()

    def deploy(self, plans: Mapping[str, QueryPlan], deployed: Deployed) -> None:
        self.plans |= plans
        self.deployed = deployed
        queries = [self._query(plan, deployed) for plan in plans.values() if plan.name in deployed.views]
        events = list(center_deploy.changes(self.core, queries, deployed.begun))
        if events:
            self.host.submit("deploy", events)

    def _query(self, plan: QueryPlan, deployed: Deployed) -> CenterQuery:
        sides = tuple(
            CenterQuery(s.name, s.fragment, s.window, s.scan.sites, HORIZON_US, None, deployed.derivation(s.name))
            for s in plan.sides
        )
        if plan.join is None:
            return sides[0]
        sites = tuple(dict.fromkeys(site for side in sides for site in side.sites))
        return CenterQuery(plan.name, plan.join.pairing, plan.window, sites, HORIZON_US, FRESHNESS_US,
                           early_us=EARLY_US, join=plan.join, sides=sides)  # fmt: skip

    def consume(self, site: EdgeSite, upto: int) -> None:
        """One micro-batch over what a site has sent up to a segment."""
        assert self.deployed is not None
        known, events = self.deployed.known, list[Any]()
        numbers = range(self.seen[site.name], min(upto, len(site.out)))
        for number in numbers:
            updates = [m for m in site.out[number] if isinstance(m, Updates)]
            for u in (u for u in updates if u.fragment in known):
                table = u.table.cast(known[u.fragment].schema)
                events.append(Merged(u.fragment, table, tuple((site.name, s, n) for s, n in u.records)))
            rows = Counter[str]()
            for u in updates:
                rows[u.fragment] += u.rows
            progress = tuple(m for m in site.out[number] if isinstance(m, Progress))
            events.append(Landed(site.name, number, tuple(rows.items()), progress))
        self.seen[site.name] = numbers.stop if len(numbers) else self.seen[site.name]
        self.host.submit("inbox", [*events, Ticked()])
        self.repair()
        self.core.validate()

    def repair(self, everything: bool = False) -> None:
        due = list(self.core.repairs(self.clock.now_us(), everything))
        recalled = [Recalled(r.query, r.windows, self._recall(r.query, r.wanted), r.reason) for r in due]
        if recalled:
            self.host.submit("repair", [*recalled, Ticked()])

    def _recall(self, name: str, wanted: pa.Table) -> pa.Table:
        """The newest of what was kept of each row that is wanted."""
        join = self.plans[name].join
        fragment = join.pairing if join is not None else self.plans[name].fragment
        latest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for p in (p for p in self.published if p.query == name):
            rows = p.kept if join is not None else p.rows
            for row in rows.to_pylist() if rows is not None else ():
                start = p.window.start_us
                latest[start, *(row[k] for k in fragment.key_names)] = {WINDOW_COLUMN: start, **row}
        fields = [pa.field(WINDOW_COLUMN, pa.int64()), *(f for f in fragment.schema if f.name != SLICE_COLUMN)]
        return tables.matching(pa.Table.from_pylist(list(latest.values()), pa.schema(fields)), wanted)

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        if number not in self.done:
            self.done.add(number)
            self.published += [a for a in actions if isinstance(a, Publish)]
        return 1

    def answers(self, name: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The newest value of each (window, key) of a join."""
        join = self.plans[name].join
        assert join is not None
        mine = [p for p in self.published if p.query == name]
        return {(p.window.start_us, *key): row for p in mine for key, row in lowered(p.rows, join).items()}
