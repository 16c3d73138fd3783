"""Views that are replaced, or dropped and made again: a new definition under the old name, answers kept apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from catchment.center.results.names import newest_name
from catchment.center.results.read import published_views, read_results
from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.suspended import describe_queries
from catchment.deploy.store import DeploymentStore
from catchment.deploy.submit import drop, submit_text
from catchment.errors import CatchmentError
from catchment.project.config import Project
from catchment.query.definition_names import definition_name, number_of, view_of
from catchment.query.sql.parse import parse_sql
from catchment.testing import ArrivingRecords, DeploymentSimulation
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.timeline import SECOND_US

TOML = """\
[project]
name = "defined"
center = "center"
[sites.center]
[sites.a]
[sites.b]
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "center"
"""
STREAM = "CREATE STREAM hits (ts TIMESTAMP, page STRING, bytes BIGINT) WITH (event_time = 'ts', path = 'data/{site}');"
FIRST = "CREATE MATERIALIZED VIEW pages AS SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '10 s');"
SECOND = """CREATE OR REPLACE MATERIALIZED VIEW pages WITH (start = 'all') AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '10 s'), page;"""


def write_project(folder: Path) -> Project:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(f"{STREAM}\n{FIRST}\n")
    return Project.load(folder)


def make_simulation(folder: Path, *changes: tuple[int, Callable[[Project], object]]) -> DeploymentSimulation:
    """A minute of records at two sites; at so many seconds, changes."""
    project = write_project(folder)
    deployment = Deployment.load(folder)
    workload = {}
    for seed, site in enumerate(("a", "b")):
        numbers = np.random.default_rng(seed)
        times_us = np.sort(BEGIN_US + numbers.integers(0, 60 * SECOND_US, 60))
        table = pa.table(
            {
                "ts": pa.array(times_us).cast(pa.timestamp("us", tz="UTC")),
                "page": pa.array([f"p{n}" for n in numbers.integers(0, 3, 60)]),
                "bytes": pa.array(numbers.integers(0, 100, 60)),
            }
        )
        stream = deployment.catalog.streams["hits"]
        workload["hits", site] = ArrivingRecords.of(stream, site, table)
    simulation = DeploymentSimulation(deployment, workload, 1)
    for after_s, change in changes:

        def carry_out(change: Callable[[Project], object] = change) -> None:
            change(project)

        simulation.world.scheduler.at(BEGIN_US + after_s * SECOND_US, carry_out)
    return simulation


def counts(simulation: DeploymentSimulation, view: str) -> dict[Any, int]:
    rows = simulation.world.store.results(view)
    found: dict[Any, int] = {}
    for row in [] if rows is None else rows.to_pylist():
        found[row["start"]] = found.get(row["start"], 0) + row["n"]
    return found


def test_a_view_is_replaced_during_a_run_and_the_new_definition_has_all_of_the_past(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", (35, lambda project: submit_text(project, SECOND)))
    simulation.run().assert_right()
    old, new = counts(simulation, "pages"), counts(simulation, "pages@2")
    assert 2 <= len(old) <= 4, "the first definition ended in between"
    assert len(new) == 6
    assert sum(new.values()) == 120, "every record once"
    assert old.items() <= new.items()


def test_a_name_that_was_dropped_is_used_again_and_a_third_definition_replaces_it(tmp_path: Path) -> None:
    third = SECOND.replace("sum(bytes)", "max(bytes)")
    simulation = make_simulation(
        tmp_path / "p",
        (20, lambda project: drop(project, "pages")),
        (30, lambda project: submit_text(project, FIRST)),
        (45, lambda project: submit_text(project, third)),
    )
    simulation.run().assert_right()
    last = counts(simulation, "pages@3")
    assert sum(last.values()) == 120
    middle = counts(simulation, "pages@2")
    assert middle
    assert min(middle) > min(last), "it began with what came"
    assert middle.items() <= last.items()


COMPOSED = """CREATE MATERIALIZED VIEW busiest AS
  SELECT window.start, max(n) AS n FROM pages GROUP BY window(start, '20 s');"""
VISITS = """CREATE OR REPLACE MATERIALIZED VIEW visits AS
  SELECT session_window.start AS began, page, count(*) AS n FROM hits GROUP BY session_window(ts, '2 s'), page;"""


def test_views_of_views_and_sessions_are_submitted_replaced_and_dropped_during_a_run(tmp_path: Path) -> None:
    longer = VISITS.replace("'2 s'", "'3 s'")
    simulation = make_simulation(
        tmp_path / "p",
        (3, lambda project: submit_text(project, SECOND)),
        (6, lambda project: submit_text(project, COMPOSED)),  # over the second definition
        (9, lambda project: submit_text(project, VISITS.replace("AS\n", "WITH (max_session = '6 s') AS\n"))),
        (20, lambda project: submit_text(project, longer.replace("AS\n", "WITH (max_session = '6 s') AS\n"))),
        (30, lambda project: drop(project, "busiest")),
        (32, lambda project: submit_text(project, COMPOSED)),
    )
    simulation.run().assert_right()
    for view in ("busiest@2", "visits@2"):
        found = simulation.world.store.results(view)
        assert found is not None
        assert found.num_rows, view


def test_a_view_that_another_one_reads_ends_after_it(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    told = submit_text(project, COMPOSED)
    assert told["queries"] == [{"query": "busiest", "reads": "pages"}]
    ends: tuple[Callable[[], object], ...] = (lambda: drop(project, "pages"), lambda: submit_text(project, SECOND))
    for end in ends:
        with pytest.raises(CatchmentError, match="view 'busiest' reads the windows of 'pages'"):
            end()
    drop(project, "busiest")
    submit_text(project, SECOND)
    submit_text(project, COMPOSED)
    again = Deployment.load(project.folder)
    assert [p.name for p in again.plans] == ["pages@2", "busiest@2"]
    assert [(q.name, q.lower) for q in again.composed_queries] == [("busiest@2", "pages@2")]


def test_what_is_deployed_is_known_again_after_a_restart(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    told = submit_text(project, SECOND)
    assert [q["query"] for q in told["queries"]] == ["pages@2"]
    assert told["deployed"]
    again = Deployment.load(project.folder)
    assert [(p.name, p.view) for p in again.plans] == [("pages@2", "pages")]
    assert [q.name for q in again.center_queries] == ["pages@2"]
    assert again.deployed == DeploymentStore(project.state_folder).read()
    assert [q["query"] for q in describe_queries(project)] == ["pages@2"]
    drop(project, "pages")
    submit_text(project, FIRST)
    assert [p.name for p in Deployment.load(project.folder).plans] == ["pages@3"]


def test_a_dry_run_shows_the_difference_and_deploys_nothing(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    told = submit_text(project, SECOND, dry_run=True)
    assert not told["deployed"]
    (replaced,) = told["replaced"]
    assert (replaced["query"], replaced["replaces"]) == ("pages@2", "pages")
    added = "\n".join(line for line in replaced["difference"] if line.startswith("+"))
    assert "sum(" in added
    assert "page" in added
    assert told["ended_fragments"] == list(Deployment.load(project.folder).deployed.sharing.fragments)
    assert DeploymentStore(project.state_folder).read() is None
    assert [p.name for p in Deployment.load(project.folder).plans] == ["pages"]


def test_a_replacement_with_a_mistake_leaves_the_old_definition(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    with pytest.raises(CatchmentError, match="weight"):
        submit_text(project, SECOND.replace("bytes", "weight"))
    assert [p.name for p in Deployment.load(project.folder).plans] == ["pages"]


def test_create_without_replace_still_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    with pytest.raises(CatchmentError, match="already taken by a view"):
        submit_text(write_project(tmp_path / "p"), FIRST)


def test_readers_name_the_view_and_get_its_newest_definition(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    state = project.state_folder
    for name in ("pages", "pages@2"):
        for kind in ("results", "windows"):  # rows, and the log of windows behind them
            write_deltalake(state / kind / name, pa.table({"n": [1]}))
    assert newest_name(state, "pages") == "pages"
    submit_text(project, SECOND)
    assert newest_name(state, "pages") == newest_name(state, "pages@2") == "pages@2"
    assert newest_name(state, "pages@1") == "pages"
    assert published_views(state) == ["pages"]
    submit_text(project, SECOND)
    assert published_views(state) == []
    with pytest.raises(CatchmentError, match="has not published a window yet"):
        read_results(state, "pages")


def test_names_of_definitions_and_statements_are_read_as_they_are_written() -> None:
    for number in (1, 2, 17):
        name = definition_name("v", number)
        assert (view_of(name), number_of(name)) == ("v", number)
    (view,) = parse_sql(SECOND)
    assert parse_sql(view.to_sql()) == (view,)
    assert "OR REPLACE" in view.to_sql()
