"""Which segment goes next: fresh ones first after an outage, the backlog beside them under a share of the
link.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from catchment.errors import WireError
from catchment.wire.outbox import Pending

BACKLOG_SHARE = 0.5  # of the bytes, while fresh segments are waiting too; the whole link when none are


class SendOrder:
    """Pure. What was appended before the last reconnection is backlog, what came after it is fresh.

    Law: while fresh segments wait, the backlog has had at most `backlog_share` of the bytes since the
    reconnection, plus one segment; and it never starves. Inside each kind the lowest number goes first. No
    number at or beyond `window` above the lowest pending one is chosen: the far side would refuse it.
    """

    def __init__(self, window: int, backlog_share: float = BACKLOG_SHARE) -> None:
        if not 0 < backlog_share <= 1:
            raise WireError(f"the backlog's share of a link must be in (0, 1], not {backlog_share}")
        self._window, self._share = window, backlog_share
        self._fresh_from = 0
        self._backlog_bytes = self._fresh_bytes = 0

    def reconnected(self, next_sequence: int) -> None:
        """The link is back: what is appended from now on is fresh."""
        self._fresh_from = next_sequence
        self._backlog_bytes = self._fresh_bytes = 0

    def choose(self, pending: Sequence[Pending], taken: Collection[int]) -> Pending | None:
        """The segment to send now, given those pending (lowest first) and those under way or held back."""
        if not pending:
            return None
        end = pending[0].sequence + self._window
        free = [p for p in pending if p.sequence not in taken and p.sequence < end]
        backlog = next((p for p in free if p.sequence < self._fresh_from), None)
        fresh = next((p for p in free if p.sequence >= self._fresh_from), None)
        chosen = (backlog if self._backlog_has_credit() else fresh) if backlog and fresh else backlog or fresh
        self._count(chosen)
        return chosen

    def _backlog_has_credit(self) -> bool:
        return self._backlog_bytes < self._share * (self._backlog_bytes + self._fresh_bytes)

    def _count(self, chosen: Pending | None) -> None:
        if chosen and chosen.sequence < self._fresh_from:
            self._backlog_bytes += chosen.size_bytes
        elif chosen:
            self._fresh_bytes += chosen.size_bytes
