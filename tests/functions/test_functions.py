"""Functions that a project brings: how they are declared, told apart, planned, folded and compared between sites.

The laws are compared with plain Python over the same records; that Spark agrees is in tests/spark/test_functions.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import catchment
from catchment.aggregates.user_defined import UserAggregate, combine_groups, lift_groups, lower_groups
from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import refuse_redefined_views
from catchment.errors import CatchmentError, ConfigError, FunctionError, QueryError
from catchment.functions.declared import AggregateFunction
from catchment.functions.installed import FunctionsFile, functions_in, install
from catchment.functions.project_functions import disagreement
from catchment.storage.codec import decode, encode
from catchment.testing import (
    ArrivingRecords,
    DeploymentSimulation,
    Feature,
    LawBrokenError,
    check_aggregate,
    check_function,
)
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.uplink import Introduction, RefusedError
from tests.test_docs import ROOT, blocks
from tests.worlds.own_functions import FUNCTIONS, VIEW, write_project


@catchment.aggregate(takes=["DOUBLE"], state={"logs": "DOUBLE", "count": "BIGINT"}, returns="DOUBLE")
class geometric_mean:  # noqa: N801 - as it is called in SQL
    def lift(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        return pc.ln(values), pa.array([1] * len(values))

    def combine(self, left, right):  # type: ignore[no-untyped-def]
        return pc.add(left.logs, right.logs), pc.add(left.count, right.count)

    def lower(self, state):  # type: ignore[no-untyped-def]
        return pc.exp(pc.divide(state.logs, pc.cast(state.count, pa.float64())))


@catchment.aggregate(takes=["STRING"], state={"text": "STRING"}, returns="STRING", max_state_bytes=64)
class in_order:  # noqa: N801
    """Not a law: the order of records decides."""

    def lift(self, values: pa.Array) -> pa.Array:
        return values

    def combine(self, left, right):  # type: ignore[no-untyped-def]
        return pc.binary_join_element_wise(left.text, right.text, "")

    def lower(self, state):  # type: ignore[no-untyped-def]
        return state.text


@catchment.function(takes=["DOUBLE"], returns="DOUBLE")
def share_of_all(x: pa.Array) -> pa.Array:
    """Not a function of each row."""
    return pc.divide(x, pc.sum(x))


@catchment.function(takes=["DOUBLE"], returns="DOUBLE")
def half(x: pa.Array) -> pa.Array:
    return pc.divide(x, 2.0)


_NOTHING = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.string()), ("f", pa.float64())]).empty_table()
GEOMETRIC_MEAN: AggregateFunction = geometric_mean  # type: ignore[assignment]
IN_ORDER: AggregateFunction = in_order  # type: ignore[assignment]
groups_of_values = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(st.none(), st.floats(0.1, 1e6, allow_nan=False))), max_size=60
)


@given(groups_of_values, st.integers(1, 3))
def test_groups_are_folded_to_the_value_of_their_records(rows: list[tuple[int, float | None]], parts: int) -> None:
    groups = np.array([group for group, _ in rows], dtype=np.intp)
    values = pa.array([value for _, value in rows], pa.float64())
    pieces = [
        lift_groups(GEOMETRIC_MEAN, [values.filter(pa.array(mine))], groups[mine], 5)
        for mine in (np.arange(len(rows)) % parts == part for part in range(parts))
    ]
    together = [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)]
    owners = np.tile(np.arange(5, dtype=np.intp), parts)
    found = lower_groups(GEOMETRIC_MEAN, combine_groups(GEOMETRIC_MEAN, together, owners, 5)).to_pylist()
    for group in range(5):
        mine = [value for g, value in rows if g == group and value is not None]
        if not mine:
            assert found[group] is None
        else:
            assert math.isclose(found[group], math.exp(sum(map(math.log, mine)) / len(mine)), rel_tol=1e-9)


def test_the_kit_accepts_a_law_and_names_what_is_broken() -> None:
    check_aggregate(geometric_mean, [[1.0, 2.5, 40.0, None]])
    check_function(half, [[1.0, None, -3.5]])
    with pytest.raises(LawBrokenError, match="combine is commutative"):
        check_aggregate(in_order, [["a", "b"]])
    with pytest.raises(LawBrokenError, match="takes each row alone"):
        check_function(share_of_all, [[1.0, 2.0, 5.0]])


def test_a_state_beyond_its_stated_size_is_an_error_of_the_function() -> None:
    texts = pa.array(["x" * 30] * 4)
    with pytest.raises(FunctionError, match=r"a state of (90|120) bytes"):
        lift_groups(IN_ORDER, [texts], np.zeros(4, dtype=np.intp), 1)


def test_what_code_raises_or_returns_wrongly_names_the_function() -> None:
    @catchment.function(takes=["DOUBLE"], returns="DOUBLE")
    def short(x: pa.Array) -> pa.Array:
        return x.slice(1)

    @catchment.function(takes=["DOUBLE"], returns="DOUBLE")
    def failing(x: pa.Array) -> pa.Array:
        raise KeyError("nothing")

    with pytest.raises(FunctionError, match="short returned 1 values for 2 rows"):
        short.evaluate([pa.array([1.0, 2.0])])
    with pytest.raises(FunctionError, match="failing raised KeyError: 'nothing'"):
        failing.evaluate([pa.array([1.0])])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("@catchment.function(takes=['DOUBLE'], returns='NUMBER')\ndef f(x): return x", "declares the type 'NUMBER'"),
        ("@catchment.function(takes=['DOUBLE'], returns='DOUBLE')\ndef F(x): return x", "cannot be the name"),
        ("@catchment.function(takes=['DOUBLE'], returns='DOUBLE')\ndef upper(x): return x", "has a function 'upper'"),
        ("@catchment.function(takes=['DOUBLE'], returns='DOUBLE')\ndef sum(x): return x", "has a function 'sum'"),
        (
            "@catchment.aggregate(takes=['STRING'], state={'s': 'STRING'}, returns='STRING')\nclass f: pass",
            "lacks lift",
        ),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_file_of_functions_that_is_wrong_is_refused_with_its_place(tmp_path: Path, code: str, told: str) -> None:
    write_project(tmp_path, VIEW, f"import catchment\n{code}\n")
    with pytest.raises(ConfigError, match=told) as caught:
        Deployment.load(tmp_path)
    assert "functions.py" in str(caught.value)


def test_a_plan_names_the_code_that_it_calls(tmp_path: Path) -> None:
    write_project(tmp_path, VIEW)
    plan = Deployment.load(tmp_path).plans[0]
    called = {name.rpartition("__")[0] for name in functions_in(plan.to_text())}
    assert called == {"celsius", "geometric_mean"}
    assert [c.name for c in plan.columns] == ["start", "k", "g", "c"]
    assert decode(encode(plan.fragment)) == plan.fragment


def test_other_code_is_another_definition_and_a_function_beside_it_is_not(tmp_path: Path) -> None:
    write_project(tmp_path, VIEW)
    state = tmp_path / "state" / "center"
    refuse_redefined_views(state, Deployment.load(tmp_path).plans)
    more = "\n@catchment.function(takes=['BIGINT'], returns='BIGINT')\ndef same(x):\n    return x\n"
    (tmp_path / "functions.py").write_text(FUNCTIONS + more)
    refuse_redefined_views(state, Deployment.load(tmp_path).plans)
    (tmp_path / "functions.py").write_text(FUNCTIONS.replace("5 / 9", "5 / 8"))
    with pytest.raises(ConfigError, match="the definition of v has changed"):
        refuse_redefined_views(state, Deployment.load(tmp_path).plans)


def test_a_running_project_takes_new_functions_and_refuses_changed_ones(tmp_path: Path) -> None:
    write_project(tmp_path, VIEW)
    running = Deployment.load(tmp_path)
    more = "\n@catchment.function(takes=['BIGINT'], returns='BIGINT')\ndef same(x):\n    return x\n"
    (tmp_path / "functions.py").write_text(FUNCTIONS + more)
    assert running.at(running.deployed).catalog.functions.find("same") is not None
    (tmp_path / "functions.py").write_text(FUNCTIONS.replace("5 / 9", "5 / 8"))
    with pytest.raises(ConfigError, match="celsius__"):
        running.at(running.deployed)


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("celsius(f, f)", "celsius has 2 argument"),
        ("geometric_mean(DISTINCT f)", "DISTINCT"),
        ("CAST(fahrenheit(f) AS DOUBLE)", "'fahrenheit' is not available"),
    ],
)
def test_a_wrong_call_is_refused(tmp_path: Path, select: str, told: str) -> None:
    write_project(tmp_path, VIEW.replace("geometric_mean(f) AS g", f"max({select}) AS g" if "(f" in select else select))
    with pytest.raises(QueryError, match=told):
        Deployment.load(tmp_path)


def test_both_ends_of_a_link_compare_their_code(tmp_path: Path) -> None:
    mine = install(FunctionsFile("here", FUNCTIONS))
    theirs = install(FunctionsFile("there", FUNCTIONS.replace("5 / 9", "5 / 8")))
    here, there = (" ".join(f.installed_name for f in side.values()) for side in (mine, theirs))
    assert disagreement(here, here) is None
    assert disagreement(here, "other__00000000") is None
    inbox = Inbox(tmp_path / "inbox")
    inbox.functions = here
    inbox.greet(Introduction("a", "epoch", functions=here))
    with pytest.raises(RefusedError, match=r"celsius is \w+ there and \w+ here") as caught:
        inbox.greet(Introduction("a", "epoch", functions=there))
    assert caught.value.reason == "other_functions"


def test_an_aggregate_whose_code_is_not_here_is_told_by_name(tmp_path: Path) -> None:
    write_project(tmp_path, VIEW)
    fragment = Deployment.load(tmp_path).plans[0].fragment
    made = next(a for a in fragment.aggregates if isinstance(a, UserAggregate))
    stranger = replace(made, function="geometric_mean__00000000")
    with pytest.raises(CatchmentError, match="geometric_mean__00000000 is not installed here"):
        stranger.lower([pa.array([1.0]), pa.array([1])])


def test_a_declared_aggregate_states_its_size() -> None:
    assert GEOMETRIC_MEAN.max_state_bytes == 16
    with pytest.raises(ConfigError, match="varying size"):
        catchment.aggregate(takes=["STRING"], state={"s": "STRING"}, returns="STRING")(type(IN_ORDER.law))


def test_the_guide_is_a_project_that_is_answered_as_plain_python_does(tmp_path: Path) -> None:
    guide = ROOT / "docs" / "guides" / "own-functions.md"
    code = blocks(guide, "python")[:2]
    (view,) = blocks(guide, "sql")
    stream = "CREATE STREAM weather (ts TIMESTAMP, station STRING, wind DOUBLE, fahrenheit DOUBLE) "
    write_project(tmp_path, f"{stream} WITH (event_time = 'ts', path = 'weather/{{site}}');\n{view}", "\n".join(code))
    deployment = Deployment.load(tmp_path)
    instants = pa.array([1_000_000 * second for second in range(0, 1800, 30)], pa.timestamp("us", tz="UTC"))
    count = len(instants)
    records = pa.table(
        {
            "ts": instants,
            "station": ["abc"[n % 3] for n in range(count)],
            "wind": [1.0 + n % 7 for n in range(count)],
            "fahrenheit": [None if n == 9 else 20.0 + n for n in range(count)],
        }
    )
    weather = deployment.catalog.streams["weather"]
    workload = {("weather", site): ArrivingRecords.of(weather, site, records) for site in ("north", "south")}
    other = deployment.catalog.streams["s"]
    unused = {("s", site): ArrivingRecords.of(other, site, _NOTHING) for site in ("north", "south")}
    faults = frozenset({Feature.CRASH, Feature.LOSS, Feature.DELAY})
    simulation = DeploymentSimulation(deployment, {**workload, **unused}, 1, faults)
    simulation.run().assert_right()
    results = simulation.world.store.results("climate")
    assert results is not None
    found = results.to_pylist()
    assert found
    for row in found:
        mine = [
            r
            for r in records.to_pylist()
            if row["window_start"] <= r["ts"] < row["window_end"] and r["station"] == row["station"]
            if r["fahrenheit"] is not None and (r["fahrenheit"] - 32) * 5 / 9 > 0
        ]
        assert row["wind"] == pytest.approx(math.exp(sum(math.log(r["wind"]) for r in mine) / len(mine)))
        assert row["highest"] == pytest.approx((max(r["fahrenheit"] for r in mine) - 32) * 5 / 9)
