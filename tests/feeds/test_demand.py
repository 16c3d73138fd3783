"""A demand graph holds pairs and nothing else; what is no pair is refused with the row and the way to mend it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from catchment.errors import FeedError
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.pair_views.assign import assign
from catchment.feeds.placement.pair_views.demand import DemandGraph
from catchment.feeds.placement.pair_views.demand_file import demand_of, read_budget, read_rates, write_decisions

GOOD = [(0, 1, 1.0), (1, 0, 2.0), (1, 2, 3.0), (2, 1, 4.0)]


def _graph(rows: list[tuple[int, int, float]], devices: int | None = None) -> DemandGraph:
    src, dst, rate = zip(*rows, strict=True)
    return DemandGraph.from_edges(src, dst, rate, devices=devices)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((0, 2, 5.0), r"row 5: 0 -> 2 at rate 5: this demand has no counterpart 2 -> 0(.|\n)*add the row 2,0"),
        ((0, 1, 5.0), r"row 5: 0 -> 1 at rate 5: the same demand as row 1 \(duplicate edge\)"),
        ((2, 2, 5.0), r"row 5: 2 -> 2 at rate 5: a device demands its own feed \(self edge\)"),
        ((0, 2, -1.0), r"row 5: 0 -> 2 at rate -1: the rate is negative"),
        ((0, 2, float("nan")), r"row 5: 0 -> 2 at rate nan: the rate is negative, missing"),
        ((0, 2, float("inf")), r"row 5: 0 -> 2 at rate inf: the rate is negative, missing or not finite"),
        ((0, 7, 1.0), r"row 5: 0 -> 7 at rate 1: dst is a device that is not known; expected a number from 0 to 2"),
        ((-1, 0, 1.0), r"row 5: -1 -> 0 at rate 1: src is a device that is not known"),
    ],
    ids=["no counterpart", "duplicate", "self", "negative", "nan", "infinite", "unknown", "below 0"],
)
def test_a_bad_row_is_refused_by_number(row: tuple[int, int, float], says: str) -> None:
    with pytest.raises(FeedError, match=says):
        _graph([*GOOD, row], devices=3)


def test_a_duplicate_at_the_edge_of_two_devices_is_no_false_alarm() -> None:
    """In sorted order the last peer of one device may be the first of the next."""
    graph = _graph([(0, 2, 1.0), (2, 0, 1.0), (1, 2, 1.0), (2, 1, 1.0)])
    assert graph.pairs == 2


def test_columns_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(FeedError, match="three columns of one length"):
        DemandGraph.from_edges([0, 1], [1], [1.0, 1.0])
    with pytest.raises(FeedError, match="device numbers from 0"):
        DemandGraph.from_edges([0.5, 1.0], [1.0, 0.5], [1.0, 1.0])
    src, dst, rate = zip(*GOOD, strict=True)
    with pytest.raises(FeedError, match="1 loads for 4 rows"):
        DemandGraph.from_edges(src, dst, rate, load=[1.0])


def test_rows_are_sorted_and_know_their_counterparts() -> None:
    rng = np.random.default_rng(1)
    pairs = np.stack(np.triu_indices(30, 1), axis=1)
    src, dst = np.concatenate((pairs, pairs[:, ::-1])).T
    order = rng.permutation(len(src))
    rate = rng.random(len(src))
    graph = DemandGraph.from_edges(src[order], dst[order], rate[order], load=2 * rate[order])
    given = {(int(s), int(d)): r for s, d, r in zip(src, dst, rate, strict=True)}
    rows = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    assert rows == sorted(given)
    assert graph.rate.tolist() == [given[row] for row in rows]
    assert graph.peer_rate.tolist() == [given[row[::-1]] for row in rows]
    assert [rows[e] for e in graph.counterpart] == [row[::-1] for row in rows]
    assert graph.load is not None
    assert (graph.load == 2 * graph.rate).all()


@pytest.mark.parametrize("names", [["ann", "bob", "cy"], [7, 10**12, 12], [5, 3, 4]], ids=["words", "wide", "narrow"])
def test_devices_keep_their_names(names: list[object]) -> None:
    src, dst, rate = zip(*GOOD, strict=True)
    graph = DemandGraph.from_named([names[s] for s in src], [names[d] for d in dst], rate)
    told = {(graph.name(s), graph.name(d), r) for s, d, r in zip(graph.src, graph.dst, graph.rate, strict=True)}
    assert told == {(str(names[s]), str(names[d]), r) for s, d, r in GOOD}


def test_a_device_that_is_not_in_the_list_is_refused() -> None:
    with pytest.raises(FeedError, match="row 2: src names the device eve, which is not in the list"):
        DemandGraph.from_named(["bob", "eve"], ["bob", "bob"], [1.0, 1.0], devices=["ann", "bob"])
    with pytest.raises(FeedError, match="row 2: dst is missing"):
        DemandGraph.from_named(["bob", "eve"], ["bob", None], [1.0, 1.0])


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_csv_and_parquet_give_the_same_graph_and_decisions(tmp_path: Path) -> None:
    text = "src,dst,rate\n" + "".join(f"u{s},u{d},{r}\n" for s, d, r in GOOD)
    from_csv = _write(tmp_path / "rates.csv", text)
    columns = list(zip(*GOOD, strict=True))
    named = {"src": [f"u{s}" for s in columns[0]], "dst": [f"u{d}" for d in columns[1]], "rate": columns[2]}
    parquet.write_table(pa.table(named), tmp_path / "rates.parquet")
    decisions = []
    for rates in (from_csv, tmp_path / "rates.parquet"):
        found = assign(demand_of(read_rates(rates), rates), DeviceCosts(1.0, 1.0))
        for out in (tmp_path / "out.csv", tmp_path / "out.parquet"):
            write_decisions(found, out)
        decisions.append((tmp_path / "out.csv").read_text())
        as_rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
        assert decisions[-1] == "src,dst,decision\n" + "".join(f"{','.join(row.values())}\n" for row in as_rows)
    assert decisions[0] == decisions[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "out.parquet", "rates.csv", "rates.parquet"]


def test_names_with_commas_and_quotes_survive_a_csv(tmp_path: Path) -> None:
    names = ['a,"b"', "c\nd"]
    graph = DemandGraph.from_named(names, names[::-1], [1.0, 2.0])
    write_decisions(assign(graph, DeviceCosts(1.0, 1.0)), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as lines:
        told = list(csv.DictReader(lines))
    assert [(row["src"], row["dst"]) for row in told] == [tuple(names), tuple(names[::-1])]


def test_sizes_take_the_place_of_rates(tmp_path: Path) -> None:
    path = _write(tmp_path / "sizes.csv", "src,dst,size\na,b,1000\nb,a,10\n")
    found = assign(demand_of(read_rates(path), path), DeviceCosts(1.0, 1.0))
    assert (found.cost, found.all_upload_cost) == (20.0, 1010.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("src,dst\n1,2\n", "rate is missing"),
        ("src,dst,rate\n1,2,fast\n2,1,1\n", "cannot be read"),
        ("src,dst,rate\n1,2,\n2,1,1\n", "row 1: 1 -> 2 at rate nan: the rate is negative, missing"),
        ("src,dst,rate\n1,2,3\n", "no counterpart 2 -> 1"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = _write(tmp_path / "rates.csv", text)
    with pytest.raises(FeedError, match=says) as caught:
        demand_of(read_rates(path), path)
    assert "rates.csv" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FeedError, match="there is no such file"):
        read_rates(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("device,budget\n9,1\n", "row 1: no demand names the device 9"),
        ("device,budget\n1,-1\n", "row 1: the budget of device 1 is -1"),
        ("device,budget\n1,\n", "row 1: the budget of device 1 is None"),
        ("device,limit\n1,1\n", "the column budget is missing"),
    ],
)
def test_a_bad_budget_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(FeedError, match=says):
        read_budget(_write(tmp_path / "budget.csv", text), _graph(GOOD))


def test_budgets_leave_other_devices_without_a_limit(tmp_path: Path) -> None:
    budget = read_budget(_write(tmp_path / "budget.csv", "device,budget\n1,2.5\n"), _graph(GOOD))
    assert budget.capacity.tolist() == [np.inf, 2.5, np.inf]
