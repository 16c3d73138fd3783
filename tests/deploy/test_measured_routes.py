"""Routes by what was measured: told where they pay clearly, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import write_status
from catchment.deploy.routes.measured_routes import LEAST_BYTES, find_better_routes, read_measured_links
from catchment.deploy.routes.route_mover import BETTER, MeasuredLink
from catchment.project.config import Project
from catchment.project.routes import HOP_US, SEGMENT_BYTES
from catchment.serve.explanation import explain_deployment
from catchment.serve.explanation_text import explanation_text
from catchment.timeline import SECOND_US

SQL = """CREATE STREAM hits (ts TIMESTAMP) WITH (event_time = 'ts', sites = 'a,b', path = 'data/{site}');
CREATE MATERIALIZED VIEW n WITH (sink = 'center,far') AS
  SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '1 minute');"""


def make_project(folder: Path, over_hub: str = 'bandwidth = "1 MB/s"') -> Project:
    links = [("a", "center", ""), ("b", "center", ""), ("a", "hub", over_hub), ("hub", "center", over_hub)]
    links += [("a", "far", ""), ("b", "far", "")]
    sites = "".join(f"[sites.{site}]\n" for site in ("center", "hub", "a", "b", "far"))
    text = f'[project]\nname = "p"\ncenter = "center"\n{sites}'
    text += "".join(f'[[links]]\nfrom = "{a}"\nto = "{b}"\n{more}\n' for a, b, more in links)
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(text)
    (folder / "queries" / "q.sql").write_text(SQL)
    return Project.load(folder)


def tell(project: Project, site: str, goodput: float, **more: Any) -> None:
    """Let a site say what it measured of its link to the center."""
    folder = project.site_folder(site)
    folder.mkdir(parents=True, exist_ok=True)
    told = {"goodput_bytes_per_s": goodput, "round_trip_s": 0.1, "bytes_sent": LEAST_BYTES}
    write_status(folder, {**told, **more})


def test_a_link_that_carries_a_tenth_makes_another_route_better_and_explain_says_so(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    tell(project, "a", 20_000.0)
    deployment = Deployment.load(tmp_path)
    (better,) = find_better_routes(project, read_measured_links(deployment))
    assert (better.site, better.route, better.better) == ("a", ("a", "center"), ("a", "hub", "center"))
    assert better.time_us == pytest.approx(SEGMENT_BYTES / 20_000 * SECOND_US + 0.05 * SECOND_US + HOP_US)
    assert better.better_us == pytest.approx(2 * (SEGMENT_BYTES / 1e6 * SECOND_US + HOP_US))
    answer = explain_deployment(deployment)
    assert answer["routes"] == [better.to_json()]
    assert "a -> hub -> center" in explanation_text(answer)


def test_a_route_that_is_not_twice_as_fast_is_no_better(tmp_path: Path) -> None:
    """The time at which a link stops to be worth it is found by halving: just beyond it there is advice, before not."""
    project = make_project(tmp_path)
    over_hub_s = 2 * (SEGMENT_BYTES / 1e6 + HOP_US / SECOND_US)
    limit = SEGMENT_BYTES / (BETTER * over_hub_s - 0.05 - HOP_US / SECOND_US)
    for goodput, count in ((limit * 1.01, 0), (limit * 0.99, 1)):
        assert len(find_better_routes(project, {("a", "center"): MeasuredLink(goodput, 0.1)})) == count


@pytest.mark.parametrize(
    ("over_hub", "more"),
    [
        ("", {}),
        ('bandwidth = "1 MB/s"', {"bytes_sent": LEAST_BYTES - 1}),
        ('bandwidth = "1 MB/s"', {"ways": {"used": ["a", "hub", "center"]}}),
        ('bandwidth = "1 MB/s"', {"goodput_bytes_per_s": None}),
    ],
    ids=["nothing is known of the other links", "little was sent", "it goes around", "nothing was measured"],
)
def test_nothing_is_said_of_what_is_not_known(tmp_path: Path, over_hub: str, more: dict[str, Any]) -> None:
    project = make_project(tmp_path, over_hub)
    tell(project, "a", 20_000.0, **more)
    assert find_better_routes(project, read_measured_links(Deployment.load(tmp_path))) == []


def test_what_was_measured_of_the_links_to_other_sinks_counts_too(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    to_far = {"to": "far", "goodput_bytes_per_s": 5e6, "round_trip_s": 0.2, "bytes_sent": LEAST_BYTES}
    tell(project, "b", 1e6, sinks={"far": to_far})
    found = read_measured_links(Deployment.load(tmp_path))
    assert found == {("b", "center"): MeasuredLink(1e6, 0.1), ("b", "far"): MeasuredLink(5e6, 0.2)}
