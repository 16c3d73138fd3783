"""A site keeps what `[limits]` allows of raw and bad records, and is closed whatever its disk says. Without a JVM."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.housekeeping import SiteHousekeeping
from catchment.deploy.processes.relay_runner import RelayRunner
from catchment.deploy.reports.role_files import read_status
from catchment.project.sections import StorageLimits
from catchment.storage.batch_retention import KEEP_NEWEST
from catchment.timeline import ManualClock
from tests.worlds.projects import write_project
from tests.worlds.small_disk import fill, small_disk

DAY_US = 86_400 * 1_000_000
NOW_US = 20_000 * DAY_US


def write_batches(folder: Path, count: int) -> None:
    for number in range(count):
        batch = folder / f"batch={number}"
        batch.mkdir(parents=True)
        (batch / "part.parquet").write_bytes(b"x" * 1000)
        written_ns = (NOW_US - (count - number) * DAY_US) * 1000
        os.utime(batch, ns=(written_ns, written_ns))


def kept(folder: Path) -> set[int]:
    return {int(p.name.removeprefix("batch=")) for p in folder.glob("batch=*")}


def test_history_and_quarantine_have_limits_of_their_own_and_what_is_owed_stays(tmp_path: Path) -> None:
    write_batches(tmp_path / "history" / "hits", 40)
    write_batches(tmp_path / "quarantine" / "hits", 40)
    limits = StorageLimits(history_keep_us=20 * DAY_US, history_max_bytes=None, quarantine_max_bytes=12_000)
    keeping = SiteHousekeeping(tmp_path, limits, ManualClock(NOW_US), lambda stream: {3, 5})
    keeping.tick(["hits", "idle"])
    assert kept(tmp_path / "history" / "hits") == {3, 5, *range(20, 40)}
    assert kept(tmp_path / "quarantine" / "hits") == set(range(28, 40))
    assert KEEP_NEWEST < 12
    assert keeping.status()["history"] == {
        "hits": {"batches": 22, "size_bytes": 22_000, "removed_batches": 18, "removed_bytes": 18_000},
        "idle": {"batches": 0, "size_bytes": 0, "removed_batches": 0, "removed_bytes": 0},
    }
    assert keeping.status()["quarantine"]["hits"]["removed_bytes"] == 28_000


def test_without_limits_nothing_is_removed(tmp_path: Path) -> None:
    write_batches(tmp_path / "history" / "hits", 30)
    limits = StorageLimits(history_keep_us=None, history_max_bytes=None, quarantine_max_bytes=None)
    SiteHousekeeping(tmp_path, limits, ManualClock(NOW_US), lambda stream: ()).tick(["hits"])
    assert len(kept(tmp_path / "history" / "hits")) == 30


def test_a_process_whose_disk_is_full_is_closed_and_its_status_can_be_read(tmp_path: Path) -> None:
    with small_disk(tmp_path, 8_000_000) as disk:
        folder = write_project(tmp_path / "p", ("a",), {})
        text = (folder / "catchment.toml").read_text().replace('to = "center"', 'to = "hub"')
        text = text.replace("[project]", f'[project]\nstate = "{disk}"')
        text += '[sites.hub]\n[[links]]\nfrom = "hub"\nto = "center"\n'
        (folder / "catchment.toml").write_text(text.replace("[sites.center]", '[sites.center]\nlisten = "127.0.0.1:1"'))
        runner = RelayRunner(Deployment.load(folder), ("hub",))
        runner.start()
        try:
            runner.write_status()
            address = runner.relays.address("hub")
            fill(disk)
        finally:
            runner.close()
        assert address is not None
        status = read_status(Deployment.load(folder).project.relay_folder("hub"))
        assert status is not None
        assert status["to"] == "center"
        assert status["disk"]["low_since_us"] is not None
        assert status["disk"]["floor_bytes"] == StorageLimits().free_disk_bytes
        assert json.dumps(status)
        with pytest.raises(OSError, match="refused"):
            _connect(address)


def _connect(address: str) -> None:
    import socket

    host, port = address.rsplit(":", 1)
    socket.create_connection((host, int(port)), timeout=5).close()
