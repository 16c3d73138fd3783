"""How a role does, as plain JSON: for the live table, for `show`, and for whoever looks into the state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.timeline import START_OF_TIME_US

if TYPE_CHECKING:
    from catchment.spark.center_pipeline import CenterPipeline
    from catchment.spark.site_pipeline import SitePipeline

STATUS_FILE = "status.json"


def site_status(pipeline: SitePipeline) -> dict[str, Any]:
    """Rows read, what is cached, what went over the link."""
    link = pipeline.sender.snapshot()
    return {
        "rows": sum(s.rows for s in pipeline.states),
        "quarantined": sum(s.quarantined for s in pipeline.states),
        "newest_event_us": max((s.newest_us for s in pipeline.states if s.newest_us is not None), default=None),
        "pending_rows": pipeline.core.pending_rows,
        "fragments": pipeline.core.account(),
        "bytes_sent": link.bytes_sent,
        "bytes_by_fragment": dict(link.fragment_bytes),
        "queued_bytes": pipeline.outbox.size_bytes,
        "goodput_bytes_per_s": link.goodput_bytes_per_s,
        "round_trip_s": link.round_trip_s,
        **pipeline.meter.use(pipeline.link.bandwidth_bytes_per_s, link.goodput_bytes_per_s),
        "statistics": pipeline.meter.statistics(),
        "connected": link.connected,
        "last_error": link.last_error,
        "shedding": {
            s.stream.name: s.shedding.status(len(pipeline.core.debts.of(s.stream.name)))
            for s in pipeline.states
            if s.shedding is not None
        },
        "finished": pipeline.finished,
        "contracts": pipeline.host.look(lambda: pipeline.core.contracts(pipeline.clock.now_us())),
    }


def center_status(center: CenterPipeline) -> dict[str, Any]:
    """Per query: how far each site has come and what is closed."""
    queries = {}
    for name, windows in center.core.queries.items():
        marks = {s: m if m > START_OF_TIME_US else None for s, m in center.core.marks(name).items()}
        closed = windows.closed_us if windows.closed_us > START_OF_TIME_US else None
        queries[name] = {
            "marks_us": marks, "closed_us": closed, "open_slices": len(windows.slices),
            "late_records": windows.late_records, "outstanding_records": windows.late.records,
            "unmerged_records": windows.unmerged_records, "shed_windows": len(windows.debts),
        }  # fmt: skip
    return {"published": center.published, "refused": dict(center.inbox.refused), "queries": queries}


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Replace what the role last said of itself; it need not survive a power cut."""
    unfinished = folder / f"{STATUS_FILE}.tmp"
    unfinished.write_text(json.dumps(status))
    os.replace(unfinished, folder / STATUS_FILE)
