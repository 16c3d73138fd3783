"""How many rows a look-up may find: what a table declares decides how samples are bounded.

Catches: rows of one record that a bound takes for independent records, a table whose declaration is believed where the
condition or the types do not let it follow, a sample of a fragment that also answers a view of all records.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from catchment.aggregates import partials
from catchment.aggregates.shed_terms import find_terms, shed_terms, terms_in
from catchment.arrays import Mask
from catchment.deploy.deployment import Deployment
from catchment.errors import EngineError, QueryError
from catchment.query.explain import explain
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream, Table
from catchment.records.unique_rows import check_unique
from catchment.shedding.sheddable import ShedChoice, VisibleColumns, sheddable_fragment
from catchment.shedding.terms import scale_answers
from catchment.testing.simulated.evaluate import FragmentRows, PureEvaluator
from catchment.testing.simulated.records import ArrivingRecords
from tests.query.test_explode import declare, project
from tests.worlds.projects import write_project

DECLARED = """
CREATE STREAM s (ts TIMESTAMP, k STRING, code INT, x INT)
  WITH (event_time = 'ts', sites = 'us', path = 'data', shed = true);
CREATE TABLE one (k STRING, name STRING, x INT) WITH (path = 'one.csv', unique = 'K');
CREATE TABLE two (k STRING, code BIGINT, name STRING) WITH (path = 'two.csv', unique = 'k, code');
CREATE TABLE many (k STRING, name STRING, since TIMESTAMP) WITH (path = 'many.csv');
CREATE TABLE changing (k STRING, name STRING) WITH (path = 'changing.csv', unique = 'k', refresh = '1 minute');
CREATE MATERIALIZED VIEW v AS {select};
"""


def plan(joins: str, measures: str = "count(*) AS c, sum(s.x) AS x", view: str = "") -> QueryPlan:
    select = f"SELECT window.start, name, {measures} FROM s {joins} GROUP BY window(ts, '1 minute'), name"
    catalog = declare(select, DECLARED.replace("VIEW v AS", f"VIEW v {view} AS"))
    return plan_view(catalog.views["v"], catalog)


@pytest.mark.parametrize(
    ("joins", "finds_one"),
    [
        ("JOIN one ON s.k = one.k", True),
        ("LEFT JOIN one ON one.k = upper(s.k) AND s.x > one.x", True),
        ("JOIN two ON s.k = two.k AND s.code = two.code", True),
        ("JOIN two ON s.k = two.k", False),
        ("JOIN two ON s.k = two.k AND two.code = two.code", False),
        ("JOIN two ON s.k = two.k AND two.code = CAST(s.x AS DOUBLE)", False),
        ("JOIN one ON one.k = s.code", False),
        ("JOIN one ON upper(one.k) = s.k", False),
        ("JOIN one ON s.x = one.x", False),
        ("JOIN many ON s.k = many.k AND s.ts >= many.since", False),
        ("LEFT JOIN (SELECT k AS other FROM s) t ON s.k = t.other JOIN one ON s.k = one.k", None),
    ],
)
def test_a_look_up_finds_one_row_where_it_has_a_value_of_its_type_for_every_unique_column(
    joins: str, finds_one: bool | None
) -> None:
    terms = terms_in(plan(joins).fragment.aggregates)
    if finds_one is None:
        assert not terms, "joins of streams are not sampled"
    else:
        assert [t.clustered for t in terms] == [not finds_one] * 2


def test_a_sample_of_rows_that_belong_together_has_a_bound_only_for_counts_sums_and_averages() -> None:
    for view in ("", "WITH (shed = 'any')"):
        assert not terms_in(plan("JOIN many ON s.k = many.k", "max(s.x) AS m", view).fragment.aggregates)
        assert terms_in(plan("JOIN one ON s.k = one.k", "max(s.x) AS m", view).fragment.aggregates)
    told = explain(plan("JOIN many ON s.k = many.k"), project())
    assert "under overload: sampled, each record with all rows that it becomes" in told


def test_records_that_are_looked_up_in_a_table_that_may_change_are_not_sampled() -> None:
    """What is repaired later may find other rows, so that the terms of the sample would not return to nothing."""
    planned = plan("JOIN changing ON s.k = changing.k")
    assert not terms_in(planned.fragment.aggregates)
    assert "under overload" not in explain(planned, project())


def test_a_group_that_a_look_up_names_has_no_rate_of_its_own() -> None:
    """Whoever samples sees the stream alone; a column of a table may be named like one of the stream."""
    visible = VisibleColumns(pa.schema([pa.field("x", pa.int32()), pa.field("name", pa.string())]), are_reread=True)
    for seen in (visible, VisibleColumns(None, are_reread=False)):
        planned = plan("JOIN one ON s.k = one.k", "count(*) AS c, sum(one.x) AS x")
        made = sheddable_fragment(planned.fragment, ShedChoice(), seen, filterable=False)
        assert (made.group_key, made.spareable) == (None, ())


@pytest.mark.parametrize("joins", ["JOIN many ON s.k = many.k", "LATERAL VIEW explode(array(k, k)) t AS name"])
def test_a_fragment_that_also_answers_a_view_of_all_records_is_not_sampled(tmp_path: Path, joins: str) -> None:
    """A maximum of rows that belong together has no bound: its view is planned to see every record."""
    view = (
        "CREATE MATERIALIZED VIEW {} AS SELECT window.start, name, {} FROM s {} GROUP BY window(ts, '1 minute'), name;"
    )
    views = [view.format("counts", "count(*) AS c", joins), view.format("largest", "max(s.x) AS m", joins)]
    declared = DECLARED.replace("CREATE MATERIALIZED VIEW v AS {select};", "\n".join(views))
    folder = write_project(tmp_path / "p", ["us"], {"us": []}, queries=declared)
    (folder / "many.csv").write_text("k,name,since\n")
    (one,) = Deployment.load(folder).fragments_at("us")
    assert len(one.shed.queries) == 2
    assert one.shed.never


def test_rows_that_are_not_unique_are_refused_and_rows_that_are_never_found_are_not() -> None:
    (table,) = (s for s in parse_sql(DECLARED.replace("{select}", "SELECT 1 AS x FROM s")) if s.name == "two")
    assert isinstance(table, Table)
    assert table.unique == ("k", "code")
    assert parse_sql(table.to_sql())[0] == table
    rows = {"k": ["a", "a", None, None], "code": [1, 2, 3, 3], "name": ["p", "p", "q", "q"]}
    check_unique(table, pa.table(rows))
    with pytest.raises(EngineError, match="2 rows with k = 'a', code = 1, and says that k, code is unique"):
        check_unique(table, pa.table({**rows, "code": [1, 1, 3, 3]}))


@pytest.mark.parametrize(("column", "told"), [("z", "is not among its columns"), ("f", "is DOUBLE")])
def test_unique_columns_are_columns_whose_values_can_be_told_apart(column: str, told: str) -> None:
    with pytest.raises(QueryError, match=told):
        parse_sql(f"CREATE TABLE t (k STRING, f DOUBLE) WITH (path = 't.csv', unique = '{column}')")


# --- bounds of samples ----------------------------------------------------------------------------------------------

RECORDS = 400
DELTA = 0.1
RATES = (0.25, 0.5)


def test_bounds_hold_where_records_find_several_rows_and_those_of_independent_rows_do_not(tmp_path: Path) -> None:
    """Records of some keys find twenty rows, of others none; the oracle is a loop over records and rows."""
    rng = np.random.default_rng(5)
    found = {f"k{n}": int(n % 3 == 0) * 20 + n % 2 for n in range(12)}
    lines = [f"{key},{'big' if n % 5 else 'small'},2026-01-01 00:00:00" for key in found for n in range(found[key])]
    (tmp_path / "many.csv").write_text("\n".join(["k,name,since", *lines]) + "\n")
    statements = {s.name: s for s in parse_sql(DECLARED.replace("{select}", "SELECT 1 AS x FROM s"))}
    stream, table = statements["s"], statements["many"]
    assert isinstance(stream, Stream)
    assert isinstance(table, Table)
    fragment = plan("JOIN many ON s.k = many.k", "count(*) AS c, sum(s.x) AS x, avg(s.x) AS m").fragment
    missed: list[bool] = []
    naive: list[bool] = []
    for _ in range(60):
        keys = [f"k{n}" for n in rng.integers(0, 12, RECORDS)]
        values = rng.integers(1, 40, RECORDS)
        records = pa.table(
            {
                "ts": pa.array(rng.integers(0, 60_000_000, RECORDS), pa.timestamp("us", tz="UTC")),
                "k": keys,
                "code": pa.array([0] * RECORDS, pa.int32()),
                "x": pa.array(values, pa.int32()),
            }
        )
        truth: dict[str, list[int]] = {"big": [], "small": []}
        for key, value in zip(keys, values.tolist(), strict=True):
            for number in range(found[key]):
                truth["big" if number % 5 else "small"].append(value)
        whole = PureEvaluator(tmp_path, {"many": table}).rows(ArrivingRecords.of(stream, "us", records), fragment)
        at = rng.integers(0, len(RATES), RECORDS)
        chosen = [(at == site) & (rng.random(RECORDS) < rate) for site, rate in enumerate(RATES)]
        missed += _missed(whole, chosen, truth, clustered=True)
        naive += _missed(whole, chosen, truth, clustered=False)
    assert np.mean(missed) <= DELTA
    assert np.mean(naive) > DELTA, "rows that are taken for independent ones show what record totals are for"


def _missed(rows: FragmentRows, chosen: list[Mask], truth: dict[str, list[int]], clustered: bool) -> list[bool]:
    """Return which bounds are missed; `clustered` or not: as terms of independent rows would state them."""
    fragment = rows.fragment
    if not clustered:
        independent = tuple(shed_terms(a) for a in fragment.aggregates if a not in terms_in(fragment.aggregates))
        plain = tuple(a for a in fragment.aggregates if a not in terms_in(fragment.aggregates))
        fragment = replace(fragment, aggregates=(*plain, *independent))
        moments = {t.moments.name: rows.arguments[t.name] for t in independent if t.moments is not None}
        rows = replace(rows, fragment=fragment, arguments={**rows.arguments, **moments})
    tables = [rows.of_records(mine).lift(rate)[0] for mine, rate in zip(chosen, RATES, strict=True)]
    merged = partials.combine(pa.concat_tables(tables), [SLICE_COLUMN, *fragment.key_names], fragment.aggregates)
    missed = []
    for aggregate in (a for a in fragment.aggregates if a not in terms_in(fragment.aggregates)):
        values, errors = scale_answers(merged, aggregate, DELTA, min(RATES), find_terms(aggregate, fragment.aggregates))
        for name, value, error in zip(merged["name"].to_pylist(), values.to_pylist(), errors, strict=True):
            given = truth[name]
            right = {"count": len(given), "sum": sum(given), "avg": sum(given) / len(given)}[aggregate.function]
            missed.append(bool(abs(value - right) > error * abs(right) * (1 + 1e-9)))
    return missed
