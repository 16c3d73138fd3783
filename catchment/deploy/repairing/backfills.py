"""Which views read their past from history, and how far each site is, by what sites last wrote as their status."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from catchment.deploy.reports.role_files import read_status
from catchment.project.config import Project


def find_backfills(project: Project, fragments: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield how far the past of each of these fragments was read, at every site that runs from this state folder."""
    for folder in sorted(project.state_folder.glob("sites/*")):
        known = (read_status(folder) or {}).get("fragments", {})
        for fragment in sorted(set(fragments) & known.keys()):
            backfill = known[fragment].get("backfill")
            if backfill:
                yield {"site": folder.name, "fragment": fragment, **backfill}


def is_over(backfill: dict[str, Any]) -> bool:
    """Return whether all of a past was read."""
    return int(backfill["read_batches"]) >= int(backfill["batches"])
