"""Joins of two streams at different sites: bytes over the WAN against shipping the records to where they are joined.

Real records, split by what they are into two streams that are born at different sites, in micro-batches through the
cores that run live: partials, site cores, the wire's own segments, the center core. Bytes do not depend on who groups
the records, so Spark is left out. The baseline is the least that a join at the center could be sent: only the columns
that the query names, in columns, compressed, in batches of `BATCH_ROWS`. Every answer is compared with a join of the
records themselves. Keys that repeat within a window are what aggregation saves on; the cases go from few keys to almost
as many keys as records.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
from rich.console import RenderableType
from rich.table import Table

from benchmarks.data import read_bytes
from catchment.aggregates import partials
from catchment.center.core import CenterCore
from catchment.center.events import Publish, QueryAdded
from catchment.center.query import CenterQuery
from catchment.errors import ConfigError
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import queries_of_plan
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.deployed import Deployed
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.project.config import Project
from catchment.project.sections import Link, Site
from catchment.query.catalog import Catalog
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, Event, FragmentAdded, LowMarkRaised
from catchment.site.policies.registry import policy_by_name
from catchment.timeline import END_OF_TIME_US, SECOND_US
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.messages import Progress, Segment

DESCRIPTION = "bytes over the WAN of joins of two streams at different sites, against shipping the records"
LEFT_SITES, RIGHT_SITES = ("ohio", "ireland"), ("mumbai",)
SITES, CENTER = (*LEFT_SITES, *RIGHT_SITES), "virginia"
POLICY = "batching"  # what a slice holds leaves when it is over
BATCH_US, HOUR_US = 600 * SECOND_US, 3_600 * SECOND_US
BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Case:
    """A join of `people` with `robots`, or of `home` with `abroad`; the texts mean the same in Spark and in DuckDB."""

    name: str
    data: str
    on: str
    window: str
    aggregates: str
    keys: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


EDITS, VIEWS = ("people", "robots"), ("home", "abroad")
CASES = (
    Case(
        "edits by channel",
        "wiki-edits",
        "channel",
        "1 hour",
        "count(*) AS n, sum(a.added) AS x, avg(b.added) AS y",
        ("a.channel",),
        (("added",), ("added",)),
    ),
    Case("edits by page", "wiki-edits", "page", "1 hour", "count(*) AS n, sum(a.added) AS x", (), (("added",), ())),
    Case(
        "requests by client's status",
        "web-log-edgar",
        "code",
        "10 minutes",
        "count(*) AS n, sum(a.size) AS x",
        ("a.code",),
        (("size",), ()),
    ),
    Case(
        "requests by company",
        "web-log-edgar",
        "cik",
        "10 minutes",
        "count(*) AS n, sum(a.size) AS x",
        ("b.code",),
        (("size",), ("code",)),
    ),
)


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Every case, or one of the small ones with `quick`."""
    rows = []
    for case in CASES[:1] if quick else CASES:
        report(case.name)
        rows.append(_measure(case))
    return {
        "compared": "segments of the sites of a join, against the records that it needs, columns only, zstd",
        "data": "wiki edits of one day, people against robots; a web log of one day, clients in the US against others",
        "policy": POLICY,
        "cases": rows,
    }


def render(result: Mapping[str, Any]) -> RenderableType:
    table = Table(title="bytes over the WAN, of joins of two streams at different sites")
    for column in ("join", "records", "join keys", "pairs", "records, zstd", "join", "of that"):
        table.add_column(column, justify="left" if column == "join" else "right")
    for row in result["cases"]:
        counts = (f"{row[c]:,}" for c in ("records", "distinct_keys", "pairs", "shipped_bytes", "wan_bytes"))
        table.add_row(row["join"], *counts, f"{row['wan_bytes'] / row['shipped_bytes']:.1%}")
    return table


def _measure(case: Case) -> dict[str, Any]:
    sides = _sides(case)
    plan, deployed = _plan(case, sides)
    assert plan.join is not None
    center = Center(plan, deployed)
    for site in SITES:
        mine = {name: _by_site(t).get(site) for name, t in zip(_streams(case), sides, strict=True)}
        send_all(center, site, {name: t for name, t in mine.items() if t is not None})
    found = center.answers()
    expected = _expected(case, sides)
    n, x = (pc.sum(found[c]).as_py() or 0 for c in ("n", "x"))
    if (n, x) != (expected["n"], expected["x"]):
        raise ConfigError(f"{case.name}: the answers {n, x} are not those of the records {expected}")
    shipped = sum(_shipped(t) for table in sides for t in _by_site(table).values())
    return {
        "join": case.name,
        "window": case.window,
        "records": sum(t.num_rows for t in sides),
        "distinct_keys": expected["keys"],
        "pairs": n,
        "answers": found.num_rows,
        "segments": center.segments,
        "wan_bytes": center.bytes,
        "shipped_bytes": shipped,
        "share": center.bytes / shipped,
        "equal_to_records": True,
    }


