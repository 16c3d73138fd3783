"""The fourteen sites of examples/wan_workload live on this machine, deployed in four ways over the same links.

All roles run in one process with one Spark session: six light sources, the sites that evaluate their records, relays,
the center and seven more sinks. They speak over sockets, and every link is shaped to what it declares
(`catchment.wire.sending.shaper`). The sources begin with the first query; each further one is submitted some seconds
later.

Of every query: the wall-clock time from the end of a window to its first answer, how much of its input was answered
when the sources ended, and the bytes that crossed links for it. A window that ended and was not answered when the run
was over counts with the time that it had waited by then. No figure is told before the answers of a run are held against
a recomputation from the raw records (DuckDB): a run with one wrong row fails. Whether links and not processors were the
limit is told by the processor time of all processes of the run.
"""

from __future__ import annotations

import os
import statistics as stats
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.placement.fourteen_sites import (
    RECORDS_PER_S,
    SPEED,
    FourteenSites,
    LiveEdit,
    LiveQuery,
    LiveWay,
    live_edits,
    slowings,
    workload_queries,
)
from benchmarks.placement.live_answers import QueryAnswers, judge_query
from benchmarks.sharing.live import REPORT_EVERY_S, session
from catchment.cli.process_usage import usage
from catchment.errors import ConfigError, EngineError

FEED_S = 0.2  # how often sources write what was born
MAX_PROCESSOR = 0.6  # share of the processors, beyond which they and not links may have been the limit

Report = Callable[[str], None]


@dataclass(frozen=True)
class Schedule:
    """When queries come, and how long a run lasts, in seconds of the wall clock."""

    queries: int
    longest_window_s: int
    every_s: float
    sources_s: float
    after_s: float  # how long the run goes on when the sources have ended

    def choose(self, queries: Sequence[LiveQuery]) -> list[LiveQuery]:
        """Return the first queries whose windows are not too long."""
        return [query for query in queries if query.window_s <= self.longest_window_s][: self.queries]


FULL = Schedule(queries=12, longest_window_s=300, every_s=10.0, sources_s=190.0, after_s=30.0)
QUICK = Schedule(queries=4, longest_window_s=60, every_s=4.0, sources_s=20.0, after_s=6.0)


def run_live(report: Report, quick: bool) -> dict[str, Any]:
    """Run the four ways, one after another; a quick run has four queries and is short."""
    schedule = QUICK if quick else FULL
    queries = schedule.choose(workload_queries())
    edits = live_edits(schedule.sources_s)
    told = []
    with session() as spark, tempfile.TemporaryDirectory() as folder:
        for number, slowing in enumerate(slowings(len(queries))):
            world = FourteenSites.of(edits, slowing)
            runs = []
            for way in slowing.ways:
                report(f"live: {way.name}, links {slowing.name}")
                place = Path(folder) / f"{number}_{way.name.replace(' ', '_')}"
                runs.append(_run(spark, place, way, world, queries, edits, schedule, report))
            told.append({"links": slowing.name, "slowed_to": world.slowed, "runs": runs})
    return {
        "compared": f"{len(queries)} queries, one more every {schedule.every_s:g} s; {RECORDS_PER_S:g} records per "
        f"second of six sources for {schedule.sources_s:g} s, event time {SPEED:g} times as fast as the wall clock",
        "worlds": told,
    }


