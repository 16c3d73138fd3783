"""Joins of two streams at different sites: bytes over the WAN against shipping the records to where they are joined.

Real records, split by what they are into two streams that are born at different sites; each join runs live, sites and
center on Spark over sockets. The baseline is the least that a join at the center could be sent: only records that pass
the filter, only the columns that the query names, in columns, compressed, in batches of `BATCH_ROWS`. Every answer is
compared with a join of the records themselves. Keys that repeat within a window are what aggregation saves on; the
cases go from few keys to almost as many keys as records.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq
import zstandard
from rich.console import RenderableType
from rich.table import Table

from catchment.errors import ConfigError

DESCRIPTION = "bytes over the WAN of joins of two streams at different sites, against shipping the records"
LEFT_SITES, RIGHT_SITES = ("ohio", "ireland"), ("mumbai",)
CENTER = "virginia"
BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Case:
    """A join of `people` with `robots`, or of `home` with `abroad`; the texts mean the same in Spark and in DuckDB."""

    name: str
    data: str
    on: str
    window: str
    aggregates: str
    keys: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


EDITS, VIEWS = ("people", "robots"), ("home", "abroad")
CASES = (
    Case("edits by channel", "wiki-edits", "channel", "1 hour", "count(*) AS n, sum(a.added) AS x, avg(b.added) AS y",
         ("a.channel",), (("added",), ("added",))),
    Case("edits by page", "wiki-edits", "page", "1 hour", "count(*) AS n, sum(a.added) AS x",
         (), (("added",), ())),
    Case("requests by client's status", "web-log-edgar", "code", "10 minutes", "count(*) AS n, sum(a.size) AS x",
         ("a.code",), (("size",), ())),
    Case("requests by company", "web-log-edgar", "cik", "10 minutes", "count(*) AS n, sum(a.size) AS x",
         ("b.code",), (("size",), ("code",))),
)  # fmt: skip


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Every case, or the smallest with `quick`."""
    from catchment.config import SparkConfig
    from catchment.spark.session import make_session

    spark = make_session("bench join", SparkConfig(master="local[2]"))
    rows = []
    try:
        for case in CASES[1:2] if quick else CASES:
            report(case.name)
            with tempfile.TemporaryDirectory() as folder:
                rows.append(_measure(spark, case, Path(folder)))
    finally:
        spark.stop()
    return {
        "compared": "partials of both sides of a join, against the records that it needs, columns only, zstd",
        "data": "wiki edits of one day, people against robots; a web log of one day, clients in the US against others",
        "cases": rows,
    }


def render(result: Mapping[str, Any]) -> RenderableType:
    table = Table(title="bytes over the WAN, of joins of two streams at different sites")
    for column in ("join", "records", "join keys", "pairs", "records, zstd", "join", "of that"):
        table.add_column(column, justify="left" if column == "join" else "right")
    for row in result["cases"]:
        counts = (f"{row[c]:,}" for c in ("records", "distinct_keys", "pairs", "shipped_bytes", "wan_bytes"))
        table.add_row(row["join"], *counts, f"{row['wan_bytes'] / row['shipped_bytes']:.1%}")
    return table


def _measure(spark: Any, case: Case, folder: Path) -> dict[str, Any]:
    from catchment.center.results import read_results
    from catchment.spark.deploy import Deployment
    from catchment.spark.run import run_deployment

    sides = _sides(case)
    _lay_out(folder, case, sides)
    status = run_deployment(Deployment.load(folder), once=True, seconds=280, spark=spark)
    found = read_results(folder / "state", "joined")
    expected = _expected(case, sides)
    n, x = (pc.sum(found[c]).as_py() or 0 for c in ("n", "x"))
    if (n, x) != (expected["n"], expected["x"]):
        raise ConfigError(f"{case.name}: the answers {n, x} are not those of the records {expected}")
    return {
        "join": case.name,
        "window": case.window,
        "records": sum(s["rows"] for s in status["sites"].values()),
        "distinct_keys": expected["keys"],
        "pairs": n,
        "answers": found.num_rows,
        "wan_bytes": sum(s["bytes_sent"] for s in status["sites"].values()),
        "shipped_bytes": sum(_shipped(t) for table in sides for t in _by_site(table).values()),
        "equal_to_records": True,
    }


def _sides(case: Case) -> list[pa.Table]:
    """The records of both streams, with the columns that the query needs, and the site of each."""
    records = _edits() if case.data == "wiki-edits" else _requests()
    sides = []
    for left, sites, needs in ((True, LEFT_SITES, case.needs[0]), (False, RIGHT_SITES, case.needs[1])):
        mine = records.filter(pc.equal(records["left"], left))
        homes = [sites[crc32(str(w).encode()) % len(sites)] for w in mine["who"].to_pylist()]
        columns = list(dict.fromkeys(["ts", case.on, *needs]))
        sides.append(mine.select(columns).append_column("site", pa.array(homes)))
    return sides


