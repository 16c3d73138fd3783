"""The arrivals of `arrivals.py` counted without Spark: what each choice of fragments would send, byte by byte.

Every fragment that a rule chooses is evaluated over the edits of each site, and its partials are packed as they are for
the wire, one message per micro-batch. So rules are compared on equal terms, whatever the machine does meanwhile:

- `none`: every query has a fragment of its own, from its arrival on;
- `measured`: queries are added and moved by the rules of a run, from what sites would have measured by then; what a
  fragment that is left sends while the new one begins is counted for `overlap_s` seconds of the stream;
- `foretold`: the same rules, where the bytes of every fragment are known from the past of the stream itself;
- `free`: at every arrival the sharing that sends least until the next one, known beforehand, and moves cost nothing. No
  rule that searches as `share` does sends less.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.sharing.arrivals import SPEED, SQUEEZE, WHOLE
from benchmarks.sharing.world import DAY_RECORDS, SITES, Edits, Layout, edits_of, views
from catchment.arrays import Floats
from catchment.deploy.deployment import Deployment
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery, queries_of_plan
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.link_traffic import bytes_over_links
from catchment.optimizer.sharing.measured_statistics import apply_measurements
from catchment.optimizer.sharing.record_sample import RecordSample
from catchment.optimizer.sharing.reoptimize import SharingReoptimizer
from catchment.optimizer.sharing.share import BytesOf, share
from catchment.optimizer.sharing.statistics import Statistics, fill_with_guesses, load_statistics
from catchment.query.sql.statements import Stream
from catchment.sim.wan_worlds import table_views
from catchment.testing.simulated.evaluate import PureEvaluator
from catchment.testing.simulated.records import ArrivingRecords
from catchment.timeline import SECOND_US
from catchment.wire.frames.codec import pack_table

BATCH_S = 150  # of the stream's time: 3.75 s of the clock, as micro-batches were in the run on two busy cores
CHECK_EVERY = 3  # micro-batches between two looks at the sharing that runs, about ten seconds of the clock
FIRST_CHECK_S = 60 * SPEED
OVERLAPS_S = (0, 300, 600)
RECENT_S = 300  # over which sites measure rates
DRAW_SEED = [20261117, 0]  # of the second workload, never used before


def run_replayed(report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every rule on the twelve queries of the example, and on twelve that were drawn."""
    drawn = "\n".join(table_views(("virginia",), np.random.default_rng(DRAW_SEED)))
    bare = re.sub(r"WITH \(sink = '[a-z]*'\) ", "", drawn)
    workloads = {"example": views(), "drawn": [f"CREATE {part.strip()}" for part in bare.split("CREATE ")[1:]]}
    edits = edits_of(WHOLE.hours, SQUEEZE)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, statements in workloads.items():
            replay = ArrivalReplay.of(Path(folder) / name, edits, statements)
            for row in replay.rows():
                report(f"{name}, {row['rule']}: {row['of_none']:.0%}")
                rows.append({"workload": name, **row})
    return rows


