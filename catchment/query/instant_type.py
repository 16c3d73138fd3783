"""The Arrow type of event times: apart from the other types, so that a light site need not load the reader of SQL."""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
