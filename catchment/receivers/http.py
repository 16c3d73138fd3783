"""Records over HTTP: `POST /streams/NAME` with one record per line, answered when they are safe on disk.

A request shows a token, and may have an `Idempotency-Key`: if it is sent again, because no answer came, its records are
not counted again. Without a key they are. Bodies, requests at a time and what waits for the site are bounded; beyond
that the answer is 413 or 503, and the sender tries again later.

`POST /streams/NAME/progress` states that nothing before an instant will come any more, from one source or at all: it
lands as a marker behind the records that were confirmed before it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from catchment.errors import CatchmentError, ConfigError
from catchment.keys.private_files import create_secret
from catchment.query.marker_form import MarkerForm
from catchment.receivers.landing import ReceivedLines
from catchment.receivers.lines import complete_lines
from catchment.receivers.writer import KeyReusedError, LandingWriter, NoRoomError
from catchment.storage.files import make_folder

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
except ImportError as missing:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigError(
        f"streams with connector 'http' need a package that is not installed: {missing.name}",
        hint='pip install "catchment[page]"',
    ) from missing

MAX_BODY_BYTES = 16 << 20
MAX_KEY_CHARACTERS = 200
MAX_REQUESTS = 64  # at a time
CONFIRM_S = 30.0  # for which an answer waits for the disk
RETRY_AFTER_S = "5"
TOKEN_FILE = "http-token"  # in the folder of the site: made at the first start


def read_http_token(site_folder: Path) -> str:
    """Return the token that senders show to a site; it is made where there is none."""
    make_folder(site_folder)
    return create_secret(site_folder / TOKEN_FILE, secrets.token_urlsafe(32).encode()).decode().strip()


@dataclass(frozen=True)
class HttpAddress:
    """Where a site listens for records, and the certificate and key that it shows there, if it uses TLS."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


