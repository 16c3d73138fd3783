"""Published tables as readers open them: the table itself, and the newest row of each key.

Whoever only reads results imports this and not how they are written, which needs all that queries are made of.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.arrays import Ints

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

NOTHING = "nothing"  # the one field of an empty struct: Delta has no struct without fields


def open_table(path: Path) -> DeltaTable | None:
    """Return a Delta table, or None where there is none yet."""
    from deltalake import DeltaTable  # a machine that plans, and has no tables, need not have it installed

    return DeltaTable(path) if DeltaTable.is_deltatable(str(path)) else None


def dataset_of(table: DeltaTable) -> ds.Dataset:
    """Return a Delta table in a folder as a dataset whose files Arrow reads by itself.

    Left to itself the table gives Arrow a file system in Python. Arrow's threads then let go of Python objects after
    the interpreter has ended, and now and then a command that had told everything ended with SIGABRT.
    """
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    folder = url2pathname(urlsplit(table.table_uri).path)
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(folder, LocalFileSystem()))


def last_rows(keys: pa.Table) -> Ints:
    """Return the number of the last row of each distinct key, ascending."""
    codes, distinct = partials.group_codes(keys, keys.column_names)
    last = np.zeros(distinct.num_rows, dtype=np.int64)
    last[codes] = np.arange(keys.num_rows)  # later assignments win
    return np.sort(last)


def newest_revisions(rows: pa.Table) -> pa.Table:
    """Return the newest revision of each (window, key)."""
    if not rows.num_rows:
        return rows
    keys = pa.table({"window_start": rows["window_start"], **fields_of(rows["state"], "key")})
    by_revision = np.argsort(rows["revision"].to_numpy(), kind="stable")
    newest = by_revision[last_rows(keys.take(pa.array(by_revision)))]
    return rows.take(pa.array(np.sort(newest)))


def fields_of(state: pa.ChunkedArray, part: str) -> dict[str, pa.Array]:
    """Return the columns of one part of the state; none where a query has no keys."""
    inner = pc.struct_field(state.combine_chunks(), part)
    return {f.name: pc.struct_field(inner, f.name) for f in inner.type if f.name != NOTHING}
