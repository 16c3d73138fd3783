"""In which versions of tables the records of each window of one query were looked up, and where.

A window is exact as of these: a table that has changed since then would give other answers. Sites state it of tables
that may change (`LookedUp`), per slice, of every record that was looked up, whether it found a row or not.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from catchment.timeline import START_OF_TIME_US, WindowSpec
from catchment.wire.messages import LookedUp

MAX_TOLD = 4  # versions of one table that a window names; of more it says how many there are

VersionsOfTables = dict[str, dict[str, set[str]]]  # table -> version -> sites


@dataclass
class LookedUpVersions:
    """The versions by window; `known` is that of the state, which is changed."""

    window: WindowSpec
    known: dict[int, VersionsOfTables]
    _untold: set[int] = field(default_factory=set)
    _forgotten_us: int = START_OF_TIME_US

    def add(self, site: str, fact: LookedUp, final_us: int) -> None:
        """Add what a site states of windows that end after an instant: nothing more is published of the others."""
        for slice_us in fact.slices:
            for window in (w for w in self.window.containing(slice_us) if w.end_us > final_us):
                sites = self.known.setdefault(window.start_us, {}).setdefault(fact.table, {})
                if site not in sites.setdefault(fact.version, set()):
                    sites[fact.version].add(site)
                    self._untold.add(window.start_us)

    def take_untold(self) -> set[int]:
        """Return the windows of which something new is known that no revision says."""
        untold = self._untold
        self._untold = set()
        return untold

    def tell(self, start_us: int) -> str:
        """Return what a revision of a window says: as of which versions of which tables it is, after a semicolon."""
        self._untold.discard(start_us)
        tables = sorted(self.known.get(start_us, {}).items())
        return "".join(f"; as of {_name(table, versions)}" for table, versions in tables)

    def forget_ended(self, final_us: int, kept: Container[int]) -> None:
        """Forget the windows that end by an instant, but for those that are kept; it is asked for at every step."""
        if final_us == self._forgotten_us:
            return
        ended = [start_us for start_us in self.known if start_us + self.window.size_us <= final_us]
        forgotten = [start_us for start_us in ended if start_us not in kept]
        for start_us in forgotten:
            del self.known[start_us]
            self._untold.discard(start_us)
        if forgotten == ended:
            self._forgotten_us = final_us


def _name(table: str, versions: Mapping[str, set[str]]) -> str:
    """Return the versions of a table; where there are several, with the sites at which each was in use."""
    if len(versions) == 1:
        return f"version {next(iter(versions))} of table {table}"
    told = [f"{version} at {', '.join(sorted(sites))}" for version, sites in sorted(versions.items())]
    more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
    return f"{len(told)} versions of table {table} ({'; '.join(told[:MAX_TOLD])}{more})"
