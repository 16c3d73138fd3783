"""A relay or a center that cannot merge all that lands: windows are answered in time, and become exact afterwards.

Catches: answers that wait for what could wait, rows that claim to be complete and are not, bounds that are too small,
deferred partials that are lost, merged twice or never. Cannot catch: what merging costs on a real machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catchment.deploy.deployment import Deployment
from catchment.testing import ArrivingRecords, DeploymentSimulation
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.testing.simulated.world import WorldOptions
from catchment.timeline import SECOND_US

WINDOW_S = 10
WINDOWS = 9
BUSY = range(2, 6)  # the windows that have many pages
PAGES = 60
CALM_PAGES = 4
ROW_S = 0.2  # 60 pages at 2 sites are 24 s of work per window
FRESH_S = 12  # within which the first answer of a window must be there
SITES = ("a", "b")
TOML = """\
[project]
name = "busy"
center = "center"
[sites.a]
[sites.b]
[sites.center]
{relay}
[defaults]
sharing = "none"
relay_wait = "0 s"
slack = "0 s"
freshness = "1 h"
repair_horizon = "1 h"
"""
STAR = """\
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "center"
"""
TREE = """\
[sites.hub]
[[links]]
from = "a"
to = "hub"
[[links]]
from = "b"
to = "hub"
[[links]]
from = "hub"
to = "center"
"""
SQL = """\
CREATE STREAM hits (ts TIMESTAMP, page INT, bytes BIGINT) WITH (event_time = 'ts', path = 'data/{site}', sites = 'a,b',
  shed = true);
CREATE MATERIALIZED VIEW pages WITH ({options}) AS SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes
  FROM hits GROUP BY window(ts, '10 seconds'), page;
CREATE MATERIALIZED VIEW strict WITH (shed = 'never') AS SELECT window.start, count(*) AS n
  FROM hits GROUP BY window(ts, '10 seconds');
"""


def simulate(folder: Path, slow: str, options: str = "") -> DeploymentSimulation:
    """Run a project whose center, or relay, is too slow for some of its windows."""
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML.format(relay=STAR if slow == "center" else TREE))
    sql = SQL.replace("WITH ({options})", f"WITH ({options})" if options else "")
    (folder / "queries" / "all.sql").write_text(sql)
    deployment = Deployment.load(folder)
    stream = deployment.catalog.streams["hits"]
    workload = {("hits", site): ArrivingRecords.of(stream, site, draw_hits(seed)) for seed, site in enumerate(SITES)}

    def row_s(role: str, now_us: int) -> float:
        return ROW_S if role == slow and now_us < BEGIN_US + WINDOWS * WINDOW_S * SECOND_US else 0.0

    simulation = DeploymentSimulation(deployment, workload, options=WorldOptions(row_s=row_s))
    simulation.run().assert_right()
    return simulation


def draw_hits(seed: int) -> pa.Table:
    """One record of every page per window, and more of the lower pages."""
    numbers = np.random.default_rng(seed)
    instants: list[int] = []
    pages: list[int] = []
    for window in range(WINDOWS):
        number = PAGES if window in BUSY else CALM_PAGES
        seen = [*range(number), *numbers.integers(0, CALM_PAGES, number // 2).tolist()]
        offsets_us = numbers.integers(0, WINDOW_S * SECOND_US, len(seen))
        instants += (BEGIN_US + window * WINDOW_S * SECOND_US + offsets_us).tolist()
        pages += seen
    return pa.table(
        {
            "ts": pa.array(instants, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array(pages, pa.int32()),
            "bytes": numbers.integers(1, 100, len(pages)),
        }
    )


def first_answers_s(simulation: DeploymentSimulation, view: str) -> list[float]:
    """How long after its end each window was first answered; the last one waits for the end of the stream."""
    log = simulation.world.store.windows(view)
    assert log is not None
    first: dict[Any, float] = {}
    for row in log.to_pylist():
        first.setdefault(row["window_start"], (row["published_at"] - row["window_end"]).total_seconds())
    return list(first.values())[:-1]


def exact_answers(simulation: DeploymentSimulation, view: str) -> dict[tuple[Any, int], dict[str, Any]]:
    rows = simulation.world.store.results(view)
    assert rows is not None
    assert {row["status"] for row in rows.to_pylist()} <= {"exact", "final"}
    return {(row["window_start"], row["page"]): row for row in rows.to_pylist()}


def check_early_rows(simulation: DeploymentSimulation) -> None:
    """Rows that were published while groups were deferred are complete, or within their bounds."""
    truth = exact_answers(simulation, "pages")
    rows = simulation.world.store.rows("results", "pages")
    assert rows is not None
    early = [row for row in rows.to_pylist() if row["status"] == "on_time"]
    complete = [row for row in early if row["bound"]["n"] == 0.0]
    assert len(complete) > 20
    for row in early:
        last = truth[row["window_start"], row["page"]]
        if row["bound"]["n"] is not None:
            assert abs(row["n"] - last["n"]) <= row["bound"]["n"] * last["n"] + 1e-9
        if row["bound"]["bytes"] is not None:
            assert abs(row["bytes"] - last["bytes"]) <= row["bound"]["bytes"] * last["bytes"] + 1e-9
    assert all(row["bound"]["bytes"] == 0.0 for row in complete)
    assert all(row["coverage"] < 1.0 for row in early)


def reasons(simulation: DeploymentSimulation, view: str) -> list[str]:
    log = simulation.world.store.windows(view)
    assert log is not None
    return [str(reason) for reason in log["reason"].to_pylist()]


@pytest.mark.parametrize("slow", ["center", "hub"])
def test_under_overload_windows_are_answered_in_time_with_complete_groups_and_become_exact(
    slow: str, tmp_path: Path
) -> None:
    simulation = simulate(tmp_path / "project", slow)
    assert max(first_answers_s(simulation, "strict")) < FRESH_S
    assert max(first_answers_s(simulation, "pages")) < FRESH_S
    check_early_rows(simulation)
    place = "the center" if slow == "center" else slow
    assert any(f"groups were deferred at {place}" in reason for reason in reasons(simulation, "pages"))
    assert not any("deferred" in reason for reason in reasons(simulation, "strict")), "it does not tolerate it"
    assert not list(tmp_path.glob("project/state/**/deferred/*")), "nothing waits any more"


def test_where_no_view_tolerates_deferral_all_views_wait(tmp_path: Path) -> None:
    simulation = simulate(tmp_path / "project", "center", "shed = 'never'")
    assert max(first_answers_s(simulation, "strict")) > 2 * FRESH_S
    assert not any("deferred" in reason for reason in reasons(simulation, "pages"))
