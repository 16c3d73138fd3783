"""Where the records of light sites are evaluated, what they can read, and what their process does not load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.heal import heal
from catchment.deploy.sites import replace_site
from catchment.errors import ConfigError
from catchment.light.streams import LightStream, light_streams, read_streams, write_streams
from catchment.project.config import Project
from catchment.project.routes import Routes, first_link, outgoing_link
from catchment.query.sql.connectors import FilesConnector, HttpConnector, MqttConnector
from catchment.serve.explanation import explain_deployment

CONFIG = """\
[project]
name = "light"
center = "center"
[sites.edge]
compute = false
{evaluate_at}
[sites.other]
compute = false
[sites.hub]
listen = "127.0.0.1:9411"
[sites.center]
listen = "127.0.0.1:9410"
"""
LINKS = (("edge", "center"), ("edge", "hub"), ("hub", "center"), ("other", "edge"), ("other", "hub"))
VIEW = "CREATE MATERIALIZED VIEW counts AS SELECT window.start, count(*) AS n FROM events GROUP BY window(ts, '1 s');\n"


def _load(folder: Path, evaluate_at: str = "", links: tuple[tuple[str, str], ...] = LINKS) -> Project:
    joined = "".join(f'[[links]]\nfrom = "{a}"\nto = "{b}"\nbandwidth = "1 MB/s"\n' for a, b in links)
    text = CONFIG.format(evaluate_at=f'evaluate_at = "{evaluate_at}"' if evaluate_at else "") + joined
    (folder / "catchment.toml").write_text(text)
    return Project.load(folder)


def _deployment(folder: Path, options: str) -> Deployment:
    _load(folder)
    (folder / "queries").mkdir(exist_ok=True)
    stream = f"CREATE STREAM events (ts TIMESTAMP, k STRING) WITH (event_time = 'ts', sites = 'edge', {options});\n"
    (folder / "queries" / "q.sql").write_text(stream + VIEW)
    return Deployment.load(folder)


def test_records_are_evaluated_at_the_next_site_and_nothing_goes_through_a_light_site(tmp_path: Path) -> None:
    project = _load(tmp_path)
    routes = Routes.of(project)
    assert routes.hops == {"edge": "center", "hub": "center", "other": "hub"}
    assert routes.light_sites_at("center") == ("edge",)
    assert routes.light_sites_at("hub") == ("other",)
    assert routes.relays == ("hub",)


def test_a_light_site_names_the_site_that_evaluates_its_records(tmp_path: Path) -> None:
    project = _load(tmp_path, "hub")
    routes = Routes.of(project)
    assert routes.hops["edge"] == "hub"
    assert set(routes.light_sites_at("hub")) == {"edge", "other"}
    assert outgoing_link(project, "edge").bandwidth_bytes_per_s == 1e6, "its records cross the declared link"
    assert first_link(project, "edge").bandwidth_bytes_per_s is None, "its partials are made behind it"


@pytest.mark.parametrize(
    ("evaluate_at", "links", "message", "hint"),
    [
        ("nobody", LINKS, "undeclared site 'nobody'", "center, edge, hub, other"),
        ("other", LINKS, "'other', which does not compute either", "without compute = false"),
        ("hub", LINKS[2:], "no link goes there", 'from = "edge" and to = "hub"'),
    ],
)
def test_a_site_that_cannot_evaluate_is_refused(
    tmp_path: Path, evaluate_at: str, links: tuple[tuple[str, str], ...], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, evaluate_at, links)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.where == f"{tmp_path / 'catchment.toml'}:6"


def test_a_center_computes(tmp_path: Path) -> None:
    (tmp_path / "catchment.toml").write_text('[project]\nname = "x"\ncenter = "c"\n[sites.c]\ncompute = false\n')
    with pytest.raises(ConfigError, match="the center 'c' has compute = false") as caught:
        Project.load(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("connector = 'generator'", "has the connector 'generator'"),
        ("connector = 'kafka', brokers = 'b:9092', topic = 't'", "has the connector 'kafka'"),
        ("connector = 'replay', path = 'data/log.json'", "has the connector 'replay'"),
        ("connector = 'files', path = 'data', format = 'parquet'", "reads Parquet files"),
        ("connector = 'files', path = 'data', format = 'csv'", "reads CSV files with a line of names"),
    ],
)
def test_what_a_light_site_cannot_read_is_refused_by_name_and_can_still_be_planned(
    tmp_path: Path, options: str, message: str
) -> None:
    deployment = _deployment(tmp_path, options)
    with pytest.raises(ConfigError) as caught:
        light_streams("edge", deployment.declared_at("edge"))
    assert caught.value.message.startswith(f"stream 'events' {message}, and is born at the light site 'edge'")
    assert caught.value.hint is not None
    assert "leave out compute = false in [sites.edge]" in caught.value.hint


def test_a_stream_of_a_light_site_is_read_where_it_arrives(tmp_path: Path) -> None:
    deployment = _deployment(tmp_path, "connector = 'files', path = 'data', format = 'csv', header = false")
    (read,) = deployment.streams_at("edge")
    assert read.connector == FilesConnector(
        "state/sites/{site}/arrivals/streams/events", "csv", False, ",", removed_when_read=True
    )
    assert light_streams("edge", deployment.declared_at("edge"))[0].connector == FilesConnector("data", "csv", False)


def test_what_a_light_site_reads_is_written_down_and_read_back(tmp_path: Path) -> None:
    streams = (
        LightStream("files", FilesConnector("data/{site}/*.json", growing=True)),
        LightStream("posted", HttpConnector("csv", ";", 5_000_000)),
        LightStream("sensed", MqttConnector(broker="b:1", topic="t/#", topic_column="topic")),
    )
    with pytest.raises(ConfigError, match=r"there is no streams\.json"):
        read_streams(tmp_path)
    write_streams(tmp_path, streams)
    assert read_streams(tmp_path) == streams


def test_the_process_of_a_light_site_loads_no_spark_and_no_reader_of_sql() -> None:
    code = "import sys, catchment.cli.light_process; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"pyspark", "scipy", "matplotlib", "pandas", "sqlglot", "deltalake", "duckdb", "typer"}
    assert not heavy.intersection(loaded)


def test_a_light_site_is_prepared_without_the_packages_of_spark(tmp_path: Path) -> None:
    _deployment(tmp_path, "connector = 'files', path = 'data'")
    (tmp_path / "data").mkdir()
    code = f"""
