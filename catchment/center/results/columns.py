"""The columns of results as people see them: those that the engine adds, and rows with the newest windows first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# The columns that every result has; the others are those of the view.
ENGINE_COLUMNS = {
    "window_start",
    "window_end",
    "bound",
    "bound_kind",
    "published_at",
    "missing_sites",
    "missing_sources",
    "revision",
    "coverage",
    "status",
}


def newest_first(rows: pa.Table) -> pa.Table:
    """Return the rows of a result with the newest windows first, and those of one window by the columns of the view."""
    from pyarrow.types import is_nested

    own = [field.name for field in rows.schema if field.name not in ENGINE_COLUMNS and not is_nested(field.type)]
    return rows.sort_by([("window_start", "descending"), *((name, "ascending") for name in own)])
