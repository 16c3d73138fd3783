"""Windows that were final and are computed again on request, published as revisions of the view that they are of.

A view of its own computes them from the histories of the sites, and ends. Each of its windows that is final, with all
its records, takes the place of what was published of that window, in one revision. Where history no longer holds
everything, or a site is missing, the former answer stands, and the log of windows says why: a repair never makes an
answer worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.events import Action, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.second_round import DONE, STAYS, RoundRule, assess_round, has_estimates, settle_window
from catchment.center.results.write import ResultTables
from catchment.center.round_notes import RoundNotes
from catchment.center.statuses import FINAL, LATE_ARE_OUT
from catchment.query.window_repair import WindowRepair


def restate_windows(
    name: str,
    repairs: Mapping[str, WindowRepair],
    tables: Mapping[str, ResultTables],
    actions: Iterable[Action],
    rules: Mapping[str, RoundRule] | None = None,
) -> Iterator[Publish]:
    """Yield the revisions of a view that follow from windows which were computed again for it, and are final now.

    What these actions publish of the windows themselves must be in their tables already.
    """
    for action in actions:
        if isinstance(action, Publish) and action.query in repairs and _is_over(action):
            repair = repairs[action.query]
            if repair.view != name or not repair.covers(action.window.start_us):
                continue
            if not repair.is_second_round:
                if action.status == FINAL:
                    yield _restate(action, tables[name], tables[action.query])
                continue
            former = tables[name].newest_word(action.window.start_us)
            whole_windows = name in (rules or {}) and (rules or {})[name].whole_windows
            settled = settle_window(action, tables[name], tables[action.query], former, whole_windows)
            if settled is not None:
                yield settled


def _is_over(action: Publish) -> bool:
    """Return whether a window changes no more: it is final, or lacks records that came too late for it."""
    return action.status == FINAL or action.reason.startswith(LATE_ARE_OUT)


def note_rounds(
    tables: ResultTables, rule: RoundRule, published: Sequence[Publish], notes: RoundNotes
) -> tuple[list[Publish], list[int]]:
    """Return what is published, where windows that are final now say what becomes of their estimates.

    Return also the starts of those for which a second round is due.
    """
    told: list[Publish] = []
    due: list[int] = []
    for number, revision in enumerate(published):
        start_us = revision.window.start_us
        if revision.rows.num_rows:
            notes.note_rows(tables.query, start_us, revision.revision, has_estimates(tables.fragment, revision.rows))
        if revision.status == FINAL and not revision.reason.startswith((DONE, STAYS)):
            if notes.is_certainly_exact(tables.query, start_us):
                told.append(revision)
                continue
            found = assess_round(tables.fragment, rule, _rows_after(tables, start_us, published[: number + 1]))
            words = "" if found is None else found.words
            if found is not None and found.places and notes.has_room(tables.query, start_us):
                due.append(start_us)
            elif found is not None and found.places:
                words = f"{STAYS}: too many windows await a second round"
            revision = replace(revision, reason=f"{revision.reason}; {words}" if words else revision.reason)
        told.append(revision)
    return told, due


def _rows_after(tables: ResultTables, start_us: int, published: Sequence[Publish]) -> pa.Table:
    """Return the rows (keys, states) of a window after some revisions that are not in its table yet."""
    rows = tables.recall_answers([start_us]).drop_columns([WINDOW_COLUMN])
    keys = list(tables.fragment.key_names)
    for revision in published:
        if (
            revision.window.start_us == start_us
            and revision.has_answer
            and (revision.rows.num_rows or revision.replaces)
        ):
            new = (
                tables.resolver.rows(revision, None, tables.read_published).select(rows.column_names).cast(rows.schema)
            )
            kept = rows.slice(0, 0) if revision.replaces or not keys else partials.select_others(rows, new, keys)
            rows = pa.concat_tables([kept, new])
    return rows


def _restate(again: Publish, target: ResultTables, source: ResultTables) -> Publish:
    start_us = again.window.start_us
    former = target.newest_word(start_us)
    rows = source.recall_answers([start_us]).drop_columns([WINDOW_COLUMN])
    restated = replace(
        again,
        query=target.query,
        revision=1 if former is None else former["revision"] + 1,
        reason=f"computed again on request, from the histories of the sites{again.as_of}",
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
