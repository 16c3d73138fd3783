"""How much of a core the page of a large deployment takes: `python -m tests.worlds.page_cost`.

The page of 14 sites and 40 views is served to one follower of its events, while another process writes every status
four times per second and publishes a window of every view every ten seconds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx

from catchment.project.config import Project
from catchment.serve.dashboard import DashboardServer
from tests.worlds.large_project import WINDOWS, publish_windows, write_large_project, write_statuses

WARM_UP_S = 5.0
MEASURED_S = 60.0
PUBLISH_EVERY = 40  # statuses


def measure() -> float:
    """Return the share of a core that this process takes while it serves the page, its follower included."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_large_project(Path(temporary) / "p")
        writer = subprocess.Popen([sys.executable, "-m", "tests.worlds.page_cost", str(folder)])
        try:
            with DashboardServer(Project.load(folder)) as server:
                threading.Thread(target=_follow, args=(server.url(),), daemon=True).start()
                time.sleep(WARM_UP_S)
                cpu_s, wall_s = time.process_time(), time.monotonic()
                time.sleep(MEASURED_S)
                return (time.process_time() - cpu_s) / (time.monotonic() - wall_s)
        finally:
            writer.terminate()
            writer.wait()


def _follow(url: str) -> None:
    with httpx.Client(follow_redirects=True, timeout=None) as client, suppress(httpx.HTTPError):
        client.get(url)
        with client.stream("GET", f"{url.partition('/?')[0]}/api/events") as events:
            for _ in events.iter_raw():
                pass


def _write_without_end(folder: Path) -> None:
    rounds = 0
    while True:
        rounds += 1
        write_statuses(folder, rows=1_000 + 250 * rounds)
        if rounds % PUBLISH_EVERY == 0:
            number = rounds // PUBLISH_EVERY
            publish_windows(folder, number + 1, range(WINDOWS + number - 1, WINDOWS + number))
        time.sleep(0.25)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _write_without_end(Path(sys.argv[1]))
    print(f"{measure():.1%} of a core")
