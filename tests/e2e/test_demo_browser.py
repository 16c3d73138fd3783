"""The dashboard during the demo, in a real browser: the screenshots of the documentation are made by this test.

`CATCHMENT_PICTURES=docs/images pytest -m soak tests/e2e/test_demo_browser.py` writes them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.waiting import PATIENCE_S, wait_until

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium"),
]
PICTURES = os.environ.get("CATCHMENT_PICTURES")
WIDTHS = {"demo-desktop": (1180, "light"), "demo-phone": (390, "dark")}


def test_the_page_follows_the_demo_from_its_first_window_to_its_exact_answers(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "catchment.cli", "demo", "--folder", str(tmp_path / "demo"), "--page", "0"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    told: list[str] = []
    assert demo.stderr is not None
    threading.Thread(target=_collect, args=(demo.stderr, told), daemon=True).start()
    try:
        wait_until(lambda: _address(told) is not None, "the address of the page", state=lambda: told)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
            problems: list[str] = []
            pages = {name: _open(browser, *look, _address(told) or "", problems) for name, look in WIDTHS.items()}
            for page in pages.values():
                page.wait_for_selector("#views .strip i.exact, #views .strip i.final", state="attached")
                page.click("#views td button:text('traffic')")
                page.wait_for_selector("#revisions td", state="attached")
            early = {name: _records(page) for name, page in pages.items()}
            if PICTURES:  # of a site that is cut off: a window without it, and the link down
                pages["demo-desktop"].wait_for_selector("#views .strip i.on_time", state="attached")
                for name, page in pages.items():
                    page.evaluate("scrollTo(0, 0)")
                    page.screenshot(path=Path(PICTURES, f"{name}.png"))
            for name, page in pages.items():
                page.wait_for_selector("#views td button:text('errors')", state="attached")
                assert _records(page) > early[name], "the numbers move"
                assert "of files that were read" in page.inner_text("#saved")
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "no sideways scroll"
            assert problems == []
            browser.close()
        assert demo.wait(PATIENCE_S) == 0
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(PATIENCE_S)


def _records(page: Any) -> int:
    """Return the records that all sites have read, as the page shows them, or has in a column that is hidden."""
    shown = page.evaluate("[...document.querySelectorAll('#sites tr td:nth-child(3)')].map(cell => cell.textContent)")
    return sum(int(text.replace(",", "")) for text in shown)


def _collect(lines: Any, told: list[str]) -> None:
    for line in lines:
        told.append(line)


def _address(told: list[str]) -> str | None:
    found = re.search(r"http://\S+token=\S+", "".join(list(told)))
    return found[0] if found else None


def _open(browser: Any, width: int, scheme: Any, address: str, problems: list[str]) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_S * 1000)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    return page
