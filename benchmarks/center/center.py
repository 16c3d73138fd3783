"""What the center does per segment, per partial and per open key, without Spark and without sites.

The real inbox, journal, core and result tables (Delta) on the disk of this machine. Frames are made beforehand, so that
what sites do is not in the figures. `landing` has many senders at once that wait for their acknowledgements, as the
lanes of sites do; `merging` consumes what has landed up to the published windows, and compares the answers with a plain
sum of what was sent before its time is believed; `open_keys` holds the keys of an open window while small segments
land. Seconds of the processor are measured beside those of the clock, which others on the machine change.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.center.frames import WINDOW_US, CenterWorld
from catchment.storage.disk import Disk, use_disk

DESCRIPTION = "what a center costs per segment, per merged partial and per open key; no Spark"
PARTS = ("landing", "merging", "open_keys")
SITES = (4, 8, 16, 32)
LANES = 4  # segments of one site that are under way at once, as in a sender
TURNS = 5


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure the parts."""
    measured: dict[str, Any] = {"compared": "the center alone: its inbox, journal, core and Delta tables"}
    if "landing" in parts:
        measured["landing"] = [measure_landing(sites, 10 if quick else 50, report) for sites in SITES]
    if "merging" in parts:
        turns, rows = (1, 5_000) if quick else (TURNS, 25_000)
        measured["merging"] = measure_merging(rows, turns, report)
    if "open_keys" in parts:
        measured["open_keys"] = [
            measure_open_keys(keys, 300 if quick else 1_100, report)
            for keys in ((10_000, 100_000) if quick else (10_000, 1_000_000))
        ]
    return measured


class CountingDisk(Disk):
    """The disk of the system, which counts what is synced."""

    def __init__(self) -> None:
        self.syncs = 0

    def fsync(self, file: int) -> None:
        self.syncs += 1
        super().fsync(file)


@contextmanager
def open_world(sites: int) -> Iterator[tuple[CenterWorld, CountingDisk]]:
    """Make a center in a folder that is removed at the end."""
    disk = CountingDisk()
    with tempfile.TemporaryDirectory() as folder, use_disk(disk):
        world = CenterWorld(Path(folder), sites)
        yield world, disk
        world.close()


