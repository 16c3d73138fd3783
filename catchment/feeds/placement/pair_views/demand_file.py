"""Demand rows and budgets in files, and decisions back: CSV, or Parquet where the name ends so.

Rates: columns `src,dst,rate` (the rate of src's feed that dst demands; one row each way), or `size` in
place of `rate` for views that are maintained offline, and, if wished, `load` (what the view costs src to
compute). Budgets: `device,budget`. Decisions: `src,dst,decision`, U or D. A file of decisions appears
whole or not at all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from catchment.errors import FeedError
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.pair_views.assign import Assignment
from catchment.feeds.placement.pair_views.demand import DemandGraph

NUMBERS = ("rate", "size", "load", "budget")  # columns that hold numbers, whatever the file says


def read_rates(path: Path) -> pa.Table:
    """Return the rows of a file of rates."""
    return read_columns(path, "a file of rates")


def demand_of(table: pa.Table, path: Path) -> DemandGraph:
    """Return the demand graph of the rows of a file."""
    measure = measure_of(table.column_names, path)
    return DemandGraph.from_named(
        table["src"],
        table["dst"],
        table[measure].to_numpy(),
        load=table["load"].to_numpy() if "load" in table.column_names else None,
        where=str(path),
    )


def measure_of(columns: list[str], path: Path) -> str:
    """Return the column that says how much is demanded, once the columns are complete."""
    measure = "size" if "size" in columns and "rate" not in columns else "rate"
    missing = [name for name in ("src", "dst", measure) if name not in columns]
    if missing:
        raise FeedError(
            f"the file has the columns {', '.join(columns)}; {', '.join(missing)} is missing",
            where=str(path),
            hint="the columns are src,dst,rate (or size), one row for each direction of a pair",
        )
    return measure


def read_budget(path: Path, graph: DemandGraph) -> Budget:
    """Return the budgets of a file, infinite for devices that it does not name."""
    table = read_columns(path, "a file of budgets")
    missing = [name for name in ("device", "budget") if name not in table.column_names]
    if missing:
        raise FeedError(f"the column {missing[0]} is missing", where=str(path), hint="the columns are device,budget")
    position = {graph.name(device): device for device in range(graph.devices)}
    capacity = np.full(graph.devices, np.inf)
    for row, (name, budget) in enumerate(zip(table["device"].to_pylist(), table["budget"].to_pylist(), strict=True)):
        where = f"{path}, row {row + 1}"
        if str(name) not in position:
            raise FeedError(f"no demand names the device {name}", where=where, hint="correct the name or drop the row")
        if budget is None or not budget >= 0:
            raise FeedError(f"the budget of device {name} is {budget}; expected a number, 0 or more", where=where)
        capacity[position[str(name)]] = budget
    return Budget(capacity)


def read_columns(path: Path, what: str) -> pa.Table:
    """Return the columns of a CSV or Parquet file."""
    if not path.is_file():
        raise FeedError(f"there is no such file; expected {what}", where=str(path))
    try:
        if is_parquet(path):
            return _as_numbers(parquet.read_table(path))
        options = arrow_csv.ConvertOptions(column_types=dict.fromkeys(NUMBERS, pa.float64()))
        return arrow_csv.read_csv(path, convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise FeedError(f"{what} cannot be read: {error}", where=str(path)) from error


def _as_numbers(table: pa.Table) -> pa.Table:
    for name in set(NUMBERS) & set(table.column_names):
        at = table.column_names.index(name)
        table = table.set_column(at, name, table[name].cast(pa.float64()))
    return table


def is_parquet(path: Path) -> bool:
    """Return whether a file's name says that it is Parquet; anything else is CSV."""
    return path.suffix.lower() in (".parquet", ".pq")


def write_decisions(assignment: Assignment, path: Path) -> None:
    """Write the decisions, sorted by (src, dst), under the names that the user gave."""
    graph = assignment.graph
    names = np.arange(graph.devices) if graph.names is None else graph.names
    letters = pa.array(["D", "U"])
    table = pa.table(
        {
            "src": pa.array(names).take(pa.array(graph.src)),
            "dst": pa.array(names).take(pa.array(graph.dst)),
            "decision": letters.take(pa.array(assignment.upload.view(np.int8))),
        }
    )
    write_columns(table, path)


def write_columns(table: pa.Table, path: Path) -> None:
    """Write a table as CSV or Parquet; the name appears only once the file is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        if is_parquet(path):
            parquet.write_table(table, part)
        else:
            _write_csv(table, part)
        part.replace(path)
    except OSError as error:
        raise FeedError(f"the decisions cannot be written: {error}", where=str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def _write_csv(table: pa.Table, path: Path) -> None:
    """Write CSV without the quotes that Arrow would put around every name, unless a name needs them."""
    for style in ("none", "needed"):
        with path.open("wb") as target:
            target.write((",".join(table.column_names) + "\n").encode())
            try:
                arrow_csv.write_csv(table, target, arrow_csv.WriteOptions(include_header=False, quoting_style=style))
                return
            except pa.ArrowInvalid:
                assert style == "none"
