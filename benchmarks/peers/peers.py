"""catchment beside plain Spark, Flink, Pathway, DuckDB and Polars: the same files and query, each in its environment.

Scenarios are files in `scenarios/`. Each engine is a program (`programs/`) that is started once per scenario, warmed by
one turn that is not counted, and then given its turns one after another with the others, so that what else the machine
does affects all alike. The answers of every engine are compared with those of DuckDB before any of its times is kept;
an engine whose answers differ, or that fails, is named with the reason and has no figure. In a scenario of Kafka the
records are the values of a topic, which a broker on this machine holds; DuckDB reads the files that they came from.
`make bench-peers` makes the environments; engines that have none here are named too.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.peers.filled_topic import BROKERS, open_topic
from benchmarks.throughput.throughput import compare_answers, make_data
from catchment.errors import ConfigError
from tests.worlds.kafka_broker import MISSING, has_broker

DESCRIPTION = "rows/s of a site beside plain Spark, Flink, Pathway, DuckDB and Polars on the same records and query"
FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parents[1]
ENVIRONMENTS = Path(os.environ.get("CATCHMENT_PEERS", CHECKOUT / ".peers"))
SCENARIOS = tuple(sorted(path.stem for path in (FOLDER / "scenarios").glob("*.toml")))
PARTS = SCENARIOS
TURNS = 5
QUICK_ROWS = 50_000  # per file, in a quick run
PATIENCE_S = 600.0  # for one turn
FILES = ("parquet", "json", "csv")  # formats of files


@dataclass(frozen=True)
class Engine:
    """A program, the environment whose Python runs it (None: this one), and the formats that it reads."""

    program: str
    environment: str | None = None
    words: tuple[str, ...] = ()
    formats: tuple[str, ...] = FILES


ENGINES: Mapping[str, Engine] = {
    "duckdb": Engine("run_duckdb.py", formats=(*FILES, "kafka")),
    "plain Spark": Engine("run_on_spark.py", words=("spark",), formats=(*FILES, "kafka")),
    "catchment": Engine("run_on_spark.py", words=("catchment",), formats=(*FILES, "kafka")),
    "catchment, no history": Engine("run_on_spark.py", words=("catchment-no-history",), formats=(*FILES, "kafka")),
    "Flink": Engine("run_flink.py", "flink", formats=("parquet", "json", "kafka")),
    "Polars": Engine("run_polars.py", "polars"),
    "Pathway": Engine("run_pathway.py", "pathway", formats=("json", "csv")),
}
REFERENCE = "duckdb"  # whose answers the others are compared with


@dataclass(frozen=True)
class Scenario:
    """What is measured: files, keys and windows."""

    title: str
    format: str
    keys: int
    files: int
    rows_per_file: int
    window_s: int
    slide_s: int
    partitions: int = 0  # of the topic, where it is one
    targets: Mapping[str, float] = field(default_factory=dict)  # how many times an engine catchment is wanted to be

    @classmethod
    def load(cls, name: str) -> Scenario:
        return cls(**tomllib.loads((FOLDER / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")))


class EngineFailedError(Exception):
    """An engine cannot be run, or does not give the answers."""


class Running:
    """A program of an engine as it runs."""

    def __init__(self, engine: Engine, data: Path, scenario: Scenario, brokers: str = "") -> None:
        words = [*engine.words, str(data), scenario.format, str(scenario.window_s), str(scenario.slide_s)]
        python = str(_python_of(engine))
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below
        self._process = subprocess.Popen(
            [python, str(FOLDER / "programs" / engine.program), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,  # not a pipe, which nobody would empty while an engine works
            text=True,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), BROKERS: brokers},
        )
        self.version = str(self._hear()["version"])

    def run(self) -> float:
        """Run one turn; return its seconds."""
        return float(self._ask("run")["seconds"])

    def write_answers(self, path: Path) -> None:
        self._ask(f"answers {path}")

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _ask(self, line: str) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and has said why
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> Mapping[str, Any]:
        """Return the next document; engines print other lines too."""
        assert self._process.stdout is not None
        patience = threading.Timer(PATIENCE_S, self._process.kill)
        patience.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    heard: Mapping[str, Any] = json.loads(line)
                    return heard
        finally:
            patience.cancel()
        if self._process.wait() == -signal.SIGKILL:
            raise EngineFailedError(f"it was killed, as it is when it has no answer after {PATIENCE_S:g} s")
        self._errors.seek(0)
        raise EngineFailedError(self._errors.read()[-2000:].strip() or "it ended without a word")


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = SCENARIOS) -> dict[str, Any]:
    """Measure every engine in every scenario."""
    skipped = {} if has_broker() else {name: MISSING for name in parts if Scenario.load(name).format == "kafka"}
    for name, why in skipped.items():
        report(f"{name} is skipped: it {why}")
    if skipped and len(skipped) == len(parts):
        raise ConfigError("there is no broker to start", hint=MISSING)
    cells = [measure(name, quick, report) for name in parts if name not in skipped]
    return {
        "compared": "one query per scenario: count and sum per window and key, over the same files",
        "turns": f"median of {1 if quick else TURNS} interleaved turns, after one that warms up",
        "cells": cells,
        "skipped": skipped,
    }


def join_parts(earlier: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with the scenarios that an earlier run of the same commit has measured."""
    cells = {cell["scenario"]: cell for cell in [*earlier["cells"], *result["cells"]]}
    return {**result, "cells": [cells[name] for name in SCENARIOS if name in cells]}


