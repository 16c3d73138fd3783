"""UNION ALL: a view over several streams answers as if their records were those of one.

Catches: a branch that is lost, counted twice or merged into another column, branches whose equal expressions are taken
for one column, a window that closes before all streams have passed it. Cannot catch: expressions, which Spark computes.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import QueryError
from catchment.query.explain import explain, explain_data
from tests.worlds.query_support import make_plan, make_project
from tests.worlds.sql_world import SqlTown, sorted_rows
from tests.worlds.tiers import examples

UNIONS = {
    "two streams": "SELECT ts, page, bytes, 1 AS a, 0 AS b FROM hits UNION ALL SELECT ts, page, bytes, 0, 1 FROM other",
    "one stream twice": "SELECT ts, page, bytes, user AS a, 7 AS b FROM hits "
    "UNION ALL SELECT ts, country, bytes * 2, 8, 8 FROM hits WHERE bot",
    "three branches": "SELECT ts, page, bytes, 1 AS a, 2 AS b FROM other WHERE bytes > 5 "
    "UNION ALL SELECT ts, country, user + 1, 2, 2 FROM hits UNION ALL SELECT ts, page, bytes, 1, 1 FROM other",
}
VIEW = """CREATE MATERIALIZED VIEW united AS
SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes, sum(a) AS a, sum(b) AS b, max(bytes) AS top
FROM ({union}) u WHERE page IS NOT NULL GROUP BY window(ts, '{window}'), page;"""
ORACLE = """SELECT ts // {size} * {size} AS w, page, count(*), sum(bytes)::BIGINT, sum(a)::BIGINT, sum(b)::BIGINT,
  max(bytes) FROM ({union}) u WHERE page IS NOT NULL GROUP BY ALL"""


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 10**6),
    union=st.sampled_from(sorted(UNIONS)),
    policy=st.sampled_from(["streaming", "batching", "spillway"]),
)
def test_a_run_ends_with_the_answers_over_all_branches(
    tmp_path_factory: pytest.TempPathFactory, seed: int, union: str, policy: str
) -> None:
    view = VIEW.format(union=UNIONS[union], window="1 minute")
    town = SqlTown(tmp_path_factory.mktemp("town"), view, seed, policy)
    town.run()
    expected = town.expected(ORACLE.format(union=UNIONS[union], size=60_000_000))
    assert sorted_rows(town.center.rows("united")) == sorted_rows(expected)


@settings(max_examples=examples(8))
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(["streaming", "batching"]))
def test_records_of_several_streams_are_told_apart_by_a_constant(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: str
) -> None:
    records = "SELECT ts, 'hit' AS kind, page FROM hits UNION ALL SELECT ts, 'other', page FROM other WHERE bytes > 5"
    town = SqlTown(tmp_path_factory.mktemp("town"), f"CREATE MATERIALIZED VIEW v AS {records};", seed, policy)
    town.run()
    expected = town.expected(f"SELECT *, count(*) AS copies FROM ({records}) GROUP BY ALL")
    assert sorted_rows(town.center.rows("v")) == sorted_rows(expected)


def test_explain_names_what_every_branch_sends() -> None:
    plan = make_plan("SELECT ts, cpid FROM beacons UNION ALL SELECT ts, cpid FROM clicks")
    assert explain_data(plan, make_project())["union"] == ["beacons", "clicks"]
    text = explain(plan, make_project())
    assert "at each site of beacons" in text
    assert "at each site of clicks" in text
    assert "partials of 2 branches are merged per window and key" in text


def test_a_union_has_no_contract() -> None:
    with pytest.raises(QueryError, match="unites several streams, and max_error is for views of one"):
        make_plan(
            "CREATE MATERIALIZED VIEW v WITH (max_error = 0.1) AS SELECT window.start, count(*) AS n FROM "
            "(SELECT ts FROM beacons UNION ALL SELECT ts FROM clicks) GROUP BY window(ts, '1 minute')"
        )
