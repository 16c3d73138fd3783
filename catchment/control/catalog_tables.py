"""What clients of Flight SQL ask about a server before they query it: its tables, and what it can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from catchment.center.results.read import read_results
from catchment.version import VERSION

VIEW = "VIEW"
# Where DuckDB has the views of a statement, so that clients may write the whole name.
_PLACE = MappingProxyType({"catalog_name": "temp", "db_schema_name": "main"})


def _text(name: str, nullable: bool = False) -> pa.Field:
    return pa.field(name, pa.string(), nullable=nullable)


# The schemas are those of FlightSql.proto; clients compare them.
_CATALOGS = pa.schema([_text("catalog_name")])
_SCHEMAS = pa.schema([_text("catalog_name", nullable=True), _text("db_schema_name")])
_TABLE_TYPES = pa.schema([_text("table_type")])
_TABLES = pa.schema(
    [
        _text("catalog_name", nullable=True),
        _text("db_schema_name", nullable=True),
        _text("table_name"),
        _text("table_type"),
    ]
)
# SqlInfo of FlightSql.proto: who the server is, that it takes SQL, and that nothing can be changed.
_SERVER_NAME, _SERVER_VERSION, _ARROW_VERSION, _READ_ONLY, _TAKES_SQL, _TRANSACTION = 0, 1, 2, 3, 4, 8
_INFO: Mapping[int, str | bool | int] = MappingProxyType(
    {
        _SERVER_NAME: "catchment",
        _SERVER_VERSION: VERSION,
        _ARROW_VERSION: pa.__version__,
        _READ_ONLY: True,
        _TAKES_SQL: True,
        _TRANSACTION: 0,
    }
)
_VALUE_TYPES = (
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
)


def sql_info(asked: Sequence[int]) -> pa.Table:
    """Return what the server is and can do; everything if nothing is asked for."""
    names = [name for name in _INFO if not asked or name in asked]
    kinds = {str: 0, bool: 1, int: 3}
    types, offsets = [], []
    columns: list[list[Any]] = [[] for _ in _VALUE_TYPES]
    for name in names:
        kind = kinds[type(_INFO[name])]
        types.append(kind)
        offsets.append(len(columns[kind]))
        columns[kind].append(_INFO[name])
    children = [pa.array(column, field.type) for column, field in zip(columns, _VALUE_TYPES, strict=True)]
    values = pa.UnionArray.from_dense(
        pa.array(types, pa.int8()), pa.array(offsets, pa.int32()), children, [field.name for field in _VALUE_TYPES]
    )
    schema = pa.schema(
        [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", values.type, nullable=False)]
    )
    return pa.Table.from_arrays([pa.array(names, pa.uint32()), values], schema=schema)


def _tables(command: Any, state: Path, views: Sequence[str]) -> pa.Table:
    names = [name for view in views for name in (view, f"{view}__revisions")]
    if command.table_name_filter_pattern:
        names = [name for name in names if _matches(name, command.table_name_filter_pattern)]
    if command.table_types and VIEW not in command.table_types:
        names = []
    rows = [{**_PLACE, "table_name": name, "table_type": VIEW} for name in names]
    if not command.include_schema:
        return pa.Table.from_pylist(rows, _TABLES)
    with_schema = [{**row, "table_schema": _schema_of(state, row["table_name"])} for row in rows]
    return pa.Table.from_pylist(with_schema, _TABLES.append(pa.field("table_schema", pa.binary(), nullable=False)))


def _schema_of(state: Path, name: str) -> bytes:
    view, suffix, _ = name.partition("__revisions")
    found = read_results(state, view, revisions="all" if suffix else "latest")
    return bytes(found.schema.serialize().to_pybytes())


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern of SQL's LIKE."""
    written = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.fullmatch(written, name) is not None


def _rows(schema: pa.Schema, rows: Sequence[Mapping[str, str]]) -> Callable[[Any, Path, Sequence[str]], pa.Table]:
    return lambda command, state, views: pa.Table.from_pylist(list(rows), schema)


CATALOG_TABLES: Mapping[str, Callable[[Any, Path, Sequence[str]], pa.Table]] = MappingProxyType(
    {
        "CommandGetCatalogs": _rows(_CATALOGS, [{"catalog_name": _PLACE["catalog_name"]}]),
        "CommandGetDbSchemas": _rows(_SCHEMAS, [_PLACE]),
        "CommandGetTableTypes": _rows(_TABLE_TYPES, [{"table_type": VIEW}]),
        "CommandGetTables": _tables,
    }
)
