"""Windows that are computed again on request, long after they were final: which, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.errors import QueryError
from catchment.storage.codec import stored


@stored(version=2, migrations={1: dict})  # version 2 has is_second_round
@dataclass(frozen=True)
class WindowRepair:
    """The windows of a view that start in [from_us, before_us) are computed again; the last of them ends at `until_us`.

    A view of its own computes them from the histories of the sites (`deploy.repairing.repair_windows`). In a second
    round it computes only what makes the estimates of these windows exact (`deploy.repairing.second_rounds`).
    """

    view: str  # the name of the definition whose windows they are
    from_us: int
    before_us: int
    until_us: int
    is_second_round: bool = False

    def __post_init__(self) -> None:
        if not self.from_us < self.before_us <= self.until_us:
            raise QueryError(f"no window starts in [{self.from_us}, {self.before_us})")

    def covers(self, start_us: int) -> bool:
        """Return whether a window that starts at an instant is one of them."""
        return self.from_us <= start_us < self.before_us
