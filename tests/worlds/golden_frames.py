"""One segment with every kind of message, as the bytes of its frame in every version, which later versions read.

    python -m tests.worlds.golden_frames

writes the frame of the newest version to tests/golden/frames/. A frame that is there is a promise, and is not replaced.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from catchment.quality.merge_sites import SiteEstimate
from catchment.wire.frames.codec import encode_segment
from catchment.wire.frames.versions import NEWEST_VERSION
from catchment.wire.messages import (
    Backfilled,
    Backfilling,
    Closing,
    Counted,
    Deferred,
    Delivered,
    Progress,
    QueryMark,
    Relayed,
    Repaired,
    Resumed,
    Segment,
    Shed,
    Skipped,
    Standing,
    Suspended,
    Updates,
)

FOLDER = Path(__file__).parents[1] / "golden" / "frames"

_SMALL = pa.table({"slice_us": pa.array([0, 60_000_000], pa.int64()), "page": ["a", None], "n": [3, -1]})
_LARGE = pa.table(  # beyond what is compressed with the dictionary
    {
        "slice_us": pa.array([60_000_000] * 1_000, pa.int64()),
        "page": [f"/page/{number % 7}" for number in range(1_000)],
        "total": pa.array([number * number / 7 for number in range(1_000)], pa.float64()),
        "price": pa.array([Decimal(number) / 100 for number in range(1_000)], pa.decimal128(20, 2)),
    }
)
_FACTS = (
    Progress("q", 60_000_000, 7),
    QueryMark("q", "pages", 120_000_000),
    Shed("q", 3, 0.25, ((0, 4), (10, 1)), (("a", 0.5), ("b", 1.0))),
    Repaired("q", 3, gave_up=True),
    Standing("q", "pages", 40, (Closing(40, "slack", (SiteEstimate(0.9, 0.125, 5.0, -7.5),), (("phone", 0.5),)),)),
    Suspended("q", 3, 40, "not a number", "CAST(t AS INT)", "x"),
    Skipped("q", 3, ((40, 2),)),
    Resumed("q"),
    Backfilling("q", 0, 60_000_000),
    Backfilled("q", ((0, 10),)),
)
_OF_RELAYS = (
    Counted("q", ((0, 4), (10, 1))),
    Deferred("q", "hub", 256_002, 0.25, ("page", "user"), ((0, 4), (10, 0)), is_counted=True),
    Delivered("q", "hub", 256_002),
)
SEGMENT = Segment(
    "eu",
    "0123456789abcdef0123456789abcdef",
    118,
    (
        Updates("q", _SMALL, ((0, 3), (60_000_000, 1))),
        Updates("large", _LARGE),
        *_FACTS,
        *(Relayed("us", fact) for fact in (*_FACTS, *_OF_RELAYS)),
    ),
)


def frame_file(version: int) -> Path:
    """Return where the frame of a version is kept."""
    return FOLDER / f"version-{version}.segment"


if __name__ == "__main__":
    file = frame_file(NEWEST_VERSION)
    if file.exists():
        raise SystemExit(f"{file} is there: a frame that was written once is read for ever")
    file.write_bytes(encode_segment(SEGMENT).data)
