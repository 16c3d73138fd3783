"""The dashboard: one live page about a deployment, and the same as JSON, metrics and health checks.

It reads the state folder only (`OverviewReader`), so that it can run in the process of the center, or beside it. The
page asks once and is then told of every change by server-sent events. However many people look, the state is read at
most once per `READ_EVERY_S`, and only while somebody looks.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from catchment.center.results.plain_json import to_plain_json
from catchment.center.results.quality import view_quality
from catchment.center.results.read import read_results
from catchment.center.results.sql import query_results
from catchment.deploy.deployment import Deployment
from catchment.deploy.submit import drop, submit_text
from catchment.errors import CatchmentError, ConfigError
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.explain import explain
from catchment.query.sql.view_options import ViewOptions
from catchment.serve.access import AccessRole, AccessTokens
from catchment.serve.explanation import explain_deployment
from catchment.serve.metrics import CONTENT_TYPE, write_metrics
from catchment.serve.overview import OverviewReader
from catchment.serve.overview_parts import OverviewParts, Parts, changes
from catchment.serve.plan_picture import plan_svg

LOOPBACK = "127.0.0.1"
READ_EVERY_S = 1.0
JUDGED_WINDOWS = 200  # the newest, of which bounds are compared with exact answers
MAX_ROWS = 500  # of an answer that is shown; more are read with `catchment sql` or from the tables
MAX_BODY_BYTES = 100_000  # of a request
COOKIE = "catchment_token"
PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

Endpoint = Callable[[Request], Awaitable[Response]]


class DashboardApp:
    """The web application of one project."""

    def __init__(self, project: Project, tokens: AccessTokens) -> None:
        self.project = project
        self._tokens = tokens
        self._reader = OverviewReader(project)
        self._lock = threading.Lock()
        self._overview: Mapping[str, Any] = {}
        self._splitter = OverviewParts()
        self._parts: Parts = {}
        self._read_at_s = float("-inf")

    def build(self) -> Starlette:
        """Return the application with its routes."""
        return Starlette(
            routes=[
                *(Route(path, self._allow(AccessRole.READER, self._page)) for path in PAGES),
                Route("/api/overview", self._allow(AccessRole.READER, self._get_overview)),
                Route("/api/events", self._allow(AccessRole.READER, self._get_events)),
                Route("/api/views/{view}", self._allow(AccessRole.READER, self._get_view)),
                Route("/api/views/{view}/quality", self._allow(AccessRole.READER, self._get_quality)),
                Route("/api/plan.svg", self._allow(AccessRole.READER, self._get_plan)),
                Route("/api/sql", self._allow(AccessRole.READER, self._post_sql), methods=["POST"]),
                Route("/api/submit", self._allow(AccessRole.OPERATOR, self._post_submit), methods=["POST"]),
                Route("/api/drop", self._allow(AccessRole.OPERATOR, self._post_drop), methods=["POST"]),
                Route("/metrics", self._allow(AccessRole.READER, self._get_metrics)),
                Route("/healthz", _get_health),
                Route("/readyz", self._get_readiness),
            ]
        )

    def read_overview(self) -> Mapping[str, Any]:
        """Return the overview, read anew at most once per `READ_EVERY_S`."""
        with self._lock:
            self._refresh()
            return self._overview

    def read_parts(self) -> Parts:
        """Return the overview in parts, each as JSON text."""
        with self._lock:
            self._refresh()
            return self._parts

    def _refresh(self) -> None:
        if time.monotonic() - self._read_at_s >= READ_EVERY_S:
            self._overview = self._reader.read()
            self._parts = self._splitter.split(self._overview)
            self._read_at_s = time.monotonic()

    # --- access -----------------------------------------------------------------------------------------------

    def _allow(self, needed: AccessRole, endpoint: Endpoint) -> Endpoint:
        """Let only callers through that prove the role, and answer the mistakes of users as JSON."""

        async def checked(request: Request) -> Response:
            shown = request.query_params.get("token")
            if shown is not None and self._tokens.role_of(shown) is not None:
                return _remember(shown, request)
            role = self._tokens.role_of(_token_of(request))
            if role is None or (needed is AccessRole.OPERATOR and role is AccessRole.READER):
                return _refuse(role)
            try:
                response = await endpoint(request)
            except CatchmentError as error:
                response = JSONResponse({"error": error.message, "hint": error.hint, "where": error.where}, 400)
            response.headers.update(_HEADERS)
            return response

        return checked

    # --- pages and data ---------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        name, kind = PAGES[request.url.path]
        return Response(
            resources.files("catchment.serve").joinpath("dashboard_page", name).read_bytes(), media_type=kind
        )

    async def _get_overview(self, request: Request) -> Response:
        role = self._tokens.role_of(_token_of(request))
        overview = await run_in_threadpool(self.read_overview)
        return JSONResponse(to_plain_json({**overview, "may_change": role is AccessRole.OPERATOR}))

    async def _get_events(self, request: Request) -> Response:
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    async def _events(self, request: Request) -> AsyncIterator[str]:
        last: Parts = {}
        while not await request.is_disconnected():
            now = await run_in_threadpool(self.read_parts)
            news = changes(last, now)
            yield ": nothing new\n\n" if news is None else f"data: {news}\n\n"
            last = now
            await asyncio.sleep(READ_EVERY_S)

    async def _get_view(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._describe_view, request.path_params["view"]))

    def _describe_view(self, view: str) -> Mapping[str, Any]:
        with self._lock:
            windows = self._reader.windows(view)
        plans = {name: plan for plan in Deployment.load(self.project.folder).plans for name in (plan.name, plan.view)}
        if view not in plans and not windows:
            raise ConfigError(f"there is no view {view!r}")
        described: dict[str, Any] = {"view": view, "windows": windows, "rows": [], "plan": None}
        if view in plans:
            described["plan"] = explain(plans[view], self.project)
        if windows:
            rows = read_results(self.project.state_folder, view)
            described["rows"] = rows.slice(max(0, rows.num_rows - MAX_ROWS)).to_pylist()
        plain: Mapping[str, Any] = to_plain_json(described)
        return plain

    async def _get_quality(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._describe_quality, request.path_params["view"]))

    def _describe_quality(self, view: str) -> Mapping[str, Any]:
        declared = load_catalog(self.project).views.get(view)
        confidence = (declared.options if declared is not None else ViewOptions()).confidence
        found = view_quality(self.project.state_folder, view, confidence, JUDGED_WINDOWS)
        plain: Mapping[str, Any] = to_plain_json(found)
        return plain

    async def _get_plan(self, request: Request) -> Response:
        return Response(await run_in_threadpool(self._draw_plan), media_type="image/svg+xml")

    def _draw_plan(self) -> str:
        return plan_svg(explain_deployment(Deployment.load(self.project.folder)), self.project.center)

    async def _post_sql(self, request: Request) -> Response:
        statement = (await _read_body(request))["statement"]
        table = await run_in_threadpool(query_results, self.project.state_folder, str(statement))
        answer = {"columns": table.column_names, "rows": table.slice(0, MAX_ROWS).to_pylist(), "count": table.num_rows}
        return JSONResponse(to_plain_json(answer))

    async def _post_submit(self, request: Request) -> Response:
        text = str((await _read_body(request))["sql"])
        return JSONResponse(to_plain_json(await run_in_threadpool(submit_text, self.project, text)))

    async def _post_drop(self, request: Request) -> Response:
        view = str((await _read_body(request))["view"])
        return JSONResponse(to_plain_json(await run_in_threadpool(drop, self.project, view)))

    async def _get_metrics(self, request: Request) -> Response:
        return Response(write_metrics(await run_in_threadpool(self.read_overview)), media_type=CONTENT_TYPE)

    async def _get_readiness(self, request: Request) -> Response:
        """Say whether the center is at work. A site that is away does not make it unready: it has a metric."""
        overview = await run_in_threadpool(self.read_overview)
        is_ready = not overview["is_center_silent"]
        return JSONResponse({"ready": is_ready, "center_age_s": overview["center_age_s"]}, 200 if is_ready else 503)


async def _get_health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _read_body(request: Request) -> Mapping[str, Any]:
    """Return the JSON object of a request. Only this content type: no other page can send it with a person's cookie."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ConfigError("the request must be JSON", hint="send Content-Type: application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise ConfigError(f"the request is longer than {MAX_BODY_BYTES:,} bytes")
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the request cannot be read as JSON: {error}") from error
    return _Fields(read) if isinstance(read, dict) else _Fields()