@dataclass
class ArrivalReplay:
    """The edits of every site, the queries in the order of their arrival, and what fragments were found to send."""

    deployment: Deployment
    queries: list[SharedQuery]
    arrivals: Mapping[str, ArrivingRecords]  # by site
    evaluator: PureEvaluator
    begin_us: int
    batches: int
    sent: dict[tuple[str, str], Floats] = field(default_factory=dict)  # by fingerprint and site: bytes per batch

    @classmethod
    def of(cls, folder: Path, edits: Edits, statements: Sequence[str]) -> ArrivalReplay:
        """Lay a workload out."""
        Layout(Strength.FULL, views=statements, rows_per_s=DAY_RECORDS / 86_400 * SQUEEZE).write(folder, edits)
        deployment = Deployment.load(folder)
        queries = [q for plan in deployment.plans for q in queries_of_plan(plan, deployment.catalog)]
        stream = deployment.catalog.streams["edits"]
        arrivals = {site: ArrivingRecords.of(stream, site, _table(stream, edits[site])) for site in SITES}
        begin_us = min(int(a.times_us.min()) for a in arrivals.values())
        end_us = max(int(a.times_us.max()) for a in arrivals.values())
        batches = math.ceil((end_us - begin_us) / SECOND_US / BATCH_S) + 3  # the last windows end later
        evaluator = PureEvaluator(folder, deployment.catalog.tables)
        return cls(deployment, queries, arrivals, evaluator, begin_us, batches)

    def rows(self) -> list[dict[str, Any]]:
        """What each rule sends in all, and what of that was sent twice."""
        none = sum(float(self.bytes_of(q.demand)[self.arrival(i) :].sum()) for i, q in enumerate(self.queries))
        found: list[tuple[str, float, float]] = [("none", none, 0.0)]
        for foretold in (False, True):
            for overlap_s in OVERLAPS_S:
                name = f"{'foretold' if foretold else 'measured'}, {overlap_s} s twice"
                found.append((name, *_Online(self, foretold, overlap_s).run()))
        found.append(("free", self._free(), 0.0))
        return [{"rule": n, "bytes": round(b), "twice": round(t), "of_none": b / none} for n, b, t in found]

    def arrival(self, number: int) -> int:
        """The micro-batch in which a query comes; beyond the last one, the end."""
        if number >= len(self.queries):
            return self.batches
        return min(int(number * WHOLE.every_s * SPEED / BATCH_S), self.batches)

    def bytes_of(self, demand: FragmentDemand, site: str | None = None) -> Floats:
        """What a fragment sends in each micro-batch, at one site or at all."""
        if site is None:
            return np.asarray(np.sum([self.bytes_of(demand, s) for s in SITES], axis=0))
        place = demand.fingerprint, site
        if place not in self.sent:
            self.sent[place] = self._count(demand, site)
        return self.sent[place]

    def _count(self, demand: FragmentDemand, site: str) -> Floats:
        fragment = demand.fragment()
        table, counts = self.evaluator.rows(self.arrivals[site], fragment).lift()
        records = dict(counts)
        starts = table["slice_us"].to_numpy()
        ends = {start: fragment.slicing.end_of(start) for start in np.unique(starts).tolist()}
        batch = np.array([(ends[s] - self.begin_us) // SECOND_US // BATCH_S for s in starts.tolist()])
        sent = np.zeros(self.batches)
        for number in np.unique(batch).tolist():
            part = table.filter(pa.array(batch == number))
            slices = tuple((s, records[s]) for s in np.unique(part["slice_us"].to_numpy()).tolist())
            header = ["u", fragment.name, part.num_rows, 2**15, 2**15, slices, (), "p", fragment.name, 2**50, 2**15]
            size = len(pack_table(part).data) + len(msgspec.msgpack.encode(header))
            sent[min(number, self.batches - 1)] += size
        return sent

    def _free(self) -> float:
        total = 0.0
        for i in range(len(self.queries)):
            estimate = partial(self._sent_between, self.arrival(i), self.arrival(i + 1))
            state = share(self.queries[: i + 1], Strength.FULL, estimate)
            total += sum(map(estimate, state.fragments.values()))
        return total

    def _sent_between(self, first: int, end: int, demand: FragmentDemand) -> float:
        return float(self.bytes_of(demand)[first:end].sum())


@dataclass
class _Online:
    """Adds queries as they come and moves them as a run would."""

    replay: ArrivalReplay
    foretold: bool
    overlap_s: float
    begun: dict[str, tuple[FragmentDemand, int]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)

    def run(self) -> tuple[float, float]:
        """Return the bytes that were sent, and those of them that were sent twice."""
        replay = self.replay
        deployed = deploy_first(replay.queries[:1], Strength.FULL, self._estimate(None, 0))
        self._follow(deployed, 0)
        moving = SharingReoptimizer()
        for number in range(1, len(replay.queries) + 1):
            for batch in range(replay.arrival(number - 1) + 1, replay.arrival(number)):
                if batch * BATCH_S >= FIRST_CHECK_S and batch % CHECK_EVERY == 0:
                    deployed = _with_every_site_begun(deployed, batch)
                    target = moving.choose_move(deployed, self._estimate(deployed, batch), batch * BATCH_S * SECOND_US)
                    if target is not None:
                        deployed = deployed.move(target)
                        self._follow(deployed, batch)
            if number < len(replay.queries):
                batch = replay.arrival(number)
                deployed = _with_every_site_begun(deployed, batch)
                deployed = deployed.add(replay.queries[number], None, self._estimate(deployed, batch))
                self._follow(deployed, batch)
        return self._total()

    def _follow(self, deployed: Deployed, batch: int) -> None:
        for name, demand in deployed.sharing.fragments.items():
            self.begun.setdefault(name, (demand, batch))
        for name in deployed.leaving:
            self.left.setdefault(name, batch)

    def _total(self) -> tuple[float, float]:
        overlap = self.overlap_s / BATCH_S
        sent = twice = 0.0
        for name, (demand, begin) in self.begun.items():
            series = self.replay.bytes_of(demand)
            end = self.left.get(name, self.replay.batches)
            beyond = series[end:]
            again = float(beyond[: int(overlap)].sum())
            if int(overlap) < len(beyond):
                again += float(beyond[int(overlap)]) * (overlap - int(overlap))
            sent += float(series[begin:end].sum()) + again
            twice += again
        return sent, twice

    def _estimate(self, deployed: Deployed | None, batch: int) -> BytesOf:
        replay = self.replay
        if self.foretold:
            past = max(batch, 2)
            return lambda demand: float(replay.bytes_of(demand)[:past].sum()) / past / BATCH_S
        project = replay.deployment.project
        catalog = replay.deployment.catalog
        known: Statistics = fill_with_guesses(load_statistics(project, catalog), catalog)
        if deployed is not None:
            told = {site: self._measured(site, batch) for site in SITES}
            samples = {"edits": {site: self._sample(site, batch) for site in SITES}}
            known = apply_measurements(known, deployed.sharing.fragments, told, samples)
        return bytes_over_links(replay.deployment.routes, known)

    def _sample(self, site: str, batch: int) -> RecordSample:
        """The newest records that the history of a site has by now."""
        arrivals = self.replay.arrivals[site]
        is_read = arrivals.times_us < self.replay.begin_us + batch * BATCH_S * SECOND_US
        table = arrivals.table.filter(pa.array(is_read))
        return RecordSample.newest("edits", table, "time", lambda part: len(pack_table(part).data))

    def _measured(self, site: str, batch: int) -> dict[str, Any]:
        """What a site would have measured by now of its stream and of the fragments that run."""
        replay = self.replay
        now_us = replay.begin_us + batch * BATCH_S * SECOND_US
        times_us = replay.arrivals[site].times_us
        recent_us = max(replay.begin_us, now_us - RECENT_S * SECOND_US)
        recent = int(((times_us >= recent_us) & (times_us < now_us)).sum())
        fragments = {}
        for name, (demand, begin) in self.begun.items():
            from_us = replay.begin_us + begin * BATCH_S * SECOND_US
            read = int(((times_us >= from_us) & (times_us < now_us)).sum())
            rows = replay.evaluator.rows(replay.arrivals[site], demand.fragment())
            rows = rows.where((rows.times_us >= from_us) & (rows.times_us < now_us))
            if read and len(rows.numbers):
                groups, _ = rows.lift()
                fragments[name] = {
                    "rows": read,
                    "groups": groups.num_rows,
                    "bytes": float(replay.bytes_of(demand, site)[begin:batch].sum()),
                    "selectivity": len(rows.numbers) / read,
                    "distinct": {k.sql: len(pc.unique(groups[k.name])) for k in demand.keys},
                }
        rate = recent * SECOND_US / max(now_us - recent_us, SECOND_US)
        return {"rows_per_s": {"edits": rate}, "batches_per_s": {"edits": 1 / BATCH_S}, "fragments": fragments}


def _with_every_site_begun(deployed: Deployed, batch: int) -> Deployed:
    """The deployment when every site has begun what began before this batch: fragments that were left have ended."""
    return deployed.with_ends({f: batch for f, until in deployed.leaving.items() if until is None})


def _table(stream: Stream, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The edits of a site with the types of their stream."""

    def read(value: Any, type_: pa.DataType) -> Any:
        if value is None or value == "":
            return None
        if pa.types.is_timestamp(type_):
            return datetime.fromisoformat(str(value))
        if pa.types.is_boolean(type_):
            return str(value).lower() == "true"
        return int(value) if pa.types.is_integer(type_) else str(value)

    columns = {c.name: pa.array([read(r.get(c.name), c.type) for r in rows], c.type) for c in stream.columns}
    return pa.table(columns)
