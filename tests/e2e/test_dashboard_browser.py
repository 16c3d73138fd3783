"""The dashboard in a real browser: it loads without errors, shows the project, and its numbers move."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from catchment.project.config import Project
from catchment.serve.access import AccessRole
from catchment.serve.dashboard import DashboardServer
from tests.worlds.large_project import write_large_project, write_statuses
from tests.worlds.published import publish_project
from tests.worlds.waiting import PATIENCE_S, wait_until

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium"),
]
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SMALLEST_PX = 10  # of a text on the page
# What the map says, where it is on the page and how large: it is drawn to scale.
TEXTS_OF_MAP = """[...document.querySelectorAll('#map text')].map(text => {
  const { left, right, top, bottom } = text.getBoundingClientRect();
  const scale = document.getElementById('map').getScreenCTM().a;
  const size = scale * parseFloat(getComputedStyle(text).fontSize);
  return { text: text.textContent, left, right, top, bottom, size };
})"""
PICTURES = os.environ.get("CATCHMENT_PICTURES")  # a folder: the screenshots of the documentation are written to it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return publish_project(tmp_path / "p")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield started
        started.close()


def open_page(browser: Any, **options: Any) -> Any:
    """A page that waits for what it is to show as long as any test waits."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE_S * 1000)
    return page


@pytest.mark.parametrize(("width", "scheme"), [(1180, "light"), (390, "dark")], ids=["desktop", "phone"])
def test_the_page_shows_a_project_and_follows_it(browser: Any, folder: Path, width: int, scheme: Any) -> None:
    problems: list[str] = []
    page = open_page(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    with DashboardServer(Project.load(folder)) as server:
        page.goto(server.url())
        page.wait_for_selector("#views td button")
        page.click("#views td button:text('traffic')")
        page.wait_for_selector("#revisions td:has-text('late: 1 row changed')", state="attached")
        page.fill("#statement", "SELECT sum(bytes) AS bytes FROM traffic")
        page.press("#statement", "Control+Enter")
        page.wait_for_selector("#answer td:has-text('1,235,024')", state="attached")
        assert page.is_hidden("#change"), "a reader is offered no changes"
        page.click("#shared summary")
        wait_until(lambda: page.evaluate("document.getElementById('plan-picture').naturalWidth") > 100, "the picture")
        page.click("#judged summary")
        page.wait_for_selector("#judged-about:has-text('3 newest windows, 2 of them exact')", state="attached")
        assert page.get_attribute("#views td button:text('traffic')", "aria-current") == "true"
        page.focus("#views td button:text('traffic')")
        _move_numbers(folder, rows=99_999)
        page.wait_for_selector("#sites td:text('99,999')", state="attached")
        assert page.evaluate("document.activeElement.textContent") == "traffic", "the keyboard stays where it was"
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "statement"
        if PICTURES:
            page.screenshot(path=Path(PICTURES, f"dashboard-{width}.png"), full_page=True)
    assert problems == []
    page.close()


@pytest.mark.parametrize("width", [1180, 390], ids=["desktop", "phone"])
def test_the_page_of_many_sites_and_views_stays_readable(browser: Any, tmp_path: Path, width: int) -> None:
    folder = write_large_project(tmp_path / "large")
    page = open_page(browser, viewport={"width": width, "height": 900})
    with DashboardServer(Project.load(folder)) as server:
        page.goto(server.url())
        page.wait_for_selector("#views td button:text('view_39')")
        assert page.locator("#views td button").count() == 40
        shown = page.inner_text("#sites")
        assert all(f"site_{number:02}" in shown for number in range(14))
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            "the page has no sideways scroll"
        )
        narrow = page.evaluate(
            "[...document.querySelectorAll('#views td, #sites td')]"
            ".filter(cell => cell.innerText && cell.offsetWidth > 0 && cell.offsetWidth < 12).length"
        )
        assert narrow == 0, "no cell that is shown is too narrow to be read"
        texts = page.evaluate(TEXTS_OF_MAP)
        assert len(texts) == 14 * 3 + 2, "of each site its name, its rate and what its link carries"
        assert min(text["size"] for text in texts) >= SMALLEST_PX, "and all of it can be read"
        assert [(a["text"], b["text"]) for a, b in combinations(texts, 2) if _overlap(a, b)] == []
        edge = page.evaluate("document.getElementById('map').getBoundingClientRect().right")
        assert [text["text"] for text in texts if text["right"] > edge] == []
        write_statuses(folder, rows=88_000)
        page.wait_for_selector("#sites td:text('88,013')", state="attached")
        page.focus("#views td button:text('view_39')")
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail-head:text('view_39')")
        page.wait_for_selector("#revisions td", state="attached")
        page.click("#shared summary")
        wait_until(lambda: page.evaluate("document.getElementById('plan-picture').naturalWidth") > 100, "the picture")
        page.click("#shared summary")
        if PICTURES:
            page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
            page.screenshot(path=Path(PICTURES, f"dashboard-large-{width}.png"))
    page.close()


def test_an_operator_submits_and_drops_in_the_page(browser: Any, folder: Path) -> None:
    page = open_page(browser)
    with DashboardServer(Project.load(folder)) as server:
        page.goto(server.url(AccessRole.OPERATOR))
        page.wait_for_selector("#views td button")
        page.fill(
            "#definition",
            "CREATE MATERIALIZED VIEW extra AS SELECT window.start, count(*) AS n FROM requests"
            " GROUP BY window(ts, '1 minute')",
        )
        page.click("#submit button")
        page.wait_for_selector("#change-said:text('running: extra')")
        page.wait_for_selector("#views td button:text('extra')")
        page.select_option("#dropped", "extra")
        page.click("#drop button")
        page.wait_for_selector("#change-said:text('extra is dropped')")
        page.wait_for_selector("#views td button:text('extra')", state="detached")
        assert "traffic" in page.inner_text("#views"), "the other views are left alone"
    page.close()


def _overlap(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    """Whether two texts overlap; a fifth of a box above and below its letters may be empty, as the font has it."""
    above, below = sorted((a, b), key=lambda text: text["top"])
    empty = 0.2 * (above["bottom"] - above["top"] + below["bottom"] - below["top"])
    return a["left"] < b["right"] and b["left"] < a["right"] and above["bottom"] - below["top"] > empty


def _move_numbers(folder: Path, rows: int) -> None:
    path = folder / "state" / "sites" / "us" / "status.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps({**json.loads(path.read_text()), "rows": rows}))
    unfinished.replace(path)  # in one step, as a role does: the page reads it at any moment
