"""The quality room: the one place where error is computed.

It turns (aggregate, size, mean, std, effective rate, delta) into a bound, and an (error, confidence)
contract into a needed rate. The slack controllers, the shed planner and the published bounds all call it.
"""

from catchment.quality.rate import effective_rate

__all__ = ["effective_rate"]
