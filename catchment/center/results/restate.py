"""Windows that were final and are computed again on request, published as revisions of the view that they are of.

A view of its own computes them from the histories of the sites, and ends. Each of its windows that is final, with all
its records, takes the place of what was published of that window, in one revision. Where history no longer holds
everything, or a site is missing, the former answer stands, and the log of windows says why: a repair never makes an
answer worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from catchment.center.events import Action, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.layout import instants
from catchment.center.results.write import ResultTables
from catchment.center.statuses import FINAL
from catchment.query.window_repair import WindowRepair

_WORD = ("window_start", "revision", "status", "coverage", "missing_sites", "entry", "step")


def restate_windows(
    name: str, repairs: Mapping[str, WindowRepair], tables: Mapping[str, ResultTables], actions: Iterable[Action]
) -> Iterator[Publish]:
    """Yield the revisions of a view that follow from windows which were computed again for it, and are final now.

    What these actions publish of the windows themselves must be in their tables already.
    """
    for action in actions:
        if isinstance(action, Publish) and action.query in repairs and action.status == FINAL:
            repair = repairs[action.query]
            if repair.view == name and repair.covers(action.window.start_us):
                yield _restate(action, tables[name], tables[action.query])


def _restate(again: Publish, target: ResultTables, source: ResultTables) -> Publish:
    start_us = again.window.start_us
    former = _newest_word(target, start_us)
    rows = source.recall_answers([start_us]).drop_columns([WINDOW_COLUMN])
    restated = replace(
        again,
        query=target.query,
        revision=1 if former is None else former["revision"] + 1,
        reason="computed again on request, from the histories of the sites",
        rows=rows,
        replaces=former is not None,
        has_answer=True,
    )
    if former is None or not again.missing_sites:
        return restated
    lacking = ", ".join(again.missing_sites)
    return replace(
        restated,
        revision=former["revision"],
        status=former["status"],
        coverage=former["coverage"],
        missing_sites=tuple(former["missing_sites"]),
        reason=f"its former answer stands: not everything could be computed again, for lack of records of {lacking}",
        rows=rows.slice(0, 0),
        replaces=False,
        has_answer=False,
    )


def _newest_word(tables: ResultTables, start_us: int) -> dict[str, Any] | None:
    """Return what was last said of a window; None if it was never published."""
    found = tables.read_log(_WORD, instants(start_us))
    rows = [] if found is None else found.to_pylist()
    return max(rows, key=lambda row: (row["entry"], row["step"]), default=None)
