"""The live page of feeds in a real browser: a time axis, round ticks, no empty headings, moves as they happen."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.runs.board import Board
from catchment.serve.feeds_page import FeedsPage
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, Walkers, graph_of, random_friends, random_hosts, start
from tests.worlds.waiting import PATIENCE_S

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium"),
]
PICTURES = os.environ.get("CATCHMENT_PICTURES")  # a folder: the screenshots of the documentation are written to it
HEADINGS = "[...document.querySelectorAll('h2')].filter(h => h.offsetParent !== null).map(h => h.textContent)"
TICKS = "[...document.querySelectorAll('#chart text')].map(t => t.textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def shown_run() -> tuple[dict[str, Any], dict[str, Any]]:
    """The data of a page just begun, and after forty seconds in which views have moved."""
    rng = random.Random(4)
    graph = graph_of(DECLARED + NEARBY, random_friends(rng, 8, 14))
    run = start(graph, random_hosts(rng, graph), 8)
    sizes = dict.fromkeys(graph.feeds, 90.0)
    board = Board("ours", run.cloud.controller, run.bus.traffic, LinkCosts(), sizes)
    run.cloud.controller.rates.update(dict.fromkeys(graph.feeds, 4.0))
    about = {"title": "town", "data": "made up", "devices": 8, "views": len(graph.views), "transport": "in-process bus"}
    begun = {**about, "cloud": "local", "runs": [board.snapshot()], "recent": []}
    records = Walkers(rng, 8, rate=dict.fromkeys(range(8), 4.0)).records()
    for second in range(1, 41):
        if second == 20:
            run.send(run.cloud.deploy(random_hosts(rng, graph)))
        run.run(records, second * SECOND)
        board.sample(run.now_us, 0)
    recent = [{"device": n.notified, "view": n.view, "values": list(n.values)} for n in run.fleet.notices[-5:]]
    return begun, {**begun, "runs": [board.snapshot()], "recent": recent}


@pytest.mark.parametrize(("width", "scheme"), [(1180, "light"), (390, "dark")], ids=["desktop", "phone"])
def test_the_page_has_a_time_axis_round_ticks_and_only_headings_with_something_below(
    browser: Any, width: int, scheme: Any
) -> None:
    begun, later = shown_run()
    problems: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_S * 1000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    with FeedsPage() as served:
        served.show(begun)
        page.goto(served.url)
        page.wait_for_selector(".tile")
        assert page.evaluate(HEADINGS) == ["Where views run"]
        served.show(later)
        page.wait_for_selector("#moves td")
        assert page.evaluate(HEADINGS)[1:] == [
            "By strategy",
            "Where views run",
            "Views that moved",
            "Last notifications",
        ]
        ticks = page.evaluate(TICKS)
        times = [tick for tick in ticks if ":" in tick]
        assert [int(t[-2:]) % 5 for t in times] == [0] * len(times) != []
        values = [float(tick.replace(",", "")) for tick in ticks if ":" not in tick]
        steps = {round(b - a, 6) for a, b in pairwise(values)}
        assert len(steps) == 1
        assert str(int(steps.pop())).rstrip("0") in ("1", "2", "5")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing hangs over the side"
        if PICTURES:
            page.screenshot(path=Path(PICTURES, f"feeds-{width}.png"), full_page=True)
    assert problems == []
    page.close()
