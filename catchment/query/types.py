"""SQL types and Arrow types: one table, used both ways."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from catchment.query.instant_type import TIMESTAMP as TIMESTAMP
from catchment.query.sql.dialect import read_expression

T = exp.DType
DEFAULT_PRECISION, DEFAULT_SCALE = 10, 0
POSSIBLE_TYPES = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, BINARY, DATE, TIMESTAMP, "
    "TIMESTAMP_NTZ, ARRAY<type>, MAP<type, type>, STRUCT<name: type, ...>"
)

_PLAIN = {
    T.BOOLEAN: pa.bool_(),
    T.TINYINT: pa.int8(),
    T.SMALLINT: pa.int16(),
    T.INT: pa.int32(),
    T.BIGINT: pa.int64(),
    T.FLOAT: pa.float32(),
    T.DOUBLE: pa.float64(),
    T.TEXT: pa.string(),
    T.VARCHAR: pa.string(),
    T.CHAR: pa.string(),
    T.BINARY: pa.binary(),
    T.DATE: pa.date32(),
    T.TIMESTAMPTZ: TIMESTAMP,
    T.TIMESTAMPLTZ: TIMESTAMP,
    T.TIMESTAMP: TIMESTAMP,
    T.TIMESTAMPNTZ: pa.timestamp("us"),
}
_SQL = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}


def read_type(text: str) -> exp.DataType | None:
    """Return the SQL type that the whole of a text names, or None."""
    found = _parse_type(text)
    return found.copy() if found is not None else None


@lru_cache(maxsize=1024)
def _parse_type(text: str) -> exp.DataType | None:
    try:
        cast = read_expression(f"CAST(NULL AS {text})")
    except SqlglotError:
        return None
    return cast.to if isinstance(cast, exp.Cast) else None


def arrow_type(type_: exp.DataType | None) -> pa.DataType | None:
    """Return the Arrow type of a SQL type, or None where there is none."""
    if type_ is None:
        return None
    if type_.this == T.DECIMAL:
        return _decimal_type([p.name for p in type_.expressions])
    if type_.this in (T.ARRAY, T.LIST, T.MAP, T.STRUCT):
        return _nested_type(type_)
    return _PLAIN.get(type_.this)


def _decimal_type(digits: list[str]) -> pa.DataType | None:
    if len(digits) > 2 or not all(d.isdigit() for d in digits):
        return None
    precision = int(digits[0]) if digits else DEFAULT_PRECISION
    scale = int(digits[1]) if len(digits) > 1 else DEFAULT_SCALE
    return pa.decimal128(precision, scale) if 0 <= scale <= precision <= 38 and precision else None


def _nested_type(type_: exp.DataType) -> pa.DataType | None:
    inner = [e.args.get("kind") if isinstance(e, exp.ColumnDef) else e for e in type_.expressions]
    types = [arrow_type(t) for t in inner]
    if not types or any(t is None for t in types):
        return None
    if type_.this == T.STRUCT:
        return pa.struct([pa.field(e.name, t) for e, t in zip(type_.expressions, types, strict=True)])
    if type_.this == T.MAP:
        return pa.map_(*types) if len(types) == 2 else None
    return pa.list_(types[0]) if len(types) == 1 else None


def sql_type(type_: pa.DataType) -> str:
    """Return the SQL name of an Arrow type."""
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if pa.types.is_map(type_):
        return f"MAP<{sql_type(type_.key_type)}, {sql_type(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"ARRAY<{sql_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(f'{f.name}: {sql_type(f.type)}' for f in type_)}>"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz else "TIMESTAMP_NTZ"
    return _SQL[type_]
