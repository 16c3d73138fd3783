"""Normal forms: golden plans, pairs of one meaning with one fingerprint, and both sides of every rewrite executed.

Execution is DuckDB's for filters, expressions and results, so a rewrite that changes a value or a null is caught; what
the rules do not rewrite is not searched for here.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import partials as tables
from catchment.optimizer.normal_form.expressions import normal_text
from catchment.optimizer.normal_form.normalize import RULES, fingerprint, normalize
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import WINDOW_END, WINDOW_START
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from tests.worlds.query_support import FIXTURES, TITLE, Golden, check_golden, make_plan, read_golden
from tests.worlds.sharing_support import base_catalog, duck, lift_fragment, make_hits, spark_as_duck
from tests.worlds.tiers import examples

GOLDEN = "optimizer/normalize.sql"


def plan_of(select: str) -> QueryPlan:
    catalog = base_catalog().add(*parse_sql(f"CREATE MATERIALIZED VIEW v AS {select}", "q.sql"))
    return plan_view(catalog.view("v"), catalog)


def run(plan: QueryPlan, records: pa.Table) -> list[tuple[object, ...]]:
    """The rows of a plan with tumbling windows, columns in the order of their names, rows in any order."""
    keys = [SLICE_COLUMN, *plan.fragment.key_names]
    partials = lift_fragment(records, plan.fragment)
    lowered = tables.lower(partials, keys, plan.fragment.aggregates)
    starts = np.asarray(lowered[SLICE_COLUMN])
    lowered = lowered.append_column(WINDOW_START, pa.array(starts))
    lowered = lowered.append_column(WINDOW_END, pa.array(starts + plan.window.size_us))
    duck().register("lowered", lowered)
    columns = ", ".join(f'{spark_as_duck(c.sql)} AS "{c.name}"' for c in sorted(plan.columns, key=lambda c: c.name))
    having = f"WHERE {spark_as_duck(plan.having)}" if plan.having else ""
    return sorted(duck().sql(f"SELECT {columns} FROM lowered {having}").fetchall(), key=repr)


def pairs() -> list[tuple[str, str, str]]:
    text = (FIXTURES / "optimizer" / "equal.sql").read_text(encoding="utf-8")
    blocks = [block.strip().split("\n", 1) for block in text.split(TITLE)[1:]]
    return [(title, *both.split("\n----\n")) for title, both in blocks]  # type: ignore[misc]


@pytest.mark.parametrize("case", read_golden(GOLDEN), ids=lambda case: case.title)
def test_a_view_has_its_normal_form(case: Golden) -> None:
    check_golden(GOLDEN, case, normalize(make_plan(case.sql)).to_text())


@pytest.mark.parametrize(("title", "left", "right"), pairs(), ids=[p[0] for p in pairs()])
def test_equal_meaning_gives_an_equal_fingerprint_and_equal_answers(title: str, left: str, right: str) -> None:
    plans = [plan_of(left), plan_of(right)]
    assert fingerprint(plans[0]) == fingerprint(plans[1])
    records = make_hits(np.random.default_rng(1), 200)
    answers = [run(p, records) for p in plans]
    values = [sorted(sorted(map(repr, row)) for row in rows) for rows in answers]
    assert values[0] == values[1]
    assert values[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_keeps_the_answers_of_every_case(rule: object) -> None:
    assert callable(rule)
    records = make_hits(np.random.default_rng(2), 200)
    for _, left, right in pairs():
        for plan in (plan_of(left), plan_of(right)):
            assert run(rule(plan), records) == run(plan, records)


@pytest.mark.parametrize(
    "other",
    [
        "SELECT window.start, count(*) AS n FROM hits WHERE user >= 1 GROUP BY window(ts, '1 minute')",
        "SELECT window.start, count(*) AS n FROM hits WHERE user > 1 GROUP BY window(ts, '2 minutes')",
        "SELECT window.start, count(*) AS n FROM hits WHERE user > 1 GROUP BY window(ts, '1 minute'), page",
        "SELECT window.start, count(user) AS n FROM hits WHERE user > 1 GROUP BY window(ts, '1 minute')",
        "SELECT window.start, count(*) + 1 AS n FROM hits WHERE user > 1 GROUP BY window(ts, '1 minute')",
        "SELECT window.start, count(*) AS n FROM hits WHERE user > 1 OR bot GROUP BY window(ts, '1 minute')",
    ],
)
def test_another_meaning_gives_another_fingerprint(other: str) -> None:
    one = "SELECT window.start, count(*) AS n FROM hits WHERE user > 1 GROUP BY window(ts, '1 minute')"
    assert fingerprint(plan_of(one)) != fingerprint(plan_of(other))


atoms = st.sampled_from(
    [
        "user > 1",
        "2 >= user",
        "bot",
        "page = 'a'",
        "page IN ('b', 'a')",
        "country IS NULL",
        "user + 1 = 1 + 2",
        "ms BETWEEN 1 AND 50",
        "TRUE",
        "3 < 2",
        "user <> 2 - 7",
        "ms * 2 < bytes",
    ]
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        inner.map(lambda c: f"NOT ({c})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(60))
@given(conditions, st.integers(0, 10**6))
def test_a_condition_and_its_normal_form_agree_on_every_record(condition: str, seed: int) -> None:
    duck().register("hits", make_hits(np.random.default_rng(seed), 40))
    before, after = spark_as_duck(condition), spark_as_duck(normal_text(condition))
    both = f"SELECT ({before}) IS NOT DISTINCT FROM ({after}) FROM hits"
    assert all(row[0] for row in duck().sql(both).fetchall())
    assert normal_text(normal_text(condition)) == normal_text(condition)
