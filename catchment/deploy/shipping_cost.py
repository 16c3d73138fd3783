"""What shipping every record to the center would cost, to compare with."""

from __future__ import annotations

import zstandard

from catchment.deploy.deployment import Deployment
from catchment.query.sql.connectors import ReplayConnector
from catchment.replay.spool import read_arrivals, read_rows

BATCH_ROWS = 500  # about what half a second of a busy site brings


def shipping_cost(deployment: Deployment) -> dict[str, int]:
    """Bytes of all replayed records: as they were, and compressed in batches as a log shipper would."""
    raw = packed = 0
    compressor = zstandard.ZstdCompressor(level=3)
    for site in deployment.sites:
        for stream in deployment.streams_at(site):
            if not isinstance(stream.connector, ReplayConnector):
                continue
            spool = deployment.project.site_folder(site) / "spool" / f"{stream.name}.arrow"
            rows = len(read_arrivals(spool))
            for start in range(0, rows, BATCH_ROWS):
                lines = [
                    v for b in read_rows(spool, start, min(start + BATCH_ROWS, rows)) for v in b["value"].to_pylist()
                ]
                text = ("\n".join(lines) + "\n").encode()
                raw += len(text)
                packed += len(compressor.compress(text))
    return {"raw_bytes": raw, "zstd_bytes": packed}
