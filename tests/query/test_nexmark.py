"""The page about Nexmark says what the suite tests, and every query that it calls possible is planned."""

from __future__ import annotations

from pathlib import Path

from catchment.query.catalog import Catalog
from catchment.query.planning.build import plan_views
from catchment.query.sql.parse import parse_sql
from tests.worlds.nexmark import QUERIES, catalogue_table, project_sql
from tests.worlds.query_support import make_project

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "nexmark.md"


def test_every_query_of_nexmark_is_answered_or_its_reason_is_named() -> None:
    assert [q.number for q in QUERIES] == list(range(23))
    assert all(q.view if q.is_possible else q.remark for q in QUERIES)


def test_the_page_has_the_table_of_the_suite() -> None:
    assert catalogue_table() in PAGE.read_text(encoding="utf-8"), "print(tests.worlds.nexmark.catalogue_table())"


def test_every_possible_query_is_planned() -> None:
    text = project_sql().replace("'a,b'", "'us,eu'").replace("'b'", "'eu'")
    plans = plan_views(Catalog(make_project()).add(*parse_sql(text, "nexmark.sql")))
    assert {q.name for q in QUERIES if q.is_possible} == plans.keys() - {"bids_of_auctions"}
