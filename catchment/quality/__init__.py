"""Error in one place: how wrong an answer may be (`bound`), and what a contract needs (`needed_rate`).

A record that was shed and one that is late are the same to an answer: one that was not sampled. `contract` and
`coverage` serve the slack controllers, `needs` the shed planner, `sample_bounds` and `merge_sites` published bounds.
"""

from catchment.quality.bounds import Bound, Guarantee, Scale, bound, dkw_error, hoeffding_error
from catchment.quality.contract import Contract, Measure
from catchment.quality.needs import Need, needed_rate
from catchment.quality.populations import Population, SampledPart, parse_aggregate

__all__ = [
    "Bound",
    "Contract",
    "Guarantee",
    "Measure",
    "Need",
    "Population",
    "SampledPart",
    "Scale",
    "bound",
    "dkw_error",
    "hoeffding_error",
    "needed_rate",
    "parse_aggregate",
]
