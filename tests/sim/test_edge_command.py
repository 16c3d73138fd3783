"""Claims about `catchment simulate edge`: the exact form of its JSON, its picture, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from catchment.cli.commands import simulate_edge
from catchment.errors import CatchmentError, SimulationError
from catchment.sim.edge.plot import frontier
from catchment.sim.edge.simulate import EdgeOutcome, WindowOutcome
from catchment.sim.edge.traces import load_trace


def command(*words: object) -> object:
    app = typer.Typer()
    app.callback()(lambda: None)
    simulate_edge.register(app)
    return CliRunner().invoke(app, ["edge", *map(str, words)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("ts,key\n0,a\n1,a\n2,b\n9.5,a\n10,a\n12,c\n")
    return path


def test_the_json_has_exactly_the_promised_form(trace: Path) -> None:
    result = command(trace, "--window", 10, "--bandwidth", 4, "--policies", "streaming,batching", "--json")
    assert json.loads(result.stdout) == {  # type: ignore[attr-defined]
        "policies": [
            {
                "name": "streaming",
                "traffic_ratio": 6 / 4,
                "staleness_mean_s": 0.0,
                "staleness_p95_s": 0.0,
                "windows": [
                    {"start": 0.0, "updates": 4, "distinct": 2, "staleness_s": 0.0},
                    {"start": 10.0, "updates": 2, "distinct": 2, "staleness_s": 0.0},
                ],
            },
            {
                "name": "batching",
                "traffic_ratio": 1.0,
                "staleness_mean_s": 0.5,
                "staleness_p95_s": 0.5,
                "windows": [
                    {"start": 0.0, "updates": 2, "distinct": 2, "staleness_s": 0.5},
                    {"start": 10.0, "updates": 2, "distinct": 2, "staleness_s": 0.5},
                ],
            },
        ]
    }


def test_a_policy_keeps_the_name_it_was_asked_by(trace: Path) -> None:
    result = command(trace, "--window", 10, "--bandwidth", 4, "--policies", "hybrid:0.25+lfu", "--json")
    assert [p["name"] for p in json.loads(result.stdout)["policies"]] == ["hybrid:0.25+lfu"]  # type: ignore[attr-defined]


def test_the_table_and_the_picture_are_made(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.png"
    result = command(trace, "--window", 10, "--bandwidth", 4, "--policies", "all", "--plot", picture)
    assert result.exit_code == 0  # type: ignore[attr-defined]
    assert "lazy-empirical" in result.stdout  # type: ignore[attr-defined]
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--window", "-1", "--bandwidth", "5"], "-1 s long"),
        (["--window", "nan", "--bandwidth", "5"], "nan s long"),
        (["--window", "10", "--bandwidth", "0"], "0 updates/s"),
        (["--window", "10", "--bandwidth", "-3"], "-3 updates/s"),
        (["--window", "10", "--bandwidth", "5", "--believed", "0"], "0 times"),
        (["--window", "10", "--bandwidth", "5", "--policies", "magic"], "no policy 'magic'"),
        (["--window", "10", "--bandwidth", "5", "--policies", "hybrid:2"], "laziness from 0 to 1"),
        (["--window", "10", "--bandwidth", "5", "--policies", "hybrid:x"], "not a number"),
        (["--window", "10", "--bandwidth", "5", "--policies", "uniform+fifo"], "no eviction 'fifo'"),
        (["--window", "10", "--bandwidth", "5", "--policies", " , "], "no policy was named"),
        (["--window", "10", "--bandwidth", "5", "--plot", "/nowhere/x.png"], "cannot write the plot"),
    ],
)
def test_a_wrong_option_is_told_with_a_hint(trace: Path, options: list[str], said: str) -> None:
    error = command(trace, *options).exception  # type: ignore[attr-defined]
    assert isinstance(error, CatchmentError)
    assert said in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ts,key\n", "empty"),
        ("ts,key\n2,a\n1,b\n", "record 2 has ts 1.000000 after 2.000000"),
        ("time,key\n2,a\n", "['ts'] are missing"),
        ("ts,key\nsoon,a\n", "ts has the type"),
        ("ts,key\n,a\n1,b\n", "record 1 has no ts"),
        ("ts,key\ninf,a\n1,b\n", "finite"),
        ("", "cannot read"),
    ],
)
def test_a_bad_trace_is_refused_with_the_record_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(SimulationError) as caught:
        load_trace(path)
    assert said in caught.value.message
    assert caught.value.where == str(path)
    assert caught.value.hint


def test_a_missing_trace_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="no such file"):
        load_trace(tmp_path / "nothing.csv")


def test_parquet_with_timestamps_and_csv_with_seconds_are_the_same_trace(tmp_path: Path) -> None:
    seconds = [0.25, 1.0, 61.5]
    (tmp_path / "t.csv").write_text("ts,key\n" + "".join(f"{s},k{i % 2}\n" for i, s in enumerate(seconds)))
    micros = pa.array([int(s * 1e6) for s in seconds], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"key": ["k0", "k1", "k0"], "ts": micros}), tmp_path / "t.parquet")
    one, other = load_trace(tmp_path / "t.csv"), load_trace(tmp_path / "t.parquet")
    assert one.ts_us.tolist() == other.ts_us.tolist() == [250_000, 1_000_000, 61_500_000]
    assert one.codes.tolist() == other.codes.tolist() == [0, 1, 0]


def test_the_frontier_holds_only_what_nothing_else_beats() -> None:
    def point(name: str, updates: int, staleness_s: float) -> EdgeOutcome:
        return EdgeOutcome(name, (WindowOutcome(0.0, updates, 10, staleness_s),))

    points = [point("a", 10, 5.0), point("b", 12, 1.0), point("c", 13, 2.0), point("d", 20, 0.5)]
    assert [o.name for o in frontier(points)] == ["a", "b", "d"]
