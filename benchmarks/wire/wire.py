"""Bytes that cross a link for a real log: segments of partials, the same partials as Avro, and the records themselves.

The log of the edge benchmark (SEC EDGAR, 1% sample) at three sites, its three queries, windows of an hour. All send at
the same instants, every so many seconds of event time, so that their answers are equally fresh: a site sends the
partials of what came since (segments as they go onto the link, with their facts), and the baselines send what came
since too, compressed with zstd at level 3. Avro is written without its schema, which both ends would know. Records are
shipped with the columns that a query needs, as Avro, and as the lines of the log as they are. No Spark: partials are
made by the laws of the aggregates, which are those of the sites.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import zstandard
from rich.console import RenderableType
from rich.table import Table

from benchmarks.edge.live import HOUR_US, QUERIES, read_log, records_of
from catchment.aggregates import partials
from catchment.deploy.deployment import Deployment
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import Progress, Segment, Updates

DESCRIPTION = "bytes per update against Avro and zstd, and against shipping records, on a real log (no Spark)"
SITES = 3
HOURS = 12
EVERY_S = (10, 60, 600, 3600)
LEVEL = 3

_PROJECT = '[project]\nname = "wire"\ncenter = "center"\n[sites.center]\n'
_SITE = '[sites.s{0}]\n[[links]]\nfrom = "s{0}"\nto = "center"\n'


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Count the bytes of every query and freshness."""
    records = records_of(read_log(2 if quick else HOURS), SITES)
    cells = []
    for query in QUERIES:
        fragment = plan_fragment(query)
        for every_s in EVERY_S:
            cell = measure(query, fragment, records, every_s)
            cells.append(cell)
            report(f"{query}, every {every_s} s: {cell['bytes_per_update']:.1f} bytes per update")
    return {
        "compared": "segments of catchment; the same partials, and the records, as Avro with zstd",
        "data": f"SEC EDGAR log of 2017-01-01 (1% sample), {len(records):,} records, {SITES} sites, hourly windows",
        "cells": cells,
    }


def measure(query: str, fragment: Fragment, records: Sequence[Mapping[str, Any]], every_s: int) -> dict[str, Any]:
    """Return what a query sends in all over the links of all sites."""
    table = records_table(records)
    names = [SLICE_COLUMN, *fragment.key_names]
    arguments = {a.name: None if a.argument is None else _column(a.argument) for a in fragment.aggregates}
    updates = sent = as_avro = as_columns = as_lines = 0
    for batch in batches(table, every_s):
        part = partials.lift(keyed(batch.rows, fragment), names, fragment.aggregates, arguments).cast(fragment.schema)
        updates += part.num_rows
        counts = tuple(slice_counts(batch.rows))
        messages = (Updates(fragment.name, part, counts), Progress(fragment.name, batch.end_us, updates))
        sent += len(encode_segment(Segment(f"s{batch.site}", "0" * 32, batch.number, messages)).data)
        as_avro += len(pack(avro_rows(part)))
        as_columns += len(pack(avro_rows(batch.rows.select(needed_columns(query)))))
        as_lines += len(pack("".join(batch.rows["line"].to_pylist()).encode()))
    return {
        "query": query,
        "every_s": every_s,
        "records": table.num_rows,
        "updates": updates,
        "bytes": sent,
        "bytes_per_update": sent / updates,
        "avro_bytes_per_update": as_avro / updates,
        "of_avro": sent / as_avro,
        "of_records_as_avro": sent / as_columns,
        "of_records_as_lines": sent / as_lines,
    }


@dataclass(frozen=True)
class Batch:
    """The records of one site between two instants at which it sends."""

    site: int
    number: int
    end_us: int
    rows: pa.Table


