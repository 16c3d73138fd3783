"""The command `python -m catchment.testing`: simulate generated deployments, seed by seed."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from catchment.testing.campaigns.campaign import (
    TRACE_LINES,
    CampaignReport,
    matrix,
    replay_command,
    run_campaign,
)
from catchment.testing.campaigns.combinations import COMBINED, refusals, triple_table
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.features import Feature, Features
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulation import RunReport

REPORT_EVERY = 50  # seeds between two lines of progress

_HEAD = """\
# What the simulation has combined

Written by `{command}`: {seeds} seeds, {failed} of them wrong; {records} records, {windows} published revisions,
{hours:.1f} hours of simulated time. A cell says how many seeds had both features; the diagonal,
how many had the feature. R: they met in one deployment; one view that asks for them at once is
[refused](#refused-in-one-view). Every two features met in {pair_seeds} seeds or more, and every three of those that
a project or its surroundings choose in {triple_seeds} or more (fewest: {triple}).
Bounds that views with contracts stated: {bounds}.

"""


_BODY = """\
{head}{pairs}

## Three at a time
Seeds that had all three, for the features that a project or its surroundings choose.

{triples}

## Refused in one view
Features meet in one deployment. A view that asks for these at once is refused when it is planned:

| together | what the error says |
|---|---|
{refused}

## Rare states
| state | times |
|---|---|
{states}
"""


def main(
    seeds: Annotated[int, typer.Option(help="how many seeds to simulate")] = 100,
    first: Annotated[int, typer.Option(help="the first of them")] = 0,
    seed: Annotated[int | None, typer.Option(help="simulate this seed alone, and show what happened")] = None,
    only: Annotated[str, typer.Option(help="enable these features alone, such as 'crash,loss'")] = "",
    cover: Annotated[bool, typer.Option(help="draw so that every three combined features meet")] = False,
    late_and_shed: Annotated[
        bool, typer.Option(help="simulate three sites and a relay, late and shed, and judge stated bounds")
    ] = False,
    processes: Annotated[int, typer.Option(help="how many processes share the seeds")] = 1,
    results: Annotated[
        Path | None, typer.Option(help="append the result of each seed to this file, and go on after what it has")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
    write: Annotated[Path | None, typer.Option(help="write which features were combined to this file")] = None,
) -> None:
    """Simulate generated deployments under faults, and check what they publish against a recomputation."""
    logging.disable(logging.CRITICAL)  # refusals and warnings are what is simulated
    numbers = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    draw = Draw(_read_features(only) or None, cover, late_and_shed)
    report = run_campaign(
        numbers,
        draw,
        processes=processes,
        results=results,
        progress=lambda done, wrong: _show_progress(done, wrong, len(numbers)),
    )
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _show(report, is_alone=seed is not None)
    if write is not None:
        write.write_text(_page(report, len(numbers), first), encoding="utf-8")
        print(f"written: {write}", file=sys.stderr)
    if report.problems():
        raise typer.Exit(1)


def _read_features(given: str) -> Features:
    names = [name.strip() for name in given.split(",") if name.strip()]
    unknown = [name for name in names if name not in list(Feature)]
    if unknown:
        raise typer.BadParameter(f"there is no feature {unknown[0]!r}; there are {', '.join(Feature)}")
    return frozenset(map(Feature, names))


def _show_progress(done: int, wrong: int, total: int) -> None:
    if done % REPORT_EVERY == 0 or done == total:
        print(f"{done} of {total} seeds, {wrong} wrong", file=sys.stderr, flush=True)


def _show(report: CampaignReport, *, is_alone: bool) -> None:
    for failed in report.failures:
        _show_failure(failed, report.draw)
    coverage = report.coverage
    print(f"{coverage.seeds} seeds, {len(report.failures)} wrong")
    print(f"{coverage.records} records, {coverage.windows} revisions, {coverage.simulated_s:.0f} simulated seconds")
    print(coverage.bounds.describe())
    if is_alone:
        return
    triple, seeds = coverage.least_triple()
    print(f"fewest seeds of three features together: {seeds} ({', '.join(triple)})")
    for state in RareState:
        print(f"{coverage.states[state]:8} {state.value}")
    for problem in report.problems():
        print(f"PROBLEM {problem}")


def _show_failure(failed: RunReport, draw: Draw) -> None:
    print(f"seed {failed.seed} is wrong, with {', '.join(f.value for f in Feature if f in failed.features)}")
    for problem in failed.problems:
        print(f"  {problem}")
    for line in failed.trace[-TRACE_LINES:]:
        print(f"    {line}")
    print(f"  again: {replay_command(failed.seed, draw)}")


def _page(report: CampaignReport, seeds: int, first: int) -> str:
    coverage = report.coverage
    triple, triple_seeds = coverage.least_triple(COMBINED)
    head = _HEAD.format(
        command=f"python -m catchment.testing --seeds {seeds} --first {first}{report.draw.options()} --write FILE",
        seeds=coverage.seeds,
        failed=len(report.failures),
        records=coverage.records,
        windows=coverage.windows,
        hours=coverage.simulated_s / 3600,
        pair_seeds=coverage.least_pair(),
        triple_seeds=triple_seeds,
        triple=", ".join(triple),
        bounds=coverage.bounds.describe(),
    )
    states = "\n".join(f"| {state.value} | {coverage.states[state]} |" for state in RareState)
    with tempfile.TemporaryDirectory() as folder:
        refused = refusals(Path(folder))
    together = [features for features, _ in refused]
    reasons = [f"| {', '.join(sorted(features))} | {reason} |" for features, reason in refused]
    return _BODY.format(
        head=head,
        pairs=matrix(coverage, together),
        triples=triple_table(coverage.triples, together),
        refused="\n".join(reasons) or "| none | |",
        states=states,
    )


if __name__ == "__main__":
    typer.run(main)
