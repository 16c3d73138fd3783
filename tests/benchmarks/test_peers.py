"""Engines side by side. Catches: a time that is believed of an engine that gives other answers, fails or is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.peers import peers
from benchmarks.peers.peers import ENGINES, SCENARIOS, Engine, Scenario
from catchment.errors import ConfigError

# Counts one record too many where it is told to; notes its turns in a file.
_PROGRAM = '''
import sys, time
import duckdb, pyarrow.parquet as pq, pyarrow.compute as pc
from benchmarks.peers.programs.turns import serve
folder, format = sys.argv[2], sys.argv[3]
sql = f"""SELECT epoch_us(ts) // 10000000 * 10000000 AS slice_us, key, count(*) + {{int(sys.argv[1] == "wrong")}} AS n,
sum(value) AS total FROM '{{folder}}/*.parquet' GROUP BY ALL"""
def run():
    with open({log!r}, "a") as log:
        log.write(sys.argv[1] + "\\n")
    if sys.argv[1] == "broken":
        raise RuntimeError("it broke at its first turn")
    if sys.argv[1] == "loud":
        sys.stderr.write("a word\\n" * 100_000)
    if sys.argv[1] == "slow":
        time.sleep(600)
    return 0.5
def answers(path):
    duckdb.sql(f"COPY ({{sql}}) TO '{{path}}' (FORMAT parquet)")
serve("1.0", run, answers)
'''


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    program = tmp_path / "program.py"
    log = tmp_path / "turns.log"
    program.write_text(_PROGRAM.format(log=str(log)))
    engines = {
        "duckdb": Engine("run_duckdb.py"),
        **{name: Engine(str(program), words=(name,)) for name in ("right", "wrong", "broken")},
        "absent": Engine("run_flink.py", "no such environment"),
        "text only": Engine(str(program), words=("text only",), formats=("json",)),
    }
    monkeypatch.setattr(peers, "ENGINES", engines)
    monkeypatch.setattr(peers, "QUICK_ROWS", 500)
    monkeypatch.setattr(peers, "TURNS", 3)
    small = Scenario("small", "parquet", 50, 2, 500, 10, 10)
    monkeypatch.setattr(peers.Scenario, "load", classmethod(lambda cls, name: small))
    found = peers.measure("small", False, lambda text: None)
    return {**found, "turns": log.read_text().split()}


@pytest.mark.parametrize(("name", "answer"), [("loud", 0.5), ("slow", None)])
def test_an_engine_may_write_much_about_itself_and_is_ended_when_it_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, answer: float | None
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(log=str(tmp_path / "turns.log")))
    running = peers.Running(Engine(str(program), words=(name,)), tmp_path, Scenario("s", "parquet", 5, 1, 5, 10, 10))
    try:
        if answer is not None:
            assert running.run() == answer
            return
        monkeypatch.setattr(peers, "PATIENCE_S", 0.5)
        with pytest.raises(peers.EngineFailedError, match=r"no answer after 0.5 s"):
            running.run()
    finally:
        running.close()


def test_parts_that_were_measured_apart_are_kept_together() -> None:
    first, last = SCENARIOS[0], SCENARIOS[-1]
    earlier = {"turns": "five", "cells": [{"scenario": last, "rows": 1}, {"scenario": first, "rows": 2}]}
    joined = peers.join_parts(earlier, {"turns": "five", "cells": [{"scenario": last, "rows": 3}]})
    assert [(cell["scenario"], cell["rows"]) for cell in joined["cells"]] == [(first, 2), (last, 3)]


def test_only_engines_that_give_the_answers_have_figures_and_the_others_a_reason(cell: dict[str, Any]) -> None:
    assert set(cell["rows_per_s"]) == {"duckdb", "right"}
    assert cell["rows_per_s"]["right"] == 1000 / 0.5
    assert cell["seconds"]["right"] == [0.5] * 3
    assert "wrong gives other answers" in cell["failed"]["wrong"]
    assert "it broke at its first turn" in cell["failed"]["broken"]
    assert "make bench-peers" in cell["failed"]["absent"]
    assert "parquet" in cell["failed"]["text only"]
    assert cell["versions"]["right"] == "1.0"
    assert cell["turns"] == ["right", "broken", "right", "right", "right"], "one turn warms up; who failed is let be"
    shown = Console(width=300, record=True, quiet=True)
    shown.print(peers.render({"turns": "some", "cells": [cell]}))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_and_programs_are_files_that_can_be_read(name: str) -> None:
    scenario = Scenario.load(name)
    assert scenario.window_s % scenario.slide_s == 0
    assert scenario.format in ("parquet", "json", "csv", "kafka")
    assert (scenario.partitions > 0) == (scenario.format == "kafka")
    assert set(scenario.targets) <= set(ENGINES)
    assert all((peers.FOLDER / "programs" / engine.program).is_file() for engine in ENGINES.values())


def test_without_a_broker_the_part_of_kafka_is_skipped_and_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "has_broker", lambda: False)
    measured = {"scenario": "json-10k", "title": "t", "rows": 1, "seconds": {}, "rows_per_s": {}, "versions": {}}
    monkeypatch.setattr(peers, "measure", lambda name, quick, report: {**measured, "failed": {}})
    heard: list[str] = []
    result = peers.run(heard.append, True, ("json-10k", "kafka-10k"))
    assert [cell["scenario"] for cell in result["cells"]] == ["json-10k"]
    assert "needs a Kafka broker" in result["skipped"]["kafka-10k"]
    assert "kafka-10k is skipped" in heard[0]
    with pytest.raises(ConfigError, match="no broker"):
        peers.run(heard.append, True, ("kafka-10k",))


def test_the_table_says_how_far_catchment_is_from_its_targets() -> None:
    rates = {"catchment": 3.0e6, "plain Spark": 1.0e6}
    cell = {"title": "a topic", "rows_per_s": rates, "targets": {"plain Spark": 1.5, "Flink": 1.5}}
    assert list(peers._targets(cell)) == ["a topic: catchment is 3.00 times plain Spark; wanted: 1.5."]
