"""Aggregates by their laws (lift, combine, lower), in Spark SQL and in numpy/Arrow, and tables of partials."""

from catchment.aggregates.base import Aggregate, StateColumn, quote
from catchment.aggregates.catalogue import FUNCTIONS, FunctionHelp, canonical_name, find_function, make_aggregate

__all__ = [
    "FUNCTIONS",
    "Aggregate",
    "FunctionHelp",
    "StateColumn",
    "canonical_name",
    "find_function",
    "make_aggregate",
    "quote",
]
