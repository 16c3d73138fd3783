"""Which fragments fail on the records of a batch, on which record, and in which expression.

A data error is one that a record causes: under ANSI an expression raises on a value that it cannot take. Everything
else (a file, a registry or a machine that is away) is an outage: it is not the fragment's fault, and passes.

What is found does not depend on how fragments are evaluated: any `Evaluator` may raise, and is then asked for each
fragment alone. The record is searched for by Spark, in one job per failing fragment that evaluates every expression
guarded, record by record.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.errors import AggregateError
from catchment.query.fragment import Fragment
from catchment.shedding.places import ROW
from catchment.site.suspension import RecordPlace, shorten
from catchment.spark.evaluation.evaluator import Evaluator
from catchment.spark.evaluation.project_functions import expression
from catchment.spark.sources.streams import PROBLEM, RAW

_SQLSTATE = re.compile(r"SQLSTATE: (\w{5})")
_DATA_EXCEPTION = "22"  # the class of SQLSTATE for values that an operation cannot take
_RAISED = "P0001"  # the SQLSTATE of what a function of the project raises
# What a Python worker or the driver raises on such a value, as Spark reports it.
_IN_WORKERS = re.compile(
    r"^(?:pyarrow\.lib\.ArrowInvalid|OverflowError|ZeroDivisionError|decimal\.\w+|"
    r"catchment\.errors\.(?:AggregateError|FunctionError))\b",
    re.MULTILINE,
)
_CONDITION = re.compile(r"\[([A-Z_.]+)\] (.*?)(?: SQLSTATE: \w{5})?$", re.MULTILINE)
_ELIMINATION = "spark.sql.subexpressionElimination.enabled"
_BAD = "_bad_{}"
_FILE = "_file"
_TEXT = "_text"
_NUMBER = "_number"  # of a record among those that are judged
_guarding: dict[str, tuple[int, str]] = {}  # session -> who needs it without elimination, and how it was set before
_guarding_lock = threading.Lock()


@dataclass(frozen=True)
class FragmentFailure:
    """A fragment that fails on a batch: why and, as far as that was found, in which expression and on which record."""

    fragment: Fragment
    reason: str
    expression: str = ""
    record: RecordPlace | None = None


def is_data_error(failure: BaseException) -> bool:
    """Return whether a record is to blame, and not an outage or a bug."""
    if isinstance(failure, pa.ArrowInvalid | ArithmeticError | AggregateError):
        return True
    if not isinstance(failure, PySparkException | Py4JError):
        return False
    state = failure.getSqlState() if isinstance(failure, PySparkException) else None
    text = str(failure)
    states = [state] if state else _SQLSTATE.findall(text)
    return any(s.startswith((_DATA_EXCEPTION, _RAISED)) for s in states) or bool(_IN_WORKERS.search(text))


def reason_of_data_error(failure: BaseException) -> str:
    """Return what is wrong with the record, in one line."""
    text = str(failure)
    conditions = _CONDITION.findall(text)
    if conditions:
        name, message = conditions[-1]
        return shorten(f"[{name}] {message}")
    in_worker = _IN_WORKERS.search(text)
    line = text[in_worker.start() :] if in_worker else text
    return shorten(line.strip().partition("\n")[0] or type(failure).__name__)


def failure_of(fragment: Fragment, evaluate: Callable[[], object]) -> FragmentFailure | None:
    """Return how the evaluation of a fragment fails by a data error; None if it does not, and an outage is raised."""
    try:
        evaluate()
    except Exception as failure:  # what is no data error is raised
        if not is_data_error(failure):
            raise
        return FragmentFailure(fragment, reason_of_data_error(failure))
    return None


def find_record(evaluator: Evaluator, records: DataFrame, failure: FragmentFailure) -> FragmentFailure:
    """Return the failure with its expression and its record, as far as they can be found.

    `records` are the good records of the batch, with their raw text (`RAW`) where they have one.
    """
    fragment = failure.fragment
    expressions = expressions_of(fragment)
    spark = records.sparkSession
    try:
        with without_elimination(spark):
            rows = _with_place(evaluator.rows(records, replace(fragment, where=None)), records.columns)
            bad = [fails_on(spark, sql).alias(_BAD.format(i)) for i, sql in enumerate(expressions)]
            checked = rows.select(_FILE, _TEXT, ROW, *bad)
            is_bad = " OR ".join(_BAD.format(i) for i in range(len(expressions)))
            row = checked.where(is_bad).first()
    except (PySparkException, Py4JError):
        return failure  # a look-up fails, or Spark cannot guard the expression
    if row is None:
        return failure  # no record fails alone: a sum overflows
    expression = next(sql for i, sql in enumerate(expressions) if row[_BAD.format(i)])
    place = RecordPlace(shorten(row[_TEXT] or ""), row[_FILE] or "", row[ROW])
    return replace(failure, expression=shorten(expression), record=place)


def expressions_of(fragment: Fragment) -> tuple[str, ...]:
    """Return what a fragment evaluates per record: its condition, its keys and the arguments of its aggregates.

    Keys and arguments are evaluated only where the condition holds.
    """
    own = [k.sql for k in fragment.keys] + [a.argument for a in fragment.aggregates if a.argument is not None]
    distinct = list(dict.fromkeys(own))
    if fragment.where is None:
        return tuple(distinct)
    return fragment.where, *(f"CASE WHEN ({fragment.where}) THEN ({sql}) END" for sql in distinct)


def fails_on(spark: SparkSession, sql: str) -> Column:
    """Return a column that says whether an expression raises on a record; use it `without_elimination`."""
    # The struct is null only if the expression raises: a null that it returns is within the struct.
    return guard(spark, F.struct(expression(spark, sql))).isNull()


def guard(spark: SparkSession, column: Column) -> Column:
    """Return a column that is null where it would raise, as Spark guards its own `try_` functions."""
    assert spark._jvm is not None
    utilities = spark._jvm.org.apache.spark.sql.classic.ExpressionUtils
    guarded = spark._jvm.org.apache.spark.sql.catalyst.expressions.TryEval(utilities.expression(column._jc))
    return Column(utilities.column(guarded))


def _with_place(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the records with their file, their text and their number, as far as they have them."""
    own = [F.col(f"`{c}`") for c in columns if c not in (RAW, PROBLEM, ROW)]
    as_json = F.to_json(F.struct(*own))
    text = F.coalesce(F.col(RAW), as_json) if RAW in columns else as_json
    numbered = rows if ROW in columns else rows.withColumn(ROW, F.lit(None).cast("bigint"))
    return numbered.withColumn(_FILE, F.input_file_name()).withColumn(_TEXT, text)


