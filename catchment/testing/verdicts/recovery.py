"""A process that ends and starts again must know what it knew: checked whenever a simulated center starts again.

Recovery replays journalled events through the core, and equal events give equal states. A state that was changed beside
the journal, or by something that is not in it, comes back as another one; what is published then depends on whether the
process had ended in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from catchment.storage.codec import encode
from catchment.testing.simulated.roles import SimulatedCenter

# Of the state of a query. Left out is what is written in another form once it was merged, or kept to save time.
COMPARED = (
    "closed",
    "closed_us",
    "final_us",
    "usual",
    "outstanding",
    "skipped",
    "early",
    "deferred",
    "renewed",
    "records",
)


@dataclass(frozen=True)
class CenterMemory:
    """What a center knew after so many entries of its journal."""

    entries: int
    parts: dict[str, bytes]

    @classmethod
    def of(cls, center: SimulatedCenter) -> CenterMemory:
        """Return what a center knows now."""
        core = center.pipeline.core
        parts = {"how far sites have come": encode(core.frontiers), "the lives of sites": encode(core.sites)}
        for name, running in core.queries.items():
            state = running.windows.state
            parts |= {f"{field} of {name}": encode(getattr(state, field)) for field in COMPARED}
            parts[f"the roster of {name}"] = encode([part.roster.stays for part in running.sources.parts])
        return cls(center.host.next_sequence, parts)

    def differences(self, after: CenterMemory) -> Iterator[str]:
        """Yield what is known otherwise after a restart; nothing if the journal has more or fewer entries since."""
        if after.entries == self.entries:
            yield from (part for part, known in self.parts.items() if after.parts.get(part, known) != known)