import sys
for name in ("pyspark", "py4j", "deltalake", "duckdb", "scipy", "matplotlib", "starlette"):
    sys.modules[name] = None  # as if it were not installed
sys.argv = ["light_process", "prepare", {str(tmp_path)!r}, "edge"]
from catchment.cli.light_process import main
main()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [s.name for s in read_streams(Project.load(tmp_path).source_folder("edge"))] == ["events"]


@pytest.mark.parametrize("begin_anew", [heal, replace_site])
def test_the_state_of_a_light_site_cannot_be_begun_anew(
    tmp_path: Path, begin_anew: Callable[[Path, str], object]
) -> None:
    _deployment(tmp_path, "connector = 'files', path = 'data'")
    with pytest.raises(ConfigError, match="'edge' is a light site") as caught:
        begin_anew(tmp_path, "edge")
    assert "restore" in (caught.value.hint or "")


def test_records_cross_the_link_of_a_light_site_and_partials_do_not(tmp_path: Path) -> None:
    (tmp_path / "statistics.toml").write_text("[streams.events]\nrows_per_s = 1000\nrow_bytes = 40\n")
    answer = explain_deployment(_deployment(tmp_path, "connector = 'files', path = 'data'"))
    (link,) = answer["links"]
    assert (link["from"], link["to"], link["records"]) == ("edge", "center", ["events"])
    assert link["bytes_per_s"] == 40_000
