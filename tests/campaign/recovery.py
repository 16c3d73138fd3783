"""The command `python -m tests.campaign.recovery`: how long a deployment of real processes takes to recover.

Three times, each several times over: from kill -9 of the center to the next window that it publishes; from the end of a
cut of a link, under records, to no backlog at its sender; from the replacement of a site that has lost its disk to the
first window that is exact again with it.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tests.campaign.campaign import commit_of_code, settle
from tests.campaign.feed import WINDOW_S
from tests.campaign.living import CENTER, Lack, Living
from tests.campaign.verdict import CASTS, TOTALS, read_answers
from tests.worlds.waiting import wait_until

CUT_S = 20.0
PATIENCE_S = 300.0


def main(
    times: Annotated[int, typer.Option(help="how often each is measured")] = 3,
    folder: Annotated[Path, typer.Option(help="where the deployment is made")] = Path("faults/recovery"),
) -> None:
    """Measure how long recovery takes, and print it as JSON."""
    shutil.rmtree(folder, ignore_errors=True)
    measured: dict[str, list[float]] = {}
    with Living(folder.absolute(), 1).running() as living:
        settle(living)
        for name, measure in MEASURES.items():
            for _ in range(times):
                measured.setdefault(name, []).append(round(measure(living), 1))
                settle(living)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    print(json.dumps({"commit": commit_of_code(), "seconds": measured, "median": medians}, indent=2))


def measure_center(living: Living) -> float:
    """Return the seconds from kill -9 of the center to its next window; records come all the time."""
    began_s = time.monotonic()
    living.center.kill()
    living.center.start()
    living.feed.write_windows(living.sites, 2)
    until_s = living.feed.close_windows(living.sites)
    newest_s = until_s - WINDOW_S
    _wait(lambda: newest_s in read_answers(living, TOTALS), f"{CENTER} to publish a window again")
    return time.monotonic() - began_s


def measure_link(living: Living) -> float:
    """Return the seconds from the end of a cut of a link until nothing waits at its sender."""
    link = living.links["c"]
    link.bytes.cut()
    until_s = time.monotonic() + CUT_S
    while time.monotonic() < until_s:
        living.feed.write_windows(living.sites, 1)
        time.sleep(1.0)
    _wait(lambda: living.machines["c"].status["queued_bytes"] > 0, "something to wait at c")
    link.heal()
    healed_s = time.monotonic()
    _wait(lambda: living.machines["c"].status["queued_bytes"] == 0, "the backlog of c to go")
    return time.monotonic() - healed_s


def measure_replacement(living: Living) -> float:
    """Return the seconds from `sites replace` of a site with an empty disk to the next exact window."""
    site = living.machines["c"]
    from_s = min(living.feed.next_s.values()) - 1000 * WINDOW_S
    site.kill()
    for path in site.state.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    began_s = time.monotonic()
    replaced = living.command("sites", "replace", "c")
    assert replaced.returncode == 0, replaced.stderr
    site.start()
    site.wait_until_up()
    living.note_replaced("c")
    lacking_until_s = max(living.feed.next_s.values()) + 4 * WINDOW_S
    for view in (TOTALS, CASTS):
        living.note_lack(Lack(view, "c", from_s, lacking_until_s))
    known = set(read_answers(living, TOTALS))

    def is_exact_again() -> bool:
        living.feed.write_windows(living.sites, 1)
        time.sleep(0.5)
        newer = [a for w, a in read_answers(living, TOTALS).items() if w not in known]
        return any(a.status == "exact" and not a.missing for a in newer)

    _wait(is_exact_again, "a window to be exact with the replaced site")
    return time.monotonic() - began_s


MEASURES: dict[str, Callable[[Living], float]] = {
    "kill -9 of the center to its next window": measure_center,
    "a link healed after 20 s to no backlog": measure_link,
    "a site with an empty disk replaced to the next exact window": measure_replacement,
}


def _wait(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, PATIENCE_S, pause_s=0.1)


if __name__ == "__main__":
    typer.run(main)
