"""The screen of the demo: what happens is said line by line, and below stands how sites and windows are now.

Where there is no terminal, each event is one line and nothing else is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from catchment.cli.demo.stage import Stage, Status, clock
from catchment.cli.output import notes
from catchment.cli.progress import Rates, size
from catchment.project.routes import first_link

SHOWN_WINDOWS = 6
_STYLES = {"on_time": "yellow", "exact": "green", "final": "green", "suspended": "red"}


@dataclass
class Screen:
    """Shows one demo; `quiet` shows nothing and only remembers the events."""

    quiet: bool = False
    events: list[str] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)
    _live: Live | None = None
    _rates: Rates = field(default_factory=Rates)
    _sent: Rates = field(default_factory=Rates)

    def say(self, event: str) -> None:
        """Show an event, with the time since the beginning."""
        since_s = int(time.monotonic() - self._began_s)
        line = f"{since_s // 60}:{since_s % 60:02}  {event}"
        self.events.append(line)
        if self.quiet:
            return
        loud = event.split("  ")[0].isupper()
        notes.print(Text(line, style="bold" if loud else ""), soft_wrap=not notes.is_terminal)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show the state below the events for as long as the context lasts."""
        if self.quiet or not notes.is_terminal:
            yield
            return
        with Live(console=notes, refresh_per_second=4, transient=True) as live:
            self._live = live
            yield
        self._live = None

    def update(self, stage: Stage) -> None:
        """Show how everything is now."""
        if self._live is not None:
            self._live.update(self.render(stage))

    def render(self, stage: Stage) -> RenderableType:
        """Return the sites, the newest windows and what has been sent."""
        return Group(Rule(style="dim"), self._sites(stage), _windows(stage), _sent(stage))

    def _sites(self, stage: Stage) -> RenderableType:
        table = Table("site", box=None, pad_edge=False)
        for name in ("rows", "rows/s", "sent", "bytes/s", "of the link"):
            table.add_column(name, justify="right")
        table.add_column("")
        sites: Status = stage.status.get("sites", {})
        for name, site in sites.items():
            sent_per_s = self._sent.of(name, site["bytes_sent"])
            capacity = first_link(stage.project, name).bandwidth_bytes_per_s
            table.add_row(
                name,
                f"{site['rows']:,}",
                f"{self._rates.of(name, site['rows']):,.0f}",
                size(site["bytes_sent"]),
                size(sent_per_s),
                "" if not capacity else f"{sent_per_s / capacity:.0%}",
                _site_state(stage, name),
            )
        return table


def _site_state(stage: Stage, name: str) -> Text:
    site = stage.site(name)
    if name in stage.links.sites:
        return Text(f"cut off, {size(site['queued_bytes'])} wait", style="yellow")
    shed = site.get("shedding", {}).get("requests", {})
    if shed.get("shedding"):
        return Text("sheds load", style="yellow")
    if shed.get("owed_batches"):
        return Text(f"repairs, {shed['owed_batches']} batches owed", style="yellow")
    return Text("up", style="green") if site.get("connected") else Text("connecting")


def _windows(stage: Stage) -> RenderableType:
    table = Table("window", "rev", "status", "records in", "why", box=None, pad_edge=False)
    for start_s, row in sorted(stage.windows().items())[-SHOWN_WINDOWS:]:
        path = list(dict.fromkeys(entry["status"] for entry in row["history"]))
        status = Text(" > ").join(Text(name, style=_STYLES.get(name, "")) for name in path)
        why = Text(row["reason"], no_wrap=True, overflow="ellipsis")
        table.add_row(clock(start_s), str(row["revision"]), status, f"{row['coverage']:.0%}", why)
    return Group(Text("traffic, the newest windows", style="dim"), table)


def _sent(stage: Stage) -> RenderableType:
    shipped = stage.outside.shipped
    if not shipped.raw_bytes:
        return Text("")
    share = stage.bytes_sent / shipped.raw_bytes
    return Text.assemble(
        f"sent {size(stage.bytes_sent)}, {share:.1%} of every record ({size(shipped.raw_bytes)}; ",
        f"{size(shipped.zstd_bytes)} with zstd)",
    )
