"""What the center tells of its queries and sites, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catchment.center.composed.windows import ComposedState
from catchment.center.core import CenterCore
from catchment.center.windows.query_windows import QueryWindows
from catchment.center.windows.renewed import first_window_us
from catchment.center.windows.unfinished import UnfinishedState
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import Suspended


def describe_queries(core: CenterCore) -> dict[str, Any]:
    """Return how far each query has come, and each view of a view."""
    return {
        "queries": {name: _describe_query(core, name, q.windows) for name, q in list(core.queries.items())},
        "composed": {name: _describe_composed(c.state) for name, c in list(core.composed.items())},
    }


def describe_sites(
    core: CenterCore, refusals: Mapping[str, Mapping[str, Any]], heard_at_us: Mapping[str, int]
) -> dict[str, Any]:
    """Return since when each site counts, how often it was replaced, and what of it was left out."""
    refused = {site: {r: told["count"] for r, told in of.items()} for site, of in refusals.items()}
    counts_from: dict[str, int] = {}
    for running in list(core.queries.values()):
        for part in running.sources.parts:
            for site in part.roster.present:
                counts_from[site] = max(counts_from.get(site, START_OF_TIME_US), part.roster.from_us(site))
    return {
        site: {
            "counts_from_us": _if_known(counts_from.get(site, START_OF_TIME_US)),
            "life": core.sites.lives.get(site, 0),
            "left_out_records": core.sites.left_out.get(site, 0),
            "heard_at_us": heard_at_us.get(site),
            "refused": refused.get(site, {}),
        }
        for site in sorted({*counts_from, *core.sites.lives, *core.sites.left_out, *refused})
    }


def _describe_query(core: CenterCore, name: str, windows: QueryWindows) -> dict[str, Any]:
    return {
        "marks_us": {site: _if_known(mark) for site, mark in core.marks(name).items()},
        "closed_us": _if_known(windows.state.closed_us),
        "has_begun": core.queries[name].has_begun,
        "changeable_from_us": _changeable_from_us(core, name),
        "renewed_windows": len(windows.state.renewed),
        "open_slices": len(windows.state.slices),
        "late_records": windows.state.late_records,
        "outstanding_records": windows.state.late.records,
        "unmerged_records": windows.state.unmerged_records,
        "unmerged_of_sites": dict(windows.state.unmerged_of_sites),
        "shed_windows": len(windows.outstanding),
        "deferred_windows": len(windows.outstanding.deferred.starts_us),
        "suspended": {site: _describe_suspension(fact) for site, fact in core.suspensions(name).items()},
        "suspended_windows": len(windows.state.skipped),
        "backfilling": core.backfilling(name),
        "unfinished": _describe_unfinished(windows.state.unfinished),
    }


def _changeable_from_us(core: CenterCore, name: str) -> int | None:
    """Return the start of the first window of a query that is not final; None if any window may be."""
    running = core.queries[name]
    begin_us = running.sources.start_us
    if begin_us is None:
        return None
    return _if_known(first_window_us(running.query, running.windows.state.final_us, begin_us))


def _describe_unfinished(state: UnfinishedState) -> dict[str, Any] | None:
    if state.suspended is None and not state.windows:
        return None
    return {
        "reason": None if state.suspended is None else state.suspended.reason,
        "windows_us": (min(state.windows), max(state.windows)) if state.windows else None,
        "windows": len(state.windows),
        "given_up": state.given_up,
    }


def _describe_composed(state: ComposedState) -> dict[str, Any]:
    return {
        "reads": state.query.lower,
        "closed_us": _if_known(state.closed_us),
        "windows_not_final": len(state.windows),
    }


def _describe_suspension(fact: Suspended) -> dict[str, Any]:
    return {
        "fragment": fact.fragment,
        "batch": fact.batch,
        "from_us": fact.from_us,
        "reason": fact.reason,
        "expression": fact.expression,
        "record": fact.record,
    }


def _if_known(instant_us: int) -> int | None:
    return instant_us if instant_us > START_OF_TIME_US else None
