"""Result tables of one small query on real Delta, and raw records as what a core publishes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import make_aggregate, partials
from catchment.center.events import Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.bounds import law_of_aggregate
from catchment.center.results.write import ResultTables
from catchment.center.statuses import EXACT
from catchment.query.fragment import Fragment, Key
from catchment.timeline import Window, WindowSpec

MINUTE_US = 60_000_000
START = datetime(1970, 1, 1, tzinfo=UTC)

COUNTRY = Key("country", "country", pa.string())
CODE = Key("code", "code", pa.int32())
NUMBERS = (make_aggregate("count", None, None, name="n"), make_aggregate("sum", "v", pa.int64(), name="total"))
SKETCHES = (
    make_aggregate("approx_count_distinct", "v", pa.int64(), name="users"),
    make_aggregate("percentile_approx", "v", pa.int64(), ("0.5",), name="median"),
    make_aggregate("approx_top_k", "v", pa.int64(), ("2",), name="top"),
    make_aggregate("stddev_samp", "v", pa.int64(), name="spread"),
    make_aggregate("moments", "v", pa.int64(), name="moments"),
)

Row = tuple[str | None, int | None, int]  # country, code, value


def make_tables(
    folder: Path, keys: Sequence[Key] = (COUNTRY, CODE), aggregates: Any = NUMBERS, above: int = 0
) -> ResultTables:
    """Tables of a query whose HAVING is `n > above`."""
    fragment = Fragment("q", "s", "ts", tuple(keys), tuple(aggregates), (WindowSpec(MINUTE_US, MINUTE_US),))

    def finish(rows: pa.Table) -> pa.Table:
        kept = rows.drop_columns(["window_start", "window_end"])
        left_out = pc.less_equal(rows["n"], above) if "n" in rows.column_names else pa.array([False] * rows.num_rows)
        return kept.append_column("retracted", left_out)

    laws = tuple(law_of_aggregate(a.name, a) for a in aggregates)
    return ResultTables(folder, "q", fragment, finish, laws)


def states(tables: ResultTables, records: Sequence[Row]) -> pa.Table:
    """The states of raw records per key: what a core publishes."""
    columns = {
        "country": pa.array([c for c, _, _ in records], pa.string()),
        "code": pa.array([c for _, c, _ in records], pa.int32()),
        "v": pa.array([v for _, _, v in records], pa.int64()),
    }
    return partials.lift(pa.table(columns), list(tables.fragment.key_names), tables.fragment.aggregates)


def publish(tables: ResultTables, minute: int, records: Sequence[Row], revision: int = 1, **changes: Any) -> Publish:
    window = Window(minute * MINUTE_US, (minute + 1) * MINUTE_US)
    rows = states(tables, records)
    made = Publish("q", window, revision, EXACT, 1.0, (), "closed", rows, published_us=revision)
    return replace(made, **changes)


def wanted(tables: ResultTables, places: Sequence[tuple[Any, ...]]) -> pa.Table:
    """The table of (window_start_us, keys...) that a core asks for."""
    fields = [pa.field(WINDOW_COLUMN, pa.int64()), *(pa.field(k.name, k.type) for k in tables.fragment.keys)]
    return pa.Table.from_pylist(
        [dict(zip([f.name for f in fields], place, strict=True)) for place in places], pa.schema(fields)
    )


def answers(table: pa.Table) -> dict[tuple[int, Any, Any], tuple[int, int]]:
    rows = table.to_pylist()
    found = {
        ((r["window_start"] - START) // timedelta(minutes=1), r["country"], r["code"]): (r["n"], r["total"])
        for r in rows
    }
    assert len(found) == len(rows), "no row twice"
    return found
