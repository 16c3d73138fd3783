"""What every program of an engine does: it waits for a line, runs the query once, and says how long it took.

Lines are JSON documents. The program says `{"version": ...}` when it is ready. To `run` it answers with the seconds of
one turn; to `answers PATH` with a Parquet file of (slice_us, key, n, total), outside of any time. So turns of several
engines can be interleaved, and each stays warm.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable


def serve(version: str, run: Callable[[], float], write_answers: Callable[[str], None]) -> None:
    """Answer lines until there are no more."""
    _say({"version": version})
    for line in sys.stdin:
        word, _, path = line.strip().partition(" ")
        if word == "run":
            _say({"seconds": run()})
        elif word == "answers":
            write_answers(path)
            _say({"answers": path})


def _say(document: object) -> None:
    print(json.dumps(document), flush=True)
