"""Spark SQL as vectorised expressions, for what is proven to mean the same; anything else is refused with the reason.

`_RULES` lists the forms that are translated. `tests/spark/test_vectorised.py` compares each of them with Spark, value
by value.
"""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from catchment.query.sql.dialect import read_expression
from catchment.vectorised import functions, operators
from catchment.vectorised.coercion import BOOLEAN, NULL
from catchment.vectorised.expressions import Constant, VectorExpression
from catchment.vectorised.scope import InputScope, Rule

_RULES: dict[type[exp.Expr], Rule] = {
    exp.Paren: lambda scope, node: scope.translate(node.this),
    exp.Column: operators.column,
    exp.Literal: operators.literal,
    exp.Null: lambda scope, node: Constant(NULL, None),
    exp.Boolean: lambda scope, node: Constant(BOOLEAN, bool(node.this)),
    exp.Neg: operators.negative,
    exp.Abs: operators.absolute,
    **dict.fromkeys(operators.COMPARISONS, operators.compare),
    exp.Between: operators.between,
    exp.In: operators.one_of,
    **dict.fromkeys(operators.ARITHMETIC, operators.arithmetic),
    exp.Div: operators.divide,
    exp.IntDiv: operators.divide_whole,
    exp.Mod: operators.remainder,
    **dict.fromkeys(operators.BIT_OPERATIONS, operators.bits),
    exp.BitwiseNot: operators.other_bits,
    exp.Greatest: operators.extreme,
    exp.Least: operators.extreme,
    exp.And: operators.connect,
    exp.Or: operators.connect,
    exp.Not: operators.negation,
    exp.Is: operators.test,
    exp.Like: operators.like,
    exp.ILike: operators.like_any_case,
    exp.Case: operators.case,
    exp.If: operators.one_if,
    exp.Coalesce: operators.first_known,
    exp.Nullif: operators.null_if,
    exp.Nvl2: operators.either,
    exp.Cast: functions.convert,
    exp.TryCast: functions.convert,
    **dict.fromkeys(functions.TEXT_FUNCTIONS, functions.text_function),
    **dict.fromkeys(functions.TEXT_TESTS, functions.text_test),
    exp.Concat: functions.join_texts,
    exp.DPipe: functions.join_texts,
    exp.ConcatWs: functions.join_known_texts,
    exp.Substring: functions.take_characters,
    exp.Left: functions.take_end,
    exp.Right: functions.take_end,
    exp.Trim: functions.trim,
    exp.Replace: functions.replace_text,
    **dict.fromkeys(functions.INSTANT_FUNCTIONS, functions.instant_function),
    **dict.fromkeys(functions.DAY_FUNCTIONS, functions.day_function),
    exp.TsOrDsToDate: functions.day_of,
    exp.TimestampTrunc: functions.truncate,
    exp.DateTrunc: functions.first_day,
    exp.TsOrDsAdd: functions.add_days,
    exp.DateDiff: functions.count_days,
    exp.Extract: functions.extract,
    exp.Floor: functions.round_off,
    exp.Ceil: functions.round_off,
    exp.Round: functions.round_half_up,
    exp.Sign: functions.sign_of,
    exp.Nanvl: functions.known_number,
    exp.Sqrt: functions.root,
    exp.IsNan: functions.is_not_a_number,
    exp.Struct: functions.make_struct,
    exp.Anonymous: functions.call_named,
}


def translate(sql: str, relation: str, columns: pa.Schema) -> VectorExpression:
    """Return an expression over the columns of one relation."""
    return InputScope(relation, columns, _RULES).translate(read_expression(sql))


def translate_condition(sql: str, relation: str, columns: pa.Schema) -> VectorExpression:
    """Return a condition over the columns of one relation."""
    return InputScope(relation, columns, _RULES).condition(read_expression(sql))
