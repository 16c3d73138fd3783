"""The orders to retire sites that wait until a site has completed every window before an instant.

They wait in a file of the center's state folder, because only the center can tell when one is due
(`catchment.deploy.sites.LeavingSites`). There is one per site at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from catchment.storage.files import make_folder, read_record, write_record

FILE = "leaving-sites.json"


def read_leaving(state_folder: Path) -> Mapping[str, int]:
    """Return the sites that are to be retired, each with the instant that it must have passed."""
    found: Mapping[str, int] = (read_record(state_folder / FILE) or {}).get("sites", {})
    return found


def note_leaving(state_folder: Path, site: str, after_us: int | None) -> None:
    """Write down after which instant a site is to be retired; None takes the order back."""
    make_folder(state_folder)
    with FileLock(state_folder / f"{FILE}.lock"):
        known = dict(read_leaving(state_folder))
        wanted = {name: at for name, at in known.items() if name != site}
        if after_us is not None:
            wanted[site] = after_us
        if wanted != known:
            write_record(state_folder / FILE, {"sites": wanted})
