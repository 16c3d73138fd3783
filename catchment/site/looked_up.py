"""Which versions of tables a fragment has looked its records up in, and what of that is not stated yet.

A site states it once per slice and version, with the updates or the mark that it is about, and never after them: so a
window that is published says it. Bound: of each table the newest slices are remembered; an older one is stated again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.storage.codec import stored
from catchment.wire.messages import LookedUp

MAX_SLICES = 1_000  # per table, whose version is known to be stated

TableOfVersion = tuple[str, str]  # a table, and a version of it


@stored()
@dataclass
class VersionsInUse:
    """The versions that the records of a fragment were looked up in, by slice."""

    stated: dict[TableOfVersion, set[int]] = field(default_factory=dict)
    untold: dict[TableOfVersion, set[int]] = field(default_factory=dict)

    def note(self, fact: LookedUp, from_us: int, until_us: int) -> None:
        """Note what was looked up, in slices that start in [from, until)."""
        of = fact.table, fact.version
        new = {s for s in fact.slices if from_us <= s < until_us} - self.stated.get(of, set())
        if new:
            self.untold.setdefault(of, set()).update(new)

    def of_slices_from(self, from_us: int, fragment: str) -> list[LookedUp]:
        """Return what is known of the slices from an instant on, stated or not, as another fragment states it."""
        facts = []
        for of, slices in (*self.stated.items(), *self.untold.items()):
            later = tuple(sorted(s for s in slices if s >= from_us))
            facts += [LookedUp(fragment, *of, later)] if later else []
        return facts

    def take_facts(self, fragment: str) -> list[LookedUp]:
        """Return what is not stated yet; it is from now on."""
        facts = [LookedUp(fragment, *of, tuple(sorted(slices))) for of, slices in self.untold.items()]
        for of, slices in self.untold.items():
            for other in [o for o in self.stated if o[0] == of[0] and o != of]:
                del self.stated[other]  # a version that is not in use any more; if it is again, it is stated again
            known = self.stated.setdefault(of, set())
            known |= slices
            known -= set(sorted(known)[:-MAX_SLICES])
        self.untold = {}
        return facts
