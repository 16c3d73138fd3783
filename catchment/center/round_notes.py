"""Which final windows await a second round, and which views are under way for them, on disk until they are over.

A window is noted while what made it final is enacted, so a crash before that notes it again. One that is noted twice
does no harm: where nothing is an estimate any more, no round begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from catchment.storage.files import make_folder, read_record, write_record

FILE = "second_rounds.json"
MAX_WAITING = 1_000  # windows per view; further ones stay estimates, and are counted


class RoundNotes:
    """The windows that await a second round, by query: how far each has come, by the order of its rows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        record: dict[str, Any] = read_record(self._path) or {}
        self.waiting: dict[str, dict[int, str]] = {
            query: {int(start): cursor for start, cursor in windows.items()}
            for query, windows in record.get("waiting", {}).items()
        }
        self.helpers: dict[str, dict[int, str]] = {
            helper: {int(start): cursor for start, cursor in windows.items()}
            for helper, windows in record.get("helpers", {}).items()
        }
        self.given_up: dict[str, int] = dict(record.get("given_up", {}))
        self.failure: str | None = record.get("failure")
        self._followed: dict[tuple[str, int], bool] = {}  # windows published by this process: whether with estimates

    @property
    def is_busy(self) -> bool:
        """Whether a window awaits a second round, or a view computes one."""
        return bool(self.waiting or self.helpers)

    def note_rows(self, query: str, start_us: int, revision: int, has_estimates: bool) -> None:
        """Note whether rows of a window have estimates, if all its revisions were published by this process."""
        if revision == 1 or (query, start_us) in self._followed:
            before = self._followed.get((query, start_us), False)
            self._followed[query, start_us] = before or has_estimates

    def is_certainly_exact(self, query: str, start_us: int) -> bool:
        """Return whether a window that is final never had estimates; False if its tables have to be asked."""
        return self._followed.pop((query, start_us), True) is False

    def has_room(self, query: str, start_us: int) -> bool:
        """Return whether one more window of a query may wait."""
        windows = self.waiting.get(query, {})
        return start_us in windows or len(windows) < MAX_WAITING

    def add(self, query: str, starts_us: Iterable[int]) -> None:
        """Note windows that await a second round."""
        windows = self.waiting.setdefault(query, {})
        for start_us in starts_us:
            windows[start_us] = ""
        self._write()

    def begin(self, helper: str, cursors: Mapping[int, str]) -> None:
        """Note a view that is about to compute a round, and how far its windows will have come with it."""
        self.helpers[helper] = dict(cursors)
        self._write()

    def advance(self, query: str, helper: str) -> None:
        """Note that a view has computed its round."""
        for start_us, cursor in self.helpers.get(helper, {}).items():
            if start_us in self.waiting.get(query, {}):
                self.waiting[query][start_us] = cursor
        self._write()

    def end(self, helper: str) -> None:
        """Forget a view that is gone."""
        self.helpers.pop(helper, None)
        self._write()

    def settle(self, query: str, starts_us: Iterable[int]) -> None:
        """Forget windows of which nothing more is to be made exact."""
        for start_us in starts_us:
            self.waiting.get(query, {}).pop(start_us, None)
        if not self.waiting.get(query, True):
            del self.waiting[query]
        self._write()

    def give_up(self, query: str, why: str) -> None:
        """Forget all windows of a query, whose rounds cannot be planned, and say so in the status."""
        lost = self.waiting.pop(query, {})
        self.given_up[query] = self.given_up.get(query, 0) + len(lost)
        self.failure = f"{query}: {why}"
        self._write()

    def status(self) -> dict[str, Any]:
        """Return what waits and what runs, as plain JSON."""
        return {
            "waiting": {query: len(windows) for query, windows in self.waiting.items()},
            "running": sorted(self.helpers),
            "given_up": self.given_up,
            "failure": self.failure,
        }

    def _write(self) -> None:
        make_folder(self._path.parent)
        record = {"waiting": self.waiting, "helpers": self.helpers, "given_up": self.given_up, "failure": self.failure}
        write_record(self._path, record)
