"""What repair costs live: a stream that is in order except for one record in a thousand, which comes 20 to 60 s late.

Two views ask the same of it: one is repaired, one registers late records and leaves them. So what the center spends on
fetching published states, on merging into them, and on publishing the first view more than the second, is the cost of
repair. It is the processor time of the center's threads (Delta's own threads are in the time on the wall clock alone),
over that of everything that ran: this process, the JVM and the Python workers.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sharing.star import star
from catchment.center.events import Recalled

SITES = ("a", "b", "c")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
DEVICES = 40
PER_SECOND = 2_000
SECONDS, QUICK_SECONDS = 240, 40
LATE_SHARE = 0.001
SEED = 500
LONGEST_RUN_S = 400
REPAIRED, LEFT = "repaired", "left_alone"


@dataclass
class Spent:
    """Seconds on the processor and on the wall clock, by what they were spent on."""

    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    times: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu[what] += time.thread_time() - cpu
            self.wall[what] += time.perf_counter() - wall
            self.times[what] += 1

    def repair(self, by: Mapping[str, float]) -> float:
        """What is spent on repair: on recalling, on merging, and on publishing more than the view without."""
        return by["recall"] + by["merge"] + by[f"publish {REPAIRED}"] - by[f"publish {LEFT}"]


class TimedTables:
    """The tables of a view, its time taken."""

    def __init__(self, tables: Any, view: str, spent: Spent) -> None:
        self._tables, self._view, self._spent = tables, view, spent

    def publish(self, sequence: int, revisions: Any, *given: Any) -> None:
        with self._spent.on(f"publish {self._view}"):
            self._tables.publish(sequence, revisions, *given)

    def recall(self, wanted: Any) -> Any:
        with self._spent.on("recall"):
            return self._tables.recall(wanted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


def cost_of_repair(spark: Any, report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Run the stream, and tell what its repairs took."""
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    records = stream(QUICK_SECONDS if quick else SECONDS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_project(Path(scratch) / "project", records)
        deployment = Deployment.load(folder)
        runner = Runner(deployment, spark, deployment.sites, True)
        before, spent = busy_s(), Spent()
        try:
            runner.start()
            take_time(runner.center, spent)
            runner.run(seconds=LONGEST_RUN_S)
            finished, status = runner.finished, runner.status()
        finally:
            runner.close()
        busy = busy_s() - before
        exact = finished and final_answers(folder / "state") == truth(records)
    late = status["center"]["queries"][REPAIRED]["late_records"]
    result = {
        "records": len(records),
        "late_records": late,
        "late_share": late / len(records),
        "final_exact": exact,
        "repair_cpu_s": spent.repair(spent.cpu),
        "repair_wall_s": spent.repair(spent.wall),
        "busy_s": busy - spent.cpu[f"publish {LEFT}"],
        "repairs": spent.times["merge"],
        "enactments": spent.times[f"publish {REPAIRED}"],
        "cpu_s": dict(spent.cpu),
        "wall_s": dict(spent.wall),
    }
    report(told(result))
    return result


def take_time(center: Any, spent: Spent) -> None:
    """From now on, note what publishing, recalling and merging take."""
    center.tables = {view: TimedTables(tables, view, spent) for view, tables in center.tables.items()}
    handle = center.core.handle

    def timed(event: Any, now_us: int) -> Any:
        if not isinstance(event, Recalled):
            return handle(event, now_us)
        with spent.on("merge"):
            return handle(event, now_us)

    center.core.handle = timed


def stream(seconds: int) -> list[tuple[float, float, str, int]]:
    """(arrival, event time, device, value), in order of arrival."""
    rng = np.random.default_rng(SEED)
    number = seconds * PER_SECOND
    at = np.sort(rng.uniform(0.0, seconds, number))
    late = rng.uniform(size=number) < LATE_SHARE
    arrives = at + 0.02 + np.where(late, rng.uniform(20.0, 60.0, number), 0.0)
    device, value = rng.integers(DEVICES, size=number), rng.integers(1, 100, size=number)
    order = np.argsort(arrives, kind="stable").tolist()
    return [(float(arrives[i]), float(at[i]), f"d{device[i]:02d}", int(value[i])) for i in order]


def write_project(folder: Path, records: list[tuple[float, float, str, int]]) -> Path:
    (folder / "queries").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "catchment.toml").write_text(star("repair", SITES) + 'repair_horizon = "1 hour"\n')
    views = "".join(
        f"CREATE MATERIALIZED VIEW {view} WITH (slack = 'fixed:1 s'{options}) AS\n"
        "  SELECT window.start, device, count(*) AS n, sum(value) AS total FROM readings\n"
        "  GROUP BY window(ts, '2 seconds', '1 second'), device;\n"
        for view, options in ((REPAIRED, ""), (LEFT, ", repair = false"))
    )
    (folder / "queries" / "repair.sql").write_text(
        "CREATE STREAM readings (ts TIMESTAMP, arrived TIMESTAMP, device STRING, value BIGINT)\n"
        f"  WITH (event_time = 'ts', sites = '{','.join(SITES)}', connector = 'replay', path = 'data/{{site}}.jsonl',\n"
        f"        arrival = 'arrived', speed = 1);\n{views}"
    )
    for place, site in enumerate(SITES):
        mine = (r for r in records if int(r[2][1:]) % len(SITES) == place)
        (folder / "data" / f"{site}.jsonl").write_text("".join(_line(r) for r in mine))
    return folder


def _line(record: tuple[float, float, str, int]) -> str:
    come, at, device, value = record
    stamps = {"ts": _moment(at).isoformat(), "arrived": _moment(come).isoformat()}
    return json.dumps({**stamps, "device": device, "value": value}) + "\n"


def _moment(seconds: float) -> datetime:
    return EPOCH + timedelta(microseconds=int(seconds * 1e6))


Answers = dict[tuple[datetime, str], tuple[int, int]]


def truth(records: list[tuple[float, float, str, int]]) -> Answers:
    """Counts and sums of all windows, from the records."""
    found: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for _, at, device, value in records:
        for start in (int(at), int(at) - 1):
            known = found[start, device]
            known[0], known[1] = known[0] + 1, known[1] + value
    return {(EPOCH + timedelta(seconds=s), d): (n, total) for (s, d), (n, total) in found.items()}


def final_answers(state: Path) -> Answers:
    from catchment.center.results.read import read_results

    return {(r["start"], r["device"]): (r["n"], r["total"]) for r in read_results(state, REPAIRED).to_pylist()}


def busy_s() -> float:
    """Processor time of this process and all that it started, in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        times[int(stat.parent.name)] = sum(map(int, fields[11:15])) / ticks  # its own, and of its ended children
    found, total = [os.getpid()], 0.0
    while found:
        pid = found.pop()
        total += times.get(pid, 0.0)
        found += children.get(pid, [])
    return total


def told(result: Mapping[str, Any]) -> str:
    """The result in one sentence."""
    share = 100 / result["busy_s"]
    return (
        f"repair: {100 * result['late_share']:.3f} % of {result['records']:,} records were late; {result['repairs']} "
        f"repairs took {result['repair_cpu_s']:.2f} s of processor time ({result['repair_wall_s']:.2f} s by the wall "
        f"clock), {share * result['repair_cpu_s']:.2f} % ({share * result['repair_wall_s']:.2f} %) of the "
        f"{result['busy_s']:.0f} s of everything that ran; final answers exact: {result['final_exact']}"
    )
