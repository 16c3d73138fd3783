"""The command `python -m tests.campaign`: put faults into a living deployment, round by round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tests.campaign.campaign import Campaign, read_results
from tests.campaign.living import SITES
from tests.campaign.report import render
from tests.campaign.schedule import KINDS

FOLDER = Path("faults")


def main(
    faults: Annotated[int, typer.Option(help="until how many faults of this seed have a result")] = 200,
    seed: Annotated[int, typer.Option(help="from which the schedule is drawn")] = 1,
    folder: Annotated[Path, typer.Option(help="where deployments and results are kept")] = FOLDER,
    results: Annotated[Path | None, typer.Option(help="the file of results; by default in the folder")] = None,
    seconds: Annotated[float | None, typer.Option(help="begin no round after this time")] = None,
    number: Annotated[int | None, typer.Option("--round", help="run this round alone, with a new deployment")] = None,
    kinds: Annotated[str, typer.Option(help="draw from these kinds alone, with commas between them")] = "",
    sites: Annotated[str, typer.Option(help="the sites of the deployment; fewer start sooner")] = ",".join(SITES),
    report: Annotated[bool, typer.Option("--report", help="print the table of the results, and run nothing")] = False,
) -> None:
    """Put faults into a living deployment, and compare its answers with a recomputation after each round."""
    kept = results or folder / "results.jsonl"
    if report:
        print(render(read_results(kept)))
        return
    wanted = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown:
        raise typer.BadParameter(f"unknown kinds {unknown}; known: {', '.join(KINDS)}")
    campaign = Campaign(
        folder.absolute(), kept.absolute(), seed, tuple(wanted) or tuple(KINDS), tuple(sites.split(",")), _say
    )
    held = campaign.run(faults, seconds) if number is None else campaign.run_alone(number)
    if not held:
        sys.exit(1)


def _say(text: str) -> None:
    """Print at once, so that whoever reads the output of a long campaign from a file sees how far it is."""
    print(text, flush=True)


if __name__ == "__main__":
    typer.run(main)
