"""What vectorised expressions are translated in: the columns of one stream, and the rules that translate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from catchment.query.sql.dialect import show
from catchment.vectorised.coercion import BOOLEAN, NULL, NotVectorisedError, require_type
from catchment.vectorised.expressions import Constant, VectorExpression

Rule = Callable[["InputScope", Any], VectorExpression]


@dataclass(frozen=True)
class InputScope:
    """The columns of a relation, and a rule for each kind of expression that can be translated."""

    relation: str
    columns: pa.Schema
    rules: Mapping[type[exp.Expr], Rule]

    def translate(self, node: exp.Expr) -> VectorExpression:
        """Return the vectorised form of an expression."""
        rule = self.rules.get(type(node))
        if rule is None:
            raise NotVectorisedError(f"{show(node)} is left to Spark")
        return rule(self, node)

    def condition(self, node: exp.Expr) -> VectorExpression:
        """Return the vectorised form of a condition."""
        found = self.translate(node)
        if found.type == NULL:
            return Constant(BOOLEAN, None)
        return require_type(found, BOOLEAN, node)
