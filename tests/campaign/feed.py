"""The records of a campaign: files that appear while the deployment runs, and what every window must say of them.

Every file is written whole and then moved into the folder that its site reads. What is in it is written to a log first,
so that a campaign that is resumed knows all records of the deployment that it goes on with.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

WINDOW_S = 10
FIRST_S = 1_767_225_600  # 2026-01-01: the event time at which every campaign begins
KEYS = ("k0", "k1", "k2", "k3")
RECORDS_PER_WINDOW = 6

Totals = Mapping[str, tuple[int, int]]  # key -> count and sum


@dataclass(frozen=True)
class Record:
    """One good record; `text` is the column that the view of casts reads."""

    at_ms: int
    key: str
    value: int
    text: str = "1"

    @property
    def window_s(self) -> int:
        return self.at_ms // 1000 // WINDOW_S * WINDOW_S

    def to_line(self) -> str:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return json.dumps({"ts": at, "k": self.key, "v": self.value, "t": self.text})


@dataclass(frozen=True)
class FedFile:
    """A file as it was written: its good records, its bad lines, and whether its records come out of order."""

    site: str
    name: str
    records: tuple[Record, ...]
    bad_lines: tuple[str, ...] = ()
    is_late: bool = False


@dataclass
class Feed:
    """Writes the files of all sites."""

    folder: Path
    log: Path
    chance: random.Random
    files: list[FedFile] = field(default_factory=list)
    next_s: dict[str, int] = field(default_factory=dict)  # per site, where its next records begin

    def load(self) -> None:
        """Read the log of a deployment that lives already."""
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            told = json.loads(line)
            records = tuple(Record(**r) for r in told.pop("records"))
            self._remember(FedFile(**{**told, "records": records, "bad_lines": tuple(told["bad_lines"])}))

    def write_windows(self, sites: Sequence[str], windows: int) -> None:
        """Write the records of the next windows of some sites, a file each."""
        for site in sites:
            first_s = self.next_s.get(site, FIRST_S)
            records = []
            for start_s in range(first_s, first_s + windows * WINDOW_S, WINDOW_S):
                moments = sorted(self.chance.randrange(WINDOW_S * 1000) for _ in range(RECORDS_PER_WINDOW))
                records += [self._record(start_s * 1000 + at) for at in moments]
            self.write(site, records)
            self.next_s[site] = first_s + windows * WINDOW_S

    def close_windows(self, sites: Sequence[str]) -> int:
        """Bring some sites to one event time, all of their earlier windows complete; return that time."""
        until_s = max(self.next_s.values(), default=FIRST_S)
        for site in sites:
            behind = (until_s - self.next_s.get(site, FIRST_S)) // WINDOW_S
            if behind:
                self.write_windows([site], behind)
            self.write(site, [self._record(until_s * 1000), self._record(until_s * 1000 + 1)])
            self.next_s[site] = until_s + WINDOW_S
        return until_s

    def write(
        self,
        site: str,
        records: Sequence[Record],
        bad_lines: Sequence[str] = (),
        *,
        is_late: bool = False,
        modified_s: float | None = None,
    ) -> FedFile:
        """Write one file, maybe with another modification time than now."""
        name = f"{site}-{self._files_of[site]:06d}.json"
        fed = FedFile(site, name, tuple(records), tuple(bad_lines), is_late)
        with self.log.open("a") as log:
            log.write(json.dumps(asdict(fed)) + "\n")
            log.flush()
            os.fsync(log.fileno())
        lines = [*(r.to_line() for r in records), *bad_lines]
        self._put(fed, "".join(line + "\n" for line in lines), modified_s)
        self._remember(fed)
        return fed

    def write_now(self, sites: Sequence[str]) -> None:
        """Write a file of each site with records of this moment of the wall clock."""
        now_ms = int(time.time() * 1000)
        for site in sites:
            self.write(site, [self.draw(now_ms - 300 * i) for i in (2, 1, 0)])

    def close_now(self, sites: Sequence[str]) -> int:
        """Let sites pass the end of the window of this moment; return that event time."""
        until_s = (int(time.time()) // WINDOW_S + 1) * WINDOW_S
        for site in sites:
            self.write(site, [Record(until_s * 1000 + i, "k0", 1) for i in (0, 1)])
        return until_s

    def remove_older(self, age_s: float) -> None:
        """Remove files that lie there for longer, as an operator or a log rotation does."""
        for path in self.folder.glob("*/*.json"):
            if time.time() - path.stat().st_mtime > age_s:
                path.unlink()

    def totals(self, site: str, window_s: int) -> Totals:
        """Return what a site's records of a window add up to."""
        return self._totals.get((site, window_s), {})

    def windows(self, before_s: int) -> list[int]:
        """Return the starts of the windows with records that end by an event time."""
        return sorted({w for _, w in self._totals if w + WINDOW_S <= before_s})

    def late_windows(self) -> set[int]:
        """Return the windows that have records which were written after newer ones."""
        return {r.window_s for f in self.files if f.is_late for r in f.records}

    def good_records(self, site: str) -> int:
        return sum(len(f.records) for f in self.files if f.site == site)

    def bad_records(self, site: str) -> int:
        return sum(len(f.bad_lines) for f in self.files if f.site == site)

    def draw(self, at_ms: int, text: str = "1") -> Record:
        """Return a record of this event time."""
        return Record(at_ms, self.chance.choice(KEYS), self.chance.randrange(1000), text)

    _record = draw

    def _put(self, fed: FedFile, text: str, modified_s: float | None) -> None:
        unfinished = self.folder / "unfinished" / fed.name
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text)
        if modified_s is not None:
            os.utime(unfinished, (modified_s, modified_s))
        (self.folder / fed.site).mkdir(exist_ok=True)
        os.replace(unfinished, self.folder / fed.site / fed.name)

    def _remember(self, fed: FedFile) -> None:
        self.files.append(fed)
        self._files_of[fed.site] += 1
        for record in fed.records:
            mine = self._totals[fed.site, record.window_s]
            count, total = mine.get(record.key, (0, 0))
            mine[record.key] = (count + 1, total + record.value)
        if fed.records and not fed.is_late:
            newest_s = max(r.at_ms for r in fed.records) // 1000
            after_s = newest_s // WINDOW_S * WINDOW_S + WINDOW_S
            self.next_s[fed.site] = max(self.next_s.get(fed.site, FIRST_S), after_s)

    def __post_init__(self) -> None:
        self._files_of: Counter[str] = Counter()
        self._totals: defaultdict[tuple[str, int], dict[str, tuple[int, int]]] = defaultdict(dict)
