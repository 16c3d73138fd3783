"""The catalog of a project: what statements declare, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from catchment.aggregates import FUNCTIONS
from catchment.center.results.layout import RESERVED
from catchment.errors import QueryError
from catchment.project.config import Project
from catchment.project.options import options_of
from catchment.project.sections import Defaults, Link, Security, Site, SparkConfig, StorageLimits
from catchment.query.catalog import Catalog, load_catalog
from catchment.query.explain import explain, explain_data
from catchment.query.options_reference import options_reference
from catchment.query.planning.build import plan_view, plan_views
from catchment.query.planning.outputs import RESULT_COLUMNS
from catchment.query.sql.connectors import CONNECTORS, FilesConnector, GeneratorConnector, ReplayConnector
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream
from catchment.query.sql.view_options import ViewOptions
from tests.worlds.query_support import base_catalog, make_catalog, make_plan, make_project

COUNT = "SELECT window.start, count(*) AS n FROM {} GROUP BY window(ts, '1 minute')"


def write_project(folder: Path, **queries: str) -> Project:
    (folder / "queries").mkdir()
    for name, text in queries.items():
        (folder / "queries" / f"{name}.sql").write_text(text, encoding="utf-8")
    return make_project(folder)


def test_a_project_is_the_sum_of_its_files_in_any_order(tmp_path: Path) -> None:
    stream = "CREATE STREAM s (ts TIMESTAMP) WITH (event_time = 'ts', path = 's/{site}');"
    view = f"CREATE MATERIALIZED VIEW v AS {COUNT.format('s')};"
    catalog = load_catalog(write_project(tmp_path, a_views=view, b_streams=stream))
    assert list(catalog.streams) == ["s"]
    assert list(plan_views(catalog)) == ["v"]


def test_an_error_names_the_file_of_the_project(tmp_path: Path) -> None:
    project = write_project(tmp_path, a="-- nothing\n", b=f"\nCREATE MATERIALIZED VIEW v AS\n{COUNT.format('s')}")
    with pytest.raises(QueryError) as caught:
        load_catalog(project)
    assert caught.value.where == f"{tmp_path / 'queries' / 'b.sql'}:3:41"


def test_a_catalog_does_not_change_when_something_is_added() -> None:
    before = base_catalog()
    after = before.add(*parse_sql(f"CREATE MATERIALIZED VIEW x AS {COUNT.format('clicks')}"))
    assert "x" in after.views
    assert "x" not in before.views


def test_a_dropped_view_is_gone_and_its_name_is_free() -> None:
    create = f"CREATE MATERIALIZED VIEW x AS {COUNT.format('clicks')};"
    assert "x" not in make_catalog(f"{create} DROP MATERIALIZED VIEW X;").views
    assert "x" in make_catalog(f"{create} DROP MATERIALIZED VIEW x; {create}").views


def test_names_are_found_whatever_their_case() -> None:
    catalog = base_catalog()
    assert catalog.find("BEACONS") is catalog.streams["beacons"]
    assert catalog.find("nothing") is None


def test_sites_are_all_but_the_center_unless_a_stream_says_which() -> None:
    catalog = base_catalog()
    assert catalog.streams["beacons"].sites == ("us", "eu")
    assert catalog.streams["clicks"].sites == ("us", "eu")
    here = "CREATE STREAM here (ts TIMESTAMP) WITH (event_time = 'ts', sites = 'center', path = 'data')"
    assert make_catalog(here).streams["here"].sites == ("center",)


def test_a_stream_at_a_site_without_a_link_to_the_center_is_refused() -> None:
    project = make_project()
    cut = replace(project, links={("us", "center"): project.links["us", "center"]})
    statement = parse_sql("CREATE STREAM s (ts TIMESTAMP) WITH (event_time = 'ts', path = '{site}')", "q.sql")
    with pytest.raises(QueryError, match=r"'eu', which has no link to the center 'center'") as caught:
        Catalog(cut).add(*statement)
    assert "or links through other sites" in (caught.value.hint or "")
    assert 'from = "eu"' in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("written", "meant", "shown"),
    [
        ("'reference'", "reference", "history = 'reference'"),
        ("REFERENCE", "reference", "history = 'reference'"),
        ("'copy'", True, "history = true"),
        ("true", True, "history = true"),
        ("off", False, "history = false"),
    ],
)
def test_history_is_a_copy_a_reference_or_none(written: str, meant: bool | str, shown: str) -> None:
    options = f"event_time = 'ts', path = '{{site}}', format = 'csv', history = {written}"
    stream = make_catalog(f"CREATE STREAM s (ts TIMESTAMP) WITH ({options})").streams["s"]
    assert stream.history == meant
    assert shown in stream.to_sql()
    assert make_catalog(stream.to_sql()).streams["s"] == stream


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("connector = 'generator'", "what the generator source gives cannot be read a second time"),
        ("connector = 'replay', path = '{site}'", "what the replay source gives cannot be read a second time"),
        ("connector = 'http'", "what the http source gives cannot be read a second time"),
        ("connector = 'mqtt', broker = 'b', topic = '{site}'", "what the mqtt source gives cannot be read"),
        ("connector = 'python', reader = 'm:C', argument = '{site}'", "what the python source gives cannot be read"),
        ("connector = 'kafka', brokers = 'b', topic = '{site}'", "a broker removes records by the rules of its topic"),
        ("path = '{site}', growing = true", "its files grow"),
        ("path = 's3://lake/{site}'", "it reads objects of a store"),
        ("path = '{site}', shed = true", "it may be shed"),
    ],
)
def test_history_is_no_reference_to_what_cannot_be_read_again(options: str, why: str) -> None:
    with pytest.raises(QueryError, match=f"asks for history = 'reference', but {why}") as caught:
        make_catalog(f"CREATE STREAM s (ts TIMESTAMP) WITH (event_time = 'ts', history = 'reference', {options})")
    assert "leave history out: then it is a copy" in (caught.value.hint or "")


def test_history_is_no_reference_where_records_are_evaluated_elsewhere() -> None:
    project = make_project()
    light = replace(project, sites={**project.sites, "eu": replace(project.sites["eu"], compute=False)})
    text = "CREATE STREAM s (ts TIMESTAMP) WITH (event_time = 'ts', path = '{site}', history = 'reference')"
    with pytest.raises(QueryError, match="'eu' sends its records elsewhere"):
        Catalog(light).add(*parse_sql(text, "q.sql"))


def test_connectors_have_their_own_settings_and_defaults() -> None:
    catalog = make_catalog("""
        CREATE STREAM f (TS TIMESTAMP, seen TIMESTAMP) WITH (event_time = 'ts', path = '/log', format = 'csv');
        CREATE STREAM r (ts TIMESTAMP, seen TIMESTAMP) WITH (event_time = 'ts', connector = 'replay',
            path = 'r/{site}', format = parquet, arrival = 'seen', speed = 60, slack = '5 s', history = off);
        CREATE STREAM g (ts TIMESTAMP) WITH (event_time = 'ts', connector = generator, rows_per_s = 10, seed = 7);
        CREATE TABLE t (a INT) WITH (path = 'a/t.CSV', delimiter = ';');
    """)
    assert catalog.streams["f"].connector == FilesConnector("/log", "csv", True, ",")
    assert catalog.streams["f"].event_time == "TS"
    assert catalog.streams["r"].connector == ReplayConnector("r/{site}", "parquet", arrival="seen", speed=60.0)
    assert (catalog.streams["r"].slack_us, catalog.streams["r"].history) == (5_000_000, False)
    assert catalog.streams["g"].connector == GeneratorConnector(10.0, 100, 7, None)
    assert catalog.tables["t"].connector == FilesConnector("a/t.CSV", "csv", True, ";")


def test_view_options_are_read_and_checked() -> None:
    options = (
        make_catalog(f"""
        CREATE MATERIALIZED VIEW v WITH (max_error = 0.05, sink = 'center', freshness = '10 s',
            policy = 'hybrid:0.25+lfu', emit_early = '5 s', repair = off) AS {COUNT.format("clicks")}
    """)
        .view("v")
        .options
    )
    assert (options.max_error, options.confidence, options.sink) == (0.05, 0.95, ("center",))
    assert (options.freshness_us, options.emit_early_us, options.repair) == (10_000_000, 5_000_000, "never")
    assert options.policy == "hybrid:0.25+lfu"


def test_every_column_of_a_result_table_is_a_reserved_name() -> None:
    assert set(RESERVED) <= RESULT_COLUMNS


def test_a_bound_may_bear_its_own_name() -> None:
    plan = make_plan("SELECT window.start AS window_start, count(*) AS n FROM clicks GROUP BY window(ts, '1 hour')")
    assert plan.columns[0].name == plan.columns[0].source == "window_start"


def test_explain_shows_plan_sites_links_and_contract() -> None:
    catalog = make_catalog(f"CREATE MATERIALIZED VIEW v WITH (max_error = 0.1) AS {COUNT.format('clicks')}")
    slow = {("us", "center"): Link("us", "center", 2.5e6, 40_000), ("eu", "center"): Link("eu", "center")}
    text = explain(plan_view(catalog.view("v"), catalog), replace(catalog.project, links=slow))
    assert text.startswith("Sink v at center within 0.1 at confidence 0.95\n  Finish trivial")
    assert "slice_us BIGINT, n__count BIGINT" in text
    assert "  us -> center: 2.5 MB/s, latency 40 ms\n  eu -> center: unshaped\n" in text
    assert "contract: off by 0.1 or more in at most 0.05 of the windows" in text
    assert "policy: spillway" in text


def test_explain_shows_the_way_over_another_site() -> None:
    catalog = make_catalog(f"CREATE MATERIALIZED VIEW v AS {COUNT.format('clicks')}")
    over = {("us", "eu"): Link("us", "eu", 2.5e6), ("eu", "center"): Link("eu", "center", 1e6, 9_000)}
    project = replace(catalog.project, links=over)
    plan = plan_view(catalog.view("v"), catalog)
    assert "  us -> eu -> center: 2.5 MB/s, then 1 MB/s, latency 9 ms\n  eu -> center: 1 MB/s" in explain(plan, project)
    assert [f["sends_to"] for f in explain_data(plan, project)["fragments"]] == ["eu", "center"]


def test_explain_for_programs_says_the_same() -> None:
    sql = "SELECT window.start, approx_count_distinct(page) AS p FROM clicks GROUP BY window(ts, '1 h', '20 min')"
    catalog = make_catalog(sql)
    plan = plan_view(catalog.view("v"), catalog)
    data = explain_data(plan, catalog.project)
    assert [f["site"] for f in data["fragments"]] == ["us", "eu"]
    assert data["window"]["slide_us"] == 20 * 60 * 10**6
    assert data["columns"] == [{"name": "start", "type": "TIMESTAMP"}, {"name": "p", "type": "BIGINT"}]
    assert data["contract"] is None
    assert "each window is 3 slices" in explain(plan, catalog.project)
    assert "estimated from sketches: p" in explain(plan, catalog.project)


def documented() -> str:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sql.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```sql\n(.*?)```", page, re.DOTALL))


def test_the_examples_of_the_sql_page_are_planned() -> None:
    catalog = Catalog(make_project()).add(*parse_sql(documented(), "docs/reference/sql.md"))
    views = set(re.findall(r"CREATE MATERIALIZED VIEW (\w+)", documented()))
    dropped = set(re.findall(r"DROP MATERIALIZED VIEW (\w+)", documented()))
    assert set(plan_views(catalog)) == views - dropped


def test_the_sql_page_names_every_aggregate_and_reserved_column() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sql.md").read_text(encoding="utf-8")
    missing = [name for name in sorted({*FUNCTIONS, *RESULT_COLUMNS}) if f"`{name}`" not in page]
    assert not missing


def test_the_page_of_options_is_what_their_declarations_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    assert page == options_reference(), "run: python -m catchment.query.options_reference > docs/reference/options.md"


def test_every_option_says_what_it_is_for() -> None:
    holders = (
        Project,
        Site,
        Link,
        SparkConfig,
        Security,
        StorageLimits,
        Defaults,
        Stream,
        ViewOptions,
        *CONNECTORS.values(),
    )
    assert not [o.name for holder in holders for o in options_of(holder) if not o.doc]
