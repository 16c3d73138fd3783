"""The table of a campaign, per kind of fault, for docs/reliability.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.campaign.campaign import FAILED, HELD, NOT_POSSIBLE, Result
from tests.campaign.schedule import KINDS


def render(results: Sequence[Result]) -> str:
    """Return the table as Markdown."""
    ran = [r for r in results if r.outcome in (HELD, FAILED)]
    rounds = {(r.seed, r.round) for r in ran}
    commits = ", ".join(f"`{c}`" for c in dict.fromkeys(r.commit for r in ran))
    failed = sum(r.outcome == FAILED for r in ran)
    head = f"{len(ran)} faults in {len(rounds)} rounds, {failed} of them in rounds that failed; at {commits}."
    lines = [
        head,
        "",
        "| fault | times | held | at rest again after, median (most) | what the operator saw, for example |",
        "|---|---|---|---|---|",
        *(_line(kind, [r for r in results if r.kind == kind]) for kind in KINDS),
    ]
    return "\n".join(lines)


def _line(kind: str, results: Sequence[Result]) -> str:
    ran = [r for r in results if r.outcome in (HELD, FAILED)]
    held = [r for r in ran if r.outcome == HELD]
    if not ran:
        why = next((r.told for r in results if r.outcome == NOT_POSSIBLE), "not yet")
        return f"| {kind} | 0 | | | {why} |"
    rest = [r.heal_to_rest_s for r in held]
    took = f"{statistics.median(rest):.0f} s ({max(rest):.0f} s)" if rest else ""
    told = next((r.told for r in held if r.told), "")
    return f"| {kind} | {len(ran)} | {len(held)} | {took} | {_cell(told)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:140]
