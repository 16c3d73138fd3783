"""Records and files as sources give them: wrong, late, stray, or on a disk that forgets when."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import ClassVar

from tests.campaign.faults.base import Fault
from tests.campaign.feed import FIRST_S, WINDOW_S, Record
from tests.campaign.living import CENTER, HUB, RECEIVERS, SITES, Lack
from tests.campaign.verdict import CASTS, count_quarantined

YEAR_S = 365 * 86400
BAD_LINES = (
    "not json at all",
    '{"ts": "2026-01-01T00:00:00Z", "k": "k0", "v": "no number", "t": "1"}',
    '{"k": "k0", "v": 1, "t": "1"}',
    '{"ts": "yesterday", "k": "k0", "v": 1, "t": "1"}',
    '{"ts": "2026-01-01T00:00:00Z", "k": {"a": [1, 2]}, "v": 99999999999999999999999, "t": "1"}',
    "[1, 2, 3]",
    '{"ts": null, "k": null, "v": null, "t": null}',
    '{"ts": "2026-01-01T00:00:00Z", "k": "k0", "v": 1',
    "\x00\x01\x02",
)


class RecordFault(Fault):
    """A fault of what a site reads; it has no end of its own."""

    targets: ClassVar[Sequence[str]] = SITES

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        return frozenset({f"records {target}"})

    @property
    def now_s(self) -> int:
        """The event time that the site has reached."""
        return self.living.feed.next_s.get(self.target, FIRST_S)

    def heal(self) -> None:
        return


class PoisonRecords(RecordFault):
    """Lines that cannot be read, among good ones."""

    kind = "poison records"

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        return frozenset({target, f"records {target}"})

    def inject(self) -> None:
        lines = self.chance.sample(BAD_LINES, 4)
        self.living.feed.write(self.target, [self.living.feed.draw(self.now_s * 1000)], lines)

    def observe(self) -> None:
        if self.machine.is_alive:
            bad = self.living.feed.bad_records(self.target)
            self.wait_told("records in quarantine", lambda: self._find_quarantined(bad))

    def _find_quarantined(self, bad: int) -> str:
        found = count_quarantined(self.living, self.target)
        return f"{found} records" if found == bad or not self.machine.is_alive else ""


class WrongModificationTime(RecordFault):
    """A file whose modification time is years away, with records of now."""

    kind = "wrong modification time"

    def inject(self) -> None:
        feed = self.living.feed
        away_s = self.chance.choice([-30 * YEAR_S, -YEAR_S, YEAR_S, 9 * YEAR_S])
        records = [feed.draw(self.now_s * 1000 + 10 * i) for i in range(5)]
        feed.write(self.target, records, is_late=True, modified_s=time.time() + away_s)


class LateRecords(RecordFault):
    """Records of windows that were published long ago."""

    kind = "late records"

    def inject(self) -> None:
        feed = self.living.feed
        oldest_s = max(FIRST_S, self.now_s - 40 * WINDOW_S)
        moments = [self.chance.randrange(oldest_s * 1000, self.now_s * 1000 + 1) for _ in range(8)]
        feed.write(self.target, [feed.draw(at) for at in moments], is_late=True)


class StrayTime(RecordFault):
    """One record whose event time is hours ahead of all others."""

    kind = "stray event time"

    def inject(self) -> None:
        feed = self.living.feed
        ahead_s = round(self.chance.uniform(5, 20) * 3600)
        feed.write(self.target, [feed.draw((self.now_s + ahead_s) * 1000)], is_late=True)


class AbsurdTime(RecordFault):
    """Records whose event times are decades away: they are set aside."""

    kind = "absurd event time"

    def inject(self) -> None:
        lines = [
            json.dumps({"ts": f"{year}-05-05T00:00:00Z", "k": "k1", "v": 1, "t": "1"}) for year in (1970, 1999, 2090)
        ]
        self.living.feed.write(self.target, [self.living.feed.draw(self.now_s * 1000)], lines)


class PoisonExpression(RecordFault):
    """A record on which an expression of one view fails: that view is suspended, and resumed by the operator."""

    kind = "poison expression"
    targets = ("a", "b")  # a replaced site would read the record again

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        """The site, and everything that tells the center of it."""
        route = {HUB, f"link {HUB}"} if RECEIVERS[target] == HUB else set()
        return frozenset({target, f"link {target}", f"records {target}", CENTER, *route})

    def inject(self) -> None:
        feed = self.living.feed
        poisoned = [Record(r.at_ms, r.key, r.value, "no number") for r in [feed.draw(self.now_s * 1000)]]
        feed.write(self.target, poisoned)

    def observe(self) -> None:
        self.wait_told("a suspended fragment", self._find_suspended)

    def _find_suspended(self) -> str:
        queries = self.living.center.status.get("queries", {})
        told = queries.get(CASTS, {}).get("suspended", {}).get(self.target)
        return "" if told is None else f"{told['expression']}: {told['reason']}"

    def heal(self) -> None:
        """Resume the view; what it skipped until then stays named."""
        done = self.living.command("resume", CASTS)
        assert done.returncode == 0, f"resume failed: {done.stdout}{done.stderr}"
        self.wait_told("the view resumed", lambda: not self._find_suspended())
        until_s = max(self.living.feed.next_s.values()) + WINDOW_S
        from_s = self.living.rest_s[self.target]  # all of the micro-batch is skipped, not the one record
        self.living.note_lack(Lack(CASTS, self.target, from_s, until_s))


KINDS = (PoisonRecords, WrongModificationTime, LateRecords, StrayTime, AbsurdTime, PoisonExpression)