class HttpReceiver:
    """Receives the records of all streams of one site that come over HTTP."""

    def __init__(self, address: HttpAddress, site_folder: Path) -> None:
        self._address = address
        self._token = read_http_token(site_folder)
        self._writers: dict[str, LandingWriter] = {}
        self._markers: dict[str, MarkerForm] = {}  # of the streams whose sources may state their progress
        self.denied = 0  # requests without a valid token
        app = Starlette(
            routes=[
                Route("/streams/{name}", self._post, methods=["POST"]),
                Route("/streams/{name}/progress", self._post_progress, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _explain},
        )
        config = uvicorn.Config(
            app,
            log_level="critical",
            timeout_graceful_shutdown=2,
            limit_concurrency=MAX_REQUESTS,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        try:
            config.load()
        except OSError as error:  # those of TLS are OSErrors too
            raise ConfigError(f"the certificate of the HTTP receiver cannot be used: {error}") from error
        self._server = uvicorn.Server(config)
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="http receiver", daemon=True)

    def start(self) -> None:
        """Listen, and answer from a thread of its own."""
        host, port = self._address.host, self._address.port
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"records cannot be received at {host}:{port}: {error.strerror}",
                hint='set another address: http = "HOST:PORT" at the site, in catchment.toml',
            ) from error
        self._thread.start()

    def serve(self, stream: str, writer: LandingWriter, marker: MarkerForm | None = None) -> None:
        """Receive the records of one more stream, and what its sources state, if they may."""
        if marker is not None:
            self._markers[stream] = marker
        self._writers[stream] = writer

    def end(self, stream: str) -> None:
        """Receive the records of a stream no longer."""
        self._writers.pop(stream, None)
        self._markers.pop(stream, None)

    def status(self) -> dict[str, Any]:
        """Return where it listens, and how many requests it denied, as plain JSON."""
        return {"address": f"{self._address.host}:{self.port}", "denied": self.denied}

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._socket is not None, "it listens after start"
        return int(self._socket.getsockname()[1])

    def stop(self) -> None:
        """Answer what is under way, and stop."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _serve(self) -> None:
        assert self._socket is not None
        self._server.run([self._socket])

    async def _post(self, request: Request) -> JSONResponse:
        _, writer = self._find(request)
        delivery = _read_delivery(await _read_body(request), request.headers.get("idempotency-key"))
        if not delivery.records:
            return JSONResponse({"records": 0, "repeated": False})
        is_new = await self._land(writer, delivery)
        return JSONResponse({"records": delivery.records, "repeated": not is_new})

    async def _post_progress(self, request: Request) -> JSONResponse:
        name, writer = self._find(request)
        form = self._markers.get(name)
        if form is None:
            raise HTTPException(
                409, f"stream {name!r} takes no progress: declare a TIMESTAMP column, and name it as progress_column"
            )
        before, source = _read_progress(await _read_body(request))
        try:
            line = form.write_line(before, source)
        except CatchmentError as error:
            raise HTTPException(400, f"{error.message}; {error.hint}") from error
        is_new = await self._land(writer, _read_delivery(line, request.headers.get("idempotency-key")))
        return JSONResponse({"before": before.isoformat(), "source": source, "repeated": not is_new})

    def _find(self, request: Request) -> tuple[str, LandingWriter]:
        """Return the stream of a request that shows the token, and where its records land."""
        self._check_token(request)
        name = request.path_params["name"]
        writer = self._writers.get(name)
        if writer is None:
            raise HTTPException(404, f"no stream {name!r} is received here: {', '.join(sorted(self._writers))}")
        return name, writer

    async def _land(self, writer: LandingWriter, delivery: ReceivedLines) -> bool:
        """Let a delivery land; return whether it is new."""
        try:
            landed = asyncio.wrap_future(writer.offer(delivery, is_key_unique=True))
            return await asyncio.wait_for(asyncio.shield(landed), CONFIRM_S)
        except KeyReusedError as error:
            raise HTTPException(409, f"{error.message}; {error.hint}") from error
        except NoRoomError as error:
            raise HTTPException(503, f"{error.message}; {error.hint or 'send them again later'}") from error
        except TimeoutError as error:
            raise HTTPException(
                503, "the disk has not confirmed the records; send them again, with the same key"
            ) from error

    def _check_token(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return
        self.denied += 1
        raise HTTPException(
            401, f"show the token of this site: Authorization: Bearer TOKEN; it is in its state folder, in {TOKEN_FILE}"
        )


async def _read_body(request: Request) -> bytes:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "compressed bodies are not taken; send plain lines")
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise HTTPException(413, f"a body may have {MAX_BODY_BYTES} bytes; send fewer records at a time")
            parts.append(part)
    except ClientDisconnect as error:
        raise HTTPException(400, "the connection ended before the body did; nothing of it was taken") from error
    return b"".join(parts)


def _read_delivery(body: bytes, key: str | None) -> ReceivedLines:
    if key is not None and not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise HTTPException(400, f"an Idempotency-Key has 1 to {MAX_KEY_CHARACTERS} characters")
    if body.lstrip()[:1] == b"[":
        raise HTTPException(400, "this is a JSON array; send one object per line")
    lines, records = complete_lines(body)
    return ReceivedLines(lines, records, key, sha256(lines).hexdigest() if key is not None else "")


def _read_progress(body: bytes) -> tuple[datetime, str | None]:
    """Return the instant that a request states, and of which source; None stands for the whole stream."""
    expected = '{"before": "2026-01-31T14:00:00Z"}, and "source": NAME if one source states it'
    try:
        stated = json.loads(body)
        before = datetime.fromisoformat(stated.pop("before"))
        source = stated.pop("source", None)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HTTPException(400, f"this is no statement of progress; send {expected}") from error
    if stated or not (source is None or isinstance(source, str)):
        raise HTTPException(400, f"this is no statement of progress; send {expected}")
    return before if before.tzinfo is not None else before.replace(tzinfo=UTC), source


async def _explain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    headers = {"retry-after": RETRY_AFTER_S} if error.status_code == 503 else {}
    if error.status_code == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": error.detail}, error.status_code, headers)
