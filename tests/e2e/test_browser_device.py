"""A page in a real browser is a device: it registers, gets views, publishes, and is notified."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from catchment.feeds.protocol.mqtt_config import MqttConfig
from tests.worlds.browser import BrowserPage, needs_browser
from tests.worlds.feeds_broker import broker, needs_broker, until
from tests.worlds.feeds_javascript import CLIENT
from tests.worlds.feeds_live import Identity, LiveCloud, expected_notices_of, friends_graph, python_device
from tests.worlds.waiting import free_port

ROUNDS = 5
NOTICES = "[...document.querySelectorAll('#notices li')].map((line) => [line.dataset.view, line.dataset.key])"


class QuietFiles(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietFiles, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def record_in(page: BrowserPage, lat: float, lon: float) -> list[object]:
    """Fill in the form of the page and press its button."""
    page.evaluate(
        f"(() => {{ const form = document.getElementById('record'); form.lat.value = {lat}; form.lon.value = {lon};"
        " form.requestSubmit(); })()"
    )
    return [1, lat, lon, None]


def notices_in(page: BrowserPage) -> list[Identity]:
    found: list[Identity] = []
    for view, key in page.evaluate(NOTICES):
        found.append((view, "1", tuple(map(int, key.split(",")))))
    return found


@needs_browser
@needs_broker
def test_a_page_registers_gets_views_publishes_and_is_notified(tmp_path: Path) -> None:
    """The page computes the view over its own feed and that of a Python device; both are notified."""
    rng = random.Random(8)
    graph = friends_graph([(0, 1, 1.0, 1.0, 900.0), (1, 0, 1.0, 1.0, 900.0)])
    (view,) = graph.views
    web_port = free_port()
    with broker(tmp_path, web_port) as port, served(CLIENT) as address:
        cloud = LiveCloud(graph, MqttConfig(port=port, app="test"))
        other = python_device("0", port, tmp_path)
        url = f"{address}/example/index.html?broker=ws://127.0.0.1:{web_port}&name=1&app=test"
        try:
            with BrowserPage(url, tmp_path / "profile") as page:

                def work() -> None:
                    cloud.serve()
                    other.take()

                until(lambda: len(cloud.cloud.controller.registered) == 2 and other.began, work)
                cloud.deploy({view: "1"})
                until(lambda: "computes 1 views" in page.evaluate("document.getElementById('state').textContent"), work)
                rows: list[list[object]] = []
                for _ in range(ROUNDS):
                    rows.append(record_in(page, 48 + rng.random() / 50, 2 + rng.random() / 50))
                    other.record([0, 48 + rng.random() / 50, 2 + rng.random() / 50, 1.0])
                    work()
                boot = int(page.evaluate("document.body.dataset.boot"))
                assert boot == cloud.cloud.controller.registered["1"]
                expected = expected_notices_of(graph, {"0": (other.boot or 0, other.rows), "1": (boot, rows)})
                until(lambda: {*notices_in(page), *other.notices} >= expected, work)
                given = [*notices_in(page), *other.notices]
        finally:
            other.stop()
            cloud.links.close()
    assert sorted(given) == sorted(expected)
    assert {name for _, name, _ in given} == {"0", "1"}
