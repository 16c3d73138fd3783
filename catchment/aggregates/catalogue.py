"""The catalogue: which aggregate functions there are, and how one is made from a call in SQL."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from catchment.aggregates.base import Aggregate, AggregateCall
from catchment.aggregates.bits import Bits
from catchment.aggregates.bounded_sets import CollectSet, CountDistinct
from catchment.aggregates.covariation import Covariation
from catchment.aggregates.distinct import ApproxCountDistinct
from catchment.aggregates.histogram import Histogram
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.quantiles import ApproxPercentile
from catchment.aggregates.shape import Shape
from catchment.aggregates.simple import AllOrAny, Average, Count, Extreme, Sum
from catchment.aggregates.spread import RawMoments, Spread
from catchment.aggregates.topk import ApproxTopK
from catchment.aggregates.user_defined import UserAggregate
from catchment.aggregates.value_by import ValueBy
from catchment.errors import AggregateError
from catchment.functions.declared import AggregateFunction
from catchment.functions.installed import find_installed

Maker = Callable[[AggregateCall], Aggregate]


@dataclass(frozen=True)
class FunctionHelp:
    """An aggregate function: how it is called, what it gives, which other names it has.

    A function of two arguments is over one struct of both, whose fields are `fields`, in the order of the call.
    """

    signature: str
    help: str
    make: Maker
    aliases: tuple[str, ...] = ()
    parameters: int = 0  # how many constants may follow the argument
    fields: tuple[str, ...] = ()  # the names of two arguments


def _plain(kind: type[Aggregate]) -> Maker:
    return lambda call: kind(*call.head)


def _of_pair(name: str, help_: str, fields: tuple[str, ...] = ("y", "x")) -> FunctionHelp:
    return FunctionHelp(f"{name}({', '.join(fields)})", help_, _plain(Covariation), fields=fields)


FUNCTIONS: Mapping[str, FunctionHelp] = MappingProxyType(
    {
        "count": FunctionHelp("count(*), count(x)", "records, or values that are not null", _plain(Count)),
        "sum": FunctionHelp("sum(x)", "the sum of numbers", _plain(Sum)),
        "min": FunctionHelp("min(x)", "the least value", _plain(Extreme)),
        "max": FunctionHelp("max(x)", "the greatest value", _plain(Extreme)),
        "avg": FunctionHelp("avg(x)", "the mean of numbers", _plain(Average), ("mean",)),
        "var_samp": FunctionHelp("var_samp(x)", "the sample variance", _plain(Spread), ("variance",)),
        "var_pop": FunctionHelp("var_pop(x)", "the population variance", _plain(Spread)),
        "stddev_samp": FunctionHelp("stddev_samp(x)", "the sample deviation", _plain(Spread), ("stddev", "std")),
        "stddev_pop": FunctionHelp("stddev_pop(x)", "the population deviation", _plain(Spread)),
        "moments": FunctionHelp("moments(x)", "the first five raw moments, as an array", _plain(RawMoments)),
        "skewness": FunctionHelp("skewness(x)", "the skewness", _plain(Shape)),
        "kurtosis": FunctionHelp("kurtosis(x)", "the excess kurtosis", _plain(Shape)),
        "histogram": FunctionHelp(
            "histogram(x, low, high, buckets)",
            "how many values are below low, in each of some equal parts up to high, and from there on, as an array",
            Histogram.from_call,
            parameters=3,
        ),
        "first": FunctionHelp(
            "first(x[, true])",
            "the value of the earliest record by event time; with true, of those that are not null",
            _plain(ValueBy),
            ("first_value", "any_value"),
        ),
        "last": FunctionHelp(
            "last(x[, true])",
            "the value of the latest record by event time; with true, of those that are not null",
            _plain(ValueBy),
            ("last_value",),
        ),
        "min_by": FunctionHelp(
            "min_by(x, y)", "the value of x where y is least", _plain(ValueBy), fields=("value", "by")
        ),
        "max_by": FunctionHelp(
            "max_by(x, y)", "the value of x where y is greatest", _plain(ValueBy), fields=("value", "by")
        ),
        "bool_and": FunctionHelp("bool_and(c)", "whether all are true", _plain(AllOrAny), ("every",)),
        "bool_or": FunctionHelp("bool_or(c)", "whether any is true", _plain(AllOrAny), ("any", "some")),
        "bit_and": FunctionHelp("bit_and(x)", "the bits that all integers have", _plain(Bits)),
        "bit_or": FunctionHelp("bit_or(x)", "the bits that any integer has", _plain(Bits)),
        "bit_xor": FunctionHelp("bit_xor(x)", "the bits that an odd number of integers have", _plain(Bits)),
        "covar_pop": _of_pair("covar_pop", "the population covariance", ("x", "y")),
        "covar_samp": _of_pair("covar_samp", "the sample covariance", ("x", "y")),
        "corr": _of_pair("corr", "the correlation", ("x", "y")),
        "regr_count": _of_pair("regr_count", "how many pairs have no null"),
        "regr_avgx": _of_pair("regr_avgx", "the mean of x over those pairs"),
        "regr_avgy": _of_pair("regr_avgy", "the mean of y over those pairs"),
        "regr_sxx": _of_pair("regr_sxx", "the sum of squared distances of x from its mean"),
        "regr_syy": _of_pair("regr_syy", "the sum of squared distances of y from its mean"),
        "regr_sxy": _of_pair("regr_sxy", "the sum of products of both distances"),
        "regr_slope": _of_pair("regr_slope", "the slope of the line through the pairs"),
        "regr_intercept": _of_pair("regr_intercept", "where that line meets x = 0"),
        "regr_r2": _of_pair("regr_r2", "the share of the variance of y that it explains"),
        "count_distinct": FunctionHelp(
            "count(DISTINCT x, ...)",
            "how many distinct values; exact up to max_distinct of the view, estimated beyond",
            CountDistinct.from_call,
            parameters=1,
        ),
        "collect_set": FunctionHelp(
            "collect_set(x[, max_items])",
            "the distinct values, sorted; the least of more than max_items",
            CollectSet.from_call,
            parameters=1,
        ),
        "median": FunctionHelp(
            "median(x)",
            "the value in the middle; exact up to max_distinct distinct values, estimated beyond",
            Percentile.from_call,
            parameters=1,
        ),
        "percentile": FunctionHelp(
            "percentile(x, p)",
            "the value at rank p, or values at array(p, ...), interpolated; exact as median is",
            Percentile.from_call,
            parameters=2,
        ),
        "approx_count_distinct": FunctionHelp(
            "approx_count_distinct(x[, lgK or deviation])",
            "about how many distinct values (HLL)",
            ApproxCountDistinct.from_call,
            ("approx_distinct",),
            parameters=1,
        ),
        "percentile_approx": FunctionHelp(
            "percentile_approx(x, p[, accuracy])",
            "the value at rank p, or values at array(p, ...) (KLL)",
            ApproxPercentile.from_call,
            ("approx_percentile",),
            parameters=2,
        ),
        "approx_top_k": FunctionHelp(
            "approx_top_k(x[, k[, max_items]])",
            "the k most frequent items with their counts",
            ApproxTopK.from_call,
            parameters=2,
        ),
    }
)

_OTHER_NAMES = {"percentile_cont": "percentile(x, p)"}  # functions of other engines, and what they are here
_ALIASES = {alias: name for name, function in FUNCTIONS.items() for alias in function.aliases}

# What cannot be merged from partials, and what to use in its place.
_NOT_MERGEABLE = {
    "sum_distinct": "collect_set(x), whose values can be summed when the results are read",
    "avg_distinct": "collect_set(x), whose values can be averaged when the results are read",
    "percentile_disc": "percentile_approx(x, p)",
    "mode": "approx_top_k(x, 1)",
    "collect_list": "collect_set(x) for the distinct values",
    "array_agg": "collect_set(x) for the distinct values",
    "string_agg": "array_join(collect_set(x), ',') for the distinct values",
    "listagg": "array_join(collect_set(x), ',') for the distinct values",
    "histogram_numeric": "histogram(x, low, high, buckets), whose buckets do not move",
}


def canonical_name(function: str) -> str | None:
    """Return the canonical name of a function, or None where there is no such aggregate."""
    lowered = function.strip().lower()
    name = _ALIASES.get(lowered, lowered)
    return name if find_function(name) is not None else None


def find_function(name: str) -> FunctionHelp | None:
    """Return an aggregate function by its canonical name: one of the catalogue, or one that a project has brought."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    found = find_installed(name)
    if found is None or not isinstance(found.declared, AggregateFunction):
        return None
    fields = tuple(f"x{number}" for number in range(1, len(found.declared.takes) + 1))
    signature = f"{found.name}({', '.join(fields)})"
    several = fields if len(fields) > 1 else ()
    return FunctionHelp(signature, f"declared in {found.file}", UserAggregate.from_call, fields=several)


