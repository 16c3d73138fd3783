"""The dashboard over HTTP: who may see what, what it shows of a published project, and that it only reads changes."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from catchment.project.config import Project
from catchment.serve.access import TOKENS_FILE, AccessTokens
from catchment.serve.dashboard import COOKIE, DashboardServer
from catchment.serve.metrics import METRICS, write_metrics
from catchment.serve.overview import OverviewReader
from catchment.serve.overview_parts import OverviewParts, changes
from catchment.serve.window_log import WindowLog
from catchment.timeline import END_OF_TIME_US
from tests.worlds.published import publish_project

pytest.importorskip("pyspark")  # the published project is finished by the code that a center runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = publish_project(tmp_path_factory.mktemp("dashboard") / "p")
    os.utime(made / "state" / "center" / "status.json", (0, 0))  # the center stopped long ago
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[DashboardServer]:
    with DashboardServer(Project.load(folder)) as started:
        yield started


def connect(server: DashboardServer, token: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=server.url().partition("/?")[0], headers=headers, trust_env=False)


@pytest.fixture
def stranger(server: DashboardServer) -> Iterator[httpx.Client]:
    with connect(server, None) as client:
        yield client


@pytest.fixture
def reader(server: DashboardServer) -> Iterator[httpx.Client]:
    with connect(server, server.tokens.reader) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    ["/", "/app.js", "/style.css", "/api/overview", "/api/events", "/api/views/traffic", "/api/plan.svg", "/metrics"],
)
def test_a_stranger_sees_nothing(stranger: httpx.Client, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "needs a token" in answer.text
    assert stranger.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_health_needs_no_token_and_readiness_follows_the_center(stranger: httpx.Client) -> None:
    assert stranger.get("/healthz").text == "ok\n"
    assert stranger.get("/readyz").status_code == 503


def test_the_address_with_a_token_sets_a_cookie_that_scripts_cannot_read(stranger: httpx.Client, folder: Path) -> None:
    token = AccessTokens.of_state(folder / "state").reader
    answer = stranger.get(f"/?token={token}", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/", "the token leaves the address"
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE)
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    page = stranger.get("/")
    assert page.status_code == 200
    assert "Sites and links" in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


def test_tokens_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    first = AccessTokens.of_state(tmp_path)
    assert AccessTokens.of_state(tmp_path) == first
    assert first.reader != first.operator
    assert stat.S_IMODE((tmp_path / TOKENS_FILE).stat().st_mode) == 0o600


def test_the_overview_names_every_site_with_its_state_and_the_newest_windows(reader: httpx.Client) -> None:
    overview = reader.get("/api/overview").json()
    sites = {s["name"]: s for s in overview["sites"]}
    assert set(sites) == {"us", "eu", "center"}
    assert overview["may_change"] is False
    links = {(link["from"], link["to"]): link for link in overview["links"]}
    assert links["us", "center"]["capacity_bytes_per_s"] == 64_000
    views = {v["name"]: v for v in overview["views"]}
    assert views["traffic"]["newest"]["status"] == "on_time"
    assert views["traffic"]["newest"]["missing_sites"] == ["eu"]
    assert [w["status"] for w in views["traffic"]["windows"]] == ["final", "exact", "on_time"]
    assert views["quiet"]["newest"] is None


def test_the_overview_compares_what_was_sent_with_the_files_that_were_read(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    reader = OverviewReader(Project.load(folder))
    assert reader.read()["wan"] == {"sent_bytes": 2 * 45_678, "records_bytes": 2 * 1_234_500}
    told = folder / "state" / "sites" / "eu" / "status.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), "read_bytes": None}))
    assert reader.read()["wan"]["records_bytes"] is None, "eu reads what is no file"


def test_what_goes_through_a_relay_is_compared_on_each_link(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    toml = folder / "catchment.toml"
    toml.write_text(toml.read_text().replace('from = "eu"\nto = "center"', 'from = "eu"\nto = "us"'))
    wan = OverviewReader(Project.load(folder)).read()["wan"]
    assert wan == {"sent_bytes": 2 * 45_678, "records_bytes": 3 * 1_234_500}, "the files of eu would cross two links"


def test_records_per_second_are_by_the_clock_and_begin_anew_when_a_site_does(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    told = folder / "state" / "sites" / "us" / "status.json"
    reader = OverviewReader(Project.load(folder))

    def rate(rows: int, at_s: float) -> float:
        told.write_text(json.dumps({**json.loads(told.read_text()), "rows": rows}))
        os.utime(told, (at_s, at_s))
        return float(next(s["rows_per_s"] for s in reader.read()["sites"] if s["name"] == "us"))

    assert rate(1_000, 100.0) == 0.0, "nothing to compare it with"
    assert rate(1_500, 110.0) == 50.0
    assert rate(1_500, 110.0) == 50.0, "nothing was written since"
    assert rate(300, 120.0) == 0.0
    assert rate(500, 130.0) == 20.0


def test_a_site_that_stopped_writing_is_silent_and_one_that_never_wrote_never_started(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    later_s = time.time() + 3600  # never old, however slow this machine is
    os.utime(folder / "state" / "sites" / "us" / "status.json", (later_s, later_s))
    os.utime(folder / "state" / "sites" / "eu" / "status.json", (0, 0))
    (folder / "state" / "center" / "status.json").unlink()
    states = {s["name"]: s["state"] for s in OverviewReader(Project.load(folder)).read()["sites"]}
    assert states == {"us": "running", "eu": "silent", "center": "never started"}
    told = folder / "state" / "sites" / "us" / "status.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), "stopped": True}))
    assert OverviewReader(Project.load(folder)).read()["sites"][0]["state"] == "stopped"


def test_a_view_shows_its_rows_its_plan_and_why_its_windows_changed(reader: httpx.Client) -> None:
    view = reader.get("/api/views/traffic").json()
    first = view["windows"][0]
    assert [h["reason"] for h in first["history"]] == [
        "closed: every site has passed its end",
        "late: 1 row changed",
        "the repair horizon has passed",
    ]
    assert len(view["rows"]) == 4
    assert "Scan requests" in view["plan"]
    assert reader.get("/api/views/nothing").status_code == 400


def test_sql_answers_and_mistakes_are_explained(reader: httpx.Client) -> None:
    query = "SELECT country, sum(bytes) AS bytes FROM traffic GROUP BY country ORDER BY bytes"
    assert reader.post("/api/sql", json={"statement": query}).json()["rows"][0] == {"country": "[de]", "bytes": 7}
    wrong = reader.post("/api/sql", json={"statement": "SELECT * FROM trafic"})
    assert wrong.status_code == 400
    assert "did you mean 'traffic'" in wrong.json()["hint"]
    assert reader.post("/api/sql", json={}).json()["error"] == "the request has no field 'statement'"
    assert "must be JSON" in reader.post("/api/sql", content="{}").json()["error"]
    huge = reader.post("/api/sql", json={"statement": "x" * 200_000})
    assert "longer than" in huge.json()["error"]


def test_only_an_operator_changes_what_runs(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    sql = (
        "CREATE MATERIALIZED VIEW extra AS SELECT window.start, count(*) AS n FROM requests"
        " GROUP BY window(ts, '1 minute')"
    )
    with DashboardServer(Project.load(folder)) as server:
        with connect(server, server.tokens.reader) as reader:
            assert reader.post("/api/submit", json={"sql": sql}).status_code == 403
            assert reader.post("/api/drop", json={"view": "traffic"}).status_code == 403
        with connect(server, server.tokens.operator) as operator:
            assert operator.get("/api/overview").json()["may_change"] is True
            assert operator.post("/api/submit", json={"sql": sql}).json()["queries"][0]["query"] == "extra"
            assert operator.post("/api/drop", json={"view": "extra"}).json()["dropped"] == "extra"
            assert "did you mean" in operator.post("/api/drop", json={"view": "trafic"}).json()["hint"]


def test_metrics_are_declared(reader: httpx.Client) -> None:
    text = reader.get("/metrics").text
    names = set(re.findall(r"^(\w+)\{", text, re.M))
    assert names <= set(METRICS)
    assert 'catchment_link_capacity_bytes_per_second{from="us",to="center"} 64000' in text
    assert 'catchment_site_quarantined_total{site="us"} 2' in text


def test_recent_windows_read_only_what_is_new(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WindowLog(folder / "state", "traffic")
    before = log.poll()
    assert len(before) == 3
    reads: list[int] = []
    monkeypatch.setattr(log, "_read_new", lambda table: reads.append(1))
    assert log.poll() == before
    assert reads == []
    assert WindowLog(folder / "state", "quiet").poll() == ()


def test_a_port_that_is_taken_is_an_error_and_not_the_end_of_the_process(folder: Path) -> None:
    from catchment.errors import ConfigError

    with DashboardServer(Project.load(folder)) as server:
        port = int(re.search(r":(\d+)/", server.url())[1])  # type: ignore[index]
        with pytest.raises(ConfigError, match="cannot be served"):
            DashboardServer(Project.load(folder), port=port)


def test_events_begin_with_the_whole_overview_in_parts(reader: httpx.Client) -> None:
    with reader.stream("GET", "/api/events") as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    first = json.loads(line.removeprefix("data: "))
    assert first["project"] == "web-log"
    whole = reader.get("/api/overview").json()
    views = [{**first[f"view {v['name']}"], "windows": first[f"windows {v['name']}"]} for v in whole["views"]]
    assert views == whole["views"]
    ages = ("center_age_s", "sites", "views", "may_change")  # these grow while the test runs, or are for one caller
    assert {k: v for k, v in whole.items() if k not in ages} == {k: first[k] for k in whole if k not in ages}


def test_only_the_parts_that_changed_are_sent_and_the_text_of_windows_is_made_once() -> None:
    splitter = OverviewParts()
    windows = ({"start": "2017", "status": "exact", "coverage": 1.0, "rev": 1},)
    view = {"name": "v", "late_records": 0, "windows": windows}
    first = splitter.split({"project": "p", "views": [view]})
    assert json.loads(changes({}, first) or "") == {
        "project": "p",
        "view v": {"name": "v", "late_records": 0},
        "windows v": list(windows),
    }
    second = splitter.split({"project": "p", "views": [{**view, "late_records": 1}]})
    assert json.loads(changes(first, second) or "") == {"view v": {"name": "v", "late_records": 1}}
    assert second["windows v"] is first["windows v"]
    assert changes(second, second) is None
    gone = splitter.split({"project": "p", "views": []})
    assert json.loads(changes(second, gone) or "") == {"gone": ["view v", "windows v"]}


def test_the_overview_says_who_holds_a_view_back_and_where_it_is_suspended(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    told = folder / "state" / "center" / "status.json"
    status = json.loads(told.read_text())
    view = status["queries"]["traffic"]
    view["marks_us"] = {"us": 60_000_000, "eu": 50_000_000, "asia": END_OF_TIME_US, "africa": None}
    view["suspended"] = {"eu": {"reason": "CAST failed", "expression": "CAST(a AS INT)"}}
    told.write_text(json.dumps(status))
    reader = OverviewReader(Project.load(folder))
    found = next(v for v in reader.read()["views"] if v["name"] == "traffic")
    standings = {s["site"]: s["behind_s"] for s in found["sites"]}
    assert standings == {"us": 0.0, "eu": 10.0, "asia": 0.0, "africa": None}
    assert next(s for s in found["sites"] if s["site"] == "us")["slack_s"] is not None
    assert found["suspended"] == [{"site": "eu", "reason": "CAST failed", "expression": "CAST(a AS INT)"}]
    text = write_metrics(reader.read())
    assert 'catchment_view_suspended{view="traffic"} 1' in text
    assert 'catchment_view_site_behind_seconds{view="traffic",site="eu"} 10' in text


def test_the_plan_is_a_picture_and_what_was_promised_is_judged(reader: httpx.Client) -> None:
    picture = reader.get("/api/plan.svg")
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert "traffic" in picture.text
    judged = reader.get("/api/views/traffic/quality").json()
    assert judged["windows"] == 3
    assert judged["exact_windows"] == 2
