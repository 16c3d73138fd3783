"""The twelve queries of examples/wan_workload submitted ten seconds apart while everything runs.

A day of edits is made two hours (so that a slice holds several records of a site) and replayed so that these last
three minutes. The first view is there at the start; each further one comes through `submit` when so many more
seconds have passed since the first record. Without sharing and with it, on links that are not shaped: what crosses the
WAN over time, what each query's own fragments sent, and whether every answer is right. The oracle is DuckDB over the
raw edits: each view has answered every window from the first that it published to the end of the edits, once, and
equal to the oracle's.

Sites keep history, as they do by default, because plans are compared by the records in it. They read every `TRIGGER`,
which is longer than a micro-batch takes: were they to read as fast as they can, the run with more fragments, or the one
in the colder JVM, would send fewer and longer messages, and what is compared would be the pace of Spark. For the same
reason a short run that is not kept comes first, and the micro-batches of both runs are counted: where they differ by
more than `PACE_TOLERANCE`, the machine was too slow for the trigger, and the runs are said not to be comparable.

The quick form has three queries, five seconds apart, over a sixth of the edits: it shows that the part runs, and its
bytes say nothing.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.sharing.live import REPORT_EVERY_S, session
from benchmarks.sharing.world import DAY_RECORDS, Edits, Layout, edits_of, views
from catchment.center.results.read import read_results, read_windows
from catchment.errors import ConfigError
from catchment.optimizer.choices import Strength
from catchment.project.config import Project
from catchment.sim.plotting import picture

SQUEEZE = 12
SPEED = 40
TRIGGER = "4 s"  # 160 s of the stream
RUN_S = 420.0
PACE_TOLERANCE = 0.1
PLOT = Path(__file__).parents[2] / "docs" / "images" / "sharing_arrivals.png"
REPLAY = f"connector = 'replay', path = 'data/{{site}}/edits.json', speed = {SPEED}"
_NAME = re.compile(r"MATERIALIZED VIEW (\w+)")

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Form:
    """How much is run: hours of edits, so many of the queries, and how long after each other they come."""

    hours: float
    queries: int
    every_s: float


WHOLE = Form(24, 12, 10.0)
QUICK = Form(4, 3, 5.0)


def run_arrivals(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Every strength that is compared, and the plot of the bytes over time; a quick run draws none."""
    form = QUICK if quick else WHOLE
    edits = edits_of(form.hours, SQUEEZE)
    with session() as spark, tempfile.TemporaryDirectory() as folder:
        if not quick:
            report("warming up")
            _run(spark, Path(folder) / "warm", edits_of(QUICK.hours, SQUEEZE), Strength.FULL, QUICK, report)
        runs = [_run(spark, Path(folder) / s.value, edits, s, form, report) for s in (Strength.NONE, Strength.FULL)]
    if not quick:
        plot(runs, PLOT)
    batches = [run["batches"] for run in runs]
    return {
        "speed": SPEED,
        "squeeze": SQUEEZE,
        "every_s": form.every_s,
        "trigger": TRIGGER,
        "records": sum(map(len, edits.values())),
        "is_comparable": max(batches) - min(batches) <= PACE_TOLERANCE * max(batches),
        "runs": runs,
    }


@dataclass
class Arrivals:
    """Submits one view after another while a run is watched; keeps what had been sent at each second."""

    project: Project
    statements: Sequence[str]
    every_s: float
    report: Callable[[str], None]
    began: float | None = None
    submitted: list[dict[str, Any]] = field(default_factory=list)
    curve: list[tuple[float, int]] = field(default_factory=list)
    told: float = 0.0
    batches: set[tuple[str, str, int]] = field(default_factory=set)  # site, stream and end of each that was seen

    def __call__(self, status: Mapping[str, Any]) -> None:
        sites = status["sites"].values()
        for site, told in status["sites"].items():
            self.batches |= {(site, name, stream["last_batch_us"]) for name, stream in told["streams"].items()}
        if self.began is None:
            if not any(s["rows"] for s in sites):
                return
            self.began = time.monotonic()
        now = time.monotonic() - self.began
        sent = sum(s["bytes_sent"] for s in sites)
        if not self.curve or now - self.curve[-1][0] >= 1.0:
            self.curve.append((now, sent))
        if len(self.submitted) < len(self.statements) and now >= self.every_s * (1 + len(self.submitted)):
            self._submit(now, sent, max(s["newest_event_us"] or 0 for s in sites))
        if now - self.told >= REPORT_EVERY_S:
            self.told = now
            self.report(f"  {now:.0f} s: {sent:,} bytes, {status['center']['published']:,} windows published")

    def _submit(self, now: float, sent: int, newest_us: int) -> None:
        from catchment.deploy.submit import submit

        path = self.project.folder / f"later{len(self.submitted)}.sql"
        path.write_text(self.statements[len(self.submitted)])
        (told,) = submit(self.project, path)["queries"]
        took = time.monotonic() - (self.began or 0.0) - now
        self.submitted.append({**told, "at_s": now, "sent_before": sent, "newest_us": newest_us, "submit_s": took})


