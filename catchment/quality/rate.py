"""The effective rate of a window: the share of its records that its answer was made from.

A record that was shed and a record that is late are the same thing to an answer: one that was not sampled. So
there is one number for both, and every bound and every contract of this room is stated in it.
"""

from __future__ import annotations

from catchment.errors import QualityError


def effective_rate(shed_rate: float, coverage: float) -> float:
    """P = p_shed x coverage: the chance that a record of the window is in its answer.

    `shed_rate` is the product of the samplers on the record's way (1 where none is), `coverage` the share
    of the window's unshed records that have arrived.
    """
    for name, share in (("shed_rate", shed_rate), ("coverage", coverage)):
        if not 0.0 <= share <= 1.0:
            raise QualityError(f"{name} is a share between 0 and 1, not {share!r}")
    return shed_rate * coverage
