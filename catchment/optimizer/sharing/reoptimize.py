"""Re-optimisation at run time: queries move to other fragments when not moving has cost more than moving would.

The rule, and its guarantee, are those of `catchment.optimizer.move_account`. A plan that is better by less than
`LEAST_GAIN` counts as no better, so that queries do not move back and forth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.optimizer.choices import Strength
from catchment.optimizer.move_account import MoveAccount
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import LEAST_GAIN, BytesOf, SharingState, share
from catchment.timeline import SECOND_US


@dataclass
class SharingReoptimizer:
    """Decide when the queries of one deployment move; its account holds bytes."""

    account: MoveAccount = field(default_factory=MoveAccount)
    last_us: int | None = None  # the streams' time at the last call

    def choose_move(self, deployed: Deployed, bytes_of: BytesOf, now_us: int) -> SharingState | None:
        """Return the sharing to move to, if it is time; to be called regularly.

        `bytes_of` is what fragments are measured to send, `now_us` the time of the streams.
        """
        elapsed_s = 0.0 if self.last_us is None else max(0, now_us - self.last_us) / SECOND_US
        self.last_us = now_us
        if not deployed.may_move or deployed.strength in (Strength.NONE, Strength.STRICT):
            return None  # sites still compute or hand over what was left; weaker sharing leaves nothing to choose
        target = share(deployed.sharing.queries.values(), deployed.strength, bytes_of)
        present_rate = sum(bytes_of(d) for f, d in deployed.sharing.fragments.items() if f not in deployed.leaving)
        gain = present_rate - sum(map(bytes_of, target.fragments.values()))
        if gain <= LEAST_GAIN * present_rate:
            self.account.reset()
            return None
        lost = self.account.lost + gain * elapsed_s
        move_cost = redeployment_bytes(deployed, target, bytes_of)
        return target if self.account.should_move(lost, move_cost) else None


def redeployment_bytes(deployed: Deployed, target: SharingState, bytes_of: BytesOf) -> float:
    """Return what a move costs: old and new fragments both send until the longest window under way has passed."""
    new = {f: d for f, d in target.fragments.items() if d not in deployed.sharing.fragments.values()}
    windows = [w.size_us for d in deployed.sharing.fragments.values() for w in d.windows]
    return sum(map(bytes_of, new.values())) * max(windows, default=0) / SECOND_US
