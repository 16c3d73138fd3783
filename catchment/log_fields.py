"""What a line of the log is about: fields beside its text, by which a program finds the lines of a site or a view.

A call of `logging` takes them as `extra`; `catchment.cli.run_log` writes them. Other programs that use catchment as a
library find them as the attribute `about` of a log record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def about(
    *,
    site: str | None = None,
    query: str | None = None,
    window_us: int | None = None,
    stream: str | None = None,
    fragment: str | None = None,
) -> dict[str, Mapping[str, str]]:
    """Return the `extra` of a line that is about these things; `window_us` is the start of a window."""
    window = None if window_us is None else (_EPOCH + timedelta(microseconds=window_us)).isoformat()
    named = {"site": site, "query": query, "window": window, "stream": stream, "fragment": fragment}
    return {"about": {name: value for name, value in named.items() if value is not None}}


def fields_of(record: Any) -> Mapping[str, str]:
    """Return what a log record is about; nothing where it does not say."""
    fields: Mapping[str, str] = getattr(record, "about", {})
    return fields