def _edits() -> pa.Table:
    lines = _text("wiki-edits/wikiticker.json.zst").decode().splitlines()
    edits = [json.loads(line) for line in lines]
    times = pa.array([e["time"].replace("Z", "") for e in edits]).cast(pa.timestamp("us")).cast(_UTC)
    columns = {c: pa.array([e[c] for e in edits]) for c in ("channel", "page", "added")}
    left = pa.array([not e["isRobot"] for e in edits])
    return pa.table({"ts": times, **columns, "left": left, "who": pa.array([e["user"] for e in edits])})


def _requests() -> pa.Table:
    log = pv.read_csv(io.BytesIO(_text("web-log-edgar/edgar_20170101_1pct.csv.zst")))
    country = pv.read_csv(io.BytesIO(_text("web-log-edgar/ip_country.csv.zst")))
    place = pc.index_in(log["ip"], value_set=country["ip"].combine_chunks())
    days = pc.cast(log["date"], pa.string()) if not pa.types.is_string(log["date"].type) else log["date"]
    clock = pc.cast(log["time"], pa.string())
    times = pc.binary_join_element_wise(days, clock, "T").cast(pa.timestamp("us")).cast(_UTC)
    whole = {c: log[c].cast(pa.int64(), safe=False) for c in ("cik", "code", "size")}
    left = pc.equal(country["country"].take(place), "US")
    return pa.table({"ts": times, **whole, "left": pc.fill_null(left, False), "who": log["ip"]})


_UTC = pa.timestamp("us", tz="UTC")


def _text(name: str) -> bytes:
    data = os.environ.get("CATCHMENT_DATA")
    if data is None or not (Path(data) / name).is_file():
        raise ConfigError(f"the records {name} are not there", hint="set CATCHMENT_DATA to the folder of the data sets")
    with (Path(data) / name).open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def _by_site(table: pa.Table) -> dict[str, pa.Table]:
    sites = sorted(set(table["site"].to_pylist()))
    return {s: table.filter(pc.equal(table["site"], s)).drop_columns(["site"]) for s in sites}


def _shipped(table: pa.Table) -> int:
    """Bytes of the records in columns, each batch compressed by itself."""
    total = 0
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
        total += sink.getvalue().size
    return total


def _expected(case: Case, sides: list[pa.Table]) -> dict[str, int]:
    """Pairs and sums over all pairs of records, and how many join keys there are in all windows."""
    connection = duckdb.connect(config={"threads": 1})
    for name, table in zip(("a", "b"), sides, strict=True):
        connection.register(f"raw_{name}", table)
        connection.sql(
            f"CREATE TEMP VIEW {name} AS SELECT *, time_bucket(INTERVAL '{case.window}', ts AT TIME ZONE 'UTC') AS w "
            f"FROM raw_{name}"
        )
    value = case.needs[0][0]
    ((pairs, total),) = connection.sql(
        f"SELECT count(*), sum(a.{value}) FROM a JOIN b ON a.w = b.w AND a.{case.on} = b.{case.on}"
    ).fetchall()
    ((keys,),) = connection.sql(
        f"SELECT count(*) FROM (SELECT DISTINCT w, {case.on} FROM a UNION SELECT DISTINCT w, {case.on} FROM b)"
    ).fetchall()
    return {"n": int(pairs), "x": int(total or 0), "keys": int(keys)}


def _lay_out(folder: Path, case: Case, sides: list[pa.Table]) -> None:
    sites = (*LEFT_SITES, *RIGHT_SITES)
    links = "".join(f'[[links]]\nfrom = "{s}"\nto = "{CENTER}"\n' for s in sites)
    named = "".join(f"[sites.{s}]\n" for s in (*sites, CENTER))
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(
        f'[project]\nname = "join"\ncenter = "{CENTER}"\n{named}{links}'
        '[defaults]\nfreshness = "none"\nhistory = false\nreoptimize = false\n[spark]\nmaster = "local[2]"\n'
    )
    streams = EDITS if case.data == "wiki-edits" else VIEWS
    declared = [_stream(*s) for s in zip(streams, sides, (LEFT_SITES, RIGHT_SITES), strict=True)]
    keys = ", ".join(["", *case.keys])
    view = (
        f"CREATE MATERIALIZED VIEW joined AS SELECT window.start{keys}, {case.aggregates} FROM {streams[0]} a "
        f"JOIN {streams[1]} b ON a.{case.on} = b.{case.on} GROUP BY window(a.ts, '{case.window}'){keys};"
    )
    (folder / "queries" / "q.sql").write_text("\n".join([*declared, view]))
    for name, table in zip(streams, sides, strict=True):
        for site, mine in _by_site(table).items():
            (folder / name / site).mkdir(parents=True)
            pq.write_table(mine, folder / name / site / "records.parquet")


def _stream(name: str, table: pa.Table, sites: tuple[str, ...]) -> str:
    types = {pa.string(): "STRING", pa.int64(): "BIGINT", _UTC: "TIMESTAMP"}
    columns = ", ".join(f"{f.name} {types[f.type]}" for f in table.schema if f.name != "site")
    return (
        f"CREATE STREAM {name} ({columns}) WITH (event_time = 'ts', sites = '{','.join(sites)}', "
        f"path = '{name}/{{site}}', format = 'parquet');"
    )
