"""Devices with a log: killed at any write, they lose nothing, double nothing and invent nothing.

The oracle is the naive recomputation over all raw records. It cannot catch a log that a power cut harms: that what is
durable is synced before anyone relies on it is in the tests of storage/.
"""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catchment.errors import StorageError
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.router import Router
from catchment.feeds.device.device import DeviceConfig, boot_number
from catchment.feeds.device.device_log import DeviceLog
from catchment.feeds.device.durable_device import DurableDevice
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.device.send_queue import SendLimits, SendQueue
from catchment.feeds.language.program_form import compile_feeds, form_of
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.messages import (
    Admitted,
    Confirmed,
    FeedEvent,
    Hello,
    Install,
    Instructions,
    Mark,
    Notice,
    Program,
    Refused,
    SetUpload,
)
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from tests.worlds.feeds_durable import DurableFleet
from tests.worlds.feeds_world import (
    DECLARED,
    HOURLY,
    LAYERED,
    NEARBY,
    SECOND,
    Walkers,
    carry_at_random,
    finish,
    graph_of,
    random_friends,
    random_hosts,
)
from tests.worlds.tiers import examples

DEVICES = 4
GRAPH = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)])
(VIEW,) = GRAPH.views.values()
ROW = (0, 48.0, 2.0, 1.0)
LATER_US = 1_700_000_000 * SECOND


@settings(max_examples=examples(8))
@given(st.integers(0, 10_000), st.sampled_from([NEARBY, HOURLY, LAYERED]))
@example(1, NEARBY)
def test_devices_that_are_killed_again_and_again_notify_like_the_naive_recomputation(seed: int, view: str) -> None:
    with TemporaryDirectory() as folder:
        killed = run_killed_devices(Path(folder), seed, view)
    assert seed != 1 or killed == {"before", "within", "behind"}


def run_killed_devices(folder: Path, seed: int, view: str) -> set[str]:
    """Run devices that are killed, and compare; return where in a write they were killed."""
    rng = random.Random(seed)
    graph = graph_of(DECLARED + view, random_friends(rng, DEVICES, 5))
    bus = Bus(max_queued=1_000_000)
    names = [str(i) for i in range(DEVICES)]
    fleet = DurableFleet(names, bus, folder, rng, kill_share=0.05)
    cloud = Cloud(graph, Router(compile_feeds(graph.program)))
    run = LocalRun(cloud, cast(Fleet, fleet), bus)
    run.produced = []
    run.connect_all()
    run.send(cloud.deploy(random_hosts(rng, graph)))
    run.carry(run)
    assert not cloud.controller.moving
    run.carry = carry_at_random(rng)
    run.at(3 * SECOND, lambda r: r.send(cloud.deploy(random_hosts(rng, graph))))
    away = rng.choice(names)
    run.at(4 * SECOND, lambda r: r.fleet.disconnect(away, r.now_us))
    run.at(7 * SECOND, lambda r: r.fleet.connect(away, r.now_us))
    run.run(Walkers(rng, DEVICES).records(("location", "status")), 10 * SECOND)
    finish(run)
    given_out = [n.identity for n in fleet.notices]
    assert set(given_out) == naive_notices(graph, run.produced)
    assert len(set(given_out)) == len(given_out), "an application must be given no notice twice"
    return set(fleet.kills)


def told_device(folder: Path, now_us: int = LATER_US) -> DurableDevice:
    """A device that computes a view over its own feed and another one, and uploads its own."""
    device = DurableDevice(DeviceLog(folder), DeviceConfig("0"), now_us)
    device.link_changed(True, now_us)
    items = (Program(form_of(GRAPH.program)), SetUpload("location@0", 1.0, 5), Install(VIEW, 6), Mark(now_us + 10, 7))
    device.receive(40, Instructions(items), now_us)
    return device


def again(device: DurableDevice, folder: Path, now_us: int = LATER_US + SECOND) -> DurableDevice:
    """The device as it comes back after a kill."""
    device.close()
    return DurableDevice(DeviceLog(folder), DeviceConfig("0"), now_us)


