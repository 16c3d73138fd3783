"""Golden tests: SQL in, plan text out."""

from __future__ import annotations

import pytest

from tests.worlds.query_support import Golden, check_golden, make_plan, read_golden

CASES = read_golden("plans.sql")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_view_gets_the_plan_in_the_golden_file(case: Golden) -> None:
    check_golden("plans.sql", case, make_plan(case.sql).to_text())


def test_golden_cases_have_different_titles() -> None:
    assert len({case.title for case in CASES}) == len(CASES)