class Center:
    """The center core of one view, and a count of what reached it."""

    def __init__(self, plan: QueryPlan, deployed: Deployed) -> None:
        self.plan, self.deployed, self.core = plan, deployed, CenterCore()
        self.published: list[Publish] = []
        self.bytes = self.segments = 0
        assert plan.join is not None
        sides = tuple(
            CenterQuery(s.name, s.fragment, s.window, s.scan.sites, HOUR_US, None, deployed.derivation(s.name))
            for s in plan.sides
        )
        query = CenterQuery("joined", plan.join.pairing, plan.window, SITES, HOUR_US, join=plan.join, sides=sides)
        self.core.handle(QueryAdded(query), 0)

    def land(self, segment: Segment) -> None:
        """A segment as it came over the wire."""
        data = encode_segment(segment).data
        self.bytes, self.segments = self.bytes + len(data), self.segments + 1
        rows = dict[str, int]()
        for update in decode_segment(data).updates():
            rows[update.fragment] = rows.get(update.fragment, 0) + update.rows
            table = update.table.cast(self.deployed.known[update.fragment].schema)
            self.core.handle(
                Gathered(update.fragment, table, tuple((segment.origin, s, n) for s, n in update.records)), 0
            )
        self.core.handle(Landed(segment.origin, segment.sequence, tuple(rows.items()), tuple(segment.progress())), 0)
        self.published += [a for a in self.core.handle(Ticked(), 0) if isinstance(a, Publish)]

    def answers(self) -> pa.Table:
        fragment = self.plan.fragment
        rows = pa.concat_tables([p.rows for p in self.published])
        return partials.lower(rows, fragment.key_names, fragment.aggregates)


