"""catchment from Python: the public names do what they say, on a project made by hand and on a real run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import catchment
from catchment.errors import CatchmentError, CenterError, QueryError
from tests.worlds.projects import as_lines, group, make_records, write_project
from tests.worlds.published import START, publish_project
from tests.worlds.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_project(tmp_path_factory.mktemp("facade") / "p")


def test_the_public_face_is_these_names() -> None:
    assert set(catchment.__all__) == {
        "Catchment",
        "CatchmentError",
        "Change",
        "Results",
        "RunningProject",
        "__version__",
        "aggregate",
        "function",
        "open",
        "open_feeds",
    }
    assert all(hasattr(catchment, name) for name in catchment.__all__)
    with pytest.raises(AttributeError, match="no attribute 'spine'"):
        _ = catchment.spine


def test_results_come_as_arrow_or_pandas_latest_or_all(folder: Path) -> None:
    project = catchment.open(folder)
    latest = project.results("traffic").to_arrow()
    assert isinstance(latest, pa.Table)
    first = [r for r in latest.to_pylist() if r["start"] == START]
    assert {(r["country"], r["code"], r["requests"], r["bytes"]) for r in first} == {
        ("nl", 200, 2, 400),
        ("[de]", 404, 1, 7),
    }
    frame = project.results("traffic", revisions="all").to_pandas()
    assert len(frame) == 5
    assert set(frame.columns) == {*latest.column_names, "retracted"}
    assert str(frame["window_start"].dt.tz) == "UTC"


def test_windows_give_the_newest_word_on_each(folder: Path) -> None:
    windows = catchment.open(str(folder)).windows("traffic").to_pylist()
    assert [(w["status"], w["coverage"], w["missing_sites"]) for w in windows] == [
        ("final", 1.0, []),
        ("exact", 1.0, []),
        ("on_time", 0.625, ["eu"]),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT sum(requests) AS n FROM traffic",
        "  -- how many\n/* all\nof them */ select sum(requests) AS n FROM traffic;",
        "(SELECT sum(requests) AS n FROM traffic)",
        "WITH t AS (SELECT * FROM traffic) SELECT sum(requests) AS n FROM t",
        "FROM traffic SELECT sum(requests) AS n",
    ],
)
def test_sql_that_reads_gives_a_table_of_what_was_published(folder: Path, text: str) -> None:
    answer = catchment.open(folder).sql(text)
    assert isinstance(answer, pa.Table)
    assert answer.to_pylist() == [{"n": 5}]


def test_sql_that_creates_and_drops_changes_what_the_next_run_does(folder: Path) -> None:
    project = catchment.open(folder)
    made = project.sql(
        "CREATE MATERIALIZED VIEW selected AS SELECT window.start, max(bytes) AS top FROM requests "
        "GROUP BY window(ts, '1 minute')"
    )
    assert made is None
    assert "selected" in project.catalog.views
    text = project.sql("EXPLAIN selected; EXPLAIN traffic")
    assert isinstance(text, str)
    assert text == f"{project.explain('selected')}\n\n{project.explain('traffic')}"
    assert text.startswith("selected: start, top\n")
    analyzed = project.sql("EXPLAIN ANALYZE traffic")
    assert isinstance(analyzed, str)
    assert "  measured " in analyzed
    assert project.explain("traffic").svg.startswith("<svg")
    project.sql("DROP MATERIALIZED VIEW selected")
    assert "selected" not in project.catalog.views
    assert "selected" not in catchment.open(folder).catalog.views, "the folder is not changed"


def test_mistakes_are_catchment_errors_with_a_hint(folder: Path, tmp_path: Path) -> None:
    project = catchment.open(folder)
    with pytest.raises(QueryError, match="no view 'trafic'"):
        project.explain("trafic")
    with pytest.raises(CenterError, match="'trafic' has not published") as caught:
        project.results("trafic").to_arrow()
    assert "traffic" in (caught.value.hint or "")
    with pytest.raises(CenterError, match="'latest' or 'all', not 'first'"):
        project.results("traffic", revisions="first").to_arrow()
    with pytest.raises(QueryError):
        project.sql("MAKE ME A SANDWICH")
    with pytest.raises(CatchmentError, match=r"there is no catchment\.toml"):
        catchment.open(tmp_path)


@pytest.mark.spark
def test_a_project_is_run_and_its_results_read_on_a_session_that_is_given(spark: SparkSession, tmp_path: Path) -> None:
    records = make_records(80, 3)
    queries = """
        CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE)
          WITH (event_time = 'ts', sites = '{sites}', {connector});
        CREATE MATERIALIZED VIEW pages AS
          SELECT window.start, page, count(*) AS n, approx_top_k(page, 1) AS top FROM hits
          GROUP BY window(ts, '5 minutes'), page;"""
    folder = write_project(tmp_path / "p", ["a"], {"a": as_lines(records)}, queries=queries)
    project = catchment.open(folder)
    status = project.run(once=True, seconds=PATIENCE_S, spark=spark)
    assert status["sites"]["a"]["rows"] == 80
    expected = {(start, page): len(rows) for (start, page), rows in group(records, 300, 300, "page").items()}
    found = project.results("pages").to_spark(spark)
    assert found.where("n <> top[0].count").count() == 0, "nested columns come through"
    assert {(r["start"].timestamp(), r["page"]): r["n"] for r in found.collect()} == {
        (start.timestamp(), page): n for (start, page), n in expected.items()
    }
    assert spark.range(3).count() == 3, "a session that is given is left open"


def test_completion_offers_the_public_names_before_anything_is_imported() -> None:
    assert {"open", "Catchment", "Results"} <= set(dir(catchment))


def test_notebooks_show_a_project_and_its_results_without_engine_columns(folder: Path) -> None:
    project = catchment.open(folder)
    assert repr(project) == "<web-log: audience, quiet, traffic>"
    assert "nothing published yet" in project._repr_html_()
    results = project.results("traffic")
    assert repr(results) == "<results of traffic, latest revisions: 4 rows>"
    assert "[de]" in results._repr_html_()
    assert "published_at" not in results._repr_html_()
    own = results.to_pandas(engine_columns=False)
    assert list(own.columns) == ["start", "country", "code", "requests", "bytes", "status"]


def test_following_a_view_gives_every_revision_and_ends_when_nothing_comes(folder: Path) -> None:
    changes = list(catchment.open(folder).follow("traffic", seconds=0.0))
    assert [(c.window_start.minute, c.revision, c.status, c.rows.num_rows) for c in changes] == [
        (0, 1, "exact", 2),
        (10, 1, "exact", 1),
        (0, 2, "exact", 1),
        (0, 2, "final", 0),
        (20, 1, "on_time", 1),
    ]
    assert changes[2].reason == "late: 1 row changed"
    assert list(catchment.open(folder).follow("quiet", seconds=0.0)) == []


def test_a_view_is_not_followed_before_the_first_entry_of_its_log_is_there(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    shutil.rmtree(folder / "state" / "windows" / "traffic")  # rows are written first, the log of windows after them
    project = catchment.open(folder)
    assert list(project.follow("traffic", seconds=0.0)) == []
    with pytest.raises(QueryError, match="no view 'traffic' has published"):
        project.sql("SELECT * FROM traffic")


def test_views_are_submitted_and_dropped_from_python(tmp_path: Path) -> None:
    project = catchment.open(publish_project(tmp_path / "p"))
    made = project.submit(
        "CREATE MATERIALIZED VIEW extra AS SELECT window.start, count(*) AS n FROM requests "
        "GROUP BY window(ts, '1 minute')"
    )
    assert made["queries"][0]["query"] == "extra"
    assert project.drop("extra")["dropped"] == "extra"
    with pytest.raises(QueryError, match="only CREATE MATERIALIZED VIEW can be submitted"):
        project.submit("DROP MATERIALIZED VIEW traffic")


@pytest.mark.spark
def test_a_project_runs_in_the_background_of_a_block(spark: SparkSession, tmp_path: Path) -> None:
    queries = """
        CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE)
          WITH (event_time = 'ts', sites = '{sites}', {connector});
        CREATE MATERIALIZED VIEW pages AS
          SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '5 minutes'), page;"""
    folder = write_project(tmp_path / "p", ["a"], {"a": as_lines(make_records(80, 3))}, queries=queries)
    project = catchment.open(folder)
    with project.start(once=True, spark=spark) as running:
        changes = list(running.follow("pages"))
        assert not running.is_running
        assert {c.window_start for c in changes} == {
            r["start"] for r in project.results("pages").to_arrow().to_pylist()
        }
        assert running.status["sites"]["a"]["rows"] == 80
    assert sum(project.results("pages").to_arrow()["n"].to_pylist()) == 80


def test_notebooks_show_values_with_their_bounds_and_rows_with_their_status(folder: Path) -> None:
    shown = catchment.open(folder).results("audience")._repr_html_()
    assert "1 ±3.2%" in shown
    assert "on_time 62%, no eu" in shown
    assert "[de]" in shown
    first, *_ = catchment.open(folder).follow("traffic", seconds=0.0)
    assert str(first) == "2017-01-01 02:00:00 revision 1 exact: closed: every site has passed its end (2 rows)"
    assert first._repr_html_().count("<tr>") == 3


def test_the_status_of_a_project_has_a_row_per_site(folder: Path) -> None:
    status = catchment.open(folder).status()
    assert set(status.index) == {"us", "eu", "center"}
    assert status.loc["us", "quarantined"] == 2


def test_feeds_are_explained_and_run_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATCHMENT_DATA", raising=False)
    feeds = catchment.open_feeds(Path(catchment.__file__).parents[1] / "examples" / "nearby_friends", users=40)
    explained = feeds.explain()
    assert explained.loc["ours", "cost"] < explained.loc["cloud", "cost"]
    runs = feeds.run(seconds=30)
    assert "0 lost, 0 invented" in repr(runs)
    assert len(runs.notices) == runs.reports[0]["notices"] > 0
    assert list(runs.to_pandas().columns) == ["predicted", "measured"]
    assert "<table" in runs._repr_html_()
