"""The ready Grafana dashboard asks for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import catchment
from catchment.serve.metrics import METRICS, write_metrics

FILE = Path(catchment.__file__).parent.parent / "examples" / "grafana" / "catchment.json"
OVERVIEW: dict[str, Any] = {
    "sites": [
        {
            "name": "us",
            "state": "running",
            "age_s": 0.1,
            "rows": 1,
            "read_bytes": 1,
            "quarantined": 0,
            "implausible_times": 0,
            "late_after_stated": 0,
            "pending_rows": 0,
        }
    ],
    "links": [{"from": "us", "to": "c", "bytes_sent": 1, "queued_bytes": 0, "capacity_bytes_per_s": 9.0}],
    "views": [
        {
            "name": "v",
            "closed_us": 1,
            "open_slices": 0,
            "late_records": 0,
            "newest": {"coverage": 1.0},
            "suspended": [],
            "sites": [{"site": "us", "behind_s": 0.0, "slack_s": 2.0}],
        },
    ],
    "deferral": {"center": {"load": 0.1, "waiting_bytes": 0, "deferred_rows": 0}},
    "refused": {"corrupt": 1},
}


def targets() -> list[dict[str, str]]:
    return [target for panel in json.loads(FILE.read_text())["panels"] for target in panel["targets"]]


def test_every_metric_of_the_dashboard_exists() -> None:
    asked = {name for target in targets() for name in re.findall(r"catchment_\w+", target["expr"])}
    assert len(asked) > 10
    assert asked <= set(METRICS)


def test_legends_name_labels_that_the_metrics_have() -> None:
    written = write_metrics(OVERVIEW)
    for target in targets():
        (metric,) = re.findall(r"catchment_\w+", target["expr"])
        labels = set(re.findall(r'(\w+)="', re.findall(rf"^{metric}\{{(.*)\}}", written, re.MULTILINE)[0]))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_counters_are_shown_as_rates_and_gauges_as_they_are() -> None:
    for target in targets():
        (metric,) = re.findall(r"catchment_\w+", target["expr"])
        is_rate = bool(re.search(r"\b(rate|increase)\(", target["expr"]))
        assert is_rate == (METRICS[metric][0] == "counter")


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in json.loads(FILE.read_text())["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