def _run(
    spark: Any, folder: Path, edits: Edits, strength: Strength, form: Form, report: Callable[[str], None]
) -> dict[str, Any]:
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    report(f"arrivals, {strength.value}")
    chosen = views()[: form.queries]
    first, *later = chosen
    rate = DAY_RECORDS / 86_400 * SQUEEZE
    layout = Layout(
        strength,
        connector=REPLAY,
        views=[first],
        rows_per_s=rate,
        reoptimize=True,
        trigger=TRIGGER,
        history=True,
    )
    layout.write(folder, edits)
    deployment = Deployment.load(folder)
    began = next(iter(deployment.deployed.sharing.fragments))
    runner = Runner(deployment, spark, deployment.sites, True)
    watch = Arrivals(deployment.project, later, form.every_s, report)
    try:
        runner.start()
        runner.run(watch, seconds=RUN_S)
        status = runner.status()
        if not runner.finished or len(watch.submitted) < len(later):
            raise ConfigError(f"the arrivals with sharing {strength.value} did not end in {RUN_S:g} s")
    finally:
        runner.close()
    watch(status)  # what was sent since the last look
    watch.curve[-1] = (watch.curve[-1][0], sum(site["bytes_sent"] for site in status["sites"].values()))
    sent, own = _by_fragment(status), {began, *(q["fragment"] for q in watch.submitted if q["new_fragment"])}
    return {
        "sharing": strength.value,
        "wan_bytes": watch.curve[-1][1],
        "seconds": watch.curve[-1][0],
        "batches": len(watch.batches),
        "curve": watch.curve,
        "queries": _queries(first, began, watch, sent),
        "moved_to": {f: b for f, b in sent.items() if f not in own},
        "answers": [judge(folder / "state", view, edits, folder / "categories.csv") for view in chosen],
    }


def _by_fragment(status: Mapping[str, Any]) -> Counter[str]:
    sent: Counter[str] = Counter()
    for site in status["sites"].values():
        sent.update(site["bytes_by_fragment"])
    return sent


def _queries(first: str, fragment: str, watch: Arrivals, sent: Mapping[str, int]) -> list[dict[str, Any]]:
    """Of each query: when it came, what it shares, what the fragment that it began has sent, and the pace of the WAN
    from its submission to the next one's."""
    start = {
        "query": _named(first),
        "fragment": fragment,
        "shared_with": [],
        "new_fragment": True,
        "at_s": 0.0,
        "sent_before": 0,
        "submit_s": 0.0,
    }
    came = [start, *watch.submitted]
    ends = [(q["at_s"], q["sent_before"]) for q in came[1:]] + [watch.curve[-1]]
    rows = []
    for query, (end_s, end_bytes) in zip(came, ends, strict=True):
        own = sent[query["fragment"]] if query["new_fragment"] else 0
        rows.append(
            {
                "query": query["query"],
                "at_s": query["at_s"],
                "submit_s": query["submit_s"],
                "shared_with": query["shared_with"],
                "own_bytes": own,
                "own_bytes_per_s": own / (watch.curve[-1][0] - query["at_s"]),
                "wan_bytes_per_s": (end_bytes - query["sent_before"]) / (end_s - query["at_s"]),
            }
        )
    return rows


def _named(statement: str) -> str:
    found = _NAME.search(statement)
    assert found is not None
    return found[1]


