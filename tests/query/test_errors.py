"""Every mistake is an error that says where it is, what was found and what is possible there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import QueryError
from catchment.query.planning.build import plan_views
from catchment.query.sql.parse import parse_file
from tests.worlds.query_support import Golden, check_golden, make_catalog, make_plan, read_golden
from tests.worlds.tiers import examples

CASES = read_golden("errors.sql")


def error_of(sql: str) -> QueryError:
    with pytest.raises(QueryError) as caught:
        make_plan(sql)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_mistake_is_answered_as_the_golden_file_says(case: Golden) -> None:
    check_golden("errors.sql", case, str(error_of(case.sql)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_an_error_names_a_place_that_exists_and_gives_a_hint(case: Golden) -> None:
    error = error_of(case.sql)
    place = re.fullmatch(r"(?:q|schema)\.sql:(\d+):(\d+)", error.where or "")
    assert place, error.where
    assert int(place.group(1)) <= case.sql.count("\n") + 2
    assert error.hint


def test_line_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "views.sql"
    path.write_text("-- a comment; with a semicolon\n\nDROP MATERIALIZED VIEW a;\n/* two\nlines */ EXPLAIN 9;\n")
    with pytest.raises(QueryError) as caught:
        parse_file(path)
    assert caught.value.where == f"{path}:5:18"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "views.sql"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(QueryError, match="UTF-8"):
        parse_file(path)


def refusal(sql: str) -> QueryError | None:
    try:
        plan_views(make_catalog(sql))
    except QueryError as error:
        return error
    return None


PIECES = re.compile(r"\w+|'[^']*'|\s+|.", re.DOTALL)
TEXTS = [case.sql for case in (*CASES, *read_golden("plans.sql"))]
WORDS = sorted({piece for text in TEXTS for piece in PIECES.findall(text) if piece.strip()})


@settings(max_examples=examples(150))
@given(st.data())
def test_whatever_is_written_is_planned_or_refused_with_a_place_and_a_hint(data: st.DataObject) -> None:
    pieces = PIECES.findall(data.draw(st.sampled_from(TEXTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(pieces)))
        pieces[place : place + data.draw(st.integers(0, 2))] = data.draw(st.lists(st.sampled_from(WORDS), max_size=1))
    error = refusal("".join(pieces))
    assert error is None or (error.where and error.hint)