class _Fields(dict[str, Any]):
    """The fields of a request; one that is missing is the caller's mistake."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(f"the request has no field {name!r}")


def _token_of(request: Request) -> str | None:
    bearer = request.headers.get("authorization", "")
    return bearer.removeprefix("Bearer ") if bearer else request.cookies.get(COOKIE)


def _remember(token: str, request: Request) -> Response:
    """Keep a token that was shown in the address in a cookie, and take it out of the address."""
    response = RedirectResponse(request.url.path, 303)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    response.headers.update(_HEADERS)
    return response


def _refuse(role: AccessRole | None) -> Response:
    if role is None:
        hint = "open the address that `catchment dashboard` printed, which ends with ?token=..."
        return PlainTextResponse(f"this needs a token\n{hint}\n", 401, headers=_HEADERS)
    hint = "open the address that `catchment dashboard --operator` printed"
    return JSONResponse({"error": "a reader may not change what runs", "hint": hint, "where": None}, 403)


class DashboardServer:
    """The dashboard, served by a thread of its own for the time of a `with` block."""

    def __init__(self, project: Project, host: str = LOOPBACK, port: int = 0) -> None:
        self.tokens = AccessTokens.of_state(project.state_folder)
        app = DashboardApp(project, self.tokens).build()
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        self._sockets = [_listen(host, port)]
        self._thread = threading.Thread(target=self._server.run, args=(self._sockets,), name="dashboard", daemon=True)

    def url(self, role: AccessRole = AccessRole.READER) -> str:
        """Return the address that a person opens, with the token of a role."""
        host, port = self._sockets[0].getsockname()[:2]
        token = self.tokens.operator if role is AccessRole.OPERATOR else self.tokens.reader
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/?token={token}"

    def __enter__(self) -> DashboardServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. uvicorn would end the process where a port is taken: here that is an error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"the dashboard cannot be served at {host}:{port}: {error.strerror}", hint="choose another port"
        ) from error
