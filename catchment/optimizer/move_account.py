"""When a running plan is replaced by a better one: what staying has lost, weighed against what a move costs.

Whoever runs a plan books what it has lost against the best plan in hindsight since the account was opened. A loss that
ends is forgotten: the account is reset. When the loss exceeds `patience` times the cost of moving to the better
plan, it is time to move.

The rule is that of Chandramouli et al. (RACE, VLDB'13, section 4.5), who act as soon as the loss exceeds the cost
(patience 1). An adversary makes that cost four times the optimum: it hits the present plan for the cost of one move,
for which the rule pays two, while staying costs half of what is hit. With patience 2 and two plans to choose from, the
total is at most three times that of a clairvoyant, up to a constant. With n plans, no deterministic rule is better than
2n - 1 (Borodin, Linial and Saks, 1992).
"""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE = 2.0  # the cost of a move must be lost this many times before the move is made


@dataclass
class MoveAccount:
    """Hold what the present plan has lost, in the same unit as the cost of a move."""

    patience: float = PATIENCE
    lost: float = 0.0
    move_cost: float = 0.0

    def should_move(self, lost: float, move_cost: float) -> bool:
        """Book the loss since the account was opened, and return whether it now justifies a move.

        The account is reset when nothing was lost, and when it is time to move.
        """
        self.lost = lost
        self.move_cost = move_cost
        if lost <= 0:
            self.reset()
            return False
        if lost <= self.patience * move_cost:
            return False
        self.reset()
        return True

    def reset(self) -> None:
        """Reset the account: nothing was lost yet."""
        self.lost = 0.0
        self.move_cost = 0.0
