"""What the sources of a stream state themselves: "nothing before this instant will come from me" (punctuation).

A statement is believed: windows before the instant that every source has stated close at once, whatever the slack. It
only ever makes windows close earlier; a source that states nothing is waited for as if there were no statements. What a
source sends later all the same is late, is repaired like anything late, and is counted against that source.

Invariants: what is stated never falls, and neither does the mark that follows from it, but for a source that is heard
for the first time: until it has stated something, nothing follows from what the others have.

Bounds: an instant beyond `limit_us` (the clock and `max_jump`) is not believed, and counted: a wrong clock must not
close the windows of years. Beyond `MAX_STATING` sources nothing is concluded from single ones, only from what is
stated for the whole stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US

MAX_STATING = 10_000  # sources of one stream at one site
MAX_NAMED = 32  # sources that a status names
WHOLE_STREAM = "stream"  # against whom records are counted that come after the whole stream has stated its progress
UNNAMED = "null"  # the name of records whose source is null

# One row per source that a micro-batch has records or statements of. `late` counts the records that are older than
# what their source had stated before. A statement without a source speaks for the whole stream at its site.
HEARD_SCHEMA = pa.schema(
    [("source", pa.string()), ("records", pa.int64()), ("late", pa.int64()), ("stated_us", pa.int64())]
)


@stored()
@dataclass(frozen=True, slots=True)
class ProgressStated:
    """Which sources a micro-batch of a stream has heard, and what they state; see `HEARD_SCHEMA`.

    Statements hold from the end of the batch on: its own records come before them, whatever their order was.
    """

    stream: str
    table: pa.Table = field(repr=False)
    limit_us: int


@dataclass(frozen=True, slots=True)
class Statements:
    """The instants that are believed at the moment, by source, and the one that holds for the whole stream."""

    whole_us: int = START_OF_TIME_US
    by_source: dict[str, int] = field(default_factory=dict)

    def of(self, source: str) -> int:
        """Return before which instant nothing will come from a source."""
        return max(self.whole_us, self.by_source.get(source, START_OF_TIME_US))

    def is_empty(self) -> bool:
        """Return whether nothing was stated yet."""
        return self.whole_us == START_OF_TIME_US and not self.by_source


@stored()
@dataclass
class StatedProgress:
    """What the sources of one stream at one site have stated."""

    whole_us: int = START_OF_TIME_US
    stated: dict[str, int] = field(default_factory=dict)  # by source; those that state nothing are at the start of time
    late: dict[str, int] = field(default_factory=dict)  # records that came after their source had stated otherwise
    implausible: int = 0  # statements beyond the limit
    unfollowed: bool = False  # whether there were more sources than are followed

    def take_in(self, event: ProgressStated) -> dict[str, int]:
        """Learn what a micro-batch states; return by how much its sources are further, those that are."""
        further: dict[str, int] = {}
        for source, records, late, stated_us in _rows_of(event.table):
            name = UNNAMED if source is None else source
            if records and not self._is_followed(name):
                self.unfollowed = True
            if late:
                against = source if source in self.stated else WHOLE_STREAM
                self.late[against] = self.late.get(against, 0) + late
            if stated_us is not None and stated_us > event.limit_us:
                self.implausible += 1
            elif stated_us is not None and self._state(source, stated_us):
                further[name if source is not None else WHOLE_STREAM] = stated_us
        return further

    def _is_followed(self, name: str) -> bool:
        """Return whether a source that was heard is followed, from now on if it is new."""
        if name not in self.stated and len(self.stated) >= MAX_STATING:
            return False
        self.stated.setdefault(name, START_OF_TIME_US)
        return True

    def _state(self, source: str | None, stated_us: int) -> bool:
        """Believe a statement; return whether it says more than what was believed."""
        if source is None:
            is_news = stated_us > self.whole_us
            self.whole_us = max(self.whole_us, stated_us)
            return is_news
        if not self._is_followed(source):
            self.unfollowed = True
            return False
        is_news = stated_us > self.stated[source]
        self.stated[source] = max(self.stated[source], stated_us)
        return is_news

    @property
    def mark_us(self) -> int:
        """The instant before which nothing will come: stated for the whole stream, or by every source."""
        if not self.stated or self.unfollowed:
            return self.whole_us
        return max(self.whole_us, min(self.stated.values()))

    @property
    def statements(self) -> Statements:
        """What is believed now."""
        by_source = {name: us for name, us in self.stated.items() if us > START_OF_TIME_US}
        return Statements(self.whole_us, by_source)

    def status(self) -> dict[str, Any]:
        """Return what was stated, who holds it back and who did not keep it, as plain JSON."""
        silent = [name for name, us in self.stated.items() if us == START_OF_TIME_US]
        worst = sorted(self.late.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMED]
        return {
            "stated_until_us": self.mark_us if self.mark_us > START_OF_TIME_US else None,
            "sources": len(self.stated),
            "state_nothing": sorted(silent)[:MAX_NAMED],
            "late_after_stated": dict(worst),
            "late_records": sum(self.late.values()),
            "implausible": self.implausible,
        }


def _rows_of(table: pa.Table) -> Iterator[tuple[str | None, int, int, int | None]]:
    columns = (table[name].to_pylist() for name in HEARD_SCHEMA.names)
    return zip(*columns, strict=True)
