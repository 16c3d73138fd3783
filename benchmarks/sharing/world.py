"""The twelve queries of examples/wan_workload as a project that runs on one machine: three sites, one center.

Scaled down: a star of three of the source sites, or the same three behind a hub; every answer at the center; real
edits of a day, or of its first hours, given to the sites as the example gives them to six.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.data import data_file
from catchment.optimizer.choices import Strength

EXAMPLE = Path(__file__).parents[2] / "examples" / "wan_workload"
SITES = ("ohio", "ireland", "mumbai")
CENTER = "virginia"
HUB = "frankfurt"
DAY_RECORDS = 39_244
FILES = "connector = 'files', path = 'data/{site}'"

Edits = Mapping[str, Sequence[Mapping[str, Any]]]


def views() -> list[str]:
    """The statements of the twelve views, in the order of submission, every answer wanted at the center."""
    text = (EXAMPLE / "queries" / "views.sql").read_text()
    bare = re.sub(r"WITH \(sink = '[a-z]*'\) ", "", text)
    return [f"CREATE {part.strip()}" for part in bare.split("CREATE ")[1:]]


def edits_of(hours: float, squeeze: float = 1.0, first: float = 0.0) -> Edits:
    """Some hours of the edits by site; `squeeze` of their seconds are made one, so that slices hold more."""
    make = maker()
    data = data_file("wiki_edits").parents[1]
    found: dict[str, list[Mapping[str, Any]]] = {site: [] for site in SITES}
    rows = sorted(make.edits(data), key=lambda e: str(e["time"]))
    begin = datetime.fromisoformat(rows[0]["time"]) + timedelta(hours=first)
    for row in rows:
        since = datetime.fromisoformat(row["time"]) - begin
        if timedelta() <= since < timedelta(hours=hours):
            at = (begin + since / squeeze).isoformat().replace("+00:00", "Z")
            site = SITES[make.SOURCES.index(make.site_of(row)) % len(SITES)]
            found[site].append({**row, "time": at})
    return found


@dataclass(frozen=True)
class Layout:
    """A project to write down: how much is shared, over which links, read how, at which pace the statistics say."""

    sharing: Strength
    speeds: Mapping[str, float] = field(default_factory=dict)  # bytes per second of a site's link; absent: not shaped
    hub: str | None = None
    connector: str = FILES
    views: Sequence[str] = field(default_factory=views)
    rows_per_s: float = DAY_RECORDS / 86_400
    reoptimize: bool = False
    trigger: str | None = None  # how often a site reads; None: the default
    history: bool = False  # whether sites keep their records, by which plans are compared

    def write(self, folder: Path, edits: Edits) -> None:
        """Lay the project out."""
        (folder / "queries").mkdir(parents=True)
        (folder / "catchment.toml").write_text(self._project())
        streams = (EXAMPLE / "queries" / "streams.sql").read_text()
        streams = re.sub(r"sites = '[^']*'", f"sites = '{','.join(SITES)}'", streams).replace(FILES, self.connector)
        (folder / "queries" / "streams.sql").write_text(streams)
        (folder / "queries" / "views.sql").write_text("\n".join(self.views))
        (folder / "categories.csv").write_text((EXAMPLE / "categories.csv").read_text())
        (folder / "statistics.toml").write_text(self._statistics())
        for site, rows in edits.items():
            (folder / "data" / site).mkdir(parents=True)
            (folder / "data" / site / "edits.json").write_text("".join(json.dumps(r) + "\n" for r in rows))

    def _project(self) -> str:
        to = self.hub or CENTER
        links = "".join(f'[[links]]\nfrom = "{s}"\nto = "{to}"\n{self._bandwidth(s)}' for s in SITES)
        if self.hub:
            links += f'[[links]]\nfrom = "{self.hub}"\nto = "{CENTER}"\n'
        sites = "".join(f"[sites.{s}]\n" for s in (*SITES, *([self.hub] if self.hub else []), CENTER))
        return (
            f'[project]\nname = "live"\ncenter = "{CENTER}"\n{sites}{links}'
            f'[defaults]\nsharing = "{self.sharing.value}"\nfreshness = "none"\n{self._trigger()}'
            f"history = {str(self.history).lower()}\nreoptimize = {str(self.reoptimize).lower()}\n"
            '[spark]\nmaster = "local[2]"\n'
        )

    def _trigger(self) -> str:
        return "" if self.trigger is None else f'trigger = "{self.trigger}"\n'

    def _bandwidth(self, site: str) -> str:
        return f'bandwidth = "{self.speeds[site]:.0f} bytes/s"\n' if site in self.speeds else ""

    def _statistics(self) -> str:
        """The example's statistics at another pace; shares of the sites equal."""
        text = (EXAMPLE / "statistics.toml").read_text()
        text = re.sub(r"rows_per_s = \d+", f"rows_per_s = {self.rows_per_s:.4f}", text)
        return re.sub(r"\[streams.edits.share\].*?\n\n", "", text, flags=re.DOTALL)


@cache
def maker() -> ModuleType:
    """make.py of the example."""
    spec = importlib.util.spec_from_file_location("wan_workload_make", EXAMPLE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    return make