@dataclass
class Sources:
    """Writes what is born at each source, and submits one query after another, each in a thread."""

    folder: Path
    way: LiveWay
    queries: Sequence[LiveQuery]
    edits: Sequence[LiveEdit]
    schedule: Schedule
    submit: Callable[[str], Any]
    began_s: float = 0.0
    open_from_s: dict[str, float] = field(default_factory=dict)  # stream -> since when it is written
    submitted_s: dict[str, float] = field(default_factory=dict)  # query -> when it was submitted
    longest_lag_s: float = 0.0  # between a record's birth and its writing
    failure: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin: the first query is there already."""
        self.began_s = time.time()
        first = self.queries[0]
        self.open_from_s[first.stream(self.way)] = 0.0
        self.submitted_s[first.name] = 0.0
        for work in (self._feed, self._submit_all):
            thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End both threads; raise what ended one of them before."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def fed_to(self, stream: str) -> list[LiveEdit]:
        """Return the records that were written to a stream."""
        since_s = self.open_from_s[stream]
        return [edit for edit in self.edits if edit.born_s >= since_s]

    def _now_s(self) -> float:
        return time.time() - self.began_s

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - a thread's end must not go unnoticed: stop() raises it
            self.failure = failure

    def _feed(self) -> None:
        written = 0
        while written < len(self.edits):
            now_s = self._now_s()
            end = written
            while end < len(self.edits) and self.edits[end].born_s <= now_s:
                end += 1
            if end > written:
                self.longest_lag_s = max(self.longest_lag_s, now_s - self.edits[written].born_s)
                self._write(self.edits[written:end])
            written = end
            if self._stop.wait(FEED_S):
                return

    def _write(self, born: Sequence[LiveEdit]) -> None:
        for stream, since_s in list(self.open_from_s.items()):
            lines: dict[str, list[str]] = {}
            for edit in born:
                if edit.born_s >= since_s:
                    lines.setdefault(edit.site, []).append(edit.line)
            for site, found in lines.items():
                with (self.folder / "data" / stream / site / "edits.json").open("a") as file:
                    file.write("".join(found))

    def _submit_all(self) -> None:
        for number, query in enumerate(self.queries[1:], 1):
            due_s = number * self.schedule.every_s
            if self._stop.wait(max(0.0, due_s - self._now_s())):
                return
            self.submit(query.to_sql(self.way))
            now_s = self._now_s()
            self.submitted_s[query.name] = now_s
            # what is born within the next looks of the feeder goes to the new stream whole, or not at all
            self.open_from_s.setdefault(query.stream(self.way), now_s + 2 * FEED_S)


def _run(
    spark: Any,
    folder: Path,
    way: LiveWay,
    world: FourteenSites,
    queries: Sequence[LiveQuery],
    edits: Sequence[LiveEdit],
    schedule: Schedule,
    report: Report,
) -> dict[str, Any]:
    from catchment.deploy.deployment import Deployment
    from catchment.deploy.submit import submit_text
    from catchment.spark.pipelines.runner import Runner

    world.write(folder, way, queries[0], queries)
    deployment = Deployment.load(folder)
    runner = Runner(deployment, spark, deployment.sites, True)
    sources = Sources(folder, way, queries, edits, schedule, lambda text: submit_text(deployment.project, text))
    telling = _Telling(report, sources)
    try:
        runner.start()
        before = usage()
        sources.start()
        runner.run(telling, seconds=schedule.sources_s + schedule.after_s)
        took_s = time.time() - sources.began_s
        after = usage()
        status = runner.status()
        now = runner.deployment
    finally:
        try:
            sources.stop()
        finally:
            runner.close()
    if len(sources.submitted_s) < len(queries):
        raise ConfigError(
            f"only {len(sources.submitted_s)} of {len(queries)} queries were submitted: the run is too short"
        )
    answers = [judge_query(folder, now, query, way, sources, took_s) for query in queries]
    _refuse_wrong(way, answers)
    sent = _bytes_over_links(status, now)
    processor = (after["cpu_s"] - before["cpu_s"]) / took_s / (os.cpu_count() or 1)
    records = sum(link["bytes"] for link in sent if link["carries"] == "records")
    partials = sum(link["bytes"] for link in sent if link["carries"] == "partials")
    report(f"  {records + partials:,} bytes over links, processors {100 * processor:.0f} %")
    own = _bytes_by_query(status, now, queries, way)
    return {
        "way": way.name,
        "evaluated_at": world.evaluated_at(way),
        "wan_bytes": records + partials,
        "record_bytes": records,
        "partial_bytes": partials,
        "waiting_bytes": sum(link["waiting"] for link in sent),
        "links": sent,
        "answered": stats.fmean(answer.answered for answer in answers),
        "records_per_s": stats.fmean(answer.records_per_s for answer in answers),
        "median_latency_s": stats.median([late for answer in answers for late in answer.latencies_s] or [took_s]),
        "queries": [{**answer.told(), "wan_bytes": round(own[answer.query])} for answer in answers],
        "compared_rows": sum(answer.rows for answer in answers),
        "seconds": took_s,
        "processor": processor,
        "longest_lag_s": sources.longest_lag_s,
    }


@dataclass
class _Telling:
    """Says now and then how a run goes, and ends it if a thread of the sources has failed."""

    report: Report
    sources: Sources
    told_s: float = 0.0

    def __call__(self, status: Mapping[str, Any]) -> None:
        if self.sources.failure is not None:
            raise EngineError(f"the sources stopped: {self.sources.failure}") from self.sources.failure
        now_s = time.monotonic()
        if now_s - self.told_s >= REPORT_EVERY_S:
            self.told_s = now_s
            sent = sum(source["sent_bytes"] for source in status["sources"].values())
            waiting = sum(source["queued_bytes"] for source in status["sources"].values())
            rows = sum(site["rows"] for site in status["sites"].values())
            self.report(f"  {sent:,} bytes of records sent, {waiting:,} wait, {rows:,} records evaluated")


def _refuse_wrong(way: LiveWay, answers: Sequence[QueryAnswers]) -> None:
    """Refuse a run with an answer that differs from the recomputation, or without any answer."""
    wrong = {answer.query: answer.wrong for answer in answers if answer.wrong}
    if wrong:
        raise EngineError(f"the way {way.name!r} has wrong answers, so nothing of it is told: {wrong}")
    if not any(answer.rows for answer in answers):
        raise EngineError(f"the way {way.name!r} has answered nothing", hint="let it run for longer")


def _relays(status: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every relay of a run, with its site."""
    found = list(status["relays"].items())
    for sink in status["sinks"].values():
        found += sink["relays"].items()
    return found


