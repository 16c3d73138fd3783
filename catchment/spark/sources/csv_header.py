"""The header of CSV files: columns are found by its names, in whatever order and however many they are.

All files of a stream have the header of the first one. A file with another stops the stream with an error: to go on
would be to take one column for another.
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

_AROUND_NAMES = '\ufeff" '  # a byte order mark, quotes, spaces


def csv_schema(relation: DeclaredRelation, header: list[str]) -> str:
    """Every column of the file in its order; those that were not declared are read as text, to be dropped."""
    absent = [c.name for c in relation.columns if c.name.lower() not in {h.lower() for h in header}]
    if absent:
        raise EngineError(
            f"{relation.name!r} declares {', '.join(absent)}, but the header of its file is {', '.join(header)}",
            hint="name the columns as the file does, or set header = false if it has none",
        )
    found = []
    for place, name in enumerate(header):
        column = relation.column(name)
        found.append(f"`{column.name}` {sql_type(column.type)}" if column else f"`_skip_{place}` STRING")
    return ", ".join(found)


def is_record(line: Column, relation: DeclaredRelation, files: FilesConnector, header: list[str]) -> Column:
    """Whether a line is a record; a header that is not the expected one is an error."""
    names = [c.name.lower() for c in relation.columns]
    low = F.lower(line)
    fields = F.transform(F.split(low, f"\\Q{files.delimiter}\\E"), lambda f: F.btrim(f, F.lit(_AROUND_NAMES)))
    maybe = reduce(and_, [F.contains(low, F.lit(name)) for name in names])  # cheap, and mostly false
    is_header = maybe & (F.size(F.array_except(_texts(names), fields)) == 0)
    expected = f", and {files.delimiter.join(header)} was expected: all files of a stream have one header"
    wrong = F.raise_error(F.concat(F.lit(f"a file of {relation.name!r} has the header "), line, F.lit(expected)))
    as_expected = fields == _texts([name.lower() for name in header])
    return F.when(is_header, F.when(as_expected, F.lit(False)).otherwise(wrong.cast("boolean"))).otherwise(F.lit(True))


def _texts(values: list[str]) -> Column:
    return F.array(*[F.lit(value) for value in values])