def judge(state: Path, view: str, edits: Edits, categories: Path) -> dict[str, Any]:
    """Whether a view answered every window from its first to the end of the edits, once, as the oracle does."""
    name = _named(view)
    windows = read_windows(state, name).to_pylist()
    first = min(w["window_start"] for w in windows)
    columns, wanted = oracle(view, edits, categories)
    answered = Counter(plain_row(row, columns) for row in read_results(state, name).to_pylist())
    expected = Counter(row for row in wanted if row[0] >= first.replace(tzinfo=None))
    return {
        "query": name,
        "first_window": first.isoformat(),
        "rows": answered.total(),
        "wrong": (answered - expected).total(),
        "lost": (expected - answered).total(),
        "highest_revision": max(w["revision"] for w in windows),
    }


def plain_row(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[Any, ...]:
    """Return an answer's columns as the oracle gives them."""
    values = [row[c] for c in columns]
    values = [v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in values]
    return tuple([tuple((i["item"], i["count"]) for i in v) if isinstance(v, list) else v for v in values])


def oracle(view: str, edits: Edits, categories: Path) -> tuple[list[str], Rows]:
    """A view of the workload over the raw edits, by DuckDB: its columns and its rows."""
    import duckdb

    base = duckdb.connect()
    _load(base, edits, categories)
    found = base.execute(translated(view))
    columns = [column[0] for column in found.description or ()]
    return columns, [_ranked(row, columns) for row in found.fetchall()]


def translated(view: str) -> str:
    """A view's SELECT in DuckDB's words: windows as buckets, distinct counted exactly, items listed to be ranked."""
    seconds = re.search(r"window\(time, '(\d+) seconds'\)", view)
    assert seconds is not None
    bucket = f"time_bucket(INTERVAL '{seconds[1]} seconds', time)"
    text = view.split(" AS\n", 1)[1].replace(seconds[0], bucket).replace("window.start", f"{bucket} AS start")
    text = re.sub(r"(\d+\.\d+)D", r"CAST(\1 AS DOUBLE)", text)
    text = re.sub(r"approx_count_distinct\((\w+)\)", r"count(DISTINCT \1)", text)
    return re.sub(r"approx_top_k\((\w+), 10\)", r"list(\1)", text)


def _load(base: Any, edits: Edits, categories: Path) -> None:
    import pyarrow as pa

    found = (row for rows in edits.values() for row in rows)
    rows = [{**row, "time": datetime.fromisoformat(str(row["time"])).replace(tzinfo=None)} for row in found]
    base.register("raw", pa.Table.from_pylist(rows))
    flags = ", ".join(f"CAST({c} AS BOOLEAN) AS {c}" for c in ("robot", "anonymous", "new", "minor"))
    base.execute(f"CREATE TABLE edits AS SELECT * REPLACE ({flags}) FROM raw")
    base.execute(f"CREATE TABLE categories AS SELECT * FROM read_csv('{categories}', header = true)")


def _ranked(row: tuple[Any, ...], columns: Sequence[str]) -> tuple[Any, ...]:
    """Lists of items as the ten most frequent, by count downwards, then by item."""

    def ranked(items: list[str]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(Counter(items).items(), key=lambda i: (-i[1], i[0]))[:10])

    return tuple(ranked(v) if isinstance(v, list) else v for v in row)


def _label(run: Mapping[str, Any], sent: float) -> str:
    commit = f" at {run['commit']}" if "commit" in run else ""
    return f"sharing {run['sharing']}{commit}: {sent:,.0f} KB in all"


COMMAND = "catchment bench sharing --part arrivals --plot FILE"


def plot(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bytes over the WAN against time, one line per run, a mark where a query came."""
    with picture(path, "", (8.5, 5), COMMAND) as axes:
        for number, run in enumerate(runs):
            at_s = [t for t, _ in run["curve"]]
            sent = [b / 1e3 for _, b in run["curve"]]
            style: dict[str, Any] = {"marker": "os"[number % 2], "markersize": 3, "markevery": 4}
            axes.plot(at_s, sent, label=_label(run, sent[-1]), **style)
        for query in runs[-1]["queries"]:  # the names stand above the drawing, where no line crosses them
            axes.axvline(query["at_s"], color="0.9", zorder=0)
            axes.annotate(
                query["query"],
                (query["at_s"], 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-2, 4),
                textcoords="offset points",
                rotation=50,
                fontsize=7,
                color="0.35",
            )
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds since the first record (a view comes at each grey line)")
        axes.set_ylabel("sent over the WAN, in KB")
        axes.legend(loc="upper left", frameon=False)
