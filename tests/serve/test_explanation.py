"""Explanations: predictions add up, agree with plans, fit on a screen and become a picture; changes are as if made.

What `whatif` predicts is compared with the explanation of a folder in which the change was really made.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from catchment.deploy.deployment import Deployment
from catchment.errors import ConfigError, QueryError
from catchment.optimizer.choices import Planner, Strength
from catchment.optimizer.placement.plan_json import write_plan
from catchment.optimizer.placement.planner import plan_wan, queries_of_catalog
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing.link_traffic import bytes_over_links
from catchment.optimizer.sharing.statistics import load_statistics
from catchment.project.routes import Routes
from catchment.serve.explanation import explain_deployment
from catchment.serve.explanation_text import explanation_text, rate, seconds
from catchment.serve.plan_picture import plan_html, plan_svg
from catchment.serve.what_if import Changes, compare_changes

SITES = ("us", "eu", "asia")
VIEWS = """
CREATE MATERIALIZED VIEW traffic AS SELECT window.start, country, code, count(*) AS n, sum(bytes) AS bytes
  FROM hits GROUP BY window(ts, '1 minute'), country, code;
CREATE MATERIALIZED VIEW errors AS SELECT window.start, country, count(*) AS n
  FROM hits WHERE code >= 400 GROUP BY window(ts, '1 minute'), country;
CREATE MATERIALIZED VIEW clients AS SELECT window.start, approx_count_distinct(client) AS clients
  FROM hits GROUP BY window(ts, '1 minute');
