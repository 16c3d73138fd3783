"""The live page over real HTTP: what it gives out, and what it refuses."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from catchment.errors import FeedError
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.runs.board import HISTORY, Board
from catchment.serve.feeds_page import FeedsPage
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, Walkers, graph_of, random_friends, random_hosts, start


@pytest.fixture
def page() -> Iterator[FeedsPage]:
    with FeedsPage() as served:
        yield served


def port_of(page: FeedsPage) -> int:
    found = urlsplit(page.url).port
    assert found is not None
    return found


def get(page: FeedsPage, path: str, host: str | None = None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(page), timeout=60)
    shown = path if "token=" in path else f"{path}{'&' if '?' in path else '?'}token={page.token}"
    connection.request("GET", shown, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_the_page_and_its_data_are_served(page: FeedsPage) -> None:
    status, kind, html = get(page, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert "feeds.json" in html
    assert get(page, "/feeds.json") == (200, "application/json", "{}")
    page.show({"runs": [1]})
    assert json.loads(get(page, "/feeds.json?again")[2]) == {"runs": [1]}


def test_the_page_asks_no_other_machine_for_anything(page: FeedsPage) -> None:
    html = get(page, "/")[2]
    assert not [u for u in re.findall(r"https?://[^\"' ]+", html) if "www.w3.org" not in u]
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", html)


@pytest.mark.parametrize(
    ("path", "host", "status"), [("/secret", None, 404), ("/../x", None, 404), ("/", "evil.example", 403)]
)
def test_other_paths_and_other_names_are_refused(page: FeedsPage, path: str, host: str | None, status: int) -> None:
    assert get(page, path, host)[0] == status


@pytest.mark.parametrize("path", ["/?token=", "/feeds.json?token=guess", "/?token=%C3%A9", "/secret?token="])
def test_who_does_not_know_the_token_of_the_run_is_told_nothing(page: FeedsPage, path: str) -> None:
    status, _, text = get(page, path)
    assert status == 401
    assert page.token not in text
    assert page.url.endswith(f"/?token={page.token}")


def test_a_port_that_is_taken_is_named(page: FeedsPage) -> None:
    port = port_of(page)
    with pytest.raises(FeedError, match=f"127.0.0.1:{port}"):
        FeedsPage(port)


def test_a_board_shows_what_a_run_does(page: FeedsPage) -> None:
    import random

    rng = random.Random(4)
    graph = graph_of(DECLARED + NEARBY, random_friends(rng, 8, 14))
    run = start(graph, hosts := random_hosts(rng, graph), 8)
    board = Board("ours", run.cloud.controller, run.bus.traffic, LinkCosts(), {})
    run.cloud.controller.rates.update(dict.fromkeys(graph.feeds, 4.0))
    walkers = Walkers(rng, 8, rate=dict.fromkeys(range(8), 4.0))
    records = walkers.records()
    for second in range(1, 40):
        run.run(records, second * SECOND)
        board.sample(run.now_us, 0)
    page.show({"runs": [board.snapshot()]})
    (shown,) = json.loads(get(page, "/feeds.json")[2])["runs"]
    assert shown["views_at_cloud"] == sum(h == "cloud" for h in hosts.values())
    assert sum(d["views"] for d in shown["top"]) == shown["views_on_devices"]
    assert shown["devices_heard"] == 8
    last = shown["history"][-1]
    assert last["messages_up"] == pytest.approx(shown["predicted"]["present"]["messages_up"], rel=0.15)
    assert last["all_at_cloud"] == pytest.approx(shown["predicted"]["all_at_cloud"]["messages_up"], rel=1e-3)
    assert len(board.history) <= HISTORY
