"""Requests of people to running roles: none is lost, whoever asks and whoever follows them at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from catchment.control.reports import forget_taken, take_requests
from catchment.deploy.reports import requests
from catchment.deploy.reports.requests import (
    forget_repairs,
    forget_resumptions,
    forget_retries,
    request_repairs,
    request_resumption,
    request_retries,
    requested_repairs,
    requested_resumptions,
    requested_retries,
)
from catchment.storage.files import read_record
from tests.worlds.threads import run_together

KINDS = [
    pytest.param(request_repairs, requested_repairs, forget_repairs, id="repairs"),
    pytest.param(request_resumption, requested_resumptions, forget_resumptions, id="resumptions"),
    pytest.param(request_retries, requested_retries, forget_retries, id="retries"),
]
Change = Callable[[Path, Collection[str]], None]
Look = Callable[[Path], frozenset[str]]


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever has read a file wait for another one that has read it, so that both write what both have read."""
    both_have_read = threading.Barrier(2)

    def read_and_wait(path: Path) -> dict[str, Any] | None:
        found = read_record(path)
        with suppress(threading.BrokenBarrierError):
            both_have_read.wait(0.2)
        return found

    monkeypatch.setattr(requests, "read_record", read_and_wait)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize(("ask", "asked", "forget"), KINDS)
def test_two_operators_who_ask_at_once_are_both_heard(tmp_path: Path, ask: Change, asked: Look, forget: Change) -> None:
    run_together(lambda: ask(tmp_path, ["a"]), lambda: ask(tmp_path, ["b"]))
    assert asked(tmp_path) == {"a", "b"}


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize(("ask", "asked", "forget"), KINDS)
def test_who_asks_while_another_request_is_forgotten_is_heard(
    tmp_path: Path, ask: Change, asked: Look, forget: Change
) -> None:
    ask(tmp_path, ["a"])
    run_together(lambda: ask(tmp_path, ["b"]), lambda: forget(tmp_path, ["a"]))
    assert asked(tmp_path) == {"b"}


@pytest.mark.parametrize(("ask", "asked", "forget"), KINDS)
def test_what_was_asked_since_the_requests_were_read_stays(
    tmp_path: Path, ask: Change, asked: Look, forget: Change
) -> None:
    ask(tmp_path, ["a", "b"])
    followed = asked(tmp_path)
    ask(tmp_path, ["c"])
    forget(tmp_path, followed)
    assert asked(tmp_path) == {"c"}
    forget(tmp_path, ["c", "d"])
    assert asked(tmp_path) == frozenset()
    forget(tmp_path, ["c"])


def test_what_is_asked_at_the_center_while_a_site_confirms_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_requests(tmp_path, {"repairs": ["a"]})

    def read_late(path: Path) -> dict[str, Any] | None:
        found = read_record(path)
        monkeypatch.setattr(requests, "read_record", read_record)
        request_repairs(tmp_path, ["b"])
        return found

    monkeypatch.setattr(requests, "read_record", read_late)
    forget_taken(tmp_path, {"repairs": ["a"]})
    assert "b" in requested_repairs(tmp_path)
