"""`confidence(column, 0.99)` in SQL over results: the bound of a column at the reader's confidence, not the view's.

A row carries the terms of its bounds, from which `catchment.quality.published` states them at any confidence. In the
statement the call becomes one of a function over those terms. It is null where the bound is not known at that
confidence: what is late was estimated at the view's, and nothing is known beyond.
"""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from duckdb.func import ARROW, SPECIAL
from sqlglot import exp

from catchment.quality.published import bound_at

_CALL = re.compile(r"\bconfidence\s*\(", re.IGNORECASE)
_FUNCTION = "catchment_bound_at"
_TERMS_SQL = (  # as `catchment.quality.published.TERMS_TYPE`
    "STRUCT(law VARCHAR, size DOUBLE, late DOUBLE, late_delta DOUBLE, late_counted BOOLEAN, "
    "sampled DOUBLE[], sketch DOUBLE)"
)
_HINT = "write confidence(column, 0.99), with a column of the view and a share between 0 and 1"


def asks_confidence(statement: str) -> bool:
    """Return whether a statement may call `confidence`."""
    return _CALL.search(statement) is not None


def rewrite_confidence(statement: str) -> str:
    """Return the statement with each call of `confidence` over the terms of its column; ValueError if one has none."""
    try:
        tree = sqlglot.parse_one(statement, read="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise ValueError(f"cannot read the statement: {str(error).splitlines()[0]}") from error
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name.lower() == "confidence":
            call.replace(_over_terms(call))
    return tree.sql("duckdb")


def _over_terms(call: exp.Anonymous) -> exp.Expr:
    arguments = call.expressions
    if len(arguments) != 2 or not isinstance(arguments[0], exp.Column):
        raise ValueError(f"{call.sql('duckdb')} is not about a column at a confidence: {_HINT}")
    column, confidence = arguments
    source = f'"{column.table}".' if column.table else ""
    terms, stated = (f'{source}"{struct}"."{column.name}"' for struct in ("bound_terms", "bound"))
    text = f"{_FUNCTION}({terms}, {stated}, CAST({confidence.sql('duckdb')} AS DOUBLE))"
    return sqlglot.parse_one(text, read="duckdb")


def register_confidence(session: duckdb.DuckDBPyConnection) -> None:
    """Make the function known to a session."""
    session.create_function(
        _FUNCTION, _bounds_at, [_TERMS_SQL, "DOUBLE", "DOUBLE"], "DOUBLE", type=ARROW, null_handling=SPECIAL
    )


def _bounds_at(terms: pa.Array, stated: pa.Array, confidence: pa.Array) -> pa.Array:
    """Return the bounds of rows, each at its own confidence."""
    terms, stated, confidence = (_one_array(column) for column in (terms, stated, confidence))
    found: list[float | None] = [None] * len(terms)
    for share in pc.unique(confidence).to_pylist():
        if share is None or not 0.0 < share < 1.0:
            raise ValueError(f"a confidence is a share between 0 and 1, not {share}: {_HINT}")
        rows = pc.equal(confidence, share).to_pylist()
        places = [place for place, is_asked in enumerate(rows) if is_asked]
        bounds = bound_at(terms.take(pa.array(places)), stated.take(pa.array(places)), 1.0 - share)
        for place, bound in zip(places, bounds.to_pylist(), strict=True):
            found[place] = bound
    return pa.array(found, pa.float64())


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
