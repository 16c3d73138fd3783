"""Expressions that call functions of the project, as Spark evaluates them.

Spark evaluates Python functions before the expressions around them, for every row, whatever CASE says. So a function is
registered in a form that never raises: it returns a struct of the value and of what was raised on the row, and the
expression around it raises that where the value is needed. So an error is that of one record, and is found, guarded and
set aside like that of any other expression.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp

from catchment.errors import FunctionError
from catchment.functions.declared import ScalarFunction
from catchment.functions.installed import FunctionsFile, functions_in, install, installed_files, scalar
from catchment.query.sql.dialect import read_expression, render
from catchment.query.types import sql_type

VALUE, ERROR = "value", "error"
_registered: set[tuple[str, str]] = set()  # (session, function); a stream's batches come in sessions of their own
_lock = threading.Lock()


def expression(spark: SparkSession, sql: str) -> Column:
    """Return an expression as a column; the functions of the project that it calls are registered."""
    return F.expr(spark_sql(spark, sql))


def spark_sql(spark: SparkSession, sql: str) -> str:
    """Return the text of an expression in which functions of the project are called as they are registered."""
    called = [name for name in sorted(functions_in(sql)) if scalar(name) is not None]
    for name in called:
        _register(spark, name)
    return _raising(sql) if called else sql


@lru_cache(maxsize=4096)
def _raising(sql: str) -> str:
    return render(read_expression(sql).transform(_raise_errors))


def _raise_errors(node: exp.Expr) -> exp.Expr:
    """Return a call as its value, raising its error where there is one."""
    if not isinstance(node, exp.Anonymous) or scalar(str(node.this).lower()) is None:
        return node
    arguments = [argument.transform(_raise_errors) for argument in node.expressions]
    call = render(exp.Anonymous(this=str(node.this).lower(), expressions=arguments))
    declared = scalar(str(node.this).lower())
    assert declared is not None
    raised = f"CAST(raise_error({call}.{ERROR}) AS {sql_type(declared.returns)})"
    return exp.Var(this=f"CASE WHEN {call}.{ERROR} IS NULL THEN {call}.{VALUE} ELSE {raised} END")


def _register(spark: SparkSession, name: str) -> None:
    session = str(spark._jsparkSession.sessionUUID())
    with _lock:
        if (session, name) in _registered:
            return
        declared = scalar(name)
        assert declared is not None
        type_ = f"struct<{VALUE}: {sql_type(declared.returns)}, {ERROR}: string>"
        spark.udf.register(name, F.arrow_udf(_make_catching(name, len(declared.takes), installed_files()), type_))
        _registered.add((session, name))


def _make_catching(name: str, arguments: int, files: Sequence[FunctionsFile]) -> Callable[..., pa.Array]:
    """Return what a worker runs: the function by its name, from the files that it is given."""

    def evaluate(columns: Sequence[pa.Array]) -> pa.Array:
        for file in files:
            install(file)
        declared = scalar(name)
        assert declared is not None
        return evaluate_each(declared, columns)

    # Spark takes the kind of a function from the types of its parameters.
    def of_one(a: pa.Array) -> pa.Array:
        return evaluate([a])

    def of_several(*given: pa.Array) -> pa.Array:
        return evaluate(given)

    return of_one if arguments == 1 else of_several


def evaluate_each(declared: ScalarFunction, columns: Sequence[pa.Array]) -> pa.Array:
    """Return a struct of value and error per row; rows on which a function raises are found by halving."""
    rows = len(columns[0])
    try:
        values = declared.evaluate(columns) if rows else pa.nulls(0, declared.returns)
    except FunctionError as error:
        if rows == 1:
            return _pair(pa.nulls(1, declared.returns), pa.array([error.message]))
        half = rows // 2
        left = evaluate_each(declared, [c.slice(0, half) for c in columns])
        right = evaluate_each(declared, [c.slice(half) for c in columns])
        return pa.concat_arrays([left, right])
    return _pair(values, pa.nulls(rows, pa.string()))


def _pair(values: pa.Array, errors: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values, errors], [VALUE, ERROR])
