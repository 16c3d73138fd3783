"""Whether the rows of a look-up table keep what it declares: no two of them have its unique columns in common."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from catchment.errors import EngineError
from catchment.query.sql.statements import Table

_TIMES = "count_all"  # what Arrow names the number of rows of a group


def check_unique(table: Table, rows: pa.Table) -> None:
    """Refuse rows of which two have the same values in all unique columns; a row with a null there is never found."""
    names = list(table.unique)
    if not names:
        return
    counts = rows.select(names).drop_null().group_by(names).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts[_TIMES], 1)).slice(0, 1).to_pylist()
    if twice:
        example = ", ".join(f"{name} = {twice[0][name]!r}" for name in names)
        raise EngineError(
            f"table {table.name!r} has {twice[0][_TIMES]} rows with {example}, and says that "
            f"{', '.join(names)} is unique",
            where=table.where,
            hint="correct its rows, or leave out unique: then a look-up may find several rows",
        )
