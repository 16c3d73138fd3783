"""Records that are posted to a site over a real socket: taken once, or refused with a reason."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import trustme

from catchment.errors import ConfigError
from catchment.query.marker_form import MarkerForm
from catchment.receivers.http import MAX_BODY_BYTES, HttpAddress, HttpReceiver, read_http_token
from catchment.receivers.landing import LandingFolder
from catchment.receivers.writer import LandingWriter
from tests.worlds.waiting import free_port, wait_until


class _Site:
    def __init__(self, folder: Path, max_bytes: int = 10**9, address: HttpAddress | None = None) -> None:
        self.landing = folder / "landing"
        self.writer = LandingWriter(LandingFolder(self.landing, "json", max_bytes, 1000), "stream 'hits'")
        self.writer.start()
        self.receiver = HttpReceiver(address or HttpAddress("127.0.0.1", 0), folder)
        self.receiver.serve("hits", self.writer)
        self.receiver.start()
        self.token = read_http_token(folder)
        self.url = f"http://127.0.0.1:{self.receiver.port}/streams/hits"

    def post(self, body: bytes, key: str | None = None, **others: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}", **({"idempotency-key": key} if key else {}), **others}
        return httpx.post(self.url, content=body, headers=headers, timeout=600)

    def lines(self) -> list[str]:
        visible = sorted(path for path in self.landing.glob("*.json") if not path.name.startswith("."))
        return [line for path in visible for line in path.read_text().splitlines()]

    def stop(self) -> None:
        self.receiver.stop()
        self.writer.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[_Site]:
    site = _Site(tmp_path)
    yield site
    site.stop()


def test_posted_lines_land_before_they_are_answered(site: _Site) -> None:
    answer = site.post(b'{"n": 1}\r\n\n{"n": 2}')
    assert (answer.status_code, answer.json()) == (200, {"records": 2, "repeated": False})
    assert site.lines() == ['{"n": 1}', '{"n": 2}']
    assert site.post(b"\n \n").json() == {"records": 0, "repeated": False}


def test_a_request_with_a_key_counts_once_however_often_and_wherever_it_is_repeated(
    site: _Site, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as senders:
        answers = list(senders.map(lambda _: site.post(b'{"n": 1}', key="a"), range(8)))
    assert [a.status_code for a in answers] == [200] * 8
    assert sorted(a.json()["repeated"] for a in answers) == [False, *[True] * 7]
    site.stop()
    again = _Site(tmp_path)
    assert again.post(b'{"n": 1}', key="a").json() == {"records": 1, "repeated": True}
    assert again.lines() == ['{"n": 1}']
    reused = again.post(b'{"n": 2}', key="a")
    assert reused.status_code == 409
    assert "key of its own" in reused.json()["error"]
    again.stop()


def test_what_is_refused_is_refused_with_a_reason_and_leaves_nothing(site: _Site) -> None:
    line = b'{"n": 1}'
    without = httpx.post(site.url, content=line)
    wrong = site.post(line, authorization="Bearer wrong")
    assert (without.status_code, wrong.status_code) == (401, 401)
    assert "http-token" in wrong.json()["error"]
    assert site.token not in wrong.text
    assert site.receiver.status()["denied"] == 2
    other = httpx.post(site.url.replace("hits", "misses"), headers={"authorization": f"Bearer {site.token}"})
    assert (other.status_code, "hits" in other.json()["error"]) == (404, True)
    array = site.post(b'[{"n": 1}]')
    assert (array.status_code, "one object per line" in array.json()["error"]) == (400, True)
    assert site.post(line, **{"content-encoding": "gzip"}).status_code == 415
    assert site.post(line, key="k" * 201).status_code == 400
    assert site.post(b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    assert httpx.get(site.url).status_code == 405
    assert site.lines() == []


FORM = MarkerForm("json", ",", ("ts", "device", "done"), "done", "device")


def test_stated_progress_lands_as_a_marker_behind_the_records_before_it(site: _Site) -> None:
    site.receiver.serve("hits", site.writer, FORM)
    site.post(b'{"ts": 1}')
    headers = {"authorization": f"Bearer {site.token}", "idempotency-key": "p1"}
    body = b'{"before": "2026-01-31T15:00:00+01:00", "source": "d1"}'
    for repeated in (False, True):
        answer = httpx.post(f"{site.url}/progress", content=body, headers=headers)
        assert (answer.status_code, answer.json()["repeated"]) == (200, repeated)
    assert site.lines() == ['{"ts": 1}', '{"device": "d1", "done": "2026-01-31T14:00:00.000000+00:00"}']


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"before": 3}', b'{"source": "d1"}', b'{"before": "2026-01-31", "when": 1}', b'{"before": "soon"}'],
)
def test_what_states_nothing_is_refused_with_an_example(site: _Site, body: bytes) -> None:
    site.receiver.serve("hits", site.writer, FORM)
    answer = httpx.post(f"{site.url}/progress", content=body, headers={"authorization": f"Bearer {site.token}"})
    assert answer.status_code == 400
    assert '"before"' in answer.json()["error"]
    assert site.lines() == []


def test_progress_is_taken_only_of_streams_that_declare_it_and_with_the_token(site: _Site) -> None:
    body = b'{"before": "2026-01-31"}'
    assert httpx.post(f"{site.url}/progress", content=body).status_code == 401
    headers = {"authorization": f"Bearer {site.token}"}
    undeclared = httpx.post(f"{site.url}/progress", content=body, headers=headers)
    assert (undeclared.status_code, "progress_column" in undeclared.json()["error"]) == (409, True)
    site.receiver.serve("hits", site.writer, MarkerForm("csv", ";", ("ts", "done", "n"), "done", None))
    assert httpx.post(f"{site.url}/progress", content=body, headers=headers).status_code == 200
    assert site.lines() == [";2026-01-31T00:00:00.000000+00:00;"]
    named = httpx.post(f"{site.url}/progress", content=b'{"before": "2026-01-31", "source": "d"}', headers=headers)
    assert (named.status_code, "names no source" in named.json()["error"]) == (400, True)


def test_a_site_that_is_behind_asks_senders_to_wait(tmp_path: Path) -> None:
    site = _Site(tmp_path, max_bytes=4)
    assert site.post(b'{"n": 1}').status_code == 200
    wait_until(lambda: not site.writer.status()["has_room"], "the folder is full")
    refused = site.post(b'{"n": 2}')
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert site.lines() == ['{"n": 1}']
    site.stop()


def test_records_are_received_over_tls_with_the_certificate_of_the_site(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    site = _Site(tmp_path, address=HttpAddress("127.0.0.1", 0, tmp_path / "cert.pem", tmp_path / "key.pem"))
    answer = httpx.post(
        site.url.replace("http:", "https:"),
        content=b'{"n": 1}',
        headers={"authorization": f"Bearer {site.token}"},
        verify=ssl.create_default_context(cafile=tmp_path / "ca.pem"),
    )
    assert answer.status_code == 200
    with pytest.raises(httpx.HTTPError):
        site.post(b'{"n": 2}')
    assert site.lines() == ['{"n": 1}']
    site.stop()


def test_an_address_that_is_taken_is_an_error_that_says_what_to_set(site: _Site, tmp_path: Path) -> None:
    taken = HttpReceiver(HttpAddress("127.0.0.1", site.receiver.port), tmp_path)
    with pytest.raises(ConfigError, match="cannot be received") as raised:
        taken.start()
    assert "catchment.toml" in (raised.value.hint or "")
    with pytest.raises(ConfigError, match="certificate"):
        HttpReceiver(HttpAddress("127.0.0.1", free_port(), tmp_path / "no.pem", tmp_path / "no.key"), tmp_path)