@contextmanager
def split_failing(
    evaluator: Evaluator, records: DataFrame, fragment: Fragment
) -> Iterator[tuple[DataFrame, DataFrame]]:
    """Give the records on which an expression of a fragment raises, and the others, to be used within.

    A record that becomes several rows, because it is looked up or an array in it is exploded, is bad as a whole if any
    of its rows is. Where a look-up itself raises, no record is found, and whatever reads the records raises too.
    """
    spark = records.sparkSession
    held: list[DataFrame] = []
    with without_elimination(spark):
        aliased = records.alias(fragment.stream)
        if fragment.lookups or fragment.explodes:
            numbered = records.withColumn(_NUMBER, F.monotonically_increasing_id()).persist()
            held.append(numbered)
            numbers = _failing_numbers(evaluator, numbered, fragment).persist()
            held.append(numbers)
            bad, kept = (numbered.join(numbers, _NUMBER, how).drop(_NUMBER) for how in ("left_semi", "left_anti"))
        else:
            fails = _fails_on_any(spark, expressions_of(fragment))
            bad, kept = aliased.where(fails), aliased.where(~fails)
        kept = kept.persist()  # the records are judged once, and what follows need not be guarded
        held.append(kept)
        try:
            yield bad, kept
        finally:
            for frame in held:
                frame.unpersist()


def _failing_numbers(evaluator: Evaluator, numbered: DataFrame, fragment: Fragment) -> DataFrame:
    """Return the numbers of the records that become rows on which a fragment fails, or of which no rows can be made."""
    spark = numbered.sparkSession
    aliased = numbered.alias(fragment.stream)
    unmade = _fails_on_any(spark, [explode.sql for explode in fragment.explodes if not explode.after])
    rows = evaluator.rows(aliased.where(~unmade), replace(fragment, where=None))
    failing = rows.where(_fails_on_any(spark, expressions_of(fragment)))
    return failing.select(_NUMBER).union(aliased.where(unmade).select(_NUMBER)).distinct()


def _fails_on_any(spark: SparkSession, expressions: Sequence[str]) -> Column:
    """Return whether any expression raises on a record."""
    return reduce(or_, (fails_on(spark, sql) for sql in expressions), F.lit(False))


@contextmanager
def without_elimination(spark: SparkSession) -> Iterator[None]:
    """Let Spark evaluate common expressions where they stand: pulled out in front, they would not be guarded.

    Threads of one session may be in it at the same time: the last one to leave sets it back.
    """
    session = str(spark._jsparkSession.sessionUUID())
    with _guarding_lock:
        users, before = _guarding.get(session, (0, str(spark.conf.get(_ELIMINATION))))
        _guarding[session] = users + 1, before
        spark.conf.set(_ELIMINATION, "false")
    try:
        yield
    finally:
        with _guarding_lock:
            users, before = _guarding.pop(session)
            if users > 1:
                _guarding[session] = users - 1, before
            else:
                spark.conf.set(_ELIMINATION, before)