def send_all(center: Center, site: str, streams: Mapping[str, pa.Table]) -> None:
    """Everything a site has, in micro-batches; then its streams end."""
    core, number = SiteCore(), 0
    for name in center.deployed.sharing.fragments:
        fragment = center.deployed.sharing.fragment(name)
        if fragment.stream in streams:
            core.handle(FragmentAdded(fragment, policy_by_name(POLICY)), 0)
    for stream, table in streams.items():
        times = table["ts"].cast(pa.int64()).to_numpy()
        for part in np.split(np.arange(len(times)), np.flatnonzero(np.diff(times // BATCH_US)) + 1):
            batch, newest = table.take(pa.array(part)), int(times[part].max())
            events = [absorbed(batch, f) for f in core.definitions if f.stream == stream]
            number = _send(center, site, core, [*events, LowMarkRaised(stream, newest)], number)
    _send(center, site, core, [LowMarkRaised(stream, END_OF_TIME_US) for stream in streams], number)


def absorbed(batch: pa.Table, fragment: Fragment) -> Absorbed:
    """The partials of a micro-batch; keys and arguments of these queries are plain columns."""
    columns = {sql: sql.rpartition(".")[2].strip("`") for sql in _texts(fragment)}
    slices = fragment.slicing.starts_of(batch["ts"].cast(pa.int64()).to_numpy())
    raw = {SLICE_COLUMN: pa.array(slices, pa.int64()), **{k.name: batch[columns[k.sql]] for k in fragment.keys}}
    values = {f"of {c}": batch[c] for c in columns.values()}
    arguments = {a.name: f"of {columns[a.argument]}" if a.argument else None for a in fragment.aggregates}
    table = partials.lift(pa.table({**raw, **values}), list(raw), fragment.aggregates, arguments)
    return Absorbed(fragment.name, table, tuple(sorted(Counter(slices.tolist()).items())))


def _texts(fragment: Fragment) -> list[str]:
    return [*(k.sql for k in fragment.keys), *(a.argument for a in fragment.aggregates if a.argument)]


def _send(center: Center, site: str, core: SiteCore, events: Sequence[Event], number: int) -> int:
    """What leaves after some events, as one segment; the number of the next."""
    sent = [m for e in events for action in core.handle(e, 0) for m in action.messages]
    newest = {m.fragment: m for m in sent if isinstance(m, Progress)}
    messages = (*(m for m in sent if not isinstance(m, Progress)), *newest.values())
    if not messages:
        return number
    center.land(Segment(site, "bench", number, messages))
    return number + 1


def _plan(case: Case, sides: list[pa.Table]) -> tuple[QueryPlan, Deployed]:
    links = {(s, CENTER): Link(s, CENTER) for s in SITES}
    project = Project("join", Path(), CENTER, {s: Site(s) for s in (*SITES, CENTER)}, links)
    declared = [_stream(*s) for s in zip(_streams(case), sides, (LEFT_SITES, RIGHT_SITES), strict=True)]
    catalog = Catalog(project).add(*parse_sql("\n".join([*declared, _view(case)]), "join.sql"))
    plan = plan_view(catalog.view("joined"), catalog)
    return plan, deploy_first(queries_of_plan(plan, catalog), Strength.FULL, lambda demand: 1.0)


def _streams(case: Case) -> tuple[str, str]:
    return EDITS if case.data == "wiki-edits" else VIEWS


def _sides(case: Case) -> list[pa.Table]:
    """The records of both streams, with the columns that the query needs, and the site of each."""
    records = _edits() if case.data == "wiki-edits" else _requests()
    sides = []
    for left, sites, needs in ((True, LEFT_SITES, case.needs[0]), (False, RIGHT_SITES, case.needs[1])):
        mine = records.filter(pc.equal(records["left"], left))
        homes = [sites[crc32(str(w).encode()) % len(sites)] for w in mine["who"].to_pylist()]
        columns = list(dict.fromkeys(["ts", case.on, *needs]))
        sides.append(mine.select(columns).append_column("site", pa.array(homes)))
    return sides


def _edits() -> pa.Table:
    lines = read_bytes("wiki_edits").decode().splitlines()
    edits = [json.loads(line) for line in lines]
    times = pa.array([e["time"].replace("Z", "") for e in edits]).cast(pa.timestamp("us")).cast(_UTC)
    columns = {c: pa.array([e[c] for e in edits]) for c in ("channel", "page", "added")}
    left = pa.array([not e["isRobot"] for e in edits])
    return pa.table({"ts": times, **columns, "left": left, "who": pa.array([e["user"] for e in edits])})


def _requests() -> pa.Table:
    log = pv.read_csv(io.BytesIO(read_bytes("edgar")))
    country = pv.read_csv(io.BytesIO(read_bytes("edgar_countries")))
    place = pc.index_in(log["ip"], value_set=country["ip"].combine_chunks())
    days = pc.cast(log["date"], pa.string()) if not pa.types.is_string(log["date"].type) else log["date"]
    clock = pc.cast(log["time"], pa.string())
    times = pc.binary_join_element_wise(days, clock, "T").cast(pa.timestamp("us")).cast(_UTC)
    whole = {c: log[c].cast(pa.int64(), safe=False) for c in ("cik", "code", "size")}
    left = pc.equal(country["country"].take(place), "US")
    return pa.table({"ts": times, **whole, "left": pc.fill_null(left, False), "who": log["ip"]})


_UTC = pa.timestamp("us", tz="UTC")


def _by_site(table: pa.Table) -> dict[str, pa.Table]:
    sites = sorted(set(table["site"].to_pylist()))
    return {s: table.filter(pc.equal(table["site"], s)).drop_columns(["site"]) for s in sites}


def _shipped(table: pa.Table) -> int:
    """Bytes of the records in columns, each batch compressed by itself."""
    total = 0
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
        total += sink.getvalue().size
    return total


def _expected(case: Case, sides: list[pa.Table]) -> dict[str, int]:
    """Pairs and sums over all pairs of records, and how many join keys there are in all windows."""
    connection = duckdb.connect(config={"threads": 1})
    for name, table in zip(("a", "b"), sides, strict=True):
        connection.register(f"raw_{name}", table)
        connection.sql(
            f"CREATE TEMP VIEW {name} AS SELECT *, time_bucket(INTERVAL '{case.window}', ts AT TIME ZONE 'UTC') AS w "
            f"FROM raw_{name}"
        )
    value = case.needs[0][0]
    ((pairs, total),) = connection.sql(
        f"SELECT count(*), sum(a.{value}) FROM a JOIN b ON a.w = b.w AND a.{case.on} = b.{case.on}"
    ).fetchall()
    ((keys,),) = connection.sql(
        f"SELECT count(*) FROM (SELECT DISTINCT w, {case.on} FROM a UNION SELECT DISTINCT w, {case.on} FROM b)"
    ).fetchall()
    return {"n": int(pairs), "x": int(total or 0), "keys": int(keys)}


def _view(case: Case) -> str:
    keys, (left, right) = ", ".join(["", *case.keys]), _streams(case)
    return (
        f"CREATE MATERIALIZED VIEW joined AS SELECT window.start{keys}, {case.aggregates} FROM {left} a "
        f"JOIN {right} b ON a.{case.on} = b.{case.on} GROUP BY window(a.ts, '{case.window}'){keys};"
    )


def _stream(name: str, table: pa.Table, sites: tuple[str, ...]) -> str:
    types = {pa.string(): "STRING", pa.int64(): "BIGINT", _UTC: "TIMESTAMP"}
    columns = ", ".join(f"{f.name} {types[f.type]}" for f in table.schema if f.name != "site")
    return (
        f"CREATE STREAM {name} ({columns}) WITH (event_time = 'ts', sites = '{','.join(sites)}', "
        f"path = '{name}/{{site}}', format = 'parquet');"
    )