def measure_landing(sites: int, segments: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Return how many small segments land per second, sent by the lanes of so many sites, and syncs per segment."""
    with open_world(sites) as (world, disk):
        by_lane: list[list[bytes]] = [[] for _ in range(sites * LANES)]
        for site in range(sites):
            for number in range(segments):
                by_lane[site * LANES + number % LANES].append(world.frame(site, number, 0, rows=20, mark_us=0))

        def send(frames: Sequence[bytes]) -> None:
            for frame in frames:
                world.inbox.accept(frame)

        lanes = [threading.Thread(target=send, args=(frames,)) for frames in by_lane]
        disk.syncs = 0
        began = time.perf_counter()
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        seconds = time.perf_counter() - began
        landed = world.inbox.last_position + 1
        assert landed == sites * segments, "some were not taken"
    found = {
        "sites": sites,
        "segments": landed,
        "seconds": seconds,
        "segments_per_s": landed / seconds,
        "syncs_per_segment": disk.syncs / landed,
    }
    report(f"{sites} sites: {found['segments_per_s']:.0f} segments/s, {found['syncs_per_segment']:.2f} syncs each")
    return found


def measure_merging(rows: int, turns: int, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return how many partials are merged per second with 4 to 32 sites; the numbers of sites take turns."""
    seconds: dict[int, list[float]] = {sites: [] for sites in SITES}
    processor: dict[int, list[float]] = {sites: [] for sites in SITES}
    for turn in range(turns + 1):  # the first one warms up
        for sites in SITES:
            took, worked = merge_once(sites, rows)
            if turn:
                seconds[sites].append(took)
                processor[sites].append(worked)
                report(f"{sites} sites: {4 * sites * rows / took / 1e6:.2f} M partials/s")
    found = []
    for sites, all_seconds in seconds.items():
        median_s = statistics.median(all_seconds)
        partials = 4 * sites * rows
        found.append(
            {
                "sites": sites,
                "partials": partials,
                "seconds": all_seconds,
                "processor_s": processor[sites],
                "partials_per_s": partials / median_s,
            }
        )
    return found


def merge_once(sites: int, rows: int) -> tuple[float, float]:
    """Land four windows of partials of every site, consume and compare; return the seconds of clock and processor."""
    with open_world(sites) as (world, _):
        sent = np.zeros(4)
        for window in range(4):
            for site in range(sites):
                mark_us = (window + 1) * WINDOW_US
                world.inbox.accept(world.frame(site, window, window * WINDOW_US, rows=rows, mark_us=mark_us))
                sent[window] += world.sent_total
        gc.collect()
        began, worked = time.perf_counter(), time.process_time()
        while world.pipeline.consume():
            pass
        took, worked = time.perf_counter() - began, time.process_time() - worked
        published = world.published_totals()
        assert np.allclose([published[w * WINDOW_US] for w in range(4)], sent, rtol=1e-9), "the answers are others"
    return took, worked


def measure_open_keys(keys: int, entries: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the memory of an open window of so many keys, and what small segments cost while it is open."""
    with open_world(2) as (world, _):
        for part in range(4):
            world.inbox.accept(world.frame(0, part, 0, rows=keys // 4, mark_us=0, first_key=part * (keys // 4)))
        while world.pipeline.consume():
            pass
        world.pipeline.host.checkpoint()
        times = []
        for number in range(entries):
            world.inbox.accept(world.frame(1, number, 0, rows=10, mark_us=0))
            began = time.perf_counter()
            world.pipeline.consume()
            times.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(20):
            world.pipeline.status()
        status_s = (time.perf_counter() - began) / 20
        world.pipeline.tick()
        held_bytes = world.pipeline.open_state.size_bytes
    found = {
        "keys": keys,
        "entries": entries,
        "held_mb": held_bytes / 1e6,
        "mean_ms_per_entry": statistics.fmean(times) * 1e3,
        "median_ms_per_entry": statistics.median(times) * 1e3,
        "longest_ms": max(times) * 1e3,
        "status_ms": status_s * 1e3,
    }
    report(f"{keys:,} open keys: {found['held_mb']:.0f} MB, {found['mean_ms_per_entry']:.1f} ms per entry on average")
    return found


def render(result: Mapping[str, Any]) -> RenderableType:
    """Show a table for each part that was measured."""
    shown = []
    if "landing" in result:
        table = Table("sites", "segments/s", "syncs per segment", title="landing small segments", title_justify="left")
        for cell in result["landing"]:
            table.add_row(str(cell["sites"]), f"{cell['segments_per_s']:,.0f}", f"{cell['syncs_per_segment']:.2f}")
        shown.append(table)
    if "merging" in result:
        table = Table(
            "sites",
            "M partials/s",
            "lowest",
            "highest",
            "M partials per second of processor",
            "processor ms per site",
            title="merging and publishing",
            title_justify="left",
        )
        for cell in result["merging"]:
            rates = [cell["partials"] / seconds / 1e6 for seconds in cell["seconds"]]
            table.add_row(
                str(cell["sites"]),
                f"{cell['partials_per_s'] / 1e6:.2f}",
                f"{min(rates):.2f}",
                f"{max(rates):.2f}",
                f"{cell['partials'] / statistics.median(cell['processor_s']) / 1e6:.2f}",
                f"{statistics.median(cell['processor_s']) / cell['sites'] * 1e3:.0f}",
            )
        shown.append(table)
    if "open_keys" in result:
        table = Table(
            "open keys",
            "mean ms per small entry",
            "longest ms",
            "status ms",
            title="holding open keys",
            title_justify="left",
        )
        for cell in result["open_keys"]:
            table.add_row(
                f"{cell['keys']:,}",
                f"{cell['mean_ms_per_entry']:.1f}",
                f"{cell['longest_ms']:.0f}",
                f"{cell['status_ms']:.2f}",
            )
        shown.append(table)
    return Group(*shown)
