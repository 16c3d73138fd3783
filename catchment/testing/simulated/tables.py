"""Result tables in memory: what was published, and what a power cut leaves of it.

Appending is idempotent by number, as in the Delta tables that stand here in production. What was appended since the
tables were last synced may be lost in a power cut, the newest first; the journal then appends it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.results.layout import INSTANT
from catchment.center.results.read import latest_rows


@dataclass
class MemoryTable:
    """One table: what was appended, by number."""

    appended: list[tuple[int, pa.Table]] = field(default_factory=list)
    synced: int = 0  # appends that a power cut cannot lose

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables([table for _, table in self.appended], promote_options="default")


class MemoryStore:
    """The tables of all queries by kind and query."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], MemoryTable] = {}

    def append(self, kind: str, query: str, number: int, make: Callable[[], pa.Table]) -> None:
        table = self.tables.setdefault((kind, query), MemoryTable())
        newest = self.newest_number(kind, query)
        if newest is None or newest < number:
            table.appended.append((number, make()))

    def read(self, kind: str, query: str, columns: Sequence[str], starts: pa.Array) -> pa.Table | None:
        rows = self.rows(kind, query)
        if rows is None:
            return None
        wanted = starts.cast(pa.timestamp("us")).cast(INSTANT)
        return rows.select(list(columns)).filter(pc.is_in(rows["window_start"], value_set=wanted))

    def newest_number(self, kind: str, query: str) -> int | None:
        table = self.tables.get((kind, query))
        return table.appended[-1][0] if table is not None and table.appended else None

    def compact(self, kind: str, query: str) -> None:
        """Do nothing: there are no files."""

    def flush(self, kind: str, query: str) -> None:
        """Do nothing: `sync` makes everything durable at once."""

    def remove_torn(self, kind: str, query: str, first_number: int) -> list[str]:
        """Return nothing: a power cut takes back whole appends here."""
        return []

    def remove(self, kind: str, query: str) -> None:
        self.tables.pop((kind, query), None)

    def sync(self) -> None:
        """Make everything durable that was appended."""
        for table in self.tables.values():
            table.synced = len(table.appended)

    def rows(self, kind: str, query: str) -> pa.Table | None:
        """Return everything that was appended to a table; None if nothing was."""
        table = self.tables.get((kind, query))
        return table.rows if table is not None and table.appended else None

    def cut_power(self, chance: random.Random) -> int:
        """Lose some of what was not synced; return how many appends were lost."""
        lost = 0
        for table in self.tables.values():
            kept = chance.randint(table.synced, len(table.appended))
            lost += len(table.appended) - kept
            del table.appended[kept:]
        return lost

    def results(self, query: str) -> pa.Table | None:
        """Return the newest rows of a query with the newest status of their windows, as a user reads them."""
        rows = self.rows("results", query)
        windows = self.windows(query)
        return None if rows is None or windows is None else latest_rows(rows, windows)

    def windows(self, query: str) -> pa.Table | None:
        """Return every published revision and status of every window, oldest first."""
        log = self.rows("windows", query)
        return None if log is None else log.sort_by([("entry", "ascending"), ("step", "ascending")])
