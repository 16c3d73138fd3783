"""A project with functions of its own, for tests."""

from __future__ import annotations

from pathlib import Path

FUNCTIONS = """\
import catchment
import pyarrow as pa
import pyarrow.compute as pc

PER_DEGREE = 5 / 9


def above_freezing(fahrenheit):
    return pc.multiply(pc.subtract(fahrenheit, 32.0), PER_DEGREE)


@catchment.function(takes=["DOUBLE"], returns="DOUBLE")
def celsius(fahrenheit):
    if pc.any(pc.less(fahrenheit, -459.67)).as_py():
        raise ValueError("colder than anything")
    return above_freezing(fahrenheit)


@catchment.function(takes=["DOUBLE", "DOUBLE"], returns="BOOLEAN")
def above(fahrenheit, limit):
    return pc.greater(fahrenheit, limit)


@catchment.aggregate(takes=["DOUBLE"], state={"logs": "DOUBLE", "count": "BIGINT"}, returns="DOUBLE")
class geometric_mean:
    def lift(self, values):
        return pc.ln(values), pa.array([1] * len(values))

    def combine(self, left, right):
        return pc.add(left.logs, right.logs), pc.add(left.count, right.count)

    def lower(self, state):
        return pc.exp(pc.divide(state.logs, pc.cast(state.count, pa.float64())))
"""
VIEW = (
    "CREATE MATERIALIZED VIEW v AS SELECT window.start, k, geometric_mean(f) AS g, celsius(max(f)) AS c "
    "FROM s WHERE celsius(f) > 0 GROUP BY window(ts, '1 minute'), k;"
)
STREAM = (
    "CREATE STREAM s (ts TIMESTAMP, k STRING, f DOUBLE) "
    "WITH (event_time = 'ts', path = 'data/{site}', format = 'json'{options});"
)
PROJECT = """\
[project]
name = "thermometers"
center = "center"
[sites.center]
[sites.north]
[sites.south]
[[links]]
from = "north"
to = "center"
[[links]]
from = "south"
to = "center"
"""


def write_project(folder: Path, views: str, functions: str = FUNCTIONS, options: str = "") -> None:
    """Write a project of two sites with these views and functions."""
    (folder / "queries").mkdir(parents=True, exist_ok=True)
    (folder / "catchment.toml").write_text(PROJECT)
    (folder / "queries" / "all.sql").write_text(f"{STREAM.replace('{options}', options)}\n{views}\n")
    (folder / "functions.py").write_text(functions)
