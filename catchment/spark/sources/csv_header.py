"""The header of CSV files: columns are found by name, whatever their order.

All files of a stream have the header of the first one. A file with another header stops the stream with an error:
otherwise one column would be read as another.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F

from catchment.errors import EngineError
from catchment.query.sql.connectors import FilesConnector
from catchment.query.sql.statements import DeclaredRelation
from catchment.query.types import sql_type

_TRIMMED = '\ufeff" '  # trimmed from names: a byte order mark, quotes, spaces


def csv_schema(relation: DeclaredRelation, header: list[str]) -> str:
    """Return the columns of the file as a Spark schema; undeclared ones are read as text, to be dropped."""
    absent = [c.name for c in relation.columns if c.name.lower() not in {h.lower() for h in header}]
    if absent:
        raise EngineError(
            f"{relation.name!r} declares {', '.join(absent)}, but the header of its file is {', '.join(header)}",
            hint="name the columns as the file does, or set header = false if it has none",
        )
    columns = []
    for index, name in enumerate(header):
        column = relation.column(name)
        columns.append(f"`{column.name}` {sql_type(column.type)}" if column else f"`_skip_{index}` STRING")
    return ", ".join(columns)


def is_record(line: Column, relation: DeclaredRelation, files: FilesConnector, header: list[str]) -> Column:
    """Return whether a line is a record and not the header; another header is an error."""
    names = [c.name.lower() for c in relation.columns]
    low = F.lower(line)
    fields = F.transform(F.split(low, f"\\Q{files.delimiter}\\E"), lambda f: F.btrim(f, F.lit(_TRIMMED)))
    maybe = reduce(and_, [F.contains(low, F.lit(name)) for name in names])  # cheap, and mostly false
    is_header = maybe & (F.size(F.array_except(_texts(names), fields)) == 0)
    expected = f", and {files.delimiter.join(header)} was expected: all files of a stream have one header"
    wrong = F.raise_error(F.concat(F.lit(f"a file of {relation.name!r} has the header "), line, F.lit(expected)))
    as_expected = fields == _texts([name.lower() for name in header])
    return F.when(is_header, F.when(as_expected, F.lit(False)).otherwise(wrong.cast("boolean"))).otherwise(F.lit(True))


def _texts(values: list[str]) -> Column:
    return F.array(*[F.lit(value) for value in values])
