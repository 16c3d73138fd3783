"""Sites that are away for an hour, simulated: what the others answer meanwhile, and what their return costs.

Two parts. *dead*: one of three sites is dead for an hour; every window of the others must be answered first within
freshness and one trigger of a site and of the center, its return must make all of them exact, and the center must hold
no more with time. *return*: the links of 32 of 34 sites are cut for an hour and healed at once; windows must be
answered in time throughout, those since the return with the records of all sites, and the backlogs must drain at the
speed of their links. Every run is also compared with a recomputation of all windows from the raw records.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from benchmarks.absence.sites_away import (
    BANDWIDTH_BYTES_PER_S,
    BEFORE_S,
    FRESH_S,
    WINDOW_S,
    Absence,
    cut_links,
    let_sites_die,
    make_absence,
)
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.timeline import SECOND_US

DESCRIPTION = "sites that are dead or cut off for an hour and return: delays, memory, backlogs (simulated time)"
PARTS = ("dead", "return")

Report = Callable[[str], None]


def run(report: Report, quick: bool, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Simulate both parts; quick: minutes and a few sites."""
    measured: dict[str, Any] = {"data": "a record every two seconds at each site, of five pages, drawn"}
    if "dead" in parts:
        report("one of three sites is dead")
        measured["dead"] = measure_dead_site(*((180, 60) if quick else (3600, 300)))
    if "return" in parts:
        report("sites are cut off, and return together")
        measured["return"] = measure_return(*((4, 120, 90) if quick else (32, 3600, 600)))
    return measured


def measure_dead_site(away_s: int, after_s: int) -> dict[str, Any]:
    """Let one of three sites be dead for a while; return what was seen."""
    with tempfile.TemporaryDirectory() as folder:
        absence = make_absence(Path(folder) / "project", 3, 1, away_s, after_s)
        let_sites_die(absence)
        absence.simulation.run().assert_right()
        return {"sites": 3, "away": 1, "away_s": away_s, **_figures(absence)}


def measure_return(sites: int, away_s: int, after_s: int) -> dict[str, Any]:
    """Cut the links of all but two sites for a while; return what was seen."""
    with tempfile.TemporaryDirectory() as folder:
        absence = make_absence(Path(folder) / "project", sites + 2, sites, away_s, after_s)
        cut_links(absence)
        absence.simulation.run().assert_right()
        figures = {**_figures(absence), **_backlogs(absence)}
        return {"sites": sites + 2, "away": sites, "away_s": away_s, **figures}


def _figures(absence: Absence) -> dict[str, Any]:
    delays_s = absence.delays_s()
    begin_us = BEGIN_US + BEFORE_S * SECOND_US
    held = [size for at_us, size in absence.held_bytes if begin_us <= at_us < absence.return_us]
    half = len(held) // 2
    windows = absence.windows()
    missing = {site for log in windows.values() for row in log for site in row["missing_sites"]}
    return {
        "windows": len(delays_s),
        "slowest_answer_s": round(max(delays_s.values()), 1),
        "allowed_answer_s": FRESH_S,
        "without_a_site": sum(bool(log[0]["missing_sites"]) for log in windows.values()),
        "wrongly_missing": sorted(missing - set(absence.away)),
        "not_exact_in_the_end": sum(log[-1]["status"] not in ("exact", "final") for log in windows.values()),
        "held_bytes_first_half": max(held[:half]),
        "held_bytes_second_half": max(held[half:]),
        "held_bytes_after": max(size for at_us, size in absence.held_bytes if at_us >= absence.return_us),
        "state_bytes": absence.state_bytes,
    }


def _backlogs(absence: Absence) -> dict[str, Any]:
    """Return what the return has cost: how fast backlogs drained, and whether fresh windows had to wait for them."""
    first, last = absence.counts(first=True), absence.counts(first=False)
    back_s = (absence.return_us - BEGIN_US) // SECOND_US
    fresh = [end for end in absence.delays_s() if end >= back_s + 2 * WINDOW_S]
    drained = {
        site: {
            "backlog_bytes": absence.backlog_bytes[site],
            "drained_s": round((absence.drained_us[site] - absence.return_us) / SECOND_US, 1),
            "at_link_speed_s": round(absence.backlog_bytes[site] / BANDWIDTH_BYTES_PER_S, 1),
        }
        for site in absence.away
        if site in absence.drained_us
    }
    return {
        "fresh_windows": len(fresh),
        "fresh_windows_that_lacked_records": sum(first[end] != last[end] for end in fresh),
        "backlogs": drained,
        "not_drained": sorted(set(absence.away) - set(drained)),
    }


def render(result: Mapping[str, Any]) -> RenderableType:
    """Return the figures of each part as one table."""
    parts = [part for part in PARTS if part in result]
    table = Table("", *(_title(result[part]) for part in parts))
    for label, show in _ROWS:
        table.add_row(label, *(show(result[part]) for part in parts))
    return table


def _title(part: Mapping[str, Any]) -> str:
    kind = "cut off" if "backlogs" in part else "dead"
    return f"{part['away']} of {part['sites']} sites {kind} for {part['away_s'] // 60} minutes"


def _drained(part: Mapping[str, Any]) -> str:
    if "backlogs" not in part:
        return ""
    slowest = max(part["backlogs"].values(), key=lambda backlog: backlog["drained_s"])
    at_link_speed = f"{slowest['at_link_speed_s']:g} s at link speed"
    return f"{slowest['drained_s']:g} s for {slowest['backlog_bytes']} bytes; {at_link_speed}"


def _fresh(part: Mapping[str, Any]) -> str:
    if "backlogs" not in part:
        return ""
    return f"{part['fresh_windows'] - part['fresh_windows_that_lacked_records']} of {part['fresh_windows']}"


_ROWS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("windows", lambda p: str(p["windows"])),
    ("first answers without a site", lambda p: str(p["without_a_site"])),
    ("slowest first answer after its window's end", lambda p: f"{p['slowest_answer_s']:g} s"),
    ("allowed: a record, freshness, two triggers", lambda p: f"{p['allowed_answer_s']:g} s"),
    ("windows that are not exact in the end", lambda p: str(p["not_exact_in_the_end"])),
    ("center, most held for open windows: first half, second half", lambda p: _held(p)),
    ("center, most held after the return", lambda p: f"{p['held_bytes_after']} bytes"),
    ("center, all state after 5 minutes, at the end", lambda p: _state(p)),
    ("since the return: first answers with the records of all sites", _fresh),
    ("slowest backlog drained after", _drained),
)


def _held(part: Mapping[str, Any]) -> str:
    return f"{part['held_bytes_first_half']}, {part['held_bytes_second_half']} bytes"


def _state(part: Mapping[str, Any]) -> str:
    states = part["state_bytes"]
    return f"{states[0]}, {states[-1]} bytes" if states else ""