def make_aggregate(
    function: str,
    argument: str | None,
    argument_type: pa.DataType | None,
    parameters: tuple[object, ...] = (),
    *,
    name: str,
) -> Aggregate:
    """Return the aggregate `function(argument, *parameters)`, called `name` in the results.

    `argument` is Spark SQL, `argument_type` its Arrow type; None (or `*`) counts every record.
    """
    found = canonical_name(function)
    if found is None:
        raise _unknown(function, name)
    if argument is not None and argument.strip() == "*":
        argument, argument_type = None, None
    call = AggregateCall(name, found, argument, argument_type, tuple(parameters))
    known = find_function(found)
    assert known is not None
    _check(call, known)
    return known.make(call)


def _unknown(function: str, name: str) -> AggregateError:
    lowered = "_".join(function.lower().replace("(", " ").replace(")", " ").split())
    if lowered in _NOT_MERGEABLE:
        return AggregateError(
            f"{function} cannot be merged from partial answers",
            where=name,
            hint=f"use {_NOT_MERGEABLE[lowered]}",
        )
    close = [_OTHER_NAMES[lowered]] if lowered in _OTHER_NAMES else []
    close = close or difflib.get_close_matches(lowered, [*FUNCTIONS, *_ALIASES], 1)
    meant = f"did you mean {close[0]}? " if close else ""
    return AggregateError(
        f"there is no aggregate function {function!r}",
        where=name,
        hint=f"{meant}possible: {', '.join(FUNCTIONS)}",
    )


def _check(call: AggregateCall, known: FunctionHelp) -> None:
    usage = f"write {known.signature}"
    if call.argument is None and call.function != "count":
        raise AggregateError(f"{call.function} needs an argument", where=call.name, hint=usage)
    if call.argument is not None and call.argument_type is None:
        raise AggregateError(f"the type of {call.argument!r} in {call.function} is not known", where=call.name)
    if len(call.parameters) > known.parameters:
        raise AggregateError(
            f"{call.function} takes at most {known.parameters} parameters, and was given {call.parameters}",
            where=call.name,
            hint=usage,
        )