def test_a_life_that_begins_in_the_same_second_has_higher_numbers() -> None:
    """A receiver drops messages whose numbers are not above the last one: those of a quick restart would be lost."""
    started_us, sent = LATER_US, 500
    assert boot_number(started_us + SECOND // 2) > boot_number(started_us) + sent


def test_a_device_comes_back_with_its_boot_its_views_and_its_numbers(tmp_path: Path) -> None:
    first = told_device(tmp_path)
    assert first.record([("location", ROW)], LATER_US) == {}
    back = again(first, tmp_path)
    assert back.core.config.boot == boot_number(LATER_US) == first.core.config.boot
    assert back.is_told
    assert back.core.uploads == {"location@0": 1.0}
    assert back.core.numbers == first.core.numbers
    assert back.received_number == 40
    assert back.recorded == 1
    waiting = list(back.queue.waiting.values())
    assert [type(m) for m in waiting] == [Confirmed, FeedEvent]
    back.link_changed(True, LATER_US + SECOND)
    sent = [m for _, m in back.take_to_send(LATER_US + SECOND)]
    assert sent[0] == Hello(first.core.config.boot), "under the same boot it is told nothing again"
    back.tick(LATER_US + SECOND)
    assert Confirmed((7,), LATER_US + SECOND) in back.queue.waiting.values(), "a mark of before is confirmed"


def test_a_match_of_events_before_and_after_a_kill_is_found(tmp_path: Path) -> None:
    first = told_device(tmp_path)
    first.receive(41, FeedEvent("location@1", (9,), LATER_US, (48.0, 2.0)), LATER_US)
    for compact in (False, True):
        if compact:
            first.log.rewrite(first._snapshot())
        first = again(first, tmp_path)
    first.record([("location", ROW)], LATER_US + SECOND)
    (found,) = first.unhandled
    assert found.notice.notified == "0"


def test_a_notice_is_given_under_one_number_until_it_was_handled_and_never_again(tmp_path: Path) -> None:
    device = told_device(tmp_path)
    notice = Notice("v", "0", (1, 2, 0), LATER_US, ("x",))
    device.receive(41, notice, LATER_US)
    device = again(device, tmp_path)
    assert [(n.number, n.notice) for n in device.unhandled] == [(0, notice)]
    device.handled(0)
    device = again(device, tmp_path)
    assert list(device.unhandled) == []
    device.log.rewrite(device._snapshot())
    device = again(device, tmp_path)
    device.receive(42, notice, LATER_US)  # a second copy, of another host of the view
    assert list(device.unhandled) == []


def test_what_the_broker_has_is_not_sent_again(tmp_path: Path) -> None:
    device = told_device(tmp_path)
    device.record([("location", ROW), ("location", ROW)], LATER_US)
    numbers = [n for n, _ in device.take_to_send(LATER_US) if n is not None]
    device.acknowledged(numbers[:2])
    back = again(device, tmp_path)
    assert list(back.queue.waiting) == numbers[2:]
    assert len(numbers) == 3


def test_a_record_of_the_wrong_types_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    device = told_device(tmp_path)
    refused = device.record([("location", (0, "north", 2.0, 1.0)), ("location", ROW)], LATER_US)
    assert "has 'north' in 'lat', expected DOUBLE" in str(refused[0])
    assert device.recorded == 1
    assert again(device, tmp_path).recorded == 1


def test_a_refused_device_sends_only_its_hello(tmp_path: Path) -> None:
    device = told_device(tmp_path)
    device.receive(41, Refused(device.core.config.boot, "unknown"), LATER_US)
    device.record([("location", ROW)], LATER_US)
    assert [type(m) for _, m in device.take_to_send(LATER_US)] == [Hello]
    device.receive(42, Admitted(device.core.config.boot), LATER_US)
    assert FeedEvent in [type(m) for _, m in device.take_to_send(LATER_US)]


def test_a_log_that_was_cut_at_any_byte_of_its_last_entry_is_read_up_to_it(tmp_path: Path) -> None:
    device = told_device(tmp_path)
    before = device.log.size_bytes
    device.record([("location", ROW)], LATER_US)
    device.close()
    whole = (tmp_path / "device.log").read_bytes()
    for size in (before, before + 1, before + 11, before + 12, before + 30, len(whole) - 1, len(whole)):
        (tmp_path / "device.log").write_bytes(whole[:size])
        back = DurableDevice(DeviceLog(tmp_path), DeviceConfig("0"), LATER_US)
        assert back.recorded == (size == len(whole))
        back.close()
        assert (tmp_path / "device.log").stat().st_size in (before, len(whole))


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    device = told_device(tmp_path)
    device.record([("location", ROW)], LATER_US)
    device.close()
    data = bytearray((tmp_path / "device.log").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "device.log").write_bytes(data)
    with pytest.raises(StorageError, match="damaged"):
        DeviceLog(tmp_path)


def test_a_log_is_begun_anew_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchment.feeds.device.device_log.REWRITE_FROM_BYTES", 5_000)
    device = told_device(tmp_path)
    for n in range(150):
        device.record([("location", ROW)], LATER_US + n * SECOND)
        device.acknowledged(list(device.queue.waiting))
    assert device.log.size_bytes < 25_000
    assert again(device, tmp_path).recorded == 150


def test_after_a_long_absence_messages_leave_in_order_and_at_the_declared_rate() -> None:
    queue = SendQueue(SendLimits(max_waiting=5000, send_per_s=100.0, max_in_flight=1000))
    for n in range(6000):
        queue.push(FeedEvent("f", (n,), n, ()))
    assert queue.dropped == 1000
    left: list[Any] = []
    for second in range(1, 11):
        now = [message for _, message in queue.take(second * SECOND)]
        assert len(now) <= 100
        left += now
    assert [m.key for m in left] == [(n,) for n in range(1000, 2000)]
    assert list(queue.take(10 * SECOND)) == [], "no more than the bound is in flight"


def test_a_device_needs_no_spark_no_sql_and_no_science() -> None:
    """What one imports decides what a small machine must hold; resident memory is in docs/measurements/feeds.md."""
    code = (
        "import sys; import catchment.feeds.device.feed_device; import catchment.feeds.device.process;"
        "print(sorted({m.split('.')[0] for m in sys.modules}))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"pyspark", "py4j", "scipy", "matplotlib", "pandas", "pyarrow", "sqlglot", "grpc", "rich", "networkx"}
    assert heavy & set(ast.literal_eval(printed)) == set()
