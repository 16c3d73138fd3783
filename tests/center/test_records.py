"""SELECT without GROUP BY: every record that the condition keeps is in the results, exactly once.

Catches: a record that is lost or counted twice by a late batch, a replay or a restart; equal records of two sites or
windows taken for one. Cannot catch: expressions, which Spark computes at the sites; the Nexmark suite does.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.query.plan_nodes import COPIES
from tests.worlds.query_support import make_plan
from tests.worlds.sql_world import SqlTown, sorted_rows
from tests.worlds.tiers import examples

RECORDS = """CREATE MATERIALIZED VIEW records WITH (publish_every = '{every}') AS
SELECT {columns} FROM hits WHERE {condition};"""


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 10**6),
    columns=st.sampled_from(["ts, page, user, bytes", "page", "country, ms, bot", "page, upper(country) AS land, ts"]),
    condition=st.sampled_from(["true", "bytes > 5", "page IS NULL OR user > 2", "page = 'nobody'"]),
    every=st.sampled_from([1, 10, 60]),
    policy=st.sampled_from(["streaming", "batching", "spillway"]),
)
def test_every_record_that_is_kept_is_a_row_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, columns: str, condition: str, every: int, policy: str
) -> None:
    view = RECORDS.format(every=f"{every} s", columns=columns, condition=condition)
    town = SqlTown(tmp_path_factory.mktemp("town"), view, seed, policy)
    town.run()
    every_us = every * 1_000_000
    names = columns.replace("upper(country) AS land", "upper(country)")
    oracle = f"SELECT {columns}, count(*) AS copies FROM hits WHERE {condition} GROUP BY ts // {every_us}, {names}"
    assert sorted_rows(town.center.rows("records")) == sorted_rows(town.expected(oracle))


def test_all_columns_of_a_stream_are_selected_by_a_star() -> None:
    plan = make_plan("SELECT b.ts, p.* FROM beacons b JOIN providers p ON b.cpid = p.cpid")
    assert [c.name for c in plan.columns] == ["ts", "cpid", "name", "tier", COPIES]


def test_records_are_never_sampled() -> None:
    assert make_plan("SELECT ts, url FROM beacons").options.shed == "never"
