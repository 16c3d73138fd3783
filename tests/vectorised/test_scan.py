"""One pass over files against a naive loop over their records, however the files are cut and shared among tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.aggregates import make_aggregate, partials
from catchment.files.watch import FilePiece
from catchment.query.fragment import SLICE_COLUMN, Fragment, Key
from catchment.site.known_files import FileStat
from catchment.site.plausible import PlausibleTimes
from catchment.timeline import WindowSpec
from catchment.vectorised import fragments as fragments_module
from catchment.vectorised import parquet
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.fragments import vectorise_fragment, vectorise_watch
from catchment.vectorised.parquet import read_part, split_files
from catchment.vectorised.parts import FilePart
from catchment.vectorised.scan import ScanFindings, ScanPlan, merge_findings, scan

TIMESTAMP = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.string()), ("v", pa.int64()), ("gone", pa.int64())])
SECOND_US = 1_000_000
FRAGMENT = Fragment(
    "f",
    "s",
    "ts",
    (Key("k", "`s`.`k`", pa.string()),),
    (
        make_aggregate("count", None, None, name="n"),
        make_aggregate("sum", "`s`.`v`", pa.int64(), name="total"),
        make_aggregate("max", "`s`.`gone`", pa.int64(), name="most"),
    ),
    (WindowSpec(10 * SECOND_US, 4 * SECOND_US),),
    where="`s`.`v` > 2",
)


def make_plan() -> ScanPlan:
    fragment = vectorise_fragment(FRAGMENT, COLUMNS)
    watch = vectorise_watch(FRAGMENT, "k", ["CAST(`s`.`v` AS DOUBLE)"], COLUMNS)
    return ScanPlan(COLUMNS, "ts", 7 * SECOND_US, (fragment,), (watch,))


def write_files(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Write files of several row groups; return their records."""
    chance = np.random.default_rng(seed)
    records: list[dict[str, Any]] = []
    for number in range(int(chance.integers(1, 4))):
        rows = int(chance.integers(0, 60))
        times = [None if chance.random() < 0.1 else int(t) * 100_000 for t in chance.integers(-300, 900, rows)]
        table = pa.table(
            {
                "v": pa.array([None if c < 0.1 else int(c * 10) for c in chance.random(rows)], pa.int64()),
                "ts": pa.array(times, pa.int64()).cast(TIMESTAMP),
                "k": pa.array([[None, "a", "b"][k] for k in chance.integers(0, 3, rows)], pa.string()),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=7)
        records += [
            dict(zip(("v", "ts", "k"), row, strict=True))
            for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
        ]
        for record, time in zip(records[-rows:] if rows else [], times, strict=True):
            record["ts"] = time
    return records


def expected(records: list[dict[str, Any]], limits: PlausibleTimes | None) -> dict[str, Any]:
    good = [r for r in records if r["ts"] is not None and (limits is None or limits.holds(r["ts"]))]
    taken = [r for r in good if r["v"] is not None and r["v"] > 2]
    groups: dict[Any, list[int]] = {}
    for record in taken:
        groups.setdefault((FRAGMENT.slicing.start_of(record["ts"]), record["k"]), []).append(record["v"])
    return {
        "rows": len(records),
        "bad": len(records) - len(good),
        "low": min((r["ts"] for r in good), default=None),
        "high": max((r["ts"] for r in good), default=None),
        "buckets": Counter(r["ts"] // (7 * SECOND_US) for r in good),
        "groups": {key: (len(values), sum(values), None) for key, values in groups.items()},
        "records": Counter(FRAGMENT.slicing.start_of(r["ts"]) for r in taken),
        "good": Counter((r["ts"], r["k"], r["v"]) for r in good),
        "times": {
            key: (max(ts), min(ts), len(ts))
            for key, ts in {
                (k, s): [r["ts"] for r in taken if (r["k"], FRAGMENT.slicing.start_of(r["ts"])) == (k, s)]
                for s, k in groups
            }.items()
        },
    }


def found(findings: ScanFindings, history: list[Path]) -> dict[str, Any]:
    table, observed = findings.tables
    keys = [SLICE_COLUMN, "k"]
    rows = [] if table is None else partials.lower(table, keys, FRAGMENT.aggregates).to_pylist()
    written = [row for path in history for row in pq.read_table(path).to_pylist()]
    assert len({row["_row"] for row in written}) == len(written)
    times = {
        (None if o["source"] == "null" else o["source"], o["slice_us"]): (o["newest_us"], o["oldest_us"], o["count"])
        for o in ([] if observed is None else observed.to_pylist())
    }
    return {
        "rows": findings.rows,
        "bad": findings.bad,
        "low": findings.low_us,
        "high": findings.high_us,
        "buckets": Counter({number: bucket.count for number, bucket in findings.buckets.items()}),
        "groups": {(r[SLICE_COLUMN], r["k"]): (r["n"], r["total"], r["most"]) for r in rows},
        "records": findings.records[0],
        "good": Counter((round(r["ts"].timestamp() * 1e6), r["k"], r["v"]) for r in written),
        "times": times,
    }


def pieces_of(folder: Path) -> list[FilePiece]:
    sizes = {path: path.stat().st_size for path in sorted(folder.glob("*.parquet"))}
    return [FilePiece(path.name, str(path), 0, size, FileStat(size, 0, 0)) for path, size in sizes.items()]


@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_pass_finds_what_a_loop_over_the_records_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, limited: bool, seed: int
) -> None:
    monkeypatch.setattr(parquet, "MIN_BATCH_ROWS", 1)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 150)
    monkeypatch.setattr(fragments_module, "MERGE_ROWS", 3)
    records = write_files(tmp_path, seed)
    limits = PlausibleTimes(0, 60 * SECOND_US, 70 * SECOND_US, 5 * SECOND_US) if limited else None
    plan = make_plan()
    shares = split_files(pieces_of(tmp_path), tasks, 0)
    history = [tmp_path / f"history-{number}" for number in range(len(shares))]
    each = [scan(plan, parts, limits, file) for parts, file in zip(shares, history, strict=True)]
    assert found(merge_findings(plan, each), history) == expected(records, limits)


