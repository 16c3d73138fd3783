"""The overview of a deployment as Prometheus metrics, in their text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# name -> (kind, what it says)
METRICS: Mapping[str, tuple[str, str]] = {
    "catchment_site_up": ("gauge", "whether a site writes its status, and its link is up (1) or not (0)"),
    "catchment_site_status_age_seconds": ("gauge", "how long ago a site last wrote its status"),
    "catchment_site_rows_total": ("counter", "records that a site has read since it started"),
    "catchment_site_read_bytes_total": ("counter", "bytes of the files that a site has read since it started"),
    "catchment_site_quarantined_total": ("counter", "records that a site could not use"),
    "catchment_site_implausible_times_total": ("counter", "records whose event time is far from their stream"),
    "catchment_site_late_after_stated_total": (
        "counter",
        "records that came after their source had stated that nothing so old would come",
    ),
    "catchment_site_pending_rows": ("gauge", "partials that wait at a site to be sent"),
    "catchment_link_sent_bytes_total": ("counter", "bytes that were sent over a link since its site started"),
    "catchment_link_forwarded_bytes_total": ("counter", "of those, bytes that a site forwarded for others"),
    "catchment_way_used": ("gauge", "whether the segments of a site or relay take this way now (1) or not (0)"),
    "catchment_way_changes_total": ("counter", "how often a site or relay has changed to another way"),
    "catchment_link_queued_bytes": ("gauge", "bytes that wait on disk for a link"),
    "catchment_link_capacity_bytes_per_second": ("gauge", "the declared bandwidth of a link"),
    "catchment_view_closed_seconds": ("gauge", "the event time up to which a view has closed its windows"),
    "catchment_view_open_slices": ("gauge", "slices of a view that are not closed yet"),
    "catchment_view_late_records_total": ("counter", "records of a view that came after their window was published"),
    "catchment_view_newest_coverage": ("gauge", "the share of records in the newest published window of a view"),
    "catchment_view_suspended": ("gauge", "at how many places a view is suspended because its expression failed"),
    "catchment_view_site_behind_seconds": ("gauge", "how far a site is behind the first one for a view, in event time"),
    "catchment_view_slack_seconds": ("gauge", "how long a site waits for late records of a view with a contract"),
    "catchment_merge_load": (
        "gauge",
        "how busy a relay or the center would be if it merged all that lands (1 = always)",
    ),
    "catchment_deferred_bytes": ("gauge", "partials that wait on disk because more landed than could be merged"),
    "catchment_deferred_rows_total": (
        "counter",
        "rows of partials that were deferred since a relay or the center started",
    ),
    "catchment_center_refused_total": ("counter", "messages that the center refused, by reason"),
}


def write_metrics(overview: Mapping[str, Any]) -> str:
    """Return the metrics of an overview."""
    samples: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in _samples(overview):
        if value is not None:
            written = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            samples[name].append(f"{name}{{{written}}} {float(value):.17g}")
    lines: list[str] = []
    for name, (kind, meaning) in METRICS.items():
        if samples[name]:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *samples[name]]
    return "\n".join(lines) + "\n"


def _samples(overview: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    for site in overview["sites"]:
        at = {"site": site["name"]}
        yield "catchment_site_up", at, float(site["state"] in ("running", "finished"))
        yield "catchment_site_status_age_seconds", at, site["age_s"]
        yield "catchment_site_rows_total", at, site["rows"]
        yield "catchment_site_read_bytes_total", at, site["read_bytes"]
        yield "catchment_site_quarantined_total", at, site["quarantined"]
        yield "catchment_site_implausible_times_total", at, site["implausible_times"]
        yield "catchment_site_late_after_stated_total", at, site["late_after_stated"]
        yield "catchment_site_pending_rows", at, site["pending_rows"]
        yield from _way_samples(site)
    for link in overview["links"]:
        between = {"from": link["from"], "to": link["to"]}
        yield "catchment_link_sent_bytes_total", between, link["bytes_sent"]
        yield "catchment_link_forwarded_bytes_total", between, link.get("forwarded_bytes") or None
        yield "catchment_link_queued_bytes", between, link["queued_bytes"]
        yield "catchment_link_capacity_bytes_per_second", between, link["capacity_bytes_per_s"]
    for view in overview["views"]:
        of = {"view": view["name"]}
        closed_us = view["closed_us"]
        yield "catchment_view_closed_seconds", of, None if closed_us is None else closed_us / 1e6
        yield "catchment_view_open_slices", of, view["open_slices"]
        yield "catchment_view_late_records_total", of, view["late_records"]
        yield "catchment_view_newest_coverage", of, view["newest"] and view["newest"]["coverage"]
        yield "catchment_view_suspended", of, float(len(view["suspended"]))
        for standing in view["sites"]:
            at = {**of, "site": standing["site"]}
            yield "catchment_view_site_behind_seconds", at, standing["behind_s"]
            yield "catchment_view_slack_seconds", at, standing["slack_s"]
    for place, deferral in overview["deferral"].items():
        yield "catchment_merge_load", {"site": place}, deferral["load"]
        yield "catchment_deferred_bytes", {"site": place}, deferral["waiting_bytes"]
        yield "catchment_deferred_rows_total", {"site": place}, deferral["deferred_rows"]
    for reason, count in overview["refused"].items():
        yield "catchment_center_refused_total", {"reason": str(reason)}, float(count)


def _way_samples(site: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    ways = site.get("ways") or {}
    for known in ways.get("known", ()):
        labels = {"site": site["name"], "way": " -> ".join(known["way"])}
        yield "catchment_way_used", labels, float(known["way"] == ways["used"])
    if ways:
        yield "catchment_way_changes_total", {"site": site["name"]}, float(ways["changes"])


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
