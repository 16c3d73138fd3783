"""Laws of statements and plans, over generated ones.

A statement prints itself as SQL that parses to it again; planning does not depend on how a SELECT is spelt; a
plan refers only to columns that exist; the tree kit keeps what it does not change.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from catchment.errors import QueryError
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import (
    Filter,
    Finish,
    LookupJoin,
    Node,
    Scan,
    Sink,
    WindowAggregate,
    find,
    transform,
    walk,
)
from catchment.query.planning.build import plan_view
from catchment.query.sql.connectors import (
    FilesConnector,
    GeneratorConnector,
    HttpConnector,
    MqttConnector,
    PythonConnector,
    ReplayConnector,
)
from catchment.query.sql.dialect import read_expression
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Column, DropView, Explain, Stream, Table, View
from catchment.query.sql.view_options import ViewOptions
from catchment.query.types import TIMESTAMP, arrow_type, read_type, sql_type
from tests.worlds.query_support import Golden, make_catalog, make_plan, read_golden
from tests.worlds.tiers import examples

CASES = read_golden("plans.sql")
quick = settings(max_examples=examples(30))

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
plain_types = st.sampled_from(
    [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "STRING",
        "BINARY",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "DECIMAL(9, 3)",
    ]
).map(lambda text: arrow_type(read_type(text)))
types = st.recursive(
    plain_types,
    lambda inner: st.one_of(
        inner.map(lambda t: arrow_type(read_type(f"ARRAY<{sql_type(t)}>"))),
        inner.map(lambda t: arrow_type(read_type(f"MAP<STRING, {sql_type(t)}>"))),
        inner.map(lambda t: arrow_type(read_type(f"STRUCT<a: {sql_type(t)}, b: INT>"))),
    ),
    max_leaves=3,
)
durations = st.one_of(st.none(), st.integers(1, 10**13))
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
paths = texts.filter(lambda t: t.strip() and "{" not in t and "}" not in t)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Column, ...]:
    taken = draw(st.lists(names, min_size=1, max_size=5, unique_by=str.lower))
    found = [Column(name, draw(types)) for name in taken if name.lower() != "ts"]
    return (Column("ts", TIMESTAMP), *found)


@st.composite
def files(draw: st.DrawFn) -> FilesConnector:
    kind = draw(st.sampled_from(["json", "csv", "parquet"]))
    if kind != "csv":
        return FilesConnector(draw(paths), kind)
    delimiter = draw(st.characters(codec="ascii", exclude_categories=["Cc"]))
    return FilesConnector(draw(paths), kind, draw(st.booleans()), delimiter)


replays = st.builds(
    ReplayConnector, paths, st.just("parquet"), arrival=st.sampled_from([None, "ts"]), speed=st.floats(0.01, 1e6)
)
generators = st.builds(GeneratorConnector, st.floats(0.1, 1e9), st.integers(1, 10**6), st.integers(0, 10**9), durations)
own = st.builds(PythonConnector, st.just("weather:Stations"), st.text("ab{}", max_size=4))
received = st.one_of(
    st.builds(HttpConnector, max_waiting_bytes=st.integers(1, 10**12)),
    st.builds(
        MqttConnector, broker=st.just("b:1"), topic=st.just("a/+/#"), received_column=st.sampled_from([None, "ts"])
    ),
)
streams = st.builds(
    Stream,
    names,
    columns(),
    st.just("ts"),
    st.one_of(files(), replays, generators, received, own),
    st.one_of(st.none(), st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)),
    durations,
    durations,
    st.sampled_from([None, True, False]),
)
tables = st.builds(Table, names, columns(), files())
view_options = st.builds(
    ViewOptions,
    st.floats(0.001, 0.999),
    st.floats(0.001, 0.999),
    st.one_of(st.none(), st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)),
    durations,
    st.sampled_from([None, "batching", "hybrid:0.25+lfu"]),
    durations,
    st.sampled_from(["always", "on_demand", "never"]),
    st.sampled_from(["bounded", "any", "never"]),
    st.sampled_from([1.0, 0.5, 3.0]),
    sites=st.one_of(st.none(), st.lists(names, min_size=1, max_size=3, unique=True).map(sorted).map(tuple)),
)


@quick
@given(st.one_of(streams, tables, st.builds(DropView, names), st.builds(Explain, names)))
def test_a_statement_parses_from_what_it_prints(statement: Stream | Table | DropView | Explain) -> None:
    assert parse_sql(statement.to_sql()) == (statement,)


@quick
@given(st.sampled_from(CASES), view_options)
def test_the_options_of_a_view_are_read_from_what_it_prints(case: Golden, options: ViewOptions) -> None:
    written = make_catalog(case.sql).view("v")
    view = View(written.name, written.select, options)
    assert parse_sql(view.to_sql()) == (view,)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_view_parses_from_what_it_prints(case: Golden) -> None:
    view = make_catalog(case.sql).view("v")
    assert parse_sql(view.to_sql()) == (view,)


@quick
@given(types)
def test_a_type_is_read_from_its_name(type_: object) -> None:
    assert arrow_type(read_type(sql_type(type_))) == type_


KEYS = [
    "cpid",
    "upper(country)",
    "date_trunc('hour', arrived)",
    "geo.lat",
    "bytes % 7",
    "CASE WHEN ms > 3 THEN bw END",
]
CALLS = [
    "count(*)",
    "sum(bytes)",
    "avg(ms)",
    "max(price)",
    "sum(bytes) FILTER (WHERE bw = 'x')",
    "stddev(cpid + 1)",
]
CALLS += [
    "approx_count_distinct(client)",
    "percentile_approx(ms, 0.9)",
    "sum(bytes) / count(*)",
    "min(ms) + 1",
]
CONDITIONS = [
    "bytes > 3",
    "country IN ('us', 'de')",
    "NOT (ms < 2 OR url IS NULL)",
    "length(url) > 3",
    "geo.lat < 9",
]
WINDOWS = [
    "window(ts, '1 minute')",
    "window(ts, '1 hour', '10 minutes')",
    "window(ts, '90 s', '60 s', '7 s')",
]
HAVING = ["count(*) > 3", "sum(bytes) / 2 > avg(ms)", "max(price) IS NOT NULL"]


@st.composite
def selects(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    calls = draw(st.lists(st.sampled_from(CALLS), min_size=1, max_size=4))
    where = draw(st.lists(st.sampled_from(CONDITIONS), max_size=3, unique=True))
    having = draw(st.lists(st.sampled_from(HAVING), max_size=2, unique=True))
    shown = [k for k in keys if draw(st.booleans())] + calls
    items = ", ".join(["window.start", *(f"{item} AS c{i}" for i, item in enumerate(shown))])
    group = ", ".join([draw(st.sampled_from(WINDOWS)), *keys])
    clauses = [
        f"SELECT {items} FROM beacons",
        f"WHERE {' AND '.join(where)}" if where else "",
        f"GROUP BY {group}",
    ]
    return " ".join([*clauses, f"HAVING {' AND '.join(having)}" if having else ""])


@quick
@given(selects())
def test_a_plan_is_that_of_the_view_as_it_prints_itself(sql: str) -> None:
    catalog = make_catalog(sql)
    (again,) = parse_sql(catalog.view("v").to_sql())
    assert isinstance(again, View)
    assert plan_view(again, catalog) == plan_view(catalog.view("v"), catalog)


@quick
@given(selects())
def test_an_alias_of_the_stream_changes_nothing(sql: str) -> None:
    qualified = sql.replace("FROM beacons", "FROM beacons AS x").replace("bytes", "x.bytes").replace("geo.", "x.geo.")
    assert make_plan(qualified) == make_plan(sql)


@quick
@given(selects())
def test_a_plan_names_only_columns_that_exist(sql: str) -> None:
    plan = make_plan(sql)
    lowered = set(plan.aggregate.columns)
    for text in [c.sql for c in plan.columns] + ([plan.having] if plan.having else []):
        assert {c.name for c in read_expression(text).find_all(exp.Column)} <= lowered
    for text in [k.sql for k in plan.fragment.keys] + [a.argument for a in plan.fragment.aggregates if a.argument]:
        assert {c.parts[1].name for c in read_expression(text).find_all(exp.Column)} <= set(plan.scan.columns)
    assert all(c.source is None or c.source in lowered for c in plan.columns)


@quick
@given(selects())
def test_trivial_means_that_every_column_is_a_copy(sql: str) -> None:
    plan = make_plan(sql)
    plain = all(isinstance(read_expression(c.sql), exp.Column) for c in plan.columns)
    assert plan.trivial == (plain and plan.having is None)


def joined_plan() -> QueryPlan:
    return make_plan(
        "SELECT window.start, name, count(*) AS n FROM beacons b JOIN providers p ON b.cpid = p.cpid "
        "WHERE tier > 1 GROUP BY window(ts, '1 minute'), name"
    )


def test_walking_meets_every_node_before_its_inputs() -> None:
    kinds = [type(node) for node in walk(joined_plan().root)]
    assert kinds == [Sink, Finish, WindowAggregate, Filter, LookupJoin, Scan]


def test_a_transformation_that_changes_nothing_gives_the_same_plan() -> None:
    root = joined_plan().root
    assert transform(root, lambda node: node) == root


def test_a_rule_sees_inputs_that_are_already_changed() -> None:
    def drop_filter(node: Node) -> Node:
        return node.input if isinstance(node, Filter) else node

    changed = transform(joined_plan().root, drop_filter)
    assert not list(find(changed, Filter))
    assert [type(n) for n in next(find(changed, WindowAggregate)).inputs] == [LookupJoin]


def test_nodes_that_make_no_sense_cannot_be_built() -> None:
    plan = joined_plan()
    with pytest.raises(QueryError):
        Filter(plan.scan, ())
    with pytest.raises(QueryError):
        Scan("beacons", "ts", ("cpid",), ("eu",))
    with pytest.raises(QueryError):
        WindowAggregate(plan.scan, plan.window, (), ())
    with pytest.raises(QueryError):
        Finish(plan.aggregate, plan.columns * 2)
