"""The JSON documents that `catchment shed` reads and writes.

Unknown keys are refused: a misspelt contract would be no contract.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from catchment.errors import PlanError, QualityError
from catchment.quality.populations import Population, parse_aggregate
from catchment.shedding.forest import OperatorNode, QueryNode, ShedForest, StreamNode
from catchment.shedding.laws import Law
from catchment.shedding.planner import PlacedSampler, ShedPlan

_STREAM = ("name", "rate", "strata")
_OPERATOR = ("name", "input", "selectivity", "seconds_per_tuple", "picks")
_FACTS = ("window_tuples", "mean", "std", "value_range", "kurtosis")
_CONTRACT = ("weight", "max_error", "seconds_per_tuple", "groups", "mass")
_QUERY = ("name", "input", "aggregate", *_FACTS, *_CONTRACT)
_PLAN = ("capacity", "delta", "streams", "operators", "queries", "law")

Made = TypeVar("Made")


def read_forest(document: object, where: str) -> ShedForest:
    """Return the forest of a parsed JSON document; `where` names the file in errors."""
    plan = _Fields.of(document, where, _PLAN)
    return ShedForest(
        plan.number("capacity"),
        plan.number("delta"),
        plan.each("streams", "stream", _stream),
        plan.each("operators", "operator", _operator),
        plan.each("queries", "query", _query),
        where,
        _law(plan),
    )


def _law(plan: _Fields) -> Law:
    name = plan.text("law") or Law.HOEFFDING
    if name not in list(Law):
        raise PlanError(f"the law {name!r} is not known", where=plan.where, hint=f"there are {', '.join(Law)}")
    return Law(name)


def write_plan(plan: ShedPlan) -> dict[str, Any]:
    """Return the document that `catchment shed --json` prints; an error without a bound is null."""
    return {
        "max_error": _finite(plan.max_error),
        "load_before": plan.load_before,
        "load_after": plan.load_after,
        "samplers": [_sampler(sampler) for sampler in plan.samplers],
        "effective_rates": dict(plan.effective_rates),
        "errors": {name: _finite(error) for name, error in plan.errors.items()},
    }


def _sampler(sampler: PlacedSampler) -> dict[str, Any]:
    row: dict[str, Any] = {"before": sampler.before, "rate": sampler.rate}
    return row | {"rates": {name: rate for name, rate, _ in sampler.strata}} if sampler.strata else row


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


@dataclass(frozen=True)
class _Fields:
    """A JSON object whose keys are checked, and its position for error messages."""

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, document: object, where: str, known: Sequence[str]) -> _Fields:
        if not isinstance(document, Mapping):
            raise PlanError(f"expected a JSON object, found {_kind(document)}", where=where)
        for key in document:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, 1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise PlanError(f"the key {key!r} is not known", where=where, hint=f"{hint}known: {', '.join(known)}")
        return cls(document, where)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise PlanError(f"{key!r} is missing", where=self.where, hint=f"give a number: {key!r}: 1.0")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PlanError(f"{key!r} is a number, not {_kind(value)}", where=self.where)
        return float(value)

    def optional(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise PlanError(f"{key!r} is a text, not {_kind(value)}", where=self.where)
        return value

    def each(self, key: str, noun: str, make: Callable[[object, str], Made]) -> tuple[Made, ...]:
        """Return what `make` makes of each object of a list; a missing list is empty."""
        values = self.values.get(key)
        if values is None:
            return ()
        if not isinstance(values, list):
            raise PlanError(f"{key!r} is a list, not {_kind(values)}", where=self.where)
        return tuple(make(v, f"{self.where}: {noun} {_label(v, i)}") for i, v in enumerate(values))


def _label(value: object, index: int) -> str:
    name = value.get("name") if isinstance(value, Mapping) else None
    return repr(name) if isinstance(name, str) and name else f"number {index + 1}"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), f"{value!r}")


def _stream(document: object, where: str) -> StreamNode:
    fields = _Fields.of(document, where, _STREAM)
    strata = fields.each("strata", "stratum", _stratum)
    return StreamNode(fields.text("name"), fields.number("rate"), strata)


def _stratum(document: object, where: str) -> tuple[str, float]:
    fields = _Fields.of(document, where, ("name", "share"))
    return fields.text("name"), fields.number("share")


def _operator(document: object, where: str) -> OperatorNode:
    fields = _Fields.of(document, where, _OPERATOR)
    amounts = fields.number("selectivity"), fields.number("seconds_per_tuple")
    return OperatorNode(fields.text("name"), fields.text("input"), *amounts, fields.number("picks", 1.0))


def _query(document: object, where: str) -> QueryNode:
    fields = _Fields.of(document, where, _QUERY)
    aggregate = fields.text("aggregate")
    if not aggregate:
        raise PlanError("'aggregate' is missing", where=where, hint="count, sum, avg, quantile:0.95, ...")
    groups = fields.each("groups", "group", lambda value, place: _group(value, place, aggregate))
    total = _group_total(groups) if groups and "window_tuples" not in fields.values else None
    return QueryNode(
        fields.text("name"),
        fields.text("input"),
        aggregate,
        total or _population(fields, aggregate),
        fields.number("weight", 1.0),
        fields.optional("max_error"),
        fields.number("seconds_per_tuple", 0.0),
        groups,
        fields.number("mass", 1.0),
    )


def _group(document: object, where: str, aggregate: str) -> tuple[str, Population]:
    fields = _Fields.of(document, where, ("name", *_FACTS))
    return fields.text("name"), _population(fields, aggregate)


def _group_total(groups: Sequence[tuple[str, Population]]) -> Population:
    """Return the population of a query that declares only its groups: only the size is ever used."""
    return Population(math.fsum(population.count for _, population in groups))


def _population(fields: _Fields, aggregate: str) -> Population:
    """Return a population; mean and std are required where the error of the aggregate depends on them."""
    try:
        law = parse_aggregate(aggregate).law
        if law == "count":
            return Population(fields.number("window_tuples"))
        return Population(
            fields.number("window_tuples"),
            fields.number("mean", None if law in ("sum", "avg") else 1.0),
            fields.number("std", None if law in ("sum", "avg", "variance", "stddev") else 0.0),
            _limits(fields),
            fields.optional("kurtosis"),
        )
    except QualityError as error:
        raise PlanError(error.message, where=fields.where, hint=error.hint) from error


def _limits(fields: _Fields) -> tuple[float, float] | None:
    limits = fields.values.get("value_range")
    if limits is None:
        return None
    if not isinstance(limits, list) or len(limits) != 2 or any(not isinstance(x, int | float) for x in limits):
        raise PlanError("'value_range' is a list of two numbers", where=fields.where, hint="[0, 1500]")
    return float(limits[0]), float(limits[1])
