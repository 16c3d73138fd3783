"""Views as users write them, through sites and center with late records and restarts, against DuckDB over all records.

Catches: an aggregate that loses something between lifting, merging, recalling and finishing. Cannot catch: expressions
that Spark evaluates otherwise than DuckDB; the tests of Spark do.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds.sql_world import SqlTown, sorted_rows
from tests.worlds.tiers import examples

CASES = {
    "distinct counts and sets": (
        """CREATE MATERIALIZED VIEW v AS SELECT window.start, country, count(DISTINCT user) AS users,
        count(DISTINCT page, bytes) AS pairs, collect_set(page) AS pages FROM hits
        GROUP BY window(ts, '1 minute'), country;""",
        """SELECT ts // 60000000 * 60000000, country, count(DISTINCT "user"),
        count(DISTINCT CASE WHEN page IS NOT NULL AND bytes IS NOT NULL THEN (page, bytes) END),
        coalesce(list_sort(list(DISTINCT page) FILTER (WHERE page IS NOT NULL)), []) FROM hits GROUP BY 1, 2""",
    ),
    "medians and percentiles": (
        """CREATE MATERIALIZED VIEW v AS SELECT window.start, country, median(bytes) AS m,
        percentile(user, 0.75) AS p, percentile(bytes, 0.25) FILTER (WHERE NOT bot) AS q FROM hits
        GROUP BY window(ts, '1 minute', '30 seconds'), country;""",
        """SELECT w, country, quantile_cont(bytes::DOUBLE, 0.5), quantile_cont("user"::DOUBLE, 0.75),
        quantile_cont(bytes::DOUBLE, 0.25) FILTER (NOT bot)
        FROM (SELECT *, unnest([ts // 30000000 * 30000000, ts // 30000000 * 30000000 - 30000000]) AS w FROM hits)
        GROUP BY 1, 2""",
    ),
    "conditions and bits": (
        """CREATE MATERIALIZED VIEW v AS SELECT window.start, bool_or(bot) AS a, bool_and(bot) AS b, bit_xor(user) AS x,
        bit_and(user) AS y, count_if(bytes > 5) AS n FROM hits GROUP BY window(ts, '1 minute', '30 seconds');""",
        """SELECT w, bool_or(bot), bool_and(bot), bit_xor("user"), bit_and("user"), count(*) FILTER (bytes > 5)
        FROM (SELECT *, unnest([ts // 30000000 * 30000000, ts // 30000000 * 30000000 - 30000000]) AS w FROM hits)
        GROUP BY 1""",
    ),
    "the value at an extreme": (
        """CREATE MATERIALIZED VIEW v AS SELECT window.start, country, max_by(page, bytes) AS p, last(user) AS u
        FROM hits GROUP BY window(ts, '1 minute'), country;""",
        """SELECT w, country,
        list_max(list(page) FILTER (bytes = most)), list_max(list("user") FILTER (ts = newest)) FROM (
        SELECT *, max(bytes) OVER g AS most, max(ts) OVER g AS newest FROM (
        SELECT *, ts // 60000000 * 60000000 AS w FROM hits) WINDOW g AS (PARTITION BY w, country)) GROUP BY 1, 2""",
    ),
    "a subquery": (
        """CREATE MATERIALIZED VIEW v AS
        WITH known AS (SELECT ts, upper(country) AS land, bytes FROM hits WHERE NOT bot)
        SELECT window.start, land, sum(bytes) AS b FROM known GROUP BY window(ts, '1 minute'), land;""",
        "SELECT ts // 60000000 * 60000000, upper(country), sum(bytes)::BIGINT FROM hits WHERE NOT bot GROUP BY 1, 2",
    ),
    "distinct rows": (
        "CREATE MATERIALIZED VIEW v AS SELECT DISTINCT window(ts, '1 minute').start AS s, page FROM hits;",
        "SELECT DISTINCT ts // 60000000 * 60000000, page FROM hits",
    ),
}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=examples(4))
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(["streaming", "batching"]))
def test_a_view_ends_with_what_duckdb_answers_over_all_records(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, policy: str
) -> None:
    view, oracle = CASES[name]
    town = SqlTown(tmp_path_factory.mktemp("town"), view, seed, policy)
    town.run()
    assert sorted_rows(town.center.rows("v")) == sorted_rows(town.expected(oracle))
