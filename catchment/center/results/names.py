"""Under which name the newest definition of a view publishes; views that have one definition publish as they are named.

The record is for readers. Who changes what is deployed writes it, so that a reader needs to know nothing else of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from catchment.query.definition_names import definition_name, number_of, view_of
from catchment.storage.files import read_record, write_record

NAMES_FILE = "names.json"


def write_names(state_folder: Path, names: Mapping[str, str]) -> None:
    """Write down the newest definitions of the views that have had several."""
    if names or (state_folder / NAMES_FILE).exists():
        write_record(state_folder / NAMES_FILE, dict(names))


def read_names(state_folder: Path) -> Mapping[str, str]:
    """Return the newest definitions of the views that have had several."""
    return read_record(state_folder / NAMES_FILE) or {}


def newest_name(state_folder: Path, view: str) -> str:
    """Return the name under which the newest definition of a view publishes.

    A definition may be named too: `view@1` is the first one, which publishes under the name of the view.
    """
    if "@" in view:
        return definition_name(view_of(view), number_of(view))
    return str(read_names(state_folder).get(view, view))
