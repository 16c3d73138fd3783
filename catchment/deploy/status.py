"""How a role does, as plain JSON: for the live table, for `show`, and for whoever looks into the state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Replace what the role last said of itself; it need not survive a power cut."""
    unfinished = folder / f"{STATUS_FILE}.tmp"
    unfinished.write_text(json.dumps(status))
    os.replace(unfinished, folder / STATUS_FILE)
