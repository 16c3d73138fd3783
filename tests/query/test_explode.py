"""Explode: one record becomes several rows; how that is planned, what is refused, and that records are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.aggregates.shed_terms import terms_in
from catchment.errors import QueryError
from catchment.optimizer.sharing.demand import query_of_plan
from catchment.optimizer.sharing.derive import is_derivable
from catchment.project.config import Project
from catchment.project.sections import Link, Site
from catchment.query.catalog import Catalog
from catchment.query.explain import explain
from catchment.query.fragment import count_records
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import View

DECLARED = """
CREATE STREAM s (ts TIMESTAMP, k STRING, tags ARRAY<STRING>, m MAP<STRING, INT>, x INT)
  WITH (event_time = 'ts', sites = 'us', path = 'data');
CREATE TABLE n (tag STRING, name STRING) WITH (path = 'n.csv');
CREATE MATERIALIZED VIEW v AS {select};
"""
BY_TAG = "GROUP BY window(ts, '1 minute'), tag"


def declare(select: str, declared: str = DECLARED) -> Catalog:
    return Catalog(project()).add(*parse_sql(declared.replace("{select}", select)))


def project() -> Project:
    sites = {"us": Site("us"), "center": Site("center")}
    return Project("explode", Path(), "center", sites, {("us", "center"): Link("us", "center")})


def plan(select: str, declared: str = DECLARED) -> QueryPlan:
    catalog = declare(select, declared)
    view = catalog.views["v"]
    assert parse_sql(view.to_sql())[0] == view
    return plan_view(view, catalog)


def test_lateral_views_come_before_the_filter_and_after_the_look_ups_that_they_use() -> None:
    planned = plan(
        "SELECT window.start, name, part, count(*) AS c FROM s JOIN n ON s.k = n.tag "
        "LATERAL VIEW OUTER posexplode(split(name, ' ')) p AS at, part WHERE part <> '' AND x > 1 "
        "GROUP BY window(ts, '1 minute'), name, part"
    )
    assert planned.answer.to_text().splitlines()[-4:] == [
        "  Filter (`p`.`part` <> '') AND (`s`.`x` > 1)",
        "    ExplodeRecords posexplode_outer(CAST(SPLIT(`n`.`name`, ' ') AS ARRAY<STRING>)) as p(at, part)",
        "      LookupJoin inner n on `s`.`k` = `n`.`tag`",
        "        Scan s [ts, k, x] at us",
    ]
    assert planned.fragment.explodes[0].after == 1


def test_what_is_exploded_in_a_subquery_can_be_looked_up() -> None:
    planned = plan(
        "SELECT window.start, name, count(*) AS c FROM (SELECT ts, explode(tags) AS tag FROM s) e "
        "JOIN n ON e.tag = n.tag GROUP BY window(ts, '1 minute'), name"
    )
    (explode,) = planned.fragment.explodes
    assert (explode.after, planned.fragment.lookups[0].on) == (0, "`exploded`.`tag` = `n`.`tag`")


def test_two_ways_to_write_it_are_one_plan() -> None:
    written = f"SELECT window.start, tag, count(*) AS c FROM s LATERAL VIEW explode(tags) t AS tag {BY_TAG}"
    other = f"SELECT window.start, tag, count(*) AS c FROM s, LATERAL explode(tags) AS t(tag) {BY_TAG}"
    assert plan(written) == plan(other)


@pytest.mark.parametrize(
    ("joined", "outer"),
    [
        ("CROSS JOIN UNNEST(tags) AS t(tag)", ""),
        ("JOIN LATERAL explode(tags) AS t(tag) ON true", ""),
        ("LEFT JOIN UNNEST(tags) AS t(tag) ON true", "OUTER "),
        ("LEFT JOIN LATERAL explode(tags) AS t(tag) ON true", "OUTER "),
    ],
)
def test_joins_with_arrays_are_lateral_views_also_after_they_are_printed(joined: str, outer: str) -> None:
    select = f"SELECT window.start, tag, count(*) AS c FROM s {{}} {BY_TAG}"
    view = parse_sql(f"CREATE MATERIALIZED VIEW v AS {select.format(joined)}")[0]
    expected = plan(select.format(f"LATERAL VIEW {outer}explode(tags) t AS tag"))
    assert plan(select.format(joined)) == expected
    assert isinstance(view, View)
    assert plan(view.definition) == expected


def test_a_record_counts_once_by_the_conditions_on_its_own_columns() -> None:
    planned = plan(
        f"SELECT window.start, tag, count(*) AS c FROM s LATERAL VIEW explode(tags) t AS tag "
        f"WHERE tag <> 'a' AND x > 1 {BY_TAG}"
    )
    counting = count_records(planned.fragment)
    assert (counting.where, counting.explodes, counting.keys) == ("(`s`.`x` > 1)", (), ())


@pytest.mark.parametrize(
    ("select", "told"),
    [
        (f"SELECT window.start, explode(tags) AS tag, count(*) AS c FROM s {BY_TAG}", "not possible here"),
        (f"SELECT window.start, count(*) AS c FROM s LATERAL VIEW explode(k) t AS tag {BY_TAG}", "neither an array"),
        (f"SELECT window.start, tag FROM s LEFT JOIN UNNEST(tags) AS t(tag) ON tag > 'a' {BY_TAG}", "in WHERE"),
        (f"SELECT window.start, count(*) AS c FROM s LATERAL VIEW stack(2, 1) t AS tag {BY_TAG}", "STACK"),
        (f"SELECT window.start, count(*) AS c FROM s LATERAL VIEW explode(m) t AS tag {BY_TAG}", "has 2 column"),
        ("SELECT ts, explode(tags) AS a, explode(tags) AS b FROM s", "two columns that make rows"),
        ("SELECT ts, explode(tags) FROM s", "have no name"),
        ("SELECT ts, upper(explode(tags)) AS a FROM s", "not possible here"),
        (
            "SELECT window.start, s.k, count(*) AS c FROM s JOIN (SELECT ts, k, explode(tags) AS t FROM s) e "
            "ON e.k = s.k GROUP BY window(s.ts, '1 minute'), s.k",
            "a side of this join",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_hint(select: str, told: str) -> None:
    with pytest.raises(QueryError, match=told) as caught:
        plan(select)
    assert caught.value.hint


def test_a_sample_without_bounds_is_refused() -> None:
    text = DECLARED.replace("VIEW v AS", "VIEW v WITH (shed = 'any') AS")
    with pytest.raises(QueryError, match="makes several rows of a record") as caught:
        plan(f"SELECT window.start, tag, count(*) AS c FROM s LATERAL VIEW explode(tags) t AS tag {BY_TAG}", text)
    assert "sampled if all its aggregates are count, sum or avg" in (caught.value.hint or "")


SHED = DECLARED.replace("path = 'data'", "path = 'data', shed = true")


@pytest.mark.parametrize(
    ("calls", "is_sampled"),
    [
        ("count(*) AS c, sum(x) AS x, avg(x) AS m", True),
        ("count(x) FILTER (WHERE k > 'a') AS c", True),
        ("count(*) AS c, max(x) AS x", False),
        ("approx_count_distinct(k) AS k", False),
    ],
)
def test_records_with_several_rows_are_sampled_where_only_totals_are_asked_for(calls: str, is_sampled: bool) -> None:
    planned = plan(f"SELECT window.start, tag, {calls} FROM s LATERAL VIEW explode(tags) t AS tag {BY_TAG}", SHED)
    terms = terms_in(planned.fragment.aggregates)
    assert bool(terms) == is_sampled
    assert all(t.clustered for t in terms)
    assert ("under overload: sampled" in explain(planned, project())) == is_sampled


def test_what_is_known_of_samples_of_groups_is_no_measure_of_them_together() -> None:
    select = "SELECT window.start, {}count(*) AS c FROM s LATERAL VIEW explode(tags) t AS tag GROUP BY {}"
    by_tag = select.format("tag, ", "window(ts, '1 minute'), tag")
    of_all = select.format("", "window(ts, '1 minute')")
    for declared, is_shared in ((DECLARED, True), (SHED, False)):
        fine, coarse = (
            query_of_plan(plan(text, declared), declare(text, declared)).demand for text in (by_tag, of_all)
        )
        assert is_derivable(coarse, fine) == is_shared
        assert is_derivable(fine, fine)
