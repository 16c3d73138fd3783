"""The command `python -m tests.campaign.dead_site`: one of three sites is dead for minutes, under 10-second windows.

Event times are those of the wall clock here. While the site is dead, every window of the others must be published
within `freshness` and some triggers of its end, however long the site stays away, and memory must stay flat; when the
site comes back, every window becomes exact.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer

from catchment.center.results.read import read_windows
from tests.campaign.campaign import commit_of_code, wait_for_rest
from tests.campaign.feed import WINDOW_S
from tests.campaign.living import FRESHNESS_S, Living
from tests.campaign.verdict import TOTALS

DEAD = "c"


@dataclass
class Measured:
    """What was seen while the site was dead."""

    lags_s: list[float] = field(default_factory=list)  # from the end of a window to its first answer
    center_bytes: list[int] = field(default_factory=list)  # resident memory of the center and its JVM

    def to_json(self, minutes: float) -> dict[str, object]:
        fifth = max(1, len(self.center_bytes) // 5)
        return {
            "commit": commit_of_code(),
            "minutes_dead": minutes,
            "freshness_s": FRESHNESS_S,
            "windows": len(self.lags_s),
            "lag_s": {
                "median": round(statistics.median(self.lags_s), 1),
                "most": round(max(self.lags_s), 1),
                "first_ten": round(statistics.mean(self.lags_s[:10]), 1),
                "last_ten": round(statistics.mean(self.lags_s[-10:]), 1),
            },
            "center_mb": {
                "second_fifth": round(statistics.mean(self.center_bytes[fifth : 2 * fifth]) / 1e6),
                "last_fifth": round(statistics.mean(self.center_bytes[-fifth:]) / 1e6),
            },
        }


def main(
    minutes: Annotated[float, typer.Option(help="how long the site is dead")] = 10.0,
    folder: Annotated[Path, typer.Option(help="where the deployment is made")] = Path("faults/dead-site"),
) -> None:
    """Let one site of three be dead, measure how late the answers of the others are, and print it as JSON."""
    shutil.rmtree(folder, ignore_errors=True)
    with Living(folder.absolute(), 1).running() as living:
        living.wait_until_up()
        _feed_until(living, time.time() + 2 * WINDOW_S)
        living.machines[DEAD].kill()
        measured = Measured()
        began_s = time.time()
        _feed_until(living, began_s + minutes * 60, measured)
        died_in_s = (int(began_s) // WINDOW_S + 1) * WINDOW_S
        measured.lags_s = _read_lags(living, died_in_s, time.time() - FRESHNESS_S - WINDOW_S)
        print(json.dumps(measured.to_json(minutes), indent=2), flush=True)
        living.machines[DEAD].start()
        returned_s = time.monotonic()
        wait_for_rest(living, living.feed.close_now(living.sites))
        print(json.dumps({"all_exact_after_return_s": round(time.monotonic() - returned_s, 1)}))


def _feed_until(living: Living, end_s: float, measured: Measured | None = None) -> None:
    """Write what every site records now, each second, until an instant."""
    while time.time() < end_s:
        living.feed.write_now(living.sites)
        if measured is not None:
            measured.center_bytes.append(_resident_bytes(living))
        time.sleep(1.0)


def _read_lags(living: Living, from_s: int, until_s: float) -> list[float]:
    first: dict[float, float] = {}
    for entry in read_windows(living.state, TOTALS).to_pylist():
        start_s = entry["window_start"].timestamp()
        if from_s <= start_s and start_s + WINDOW_S <= until_s:
            first.setdefault(start_s, entry["published_at"].timestamp() - start_s - WINDOW_S)
    return [lag for _, lag in sorted(first.items())]


def _resident_bytes(living: Living) -> int:
    processes = [psutil.Process(living.center.pid)]
    processes += processes[0].children(recursive=True)
    return sum(process.memory_info().rss for process in processes)


if __name__ == "__main__":
    typer.run(main)
