"""The newest records of each stream, as the sites have them in their history: what plans are compared by.

Records are read where the status of a site is: in the state folder. A stream whose history has no copy, a site on
another machine whose folder is not there, or too many queries give no sample, and plans are then compared by counts per
column.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from catchment.deploy.deployment import Deployment
from catchment.optimizer.sharing.record_sample import MAX_RECORDS, RecordSample
from catchment.query.sql.statements import Stream
from catchment.storage.batch_retention import newest_batches
from catchment.wire.frames.codec import pack_table

MAX_BATCHES = 64  # of which records are read
MAX_SAMPLED_QUERIES = 50  # with more, the records of plans would be counted for too long

Samples = Mapping[str, Mapping[str, RecordSample]]  # by stream and site


def read_samples(deployment: Deployment) -> Samples:
    """Return the newest records of every stream that some view reads, by site."""
    if len(deployment.deployed.sharing.queries) > MAX_SAMPLED_QUERIES:
        return {}
    read = {side.fragment.stream for side in deployment.sides}
    streams = [stream for stream in deployment.catalog.streams.values() if stream.name in read]
    return {stream.name: dict(_read_sites(deployment, stream)) for stream in streams}


def _read_sites(deployment: Deployment, stream: Stream) -> Iterator[tuple[str, RecordSample]]:
    for site in stream.sites or ():
        folder = deployment.project.site_folder(site) / "history" / stream.name
        table = read_newest(folder, stream.schema)
        if table.num_rows:
            yield site, RecordSample.newest(stream.name, table, stream.event_time, _packed_size)


def read_newest(folder: Path, schema: pa.Schema) -> pa.Table:
    """Return the newest records of a history; a batch that is being written or removed is passed over."""
    parts: list[pa.Table] = []
    rows = 0
    for batch in newest_batches(folder, MAX_BATCHES):
        with suppress(OSError, pa.ArrowException, KeyError):
            files = sorted(entry.path for entry in os.scandir(batch) if entry.name.endswith(".parquet"))
            found = [pq.read_table(file, columns=schema.names).cast(schema, safe=False) for file in files]
            parts += found
            rows += sum(table.num_rows for table in found)
        if rows >= MAX_RECORDS:
            break
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _packed_size(table: pa.Table) -> int:
    return len(pack_table(table).data)
