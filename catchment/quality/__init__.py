"""The quality room: the one place where error is computed.

It turns (aggregate, size, mean, std, effective rate, delta) into a bound, and an (error, confidence)
contract into a needed rate. The slack controllers, the shed planner and the published bounds all call it.
What travels with shed partials is in `catchment.quality.shed_partials`.
"""

from catchment.quality.bounds import bound, dkw_error, estimate, hoeffding_error
from catchment.quality.combine import Answers, Kept, RateClass, combine, combine_many
from catchment.quality.kinds import Bound, Guarantee, Part, Population, Scale, parse_aggregate
from catchment.quality.needs import Need, needed_rate
from catchment.quality.rate import effective_rate

__all__ = [
    "Answers",
    "Bound",
    "Guarantee",
    "Kept",
    "Need",
    "Part",
    "Population",
    "RateClass",
    "Scale",
    "bound",
    "combine",
    "combine_many",
    "dkw_error",
    "effective_rate",
    "estimate",
    "hoeffding_error",
    "needed_rate",
    "parse_aggregate",
]
