"""A submission is held against what links carry for every sink.

Catches: a view for another sink that overloads a link and is deployed without a word, and one for the center that is
let through because what other sinks get over the same link is left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.control.submission import compare_links, submit
from catchment.deploy.deployment import Deployment
from catchment.deploy.submit import plan_text
from catchment.errors import PlanError
from catchment.project.config import Project
from catchment.serve.explanation import explain_deployment
from tests.optimizer.test_evaluation_places import write_world

ANOTHER = """CREATE MATERIALIZED VIEW another WITH (sink = '{sink}') AS
  SELECT window.start, client, bytes, count(*) AS n FROM hits GROUP BY window(ts, '10 seconds'), client, bytes;"""


@pytest.mark.parametrize("sink", ["center", "hub1"])
def test_a_view_that_overloads_a_link_is_refused_wherever_it_is_answered(tmp_path: Path, sink: str) -> None:
    folder = write_world(tmp_path / "p", rows_per_s=200.0)
    with pytest.raises(PlanError, match="links would have to carry more than they can"):
        submit(folder, ANOTHER.format(sink=sink))
    told = submit(folder, ANOTHER.format(sink=sink), yes=True)
    assert any(link["overflows"] for link in told["links"])
    assert told["deployed"]


@pytest.mark.parametrize("sink", ["center", "hub1"])
def test_links_are_compared_by_what_explain_says_of_all_sinks(tmp_path: Path, sink: str) -> None:
    folder = write_world(tmp_path / "p", rows_per_s=5.0, light={"source1": "hub2"})
    project = Project.load(folder)
    before, after = plan_text(project, ANOTHER.format(sink=sink), "another.sql")
    compared = {(link["from"], link["to"]): link for link in compare_links(before, after)}
    for told, key in ((before, "now_bytes_per_s"), (after, "then_bytes_per_s")):
        links = {(link["from"], link["to"]): link for link in explain_deployment(told)["links"]}
        assert links.keys() <= compared.keys()
        for name, link in links.items():
            assert compared[name][key] == pytest.approx(link["of_all_sinks_bytes_per_s"])
    assert Deployment.load(folder).deployed.version == before.deployed.version
