"""The overview in parts, each as JSON text, so that a page is sent only those that have changed.

Most of an overview is the newest windows of the views, which change only when something is published. Their text is
made once per change, however many pages are open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from catchment.center.results.plain_json import to_plain_json

Parts = Mapping[str, str]  # the name of a part -> its JSON text
GONE = "gone"  # the names of parts that are no more, in an event


class OverviewParts:
    """Splits one overview after another into parts."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[Sequence[Any], str]] = {}  # what a view's text was made from, and the text

    def split(self, overview: Mapping[str, Any]) -> Parts:
        """Return the parts: `view NAME` and `windows NAME` for each view, and everything else under its key."""
        parts = {key: _text(value) for key, value in overview.items() if key != "views"}
        for view in overview["views"]:
            parts[f"view {view['name']}"] = _text({k: v for k, v in view.items() if k != "windows"})
            parts[f"windows {view['name']}"] = self._windows_text(view["name"], view["windows"])
        return parts

    def _windows_text(self, name: str, windows: Sequence[Any]) -> str:
        known = self._windows.get(name)
        if known is None or known[0] is not windows:
            known = self._windows[name] = (windows, _text(windows))
        return known[1]


def changes(before: Parts, now: Parts) -> str | None:
    """Return what has changed as one JSON object; None if nothing has."""
    changed = [f"{json.dumps(name)}:{text}" for name, text in now.items() if before.get(name) != text]
    gone = [name for name in before if name not in now]
    if gone:
        changed.append(f'"{GONE}":{json.dumps(gone)}')
    return f"{{{','.join(changed)}}}" if changed else None


def _text(value: Any) -> str:
    return json.dumps(to_plain_json(value), separators=(",", ":"))
