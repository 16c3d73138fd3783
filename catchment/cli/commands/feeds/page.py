"""The live page of a command about feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.cli.output import notes

if TYPE_CHECKING:
    from catchment.feeds.language.view_graph import ViewGraph
    from catchment.feeds.protocol.messages import Notice
    from catchment.feeds.runs.workload import Workload
    from catchment.serve.feeds_page import FeedsPage

RECENT_NOTICES = 10


def open_page(port: int | None, stack: ExitStack) -> FeedsPage | None:
    """Serve a page for as long as the stack is open, if a port is given."""
    if port is None:
        return None
    from catchment.serve.feeds_page import FeedsPage

    page = stack.enter_context(FeedsPage(port))
    notes.print(f"live page: {page.url}", highlight=False)
    return page


def page_data(
    folder: Path,
    workload: Workload,
    graph: ViewGraph,
    snapshots: Sequence[Mapping[str, Any]],
    *,
    transport: str,
    cloud: str,
    notices: Sequence[Notice] = (),
) -> dict[str, Any]:
    """Return what the page shows of runs, the newest notices first."""
    recent = notices[: -RECENT_NOTICES - 1 : -1]
    return {
        "title": str(folder),
        "data": workload.source,
        "devices": max([len(workload.rates), *(run["devices_heard"] for run in snapshots)]),
        "views": len(graph.views),
        "transport": transport,
        "cloud": cloud,
        "runs": list(snapshots),
        "recent": [{"device": n.notified, "view": n.view, "values": list(n.values)} for n in recent],
    }
