"""The Spark engine decides as the one on one machine does, and refuses what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest

from catchment.errors import FeedError
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import Outcome
from catchment.feeds.placement.pair_views.assign import assign
from catchment.feeds.placement.pair_views.demand import DemandGraph
from catchment.feeds.placement.pair_views.demand_file import write_decisions
from tests.worlds.feeds_brute import cost_of_decisions, graph_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _random_graph(seed: int, devices: int = 120, pairs: int = 900) -> DemandGraph:
    """Whole rates: their sums are exact in any order, so ties are ties on both engines."""
    rng = np.random.default_rng(seed)
    every = np.stack(np.triu_indices(devices, 1), axis=1)
    rates = np.minimum(rng.zipf(1.7, (pairs, 2)), 500) - 1.0
    return graph_of(devices, every[rng.choice(len(every), pairs, replace=False)], rates)


def _table(graph: DemandGraph, named: bool = False) -> pa.Table:
    name = np.asarray([f"u{device}" for device in range(graph.devices)]) if named else np.arange(graph.devices)
    return pa.table({"src": name[graph.src], "dst": name[graph.dst], "rate": graph.rate})


def _decided(path: Path) -> dict[tuple[object, object], str]:
    table = (parquet.read_table if path.suffix == ".parquet" else arrow_csv.read_csv)(path)
    keys = zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True)
    return dict(zip(keys, table["decision"].to_pylist(), strict=True))


def _same_outcome(here: Outcome, there: Outcome) -> None:
    for name in ("cost", "all_upload_cost", "conflicts", "residual_components", "optimal"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), rel=1e-12), name


def test_both_engines_decide_alike(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.spark.feeds.place_file import place_file

    graph, costs = _random_graph(1), DeviceCosts(1.0, 1.0)
    parquet.write_table(_table(graph), tmp_path / "rates.parquet")
    here = assign(graph, costs)
    _same_outcome(here, place_file(tmp_path / "rates.parquet", costs, tmp_path / "out.parquet", session=spark))
    write_decisions(here, tmp_path / "here.parquet")
    assert _decided(tmp_path / "out.parquet") == _decided(tmp_path / "here.parquet")
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")], "scratch was left behind"


def test_conflicts_are_resolved_alike(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.spark.feeds.place_file import place_file

    graph, costs = _random_graph(4), DeviceCosts(6.0, 1.0)
    named = _table(graph, named=True)
    parquet.write_table(named, tmp_path / "rates.parquet")
    here = assign(graph, costs)
    there = place_file(tmp_path / "rates.parquet", costs, tmp_path / "out.csv", session=spark)
    assert there.conflicts > 0
    _same_outcome(here, there)
    decided = _decided(tmp_path / "out.csv")
    keys = zip(named["src"].to_pylist(), named["dst"].to_pylist(), strict=True)
    upload = np.asarray([decided[key] == "U" for key in keys])
    up, down = np.full(graph.devices, 6.0), np.ones(graph.devices)
    assert cost_of_decisions(graph, upload, up, down) == pytest.approx(there.cost)
    assert (upload | upload[graph.counterpart]).all()


def test_raising_the_floors_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.spark.feeds.place import place_edges

    graph, costs = _random_graph(2), DeviceCosts(3.0, 1.0)
    edges = spark.createDataFrame(_table(graph).to_pandas())
    placed = place_edges(spark, edges, costs, str(tmp_path), few_rows=0)
    assert (tmp_path / "kept-1").is_dir()
    _same_outcome(assign(graph, costs), placed)


def test_both_engines_keep_budgets(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.spark.feeds.place_file import place_file

    graph = _random_graph(5)
    capacity = np.where(np.arange(graph.devices) % 3 == 0, 1.0, np.inf)
    limited = np.flatnonzero(np.isfinite(capacity))
    parquet.write_table(_table(graph), tmp_path / "rates.parquet")
    parquet.write_table(pa.table({"device": limited, "budget": capacity[limited]}), tmp_path / "budget.parquet")
    here = assign(graph, DeviceCosts(2.0, 1.0), budget=Budget(capacity))
    there = place_file(
        tmp_path / "rates.parquet", DeviceCosts(2.0, 1.0), None, budget=tmp_path / "budget.parquet", session=spark
    )
    assert there.cost == pytest.approx(here.cost, rel=1e-12)
    assert here.cost > assign(graph, DeviceCosts(2.0, 1.0)).cost


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, 2, 3.0)], "no counterpart 2 -> 1"),
        ([(1, 2, 3.0), (2, 1, 3.0), (2, 1, 4.0)], "duplicate edge"),
        ([(1, 1, 3.0)], "self edge"),
        ([(1, 2, 3.0), (2, 1, -3.0)], "negative"),
        ([(1, 2, 3.0), (2, 1, None)], "missing"),
    ],
    ids=["no counterpart", "duplicate", "self", "negative", "missing"],
)
def test_a_bad_pair_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, rows: list[tuple[Any, ...]], says: str
) -> None:
    from catchment.spark.feeds.place import place_edges

    edges = spark.createDataFrame(rows, "src long, dst long, rate double")
    with pytest.raises(FeedError, match=says):
        place_edges(spark, edges, DeviceCosts(1.0, 1.0), str(tmp_path))


def test_a_budget_for_a_strange_device_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from catchment.spark.feeds.place_file import place_file

    (tmp_path / "rates.csv").write_text("src,dst,rate\n1,2,3\n2,1,4\n")
    (tmp_path / "budget.csv").write_text("device,budget\n9,1\n")
    with pytest.raises(FeedError, match="no demand names the device 9"):
        place_file(tmp_path / "rates.csv", DeviceCosts(1.0, 1.0), None, budget=tmp_path / "budget.csv", session=spark)
