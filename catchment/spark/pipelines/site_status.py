"""What a site says of itself, as plain JSON."""

from __future__ import annotations

from typing import Any

from catchment.project.routings import end_of
from catchment.site.exits import exit_status
from catchment.spark.pipelines.site import SitePipeline


def site_status(pipeline: SitePipeline) -> dict[str, Any]:
    """Return rows read, what is cached, and what went over the link."""
    link = pipeline.sender.snapshot()
    return {
        "rows": sum(s.rows for s in pipeline.states),
        "read_bytes": _read_bytes(pipeline),
        "quarantined": sum(s.quarantined for s in pipeline.states),
        "implausible_times": sum(s.far_records + s.agreed_time.held_records for s in pipeline.states),
        "newest_event_us": max((s.newest_us for s in pipeline.states if s.newest_us is not None), default=None),
        "pending_rows": pipeline.core.pending_rows,
        "fragments": pipeline.core.fragment_status(),
        **pipeline.meter.link_status(link, pipeline.outbox.size_bytes, pipeline.link.bandwidth_bytes_per_s),
        "ways": pipeline.sender.ways.status(),
        "sinks": {e.name: exit_status(e) for e in pipeline.exits if e.name and not end_of(e.name)},
        "exits": {e.name: exit_status(e) for e in pipeline.exits if end_of(e.name)},
        "statistics": pipeline.meter.statistics(),
        "shedding": {
            s.stream.name: s.shedding.status(len(pipeline.core.debts.of(s.stream.name)))
            for s in pipeline.states
            if s.shedding is not None
        },
        "repair_failure": pipeline.repair_failure,
        "streams": {s.stream.name: s.reader.status(pipeline.clock.now_us()) for s in pipeline.states},
        "files": pipeline.host.look(pipeline.core.files.status),
        "disk": pipeline.free_space.status(),
        "finished": pipeline.finished,
        "stated": pipeline.host.look(pipeline.core.stated_status),
        "contracts": pipeline.host.look(lambda: pipeline.core.contract_status(pipeline.clock.now_us())),
    }


def _read_bytes(pipeline: SitePipeline) -> int | None:
    """Return the bytes of the files that were read; None where a source that is no file has given records."""
    if any(s.rows and not s.read_bytes for s in pipeline.states):
        return None
    return sum(s.read_bytes for s in pipeline.states)
