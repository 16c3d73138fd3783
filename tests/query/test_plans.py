"""Golden tests: SQL in, plan text out."""

from __future__ import annotations

import pytest

from tests.worlds.query_support import Golden, check_golden, make_plan, read_golden

FILES = ("plans.sql", "shapes.sql")
CASES = [(file, case) for file in FILES for case in read_golden(file)]


@pytest.mark.parametrize(("file", "case"), CASES, ids=[case.title for _, case in CASES])
def test_a_view_gets_the_plan_in_the_golden_file(file: str, case: Golden) -> None:
    check_golden(file, case, make_plan(case.sql).to_text())


def test_golden_cases_have_different_titles() -> None:
    assert len({case.title for _, case in CASES}) == len(CASES)