def measure(name: str, quick: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the rows per second of each engine in a scenario, and why others have none."""
    scenario = Scenario.load(name)
    rows_per_file = min(QUICK_ROWS, scenario.rows_per_file) if quick else scenario.rows_per_file
    rows = scenario.files * rows_per_file
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as closing:
        format = "json" if scenario.format == "kafka" else scenario.format
        data = make_data(Path(scratch) / "data", format, scenario.keys, scenario.files, rows_per_file)
        brokers = ""
        if scenario.format == "kafka":
            report(f"{scenario.title}: a broker starts, and its topic is filled")
            brokers = closing.enter_context(open_topic(Path(scratch) / "broker", data, scenario.partitions))
        engines: dict[str, Running] = {}
        for engine_name, engine in ENGINES.items():
            report(f"{scenario.title}: {engine_name} starts")
            with _noting(failed, engine_name, report):
                engines[engine_name] = _start(engine, data, scenario, brokers, closing)
                engines[engine_name].write_answers(Path(scratch) / f"{engine_name}.parquet")
                found = pq.read_table(Path(scratch) / f"{engine_name}.parquet")
                compare_answers(found, pq.read_table(Path(scratch) / f"{REFERENCE}.parquet"), engine_name)
        seconds: dict[str, list[float]] = {n: [] for n in engines if n not in failed}
        for turn in range(1 + (1 if quick else TURNS)):
            for engine_name in [n for n in seconds if n not in failed]:
                with _noting(failed, engine_name, report):
                    took = engines[engine_name].run()
                    if turn:
                        seconds[engine_name].append(took)
                        report(f"{scenario.title}: {engine_name}: {rows / took / 1e6:.2f} M rows/s")
        versions = {engine_name: running.version for engine_name, running in engines.items()}
    measured = {n: s for n, s in seconds.items() if s and n not in failed}
    return {
        "scenario": name,
        "title": scenario.title,
        "rows": rows,
        "seconds": measured,
        "rows_per_s": {n: rows / statistics.median(s) for n, s in measured.items()},
        "versions": versions,
        "failed": failed,
        "targets": dict(scenario.targets),
    }


def _start(engine: Engine, data: Path, scenario: Scenario, brokers: str, closing: ExitStack) -> Running:
    if scenario.format not in engine.formats:
        raise EngineFailedError(f"it does not read {scenario.format} here")
    if not _python_of(engine).exists():
        raise EngineFailedError("it has no environment here: make bench-peers")
    running = Running(engine, data, scenario, brokers)
    closing.callback(running.close)
    return running


def _python_of(engine: Engine) -> Path:
    if engine.environment is None:
        return Path(sys.executable)
    return ENVIRONMENTS / engine.environment / "bin" / "python"


@contextmanager
def _noting(failed: dict[str, str], name: str, report: Callable[[str], None]) -> Iterator[None]:
    """Note why an engine has no figure, and go on without it."""
    try:
        yield
    except (EngineFailedError, AssertionError, OSError) as failure:
        failed[name] = str(failure)
        report(f"{name} has no figure: {str(failure).splitlines()[-1] if str(failure) else failure!r}")


def render(result: Mapping[str, Any]) -> RenderableType:
    """Show millions of rows per second, the spread, how many times plain Spark that is, and who has no figure."""
    table = Table("scenario", *ENGINES, title=f"M rows/s (lowest to highest); {result['turns']}", title_justify="left")
    missing = []
    for cell in result["cells"]:
        table.add_row(cell["title"], *(_cell(cell, name) for name in ENGINES))
        missing += [f"{name} in {cell['title']}: {_last_line(why)}" for name, why in cell["failed"].items()]
    versions = {name: version for cell in result["cells"] for name, version in cell["versions"].items()}
    told = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    told_skipped = [f"Skipped: {name}, which {why}." for name, why in result.get("skipped", {}).items()]
    wanted = [line for cell in result["cells"] for line in _targets(cell)]
    return Group(
        table, told, *wanted, *told_skipped, *(["Without a figure: " + "; ".join(missing) + "."] if missing else [])
    )


def _cell(cell: Mapping[str, Any], name: str) -> str:
    if name not in cell["rows_per_s"]:
        return "-"
    rates = [cell["rows"] / seconds / 1e6 for seconds in cell["seconds"][name]]
    return f"{cell['rows_per_s'][name] / 1e6:.2f} ({min(rates):.2f} to {max(rates):.2f})"


def _targets(cell: Mapping[str, Any]) -> Iterator[str]:
    """Say how many times each engine with a target catchment is, beside what was wanted."""
    rates = cell["rows_per_s"]
    for peer, wanted in cell.get("targets", {}).items():
        for name in ("catchment", "catchment, no history"):
            if name in rates and peer in rates:
                yield f"{cell['title']}: {name} is {rates[name] / rates[peer]:.2f} times {peer}; wanted: {wanted:g}."


def _last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1][:160]
