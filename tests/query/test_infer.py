"""A stream inferred from a person's file: what it proposes can be planned, and says what the file says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.cli.commands.project import init
from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.infer import infer_stream
from catchment.query.planning.build import plan_views

START = datetime(2026, 1, 31, 14, tzinfo=UTC)
ROWS = [
    {
        "order_id": 1000 + i,
        "created_at": (START + timedelta(minutes=i)).isoformat().replace("+00:00", "Z"),
        "country": ("nl", "de", "us")[i % 3],
        "customer": f"c{i}",
        "amount": i / 2,
    }
    for i in range(200)
]


def write(folder: Path, kind: str) -> Path:
    path = folder / f"my orders.{kind}"
    if kind == "csv":
        lines = [",".join(ROWS[0]), *(",".join(str(v) for v in row.values()) for row in ROWS)]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        times = pa.array([datetime.fromisoformat(str(r["created_at"])) for r in ROWS], pa.timestamp("ms", tz="UTC"))
        table = pa.Table.from_pylist(ROWS)
        pq.write_table(table.set_column(1, "created_at", times), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_file_says_its_columns_its_time_its_groups_and_its_values(tmp_path: Path, kind: str) -> None:
    stream = infer_stream(write(tmp_path, kind))
    assert stream.name == "my_orders"
    assert stream.format == kind
    assert (stream.event_time, stream.group, stream.value) == ("created_at", "country", "amount")
    assert stream.schema.field("order_id").type == pa.int64()
    assert stream.window_us == 300_000_000, "200 minutes in about 20 windows, of a round length"


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_what_init_proposes_is_planned(tmp_path: Path, kind: str) -> None:
    init(tmp_path / "p", write(tmp_path, kind))
    plans = plan_views(load_catalog(Project.load(tmp_path / "p")))
    assert set(plans) == {"my_orders_by_window"}


def test_a_file_without_times_or_of_another_kind_is_answered_with_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="no column of timestamps"):
        infer_stream(tmp_path / "x.csv")
    (tmp_path / "x.txt").write_text("a")
    for path in (tmp_path / "x.txt", tmp_path / "nothing.csv"):
        with pytest.raises(ConfigError, match="not a file that a stream can be inferred from"):
            infer_stream(path)
    (tmp_path / "y.json").write_text("{not json\n")
    with pytest.raises(ConfigError, match="cannot be read as json"):
        infer_stream(tmp_path / "y.json")