"""
ANOTHER = """CREATE MATERIALIZED VIEW another AS SELECT window.start, client, count(*) AS n FROM hits
  GROUP BY window(ts, '1 minute'), client;"""


def write(
    folder: Path,
    *,
    sites: tuple[str, ...] = SITES,
    bandwidths: dict[str, str] | None = None,
    rows_per_s: float | None = 300.0,
    more: str = "",
) -> Path:
    (folder / "queries").mkdir(parents=True)
    limits = {"us": "64 KB/s", "eu": "64 KB/s", **(bandwidths or {})}
    toml = '[project]\nname = "p"\ncenter = "center"\n[sites.center]\n'
    for site in sites:
        toml += f'[sites.{site}]\n[[links]]\nfrom = "{site}"\nto = "center"\nlatency = "50 ms"\n'
        toml += f'bandwidth = "{limits[site]}"\n' if site in limits else ""
    stream = "CREATE STREAM hits (ts TIMESTAMP, client STRING, country STRING, code INT, bytes BIGINT) WITH "
    stream += f"(event_time = 'ts', sites = '{','.join(sites)}', path = 'data/{{site}}');"
    (folder / "catchment.toml").write_text(toml)
    (folder / "queries" / "q.sql").write_text(stream + VIEWS + more)
    if rows_per_s is not None:
        told = f"[streams.hits]\nrows_per_s = {rows_per_s * len(sites)}\nrow_bytes = 100\n"
        (folder / "statistics.toml").write_text(told + "[streams.hits.distinct]\ncountry = 40\ncode = 8\n")
    return folder


def explained(folder: Path, **options: Any) -> dict[str, Any]:
    return explain_deployment(Deployment.load(folder), **options)


def link_rates(answer: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(link["from"], link["to"]): link["bytes_per_s"] for link in answer["links"]}


def test_a_link_carries_what_the_fragments_of_its_site_send(tmp_path: Path) -> None:
    answer = explained(write(tmp_path / "p"))
    for site in answer["sites"]:
        sent = sum(fragment["bytes_per_s"] for fragment in site["fragments"])
        assert link_rates(answer)[site["site"], "center"] == pytest.approx(sent)
    (us,) = [link for link in answer["links"] if link["from"] == "us"]
    assert us["utilisation"] == us["bytes_per_s"] / 64_000
    (asia,) = [link for link in answer["links"] if link["from"] == "asia"]
    assert asia["utilisation"] is None


def test_explain_and_plan_agree_on_every_link(tmp_path: Path) -> None:
    deployment = Deployment.load(write(tmp_path / "p"))
    catalog = deployment.catalog
    known = load_statistics(deployment.project, catalog)
    planned = plan_wan(
        queries_of_catalog(catalog),
        Topology.of_project(deployment.project),
        known,
        Strength.FULL,
        Planner.RUN,
        bytes_of=bytes_over_links(Routes.of(deployment.project), known),
    )
    rates = {(link["from"], link["to"]): link["bytes_per_s"] for link in write_plan(planned)["links"]}
    assert link_rates(explain_deployment(deployment)) == pytest.approx(rates)


def test_where_rates_come_from_is_said(tmp_path: Path) -> None:
    declared = explained(write(tmp_path / "declared"))
    assert [r["origin"] for r in declared["rates"]] == ["declared in statistics.toml"]
    assumed = explained(write(tmp_path / "assumed", rows_per_s=None))
    assert [r["origin"] for r in assumed["rates"]] == ["assumed"]
    assert "hits: 1,000 rows/s per site of event time, assumed" in explanation_text(assumed)


@pytest.mark.parametrize(
    ("option", "meant"), [("", "copy"), (", history = 'reference'", "reference"), (", history = false", None)]
)
def test_how_records_are_kept_is_said(tmp_path: Path, option: str, meant: str | None) -> None:
    folder = write(tmp_path / "p")
    for file in (folder / "queries").glob("*.sql"):
        text = file.read_text()
        file.write_text(text.replace("event_time = 'ts'", f"event_time = 'ts'{option}"))
    answer = explained(folder)
    assert [r["history"] for r in answer["rates"]] == [meant]
    assert ("history refers to its files" in explanation_text(answer)) == (meant == "reference")


def test_what_is_shared_and_why_is_said_of_each_view(tmp_path: Path) -> None:
    answer = explained(write(tmp_path / "p"))
    fragments = {v["view"]: v["sharing"]["fragment"] for v in answer["views"]}
    assert fragments["errors"] == fragments["traffic"] != fragments["clients"]
    text = explanation_text(answer)
    assert "derived from what traffic needs too" in text
    assert re.search(rf"us, eu, asia: {fragments['traffic']} for traffic, errors; {fragments['clients']} for", text)


@pytest.mark.parametrize("width", [80, 100])
def test_the_text_of_a_view_fits_on_a_screen(tmp_path: Path, width: int) -> None:
    text = explanation_text(explained(write(tmp_path / "p")), width)
    assert all(len(line) <= width for line in text.splitlines())
    blocks = text.split("\n\n")
    assert len(blocks) == 3 + 3
    assert all(len(block.splitlines()) <= 9 for block in blocks)


def test_estimates_are_rounded() -> None:
    assert [rate(x) for x in (0.0, 4.04, 1234.5, 98_765.0, None)] == [
        "0 bytes/s",
        "4 bytes/s",
        "1.2 KB/s",
        "99 KB/s",
        "-",
    ]
    assert [seconds(x) for x in (0.0, 0.8512, 3.21, 59.6, 1234.0)] == ["0 ms", "850 ms", "3.2 s", "60 s", "21 min"]
    assert seconds(float("inf")).startswith("never")


def test_an_answer_takes_longer_over_a_slower_link(tmp_path: Path) -> None:
    def after_s(folder: Path) -> float:
        views = {v["view"]: v["predicted"]["answered_after_s"] for v in explained(folder)["views"]}
        return float(views["traffic"])

    fast = after_s(write(tmp_path / "fast"))
    slow = after_s(write(tmp_path / "slow", bandwidths={"eu": "1 KB/s"}))
    assert fast > 0.5 + 0.05, "a micro-batch and the latency of the link, at least"
    sent = explained(tmp_path / "slow")["sites"][1]["fragments"][0]["bytes_per_s"] * 60
    assert slow - fast == pytest.approx(sent / 1_000 - sent / 64_000)


def test_the_picture_shows_every_site_view_and_fragment(tmp_path: Path) -> None:
    answer = explained(write(tmp_path / "p", more=ANOTHER))
    svg = plan_svg(answer, "center")
    root = ElementTree.fromstring(svg)
    texts = " ".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
    names = [*SITES, "center", *(v["view"] for v in answer["views"])]
    fragments = {f["fragment"] for site in answer["sites"] for f in site["fragments"]}
    assert all(name in texts for name in (*names, *fragments))
    page = plan_html(answer, "center", "<b>")
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert svg in page


def test_boxes_of_the_picture_do_not_overlap(tmp_path: Path) -> None:
    svg = plan_svg(explained(write(tmp_path / "p", more=ANOTHER)), "center")
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="210" height="([\d.]+)"', svg)
    boxes = [tuple(map(float, box)) for box in found]
    assert len(boxes) == 4 + 4
    for n, (x, y, height) in enumerate(boxes):
        for other_x, other_y, other_height in boxes[n + 1 :]:
            assert x != other_x or y + height <= other_y or other_y + other_height <= y


def test_analyze_puts_measured_bytes_and_answers_beside_predicted_ones(tmp_path: Path) -> None:
    folder = write(tmp_path / "p")
    fragments = [f["fragment"] for f in explained(folder)["sites"][0]["fragments"]]
    status = {
        "newest_event_us": 1,
        "statistics": {
            "rows_per_s": {"hits": 50.0},
            "fragments": {
                name: {"rows": 6_000, "bytes": 1_200, "selectivity": 1.0, "distinct": {}} for name in fragments
            },
        },
    }
    (folder / "state" / "sites" / "us").mkdir(parents=True)
    (folder / "state" / "sites" / "us" / "status.json").write_text(json.dumps(status))
    answer = explained(folder, analyze=True)
    us, eu, _ = answer["links"]
    assert us["bytes_per_s"] == pytest.approx(link_rates(explained(write(tmp_path / "unmeasured")))["us", "center"])
    assert us["measured_bytes_per_s"] == pytest.approx(len(fragments) * 1_200 / 120), "6,000 rows are 120 s"
    assert eu["measured_bytes_per_s"] is None
    assert [v["measured"] for v in answer["views"]] == [None] * 3
    assert "predicted and measured" in explanation_text(answer)


# ---- what if


def then_rates(answer: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(link["from"], link["to"]): link["then"]["bytes_per_s"] for link in answer["links"] if link["then"]}


def then_after_s(answer: dict[str, Any]) -> dict[str, float]:
    return {view["view"]: view["then"]["answered_after_s"] for view in answer["views"]}


@pytest.mark.parametrize(
    ("changes", "made"),
    [
        (Changes(rates=["hits=x2"]), {"rows_per_s": 600.0}),
        (Changes(rates=["hits=77"]), {"rows_per_s": 77.0}),
        (Changes(links=["us:center=x0.5"]), {"bandwidths": {"us": "32 KB/s"}}),
        (Changes(links=["asia:center=5 KB/s"]), {"bandwidths": {"asia": "5 KB/s"}}),
        (Changes(sites=["tokyo=eu"]), {"sites": (*SITES, "tokyo"), "bandwidths": {"tokyo": "64 KB/s"}}),
        (
            Changes(sites=["tokyo=eu"], rates=["hits=x2"], links=["tokyo:center=x0.5"]),
            {"sites": (*SITES, "tokyo"), "bandwidths": {"tokyo": "32 KB/s"}, "rows_per_s": 600.0},
        ),
    ],
)
def test_a_change_is_predicted_as_if_it_had_been_made(tmp_path: Path, changes: Changes, made: dict[str, Any]) -> None:
    answer = compare_changes(Deployment.load(write(tmp_path / "now")), changes)
    now = explained(tmp_path / "now")
    then = explained(write(tmp_path / "then", **made))
    assert {(i["from"], i["to"]): i["now"]["bytes_per_s"] for i in answer["links"] if i["now"]} == link_rates(now)
    assert then_rates(answer) == pytest.approx(link_rates(then))
    assert then_after_s(answer) == pytest.approx({v["view"]: v["predicted"]["answered_after_s"] for v in then["views"]})
    assert answer["wan_bytes_per_s"]["then"] == pytest.approx(sum(link_rates(then).values()))
    assert not (tmp_path / "now" / ".what-if").exists()
    assert not (tmp_path / "now" / "state").exists()


def test_a_query_to_try_out_is_planned_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "another.sql").write_text(ANOTHER)
    answer = compare_changes(Deployment.load(write(tmp_path / "now")), Changes(queries=[tmp_path / "another.sql"]))
    then = explained(write(tmp_path / "then", more=ANOTHER))
    assert then_rates(answer) == pytest.approx(link_rates(then))
    (added,) = [view for view in answer["views"] if view["now"] is None]
    assert added["view"] == "another"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Changes(rates=["hits"]), "cannot read 'hits'"),
        (Changes(rates=["hits=x0"]), "cannot read '0'"),
        (Changes(rates=["hit=x2"]), "no stream 'hit'"),
        (Changes(links=["us:mars=x2"]), "no link from site 'us' to site 'mars'"),
        (Changes(links=["asia:center=x2"]), "no declared bandwidth"),
        (Changes(sites=["eu=us"]), "a site 'eu' already"),
        (Changes(sites=["tokyo=mars"]), "no site 'mars'"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(tmp_path: Path, changes: Changes, message: str) -> None:
    with pytest.raises((ConfigError, QueryError), match=message) as caught:
        compare_changes(Deployment.load(write(tmp_path / "p")), changes)
    assert caught.value.hint