def batches(table: pa.Table, every_s: int) -> Iterator[Batch]:
    """Yield what each site has to send, instant by instant."""
    ends = (np.asarray(table["ts_us"]) // (every_s * 1_000_000) + 1) * every_s * 1_000_000
    for site in range(SITES):
        is_mine = np.asarray(table["site"]) == site
        for number, end_us in enumerate(np.unique(ends[is_mine])):
            yield Batch(site, number, int(end_us), table.filter(pa.array(is_mine & (ends == end_us))))


def records_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the records as columns, with the line that each was."""
    columns = {name: [r[name] for r in records] for name in ("client", "country", "company", "code", "bytes", "site")}
    times = [round(datetime.fromisoformat(r["ts"]).timestamp() * 1e6) for r in records]
    lines = [
        f'{{"ts":"{r["ts"]}","client":"{r["client"]}","country":"{r["country"]}","company":{r["company"]},'
        f'"code":{r["code"]},"bytes":{r["bytes"]}}}\n'
        for r in records
    ]
    return pa.table({**columns, "ts_us": times, "line": lines})


def keyed(rows: pa.Table, fragment: Fragment) -> pa.Table:
    """Return records with the slice and the keys that a fragment groups them by."""
    slices = np.asarray(rows["ts_us"]) // HOUR_US * HOUR_US
    keys = {key.name: rows[_column(key.sql)] for key in fragment.keys}
    return pa.table({SLICE_COLUMN: slices, **keys, "bytes": rows["bytes"], "client": rows["client"]})


def _column(sql: str) -> str:
    """Return the column that an expression is; the queries here have no others."""
    return sql.rpartition(".")[2].strip("`")


def slice_counts(rows: pa.Table) -> Iterator[tuple[int, int]]:
    slices, counts = np.unique(np.asarray(rows["ts_us"]) // HOUR_US * HOUR_US, return_counts=True)
    yield from zip(slices.tolist(), counts.tolist(), strict=True)


def needed_columns(query: str) -> list[str]:
    """Return the columns of a record without which a query cannot be answered elsewhere."""
    keys, _ = QUERIES[query]
    value = "client" if query == "large" else "bytes"
    return ["ts_us", *(key.strip() for key in keys.split(",")), value]


def plan_fragment(query: str) -> Fragment:
    """Return what a site computes for a query."""
    keys, answer = QUERIES[query]
    sites = [f"s{number}" for number in range(SITES)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "queries").mkdir()
        (folder / "catchment.toml").write_text(_PROJECT + "".join(_SITE.format(number) for number in range(SITES)))
        (folder / "queries" / "q.sql").write_text(
            "CREATE STREAM log (ts TIMESTAMP, client STRING, country STRING, company BIGINT, code INT, bytes BIGINT)"
            f" WITH (event_time = 'ts', sites = '{','.join(sites)}', connector = 'files', path = 'data/{{site}}',"
            " format = 'json');\n"
            f"CREATE MATERIALIZED VIEW answers AS SELECT window.start, {keys}, {answer} FROM log"
            f" GROUP BY window(ts, '1 hour'), {keys};\n"
        )
        return Deployment.load(folder).fragments_at("s0")[0].fragment


_AVRO_TYPES = {pa.int64(): "long", pa.int32(): "int", pa.string(): "string", pa.float64(): "double"}


def avro_rows(table: pa.Table) -> bytes:
    """Return rows in Avro's binary form, one after another, without their schema."""
    fields = [{"name": field.name, "type": ["null", _AVRO_TYPES.get(field.type, "bytes")]} for field in table.schema]
    schema = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})
    out = io.BytesIO()
    for row in table.to_pylist():
        fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(data)


def render(result: Mapping[str, Any]) -> RenderableType:
    """Show a row for each query and freshness."""
    table = Table(
        "query",
        "sent every",
        "updates",
        "bytes per update",
        "as Avro + zstd",
        "of Avro + zstd",
        "of records as Avro + zstd",
        "of records as lines + zstd",
        title=result["data"],
        title_justify="left",
    )
    for cell in result["cells"]:
        table.add_row(
            cell["query"],
            f"{cell['every_s']} s",
            f"{cell['updates']:,}",
            f"{cell['bytes_per_update']:.1f}",
            f"{cell['avro_bytes_per_update']:.1f}",
            f"{cell['of_avro']:.0%}",
            f"{cell['of_records_as_avro']:.1%}",
            f"{cell['of_records_as_lines']:.1%}",
        )
    return table
