"""A live page about a running fleet: messages per second by strategy, and who computes what.

One static page asks for `feeds.json` once per second. The run's thread hands over plain data, the server's thread gives
out the last of it: they share one reference and nothing else. The server listens on the loopback only, and answers
only requests that name it so (a page of another origin cannot read it through a name that resolves here) and that show
the token of this run, which is in the address that the command prints: other users of the machine do not know it.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from catchment.errors import FeedError

LOOPBACK = "127.0.0.1"
POLL_S = 0.1  # how often the server checks whether it has to stop
_NAMES = {LOOPBACK, "localhost"}


class FeedsPage:
    """The page and its server, for the time of a `with` block."""

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        html = resources.files("catchment.serve").joinpath("feeds.html").read_bytes()
        self.answers = {"/": ("text/html; charset=utf-8", html), "/feeds.json": ("application/json", b"{}")}
        try:
            self.server = ThreadingHTTPServer((LOOPBACK, port), _handler(self))
        except OSError as error:
            raise FeedError(f"the page cannot be served: {error}", where=f"{LOOPBACK}:{port}") from error
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(POLL_S,), name="feeds-page", daemon=True)

    @property
    def url(self) -> str:
        """The address to open, with the token of this run."""
        return f"http://{LOOPBACK}:{self.server.server_address[1]}/?token={self.token}"

    def show(self, data: Mapping[str, Any]) -> None:
        """Show this data from now on."""
        self.answers["/feeds.json"] = ("application/json", json.dumps(data, allow_nan=False).encode())

    def __enter__(self) -> FeedsPage:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()


def _handler(page: FeedsPage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in _NAMES:
                self.send_error(403, "ask for 127.0.0.1 or localhost")
                return
            asked = urlsplit(self.path)
            shown = parse_qs(asked.query).get("token", [""])[0]
            if not hmac.compare_digest(shown.encode(), page.token.encode()):
                self.send_error(401, "open the address that the command printed")
                return
            found = page.answers.get(asked.path)
            if found is None:
                self.send_error(404)
                return
            kind, body = found
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header(
                "Content-Security-Policy", "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
            )
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: one request per second and viewer is not worth a line each."""

    return Handler
