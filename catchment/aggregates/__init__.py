"""Aggregates as laws: lift, combine, lower; each in Spark SQL and in numpy/Arrow."""

from catchment.aggregates.base import Aggregate, StateColumn, quote
from catchment.aggregates.catalogue import FUNCTIONS, FunctionHelp, canonical_name, make_aggregate

__all__ = [
    "FUNCTIONS",
    "Aggregate",
    "FunctionHelp",
    "StateColumn",
    "canonical_name",
    "make_aggregate",
    "quote",
]
