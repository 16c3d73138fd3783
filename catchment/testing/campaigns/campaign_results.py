"""The results of a campaign in a file: a line per seed, so that a long campaign can be stopped and gone on with.

The same command goes on: seeds whose results are there are not run again, unless they were wrong. What was drawn in
another way belongs to another campaign, and is refused.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from catchment.errors import ConfigError
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.features import Feature
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulation import RunReport
from catchment.testing.verdicts.stated_bounds import BoundTally, RunTally


@dataclass(frozen=True)
class CampaignResults:
    """The file of one campaign."""

    path: Path
    draw: Draw

    def read(self) -> dict[int, RunReport]:
        """Return the newest result of each seed."""
        if not self.path.exists():
            return {}
        found = {}
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # the process ended while it wrote; the seed is run again
            if row["draw"] != self.draw.options():
                raise ConfigError(
                    f"the results are those of another campaign: they were drawn with {row['draw'].strip()!r}, "
                    f"and now {self.draw.options().strip()!r} is asked for",
                    where=f"{self.path}, line {number}",
                    hint="give each campaign a file of its own",
                )
            found[row["seed"]] = _read(row)
        return found

    def append(self, report: RunReport) -> None:
        """Add the result of a seed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"draw": self.draw.options(), **_write(report)})
        with self.path.open("a+b") as file:
            if _ends_torn(file):
                file.write(b"\n")
            file.write(f"{line}\n".encode())


def _ends_torn(file: BinaryIO) -> bool:
    """Return whether the last line of a file was not written to its end."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return False
    file.seek(size - 1)
    return file.read(1) != b"\n"


def _write(report: RunReport) -> dict[str, Any]:
    return {
        "seed": report.seed,
        "features": [f.value for f in Feature if f in report.features],
        "problems": report.problems,
        "seen": {state.name: report.seen[state] for state in RareState if report.seen[state]},
        "records": report.records,
        "windows": report.windows,
        "simulated_s": round(report.simulated_s, 3),
        "bounds": asdict(report.bounds),
    }


def _read(row: dict[str, Any]) -> RunReport:
    return RunReport(
        row["seed"],
        frozenset(map(Feature, row["features"])),
        row["problems"],
        Counter({RareState[name]: count for name, count in row["seen"].items()}),
        records=row["records"],
        windows=row["windows"],
        simulated_s=row["simulated_s"],
        bounds=_read_tally(row["bounds"]),
    )


def _read_tally(row: dict[str, Any]) -> RunTally:
    """Return the bounds of a seed; those of files that did not tell the two kinds apart are not judged again."""
    if "exact" not in row:
        return RunTally()
    return RunTally(BoundTally(**row["bounds"]), BoundTally(**row["exact"]))