def _bytes_over_links(status: Mapping[str, Any], deployment: Any) -> list[dict[str, Any]]:
    """Return what each link has carried, and what waits for it."""
    links = []
    for site, source in status["sources"].items():
        told = {"bytes": source["sent_bytes"], "waiting": source["queued_bytes"]}
        links.append({"from": site, "to": source["to"], "carries": "records", **told})
    for site, relay in _relays(status):
        told = {"bytes": relay["bytes_sent"], "waiting": relay["queued_bytes"]}
        links.append({"from": site, "to": relay["to"], "carries": "partials", **told})
    for link in links:
        bandwidth = deployment.project.link(link["from"], link["to"]).bandwidth_bytes_per_s
        link["bandwidth_bytes_per_s"] = bandwidth
    return links


def _bytes_by_query(
    status: Mapping[str, Any], deployment: Any, queries: Sequence[LiveQuery], way: LiveWay
) -> dict[str, float]:
    """Return the bytes that crossed links for each query; what several use is divided equally among them."""
    partials: Counter[str] = Counter()
    for _, relay in _relays(status):
        partials.update(relay["bytes_by_fragment"])
    readers = Counter(query.stream(way) for query in queries)
    rows: Counter[str] = Counter()
    for source in status["sources"].values():
        rows.update(source["rows"])
    records = sum(source["sent_bytes"] for source in status["sources"].values())
    found = {}
    for query in queries:
        part = deployment.of_view(query.name)
        fragment = part.deployed.derivation(part.deployed.query_name(query.name)).fragment
        users = len(part.deployed.sharing.users(fragment))
        stream = query.stream(way)
        of_stream = records * rows[stream] / max(1, rows.total())
        found[query.name] = partials[fragment] / users + of_stream / readers[stream]
    return found


def render_live(told: Mapping[str, Any]) -> RenderableType:
    """Tables for a person."""
    said = "by query: median latency of its windows, share of its input answered when the sources ended, KB over links"
    shown: list[RenderableType] = [told["compared"]]
    for world in told["worlds"]:
        links = f"links {world['links']}: slowed to {100 * world['slowed_to']:.3g} % of what the example declares"
        shown += [links, _table_of_ways(world["runs"]), said, _table_of_queries(world["runs"])]
    return Group(*shown)


def _table_of_ways(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("way", "WAN MB", "waiting MB", "answered", "records/s", "median latency", "processors", "compared")
    for run in runs:
        table.add_row(
            run["way"],
            f"{run['wan_bytes'] / 1e6:.3f}",
            f"{run['waiting_bytes'] / 1e6:.3f}",
            f"{100 * run['answered']:.0f} %",
            f"{run['records_per_s']:.0f}",
            f"{run['median_latency_s']:.1f} s",
            f"{100 * run['processor']:.0f} %{'' if run['processor'] < MAX_PROCESSOR else ' (too much)'}",
            f"{run['compared_rows']:,} rows",
        )
    return table


def _table_of_queries(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("query", "sink", *(run["way"] for run in runs))
    for number, query in enumerate(runs[0]["queries"]):
        table.add_row(query["query"], query["sink"], *(_cell(run["queries"][number]) for run in runs))
    return table


def _cell(query: Mapping[str, Any]) -> str:
    latency = query["median_latency_s"]
    waited = "-" if latency is None else f"{latency:.1f} s"
    return f"{waited}, {100 * query['answered']:.0f} %, {query['wan_bytes'] / 1e3:,.0f} KB"