def test_records_themselves_and_constants_are_keys(tmp_path: Path) -> None:
    """What a view without GROUP BY, and a branch of a union, ask of a pass."""
    keys = (
        Key("kind", "CAST(('b') AS STRING)", pa.string()),
        Key("one", "CAST((1) AS BIGINT)", pa.int64()),
        Key("at", "`s`.`ts`", TIMESTAMP),
        Key("v", "`s`.`v`", pa.int64()),
    )
    copies = (make_aggregate("count", None, None, name="copies"),)
    fragment = Fragment("f", "s", "ts", keys, copies, (WindowSpec.tumbling(SECOND_US),), "`s`.`v` > 2")
    plan = ScanPlan(COLUMNS, "ts", 7 * SECOND_US, (vectorise_fragment(fragment, COLUMNS),))
    records = write_files(tmp_path, 1)
    (parts,) = split_files(pieces_of(tmp_path), 1, 0)
    (table,) = merge_findings(plan, [scan(plan, parts, None, None)]).tables
    assert table is not None
    names = [SLICE_COLUMN, *fragment.key_names]
    rows = partials.lower(table, names, copies).to_pylist()
    counted = {(r["kind"], r["one"], round(r["at"].timestamp() * 1e6), r["v"]): r["copies"] for r in rows}
    taken = [r for r in records if r["ts"] is not None and (r["v"] or 0) > 2]
    assert taken
    assert counted == Counter(("b", 1, r["ts"], r["v"]) for r in taken)


def test_only_columns_that_are_needed_are_read() -> None:
    assert make_plan().read_columns(with_history=False).names == ["ts", "k", "v", "gone"]
    bare = ScanPlan(
        COLUMNS,
        "ts",
        SECOND_US,
        (vectorise_fragment(Fragment("f", "s", "ts", (), FRAGMENT.aggregates[:2], FRAGMENT.windows), COLUMNS),),
    )
    assert bare.read_columns(with_history=False).names == ["ts", "v"]
    assert bare.read_columns(with_history=True) == COLUMNS


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("v", pa.array([1], pa.int32()), "int32"),
        ("V", pa.array([1], pa.int64()), "written otherwise"),
        ("ts", pa.array([1], pa.timestamp("ns", "UTC")), "ns"),
        ("ts", pa.array([1], pa.timestamp("us")), "timestamp"),
        ("k", pa.array([b"x"], pa.binary()), "binary"),
    ],
)
def test_files_that_spark_reads_in_another_way_are_left_to_it(
    tmp_path: Path, column: str, values: pa.Array, why: str
) -> None:
    pq.write_table(pa.table({column: values}), tmp_path / "f.parquet")
    with pytest.raises(NotVectorisedError, match=why):
        list(read_part(FilePart(str(tmp_path / "f.parquet"), 0), COLUMNS))


def test_columns_in_the_names_of_folders_are_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "k=a").mkdir()
    pq.write_table(pa.table({"v": [1]}), tmp_path / "k=a" / "f.parquet")
    with pytest.raises(NotVectorisedError, match="folders"):
        list(read_part(FilePart(str(tmp_path / "k=a" / "f.parquet"), 0), COLUMNS))


def test_large_files_are_cut_between_row_groups_and_small_ones_are_left_to_one_task(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": list(range(1000))}), tmp_path / "large.parquet", row_group_size=100)
    pq.write_table(pa.table({"v": [1]}), tmp_path / "small.parquet")
    paths = [str(tmp_path / name) for name in ("large.parquet", "small.parquet")]
    shares = split_files(pieces_of(tmp_path), 2, 0)
    assert [part.path for part in shares[0]] == [paths[0]] * len(shares[0])
    assert sorted(g for share in shares for part in share for g in part.row_groups or ()) == list(range(10))
    assert sum(part.path == paths[1] for share in shares for part in share) == 1
    numbers = [part.number for share in shares for part in share]
    assert len(set(numbers)) == len(numbers)
    assert len(split_files(pieces_of(tmp_path), 2, 10**9)) == 1
