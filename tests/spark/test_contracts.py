"""Contracts, early answers and repair on real Spark: three sites replay a stream whose devices stall.

Catches: observations that Spark miscounts, standings that are lost on the way, results that do not add up. Cannot
catch: how well a contract is kept at full speed; `catchment bench order` measures that.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from catchment.center.results.newest_rows import open_table
from catchment.center.results.read import read_results, read_windows
from catchment.cli.main import app
from catchment.deploy.reports.role_files import read_status
from catchment.errors import QueryError
from tests.worlds.projects import START, write_project
from tests.worlds.runs import Status, run_project
from tests.worlds.shed_project import ForcedMonitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = """
CREATE STREAM readings (ts TIMESTAMP, arrived TIMESTAMP, device STRING, value BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', source = 'device', {connector});
CREATE MATERIALIZED VIEW totals WITH (max_error = 0.05, confidence = 0.95, emit_early = '500 ms') AS
  SELECT window.start, count(*) AS n, sum(value) AS total FROM readings GROUP BY window(ts, '1 second');
CREATE MATERIALIZED VIEW devices WITH (max_error = 0.05) AS
  SELECT window.start, device, count(*) AS n FROM readings GROUP BY window(ts, '2 seconds'), device;
CREATE MATERIALIZED VIEW untouched WITH (slack = 'fixed:0', repair = false) AS
  SELECT window.start, count(*) AS n FROM readings GROUP BY window(ts, '1 second');
"""


def stamp(second: float) -> str:
    return (START + timedelta(seconds=second)).isoformat()


def readings(site: int) -> list[dict[str, Any]]:
    """Four devices for 16 s, 20 records/s each; the last one is stalled from the 6th second to the 9th."""
    chance, rows = random.Random(site), []
    for device in range(4):
        for i in range(320):
            at = i / 20 + chance.random() / 40
            stalled = device == 3 and 6.0 <= at < 9.0
            arrives = 9.0 + at / 1000 if stalled else at + 0.02
            rows.append((arrives, at, f"d{site}{device}", chance.randrange(1, 10)))
    return [{"ts": stamp(at), "arrived": stamp(come), "device": d, "value": v} for come, at, d, v in sorted(rows)]


def counted(
    records: list[dict[str, Any]], seconds: int, key: str | None
) -> dict[tuple[datetime, Any], tuple[int, int]]:
    found: dict[tuple[datetime, Any], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for r in records:
        past = (datetime.fromisoformat(r["ts"]) - START).total_seconds()
        place = START + timedelta(seconds=past // seconds * seconds), r[key] if key else None
        found[place] = found[place][0] + 1, found[place][1] + r["value"]
    return dict(found)


@pytest.fixture
def two_seconds_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed micro-batch holds two seconds of `readings`, however slow or fast the machine is."""
    from catchment.spark.sources import streams

    monkeypatch.setattr(streams, "MAX_REPLAYED_ROWS_PER_BATCH", 160)


@pytest.mark.spark
@pytest.mark.usefixtures("two_seconds_per_batch")
def test_answers_are_published_early_and_under_contract_and_end_exact(spark: SparkSession, tmp_path: Path) -> None:
    sites = {f"s{i}": readings(i) for i in range(3)}
    connector = "connector = 'replay', path = 'data/{site}.jsonl', arrival = 'arrived', speed = 1000000"
    folder = write_project(
        tmp_path / "p",
        list(sites),
        {s: [json.dumps(r) for r in rs] for s, rs in sites.items()},
        connector=connector,
        queries=QUERIES,
    )
    status = run_project(spark, folder, once=False)
    everything, state = [r for rs in sites.values() for r in rs], folder / "state"
    rows = read_results(state, "totals").to_pylist()
    assert {(r["start"], None): (r["n"], r["total"]) for r in rows} == counted(everything, 1, None)
    found = {(r["start"], r["device"]): r["n"] for r in read_results(state, "devices").to_pylist()}
    assert found == {place: n for place, (n, _) in counted(everything, 2, "device").items()}
    for view in ("totals", "devices"):
        log = read_windows(state, view).to_pylist()
        last = {w["window_start"]: w for w in log}
        assert {w["status"] for w in last.values()} == {"final"}
        assert all(w["coverage"] == 1.0 and not w["missing_sources"] for w in last.values())
        for window in (w for w in log if w["status"] == "on_time"):
            assert not window["missing_sites"]
            assert 0.0 < window["coverage"] <= 1.0
    assert any(w["status"] == "early" for w in read_windows(state, "totals").to_pylist())
    merged = {r["start"]: r["n"] for r in read_results(state, "untouched").to_pylist()}
    late = open_table(state / "late" / "untouched")
    registered = late.to_pyarrow_table().to_pylist() if late is not None else []
    assert sum(merged.values()) + sum(r["state"]["n__count"] for r in registered) == len(everything)
    contracts = status["sites"]["s0"]["contracts"]
    assert set(contracts) == {"totals", "devices", "untouched"}
    assert contracts["totals"]["controller"] == "adaptive"


AFTER_THEM = timedelta(seconds=13)  # from here on those that stop have stopped


def odd_readings() -> list[dict[str, Any]]:
    """Four steady devices for 8 minutes; one falls silent, one stops in mid-window, one is an hour behind, and of one
    there is a record of the next hour."""
    chance, rows = random.Random(7), []
    ends = {"silent": 10.0, "stopped": 12.5}
    for device in ("d0", "d1", "d2", "d3", "silent", "stopped", "behind"):
        for i in range(2400):
            at = i / 5 + chance.random() / 20
            if at < ends.get(device, 480.0):
                rows.append((at + 0.02, at - 3600 * (device == "behind"), device, chance.randrange(1, 10)))
    rows.append((50.0, 3650.0, "d0", 5))
    return [{"ts": stamp(at), "arrived": stamp(come), "device": d, "value": v} for come, at, d, v in sorted(rows)]


def on_time_windows(folder: Path) -> list[dict[str, Any]]:
    """What was said of the windows of `totals` that the steady devices are in, when they closed."""
    if open_table(folder / "state" / "windows" / "totals") is None:
        return []
    log = read_windows(folder / "state", "totals").to_pylist()
    return [w for w in log if w["reason"].startswith("closed under its contract") and w["window_start"] >= START]


@pytest.mark.spark
def test_odd_sources_hold_no_window_and_are_named_and_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Live until they are found, which takes as many micro-batches as it takes; then the rest of the log at once."""
    records = odd_readings()
    connector = "connector = 'replay', path = 'data/{site}.jsonl', arrival = 'arrived', speed = 4"
    queries = QUERIES.partition("CREATE MATERIALIZED VIEW devices")[0].replace(", emit_early = '500 ms'", "")
    folder = write_project(
        tmp_path / "p",
        ["a"],
        {"a": [json.dumps(r) for r in records]},
        connector=connector,
        queries=queries,
        toml='repair_horizon = "3 hours"',
    )
    odd = {"a/behind", "a/silent", "a/stopped"}

    def lacks_them(window: dict[str, Any]) -> bool:
        return set(window["missing_sources"]) == odd and window["window_start"] >= START + AFTER_THEM

    def are_found(_: object, status: Status) -> bool:
        found = status["sites"]["a"]["contracts"].get("totals", {})
        windows = on_time_windows(folder)
        return (
            set(found.get("idle", ())) == {"silent", "stopped"}
            and list(found["behind"]) == ["behind"]
            and found["future_records"] == 1
            and any(odd <= set(w["missing_sources"]) and w["reason"].endswith("(idle)") for w in windows)
            and any(lacks_them(w) for w in windows)
        )

    contract = run_project(spark, folder, once=False, until=are_found)["sites"]["a"]["contracts"]["totals"]
    assert (set(contract["idle"]), set(contract["behind"])) == ({"silent", "stopped"}, {"behind"})
    assert contract["future_records"] == 1
    told = CliRunner().invoke(app, ["show", "contracts", "-p", str(folder), "--json"])
    (shown,) = json.loads(told.stdout)["contracts"]
    last = read_status(folder / "state" / "sites" / "a")  # a moment later: a site that is being stopped hears nobody
    assert last is not None
    assert {key: shown[key] for key in ("idle", "behind")} == {
        key: last["contracts"]["totals"][key] for key in ("idle", "behind")
    }
    assert {"silent", "stopped"} <= set(shown["idle"])
    windows = on_time_windows(folder)
    assert {name for w in windows for name in w["missing_sources"]} >= odd
    assert all(0.0 < w["coverage"] < 1.0 for w in windows)
    lacking_them = [w for w in windows if lacks_them(w)]
    assert lacking_them
    assert all(w["coverage"] == pytest.approx(4 / 7, abs=0.05) for w in lacking_them)
    run_project(spark, folder)
    rows = read_results(folder / "state", "totals").to_pylist()
    assert {(r["start"], None): (r["n"], r["total"]) for r in rows} == counted(records, 1, None)
    last = {w["window_start"]: w for w in read_windows(folder / "state", "totals").to_pylist()}
    assert {w["status"] for w in last.values()} <= {"exact", "final"}
    assert not any(w["missing_sources"] for w in last.values())


@pytest.mark.spark
@pytest.mark.usefixtures("two_seconds_per_batch")
def test_a_shed_stream_is_observed_before_sampling_keeps_its_contract_and_ends_exact(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every batch but the first is sampled; one device stalls. A controller that saw the sample would miss most."""
    sites = {f"s{i}": readings(i) for i in range(2)}
    folder = write_project(
        tmp_path / "p",
        list(sites),
        {s: [json.dumps(r) for r in rs] for s, rs in sites.items()},
        connector="shed = true, connector = 'replay', path = 'data/{site}.jsonl', arrival = 'arrived', speed = 1000000",
        queries=QUERIES.partition("CREATE MATERIALIZED VIEW devices")[0].replace(", emit_early = '500 ms'", ""),
    )
    status = run_project(spark, folder, once=False, make_monitor=ForcedMonitor)
    assert set(status["sites"]["s0"]["contracts"]) == {"totals"}
    everything, state = [r for rs in sites.values() for r in rs], folder / "state"
    truth = counted(everything, 1, None)
    rows = read_results(state, "totals").to_pylist()
    assert {(r["start"], None): (r["n"], r["total"]) for r in rows} == truth
    log = read_windows(state, "totals").to_pylist()
    assert any("load was shed" in w["reason"] for w in log)
    first = [r for r in read_results(state, "totals", revisions="all").to_pylist() if r["revision"] == 1]
    stated = [r for r in first if r["status"] == "on_time" and r["bound"]["n"] is not None]
    missed = [
        r for r in stated if abs(r["n"] - truth[r["start"], None][0]) > r["bound"]["n"] * truth[r["start"], None][0]
    ]
    assert len(stated) > 3
    assert len(missed) <= 1
    assert {w["status"] for w in {w["window_start"]: w for w in log}.values()} == {"final"}


@pytest.mark.spark
def test_late_files_are_repaired_in_one_go(spark: SparkSession, tmp_path: Path) -> None:
    records = readings(0)
    folder = write_project(tmp_path / "p", ["a"], {"a": [json.dumps(r) for r in records]}, queries=QUERIES)
    run_project(spark, folder)
    late = [r for r in readings(1) if r["device"] == "d11"]
    (folder / "data" / "a" / "late.json").write_text("\n".join(json.dumps(r) for r in late))
    run_project(spark, folder)
    rows = read_results(folder / "state", "totals").to_pylist()
    assert {(r["start"], None): (r["n"], r["total"]) for r in rows} == counted([*records, *late], 1, None)
    revised = [w for w in read_windows(folder / "state", "totals").to_pylist() if w["reason"].startswith("late: ")]
    assert revised
    assert all("; " in w["reason"] for w in revised)


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ("slack = 'adaptive'", "states none"),
        ("max_error = 0.05, slack = 'adaptive:imputed'", "records that it does not have"),
        ("slack = 'soon'", "no slack controller"),
    ],
)
def test_a_slack_that_cannot_be_had_is_refused_before_anything_runs(tmp_path: Path, options: str, mistake: str) -> None:
    from catchment.deploy.deployment import Deployment

    queries = QUERIES.replace("slack = 'fixed:0', repair = false", options)
    folder = write_project(tmp_path / "p", ["a"], {"a": []}, queries=queries)
    with pytest.raises(QueryError, match=mistake):
        Deployment.load(folder)
