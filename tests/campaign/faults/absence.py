"""Sites that are away for longer than others wait for them, and clocks that are off."""

from __future__ import annotations

from catchment.center.statuses import FINAL
from tests.campaign.faults.base import Fault
from tests.campaign.feed import WINDOW_S
from tests.campaign.living import ROLES, SITES, Lack
from tests.campaign.verdict import CASTS, TOTALS, read_answers


class Absent(Fault):
    """A site is dead for longer than `freshness`: the others are answered without it, and it comes back."""

    kind = "site away beyond freshness"
    targets = SITES

    def inject(self) -> None:
        self.machine.kill()
        self.feed_windows(2)
        self._window_s = min(self.living.feed.next_s[s] for s in self.living.sites) - 20
        self.feed_windows(1)

    def observe(self) -> None:
        self.wait_told("a window without the site", self._find_missing)

    def _find_missing(self) -> str:
        answer = read_answers(self.living, TOTALS).get(self._window_s)
        return "" if answer is None or self.target not in answer.missing else answer.describe()

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        """Everything that the windows of the others need."""
        return frozenset({*ROLES, *(f"link {role}" for role in ROLES)})

    def heal(self) -> None:
        self.machine.start()


class AwayForGood(Fault):
    """A site is dead, and windows are published without it; `find_final` tells when they change no more."""

    targets = ("c",)
    needs_own_deployment = True

    def inject(self) -> None:
        feed = self.living.feed
        self.machine.kill()
        self._from_s = self.living.rest_s[self.target] - WINDOW_S  # up to there it had told that it has read all
        feed.write_windows(self.living.sites, 3)
        self._until_s = feed.next_s[self.target]
        others = [site for site in self.living.sites if site != self.target]
        feed.write_windows(others, 4)

    def note_lacks(self) -> None:
        until_s = max(self.living.feed.next_s.values()) + WINDOW_S
        for view in (TOTALS, CASTS):
            self.living.note_lack(Lack(view, self.target, self._from_s, until_s))

    def find_final(self) -> str:
        """Return what the last window says that the site lacks in, once it is final."""
        answer = read_answers(self.living, TOTALS).get(self._until_s - WINDOW_S)
        is_final = answer is not None and answer.status == FINAL and self.target in answer.missing
        return answer.describe() if answer is not None and is_final else ""


class NeverReturns(AwayForGood):
    """A site never returns: the operator retires it, and no window waits for it any more."""

    kind = "site never returns"

    def observe(self) -> None:
        retired = self.living.command("sites", "retire", self.target)
        assert retired.returncode == 0, f"retiring failed: {retired.stdout}{retired.stderr}"
        self.machine.is_wanted = False
        self.wait_told("windows that are published without the site", self._find_missing)

    def _find_missing(self) -> str:
        answer = read_answers(self.living, TOTALS).get(self._from_s)
        return "" if answer is None or self.target not in answer.missing else answer.describe()

    def heal(self) -> None:
        self.note_lacks()


class ReturnsAfterHorizon(AwayForGood):
    """A site returns after the repair horizon: what it brings is registered, and final windows name it."""

    kind = "site returns after the horizon"
    horizon = "15 s"

    def observe(self) -> None:
        self.wait_told("final windows without the site", self.find_final)

    def heal(self) -> None:
        self.machine.start()
        self.note_lacks()
        self.wait_told("records registered and not merged", self._find_unmerged)

    def _find_unmerged(self) -> str:
        told = self.living.center.status.get("queries", {}).get(TOTALS, {})
        count = told.get("unmerged_of_sites", {}).get(self.target, 0)
        return f"{count} records" if count else ""


class SkewedClock(Fault):
    """A role runs on a machine whose clock is an hour off, then on one that is right."""

    kind = "clock skew of an hour"
    targets = ROLES

    def inject(self) -> None:
        self.machine.kill()
        self.machine.clock_skew_s = self.chance.choice([-3600.0, 3600.0])
        self.machine.start()

    def observe(self) -> None:
        self.machine.wait_until_up()

    def heal(self) -> None:
        self.feed_windows(1)
        self.pause(2.0, 4.0)
        self.machine.kill()
        self.machine.clock_skew_s = 0.0
        self.machine.start()


KINDS = (Absent, NeverReturns, ReturnsAfterHorizon, SkewedClock)
