"""The live page in a real browser: its script runs and fills the page from the data."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from catchment.serve.feeds_page import FeedsPage
from tests.worlds.waiting import PATIENCE_S

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
HISTORY = [
    {
        "at_s": float(s),
        "messages_up": 31.0,
        "messages_down": 9.5,
        "bytes_up": 2500.0,
        "bytes_down": 800.0,
        "all_at_cloud": 83.25,
    }
    for s in range(5)
]
RUN = {
    "strategy": "ours",
    "views_at_cloud": 3218,
    "views_on_devices": 295,
    "devices_heard": 500,
    "moving": 0,
    "redeployments": 2,
    "history": HISTORY,
    "predicted": {"all_at_cloud": {**HISTORY[0], "messages_up": 83.25, "messages_down": 0.0}},
    "top": [
        {
            "device": "<b>7</b>",
            "views": 12,
            "events_per_s": 2.0,
            "uploads": {"location@7": 0.25},
            "sent": 5,
            "received": 6,
        }
    ],
}


@pytest.mark.integration
@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_shows_traffic_by_strategy_and_who_computes_what(tmp_path: Path) -> None:
    assert BROWSER is not None
    with FeedsPage() as page:
        about = {
            "title": "nearby",
            "data": "made up",
            "devices": 500,
            "views": 3513,
            "transport": "bus",
            "cloud": "local",
        }
        page.show({**about, "runs": [RUN], "recent": []})
        call = [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=3000",
            "--dump-dom",
            page.url,
        ]
        shown = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    drawn = shown.partition("<script>")[0]
    for text in ("500 of 500", "3,218", "ours, measured", "all at the cloud, from the rates measured", "83.3", "25%"):
        assert text in drawn
    assert drawn.count("<path") == 2
    assert "&lt;b&gt;7&lt;/b&gt;" in drawn, "a name must never become markup"
