"""Golden tests: SQL in, plan text out."""

from __future__ import annotations

import pytest

from catchment.query.explain import explain
from tests.worlds.query_support import Golden, check_golden, make_catalog, make_plan, read_golden

FILES = ("plans.sql", "shapes.sql")
CASES = [(file, case) for file in FILES for case in read_golden(file)]


@pytest.mark.parametrize(("file", "case"), CASES, ids=[case.title for _, case in CASES])
def test_a_view_gets_the_plan_in_the_golden_file(file: str, case: Golden) -> None:
    check_golden(file, case, make_plan(case.sql).to_text())


def test_golden_cases_have_different_titles() -> None:
    assert len({case.title for _, case in CASES}) == len(CASES)


@pytest.mark.parametrize(("kind", "both_ways"), [("", False), ("LEFT ", True), ("RIGHT ", True), ("FULL ", True)])
def test_explain_says_that_the_bound_of_an_outer_join_is_about_both_directions(kind: str, both_ways: bool) -> None:
    plan = make_plan(
        "CREATE MATERIALIZED VIEW v WITH (max_error = 0.1, confidence = 0.9) AS SELECT window.start, count(*) AS n "
        f"FROM beacons b {kind}JOIN clicks c ON b.cpid = c.cpid GROUP BY window(b.ts, '1 minute')"
    )
    told = explain(plan, make_catalog().project)
    assert "each stream waits until it lacks 0.05 at the most" in told
    assert "is learned from the last 9 windows that closed while records were awaited, and null before" in told
    assert ("a late partner takes such a row back" in told) == both_ways


def test_a_table_that_is_read_again_changes_no_plan_and_explain_says_as_of_when_answers_are_exact() -> None:
    table = "CREATE TABLE tiers (cpid INT, tier STRING) WITH (path = 'tiers.csv'{});\n"
    view = (
        "CREATE MATERIALIZED VIEW v AS SELECT window.start, tier, count(*) AS n FROM beacons b "
        "JOIN tiers t ON b.cpid = t.cpid GROUP BY window(ts, '1 minute'), tier"
    )
    once, again = (make_plan(table.format(option) + view) for option in ("", ", refresh = '1 minute'"))
    assert once.to_text() == again.to_text()
    told = [explain(plan, make_catalog().project) for plan in (once, again)]
    assert "tiers is read when the site starts; answers are exact as of the rows that it had" in told[0]
    assert "again when its files have changed (looked at every 1 min); answers are exact as of" in told[1]
