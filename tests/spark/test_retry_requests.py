"""Requests to try again what fragments have set aside: each is followed once, and what a crash leaves is removed.

Catches: a request that is followed again and again while another one waits, folders that show records which are in the
answers. Cannot catch: what Spark makes of the records; `tests/spark/test_set_aside.py` does.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from catchment.deploy.reports.requests import request_retries, requested_retries
from catchment.site.retry import RecordsRetried, Retry, RetryBegun, name_folder, read_folder_name
from catchment.spark.pipelines.quarantine_retry import QuarantineRetries
from catchment.spark.pipelines.record_quarantine import RecordQuarantine
from catchment.spark.pipelines.site import SitePipeline

FRAGMENTS = tuple(SimpleNamespace(name=name, stream="s") for name in ("a", "b"))


def test_a_request_is_followed_once_while_another_one_waits_for_a_try_that_is_under_way(tmp_path: Path) -> None:
    begun: list[str] = []
    core = SimpleNamespace(retries=("a",), definitions=FRAGMENTS)  # that of `a` waits, because it is suspended
    host = SimpleNamespace(
        batches={"s": 4},
        look=lambda ask: ask(),
        submit=lambda cause, events: begun.extend(event.fragment for event in events),
    )
    site = cast(Any, SimpleNamespace(folder=tmp_path, core=core, host=host))
    request_retries(tmp_path, ["a", "b"])
    SitePipeline._retry_requested(site)
    SitePipeline._retry_requested(site)  # the try of `b` is over by now
    assert (begun, requested_retries(tmp_path)) == (["b"], frozenset({"a"}))
    core.retries = ()
    SitePipeline._retry_requested(site)
    SitePipeline._retry_requested(site)
    assert (begun, requested_retries(tmp_path)) == (["b", "a"], frozenset())


def test_what_a_crash_has_left_of_a_try_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """The entry is in the journal: its records are in the answers, and are not shown in quarantine any more."""
    retry = Retry()
    retry.begin(RetryBegun("a", 3))
    table = cast(Any, None)
    retry.advance(RecordsRetried("a", 1, 0, 2, table))
    base = tmp_path / "quarantine" / "s"
    for name in (name_folder("a"), name_folder("a", 1), name_folder("b"), name_folder("ab")):
        for batch in range(3):
            (base / name / f"batch={batch}").mkdir(parents=True)
    reducer = cast(Any, SimpleNamespace(folder=tmp_path))
    retries = {"a": retry, "b": Retry()}
    core = cast(Any, SimpleNamespace(definitions=FRAGMENTS, retry_of=retries.__getitem__))
    states = cast(Any, lambda: [SimpleNamespace(stream=SimpleNamespace(name="s"))])
    tried = QuarantineRetries(
        RecordQuarantine(reducer, lambda name: {}), lambda ask: ask(), core, states, lambda events: 0, threading.Event()
    )
    tried.forget_tried()
    left = {(path.parent.name, path.name) for path in base.glob("*/batch=*")}
    others = {(name, f"batch={batch}") for name in ("fragment=b", "fragment=ab") for batch in range(3)}
    current = {("fragment=a", "batch=2"), ("fragment=a.retry=1", "batch=0"), ("fragment=a.retry=1", "batch=1")}
    assert left == others | current


def test_the_name_of_a_folder_says_whose_it_is_and_of_which_try() -> None:
    assert read_folder_name(name_folder("a")) == ("a", 0)
    assert read_folder_name(name_folder("a.b", 12)) == ("a.b", 12)
    assert read_folder_name("batch=3") is None
    assert read_folder_name("fragment=a.retry=x") is None
