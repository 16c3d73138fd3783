"""The classes that a fragment and its derivations are made of: what a journal must know to write them down.

A role journals the definitions that it runs, not the SQL they came from: after a restart it goes on with exactly
those, whatever a newer planner would make of the same queries.
"""

from __future__ import annotations

from catchment.aggregates.distinct import ApproxCountDistinct
from catchment.aggregates.quantiles import ApproxPercentile
from catchment.aggregates.shed_terms import ShedTerms
from catchment.aggregates.simple import Average, Count, Extreme, Sum
from catchment.aggregates.spread import RawMoments, Spread
from catchment.aggregates.topk import ApproxTopK
from catchment.optimizer.sharing.demand import DemandSource, FragmentDemand, SharedQuery
from catchment.optimizer.sharing.derive import Derivation
from catchment.query.fragment import Fragment, Key, Lookup
from catchment.timeline import WindowSpec

AGGREGATES = (
    Count,
    Sum,
    Average,
    Extreme,
    Spread,
    RawMoments,
    ApproxCountDistinct,
    ApproxPercentile,
    ApproxTopK,
    ShedTerms,
)
FRAGMENTS = (Fragment, Key, Lookup, WindowSpec, *AGGREGATES)
DEFINITIONS = (*FRAGMENTS, Derivation)
SHARING = (*DEFINITIONS, DemandSource, FragmentDemand, SharedQuery)
