"""Spark SQL as catchment reads and writes it: sqlglot's Spark dialect with four differences.

`window` and `explain` are ordinary words, because `window` is a grouping function here and `explain` begins a statement
of catchment; a doubled quote in a string is a quote, as in Spark 4; aggregate functions keep the name that the user
wrote, because the catalogue of aggregates decides which exist; and a few functions that sqlglot does not type are given
their types. User text reaches Spark only as what `render` makes of the parsed expression: every identifier quoted, no
comments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from sqlglot import exp, parse_one
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

# Every name that Spark or sqlglot takes for an aggregate function, whether catchment has it or not.
AGGREGATE_NAMES = frozenset(
    name.upper() for function in exp.ALL_FUNCTIONS if issubclass(function, exp.AggFunc) for name in function.sql_names()
) | frozenset(
    [
        "MEAN",
        "STD",
        "SOME",
        "EVERY",
        "PERCENTILE",
        "PERCENTILE_APPROX",
        "APPROX_PERCENTILE",
        "HISTOGRAM_NUMERIC",
        "COLLECT_LIST",
        "COLLECT_SET",
        "LISTAGG",
        "STRING_AGG",
        "TRY_AVG",
        "TRY_SUM",
        "ARRAYAGG",
        "BIT_AND",
        "BIT_OR",
        "BIT_XOR",
        "HLL_SKETCH_AGG",
        "KLL_SKETCH_AGG_DOUBLE",
        "COUNT_MIN_SKETCH",
    ]
)
_TYPES_BY_NAME = {
    name: exp.DataType.build(type_, dialect="spark")
    for type_, names in {
        "BIGINT": "HASH XXHASH64 CRC32 WEEKDAY UNIX_SECONDS UNIX_MILLIS",
        "STRING": "URL_DECODE URL_ENCODE TRY_PARSE_URL BIN CONV SOUNDEX",
        "TIMESTAMP": "TIMESTAMP_SECONDS TIMESTAMP_MILLIS TIMESTAMP_MICROS MAKE_TIMESTAMP TRY_TO_TIMESTAMP",
        "DATE": "MAKE_DATE",
        "DOUBLE": "BROUND",
    }.items()
    for name in names.split()
}


def _type_by_name(annotator: Any, call: Any) -> Any:
    annotator._set_type(call, _TYPES_BY_NAME.get(str(call.this).upper()))
    return call


def _without_aggregates(functions: Any) -> dict[str, Any]:
    return {name: build for name, build in functions.items() if name not in AGGREGATE_NAMES}


class CatchmentSpark(Spark):
    """The dialect of every expression in a project."""

    EXPRESSION_METADATA = {  # noqa: RUF012 (sqlglot declares it without ClassVar)
        **Spark.EXPRESSION_METADATA,
        exp.Anonymous: {"annotator": _type_by_name},
        exp.Round: {"annotator": lambda self, e: self._annotate_by_args(e, "this")},
        exp.DateTrunc: {"returns": exp.DType.DATE},
        exp.TimestampTrunc: {"returns": exp.DType.TIMESTAMPTZ},
        **{kind: {"returns": exp.DType.TEXT} for kind in (exp.ParseUrl, exp.SubstringIndex, exp.SplitPart)},
        **{kind: {"returns": exp.DType.BIGINT} for kind in (exp.WidthBucket, exp.Year)},
    }

    class Tokenizer(Spark.Tokenizer):
        COMMANDS: ClassVar = set()
        STRING_ESCAPES: ClassVar = ["\\", "'", '"']
        KEYWORDS: ClassVar = {k: v for k, v in Spark.Tokenizer.KEYWORDS.items() if v != TokenType.WINDOW}

    class Parser(SparkParser):
        FUNCTIONS: ClassVar = _without_aggregates(SparkParser.FUNCTIONS)
        FUNCTION_PARSERS: ClassVar = _without_aggregates(SparkParser.FUNCTION_PARSERS)


_SPARK = CatchmentSpark()  # shared, because making one takes longer than rendering most expressions


def render(expression: exp.Expr) -> str:
    """Return the Spark SQL of an expression: identifiers quoted, comments gone."""
    # A generator may change the tree, so it is given a copy; in names there is nothing to change.
    copy = not isinstance(expression, exp.Column | exp.Identifier)
    return expression.sql(dialect=_SPARK, identify=True, comments=False, copy=copy)


def show(expression: exp.Expr) -> str:
    """Return an expression as a person would write it: for messages, never for Spark."""
    return expression.sql(dialect=_SPARK, comments=False).replace("`", "")


def write_expression(expression: exp.Expr) -> str:
    """Return the Spark SQL of an expression, with quotes only around identifiers that were written with them."""
    return expression.sql(dialect=_SPARK, comments=False)


def read_expression(sql: str) -> exp.Expr:
    """Return the expression of a text that `render` or `write_expression` made."""
    return parse_one(sql, dialect=_SPARK)


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yield the parts of a condition that must all hold, from left to right; none where there is no condition."""
    if condition is None:
        return
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        yield from conjuncts(bare.left)
        yield from conjuncts(bare.right)
    else:
        yield bare
