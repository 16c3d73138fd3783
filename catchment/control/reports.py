"""What sites tell the center of themselves, and what people ask of sites: small files that travel with `Follow`.

At the center, the status of a site that has joined is kept where a site of the same folder would write it, so that
`show`, the dashboard and rebalancing see both alike. Its time is that of the center's clock. Requests (repair what was
shed, resume what is suspended) lie in the same folder until the site says that it has them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catchment.deploy.reports.requests import (
    forget_repairs,
    forget_resumptions,
    request_repairs,
    request_resumption,
    requested_repairs,
    requested_resumptions,
)
from catchment.deploy.reports.role_files import STOPPED, read_status, write_status
from catchment.errors import WireError
from catchment.project.config import Project
from catchment.storage.files import make_folder

MAX_STATUS_BYTES = 8 * 2**20  # of one role, decompressed

Requests = Mapping[str, list[str]]


def pack_report(project: Project, site: str) -> dict[str, bytes]:
    """Return the status of the roles of a site, compressed; none of those that have not run."""
    folders = {"site": project.site_folder(site), "relay": project.relay_folder(site)}
    found = {role: read_status(folder) for role, folder in folders.items()}
    return {role: zlib.compress(json.dumps(told).encode()) for role, told in found.items() if told is not None}


def keep_report(project: Project, site: str, report: Mapping[str, Any]) -> None:
    """Write the status of the roles of a site into the state folder of the center."""
    folders = {"site": project.site_folder(site), "relay": project.relay_folder(site)}
    for role, packed in report.items():
        if role in folders:
            told = _unpack(packed)
            make_folder(folders[role])
            write_status(folders[role], told, bool(told.get(STOPPED)))


def _unpack(packed: Any) -> dict[str, Any]:
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, MAX_STATUS_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError(f"more than {MAX_STATUS_BYTES} bytes")
        told = json.loads(text)
        if not isinstance(told, dict):
            raise TypeError("not a table")
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"the status of a site cannot be read: {error!s:.100}") from error
    return told


def read_requests(site_folder: Path) -> Requests:
    """Return what was asked of a site and lies in its folder."""
    return {
        "repairs": sorted(requested_repairs(site_folder)),
        "resumptions": sorted(requested_resumptions(site_folder)),
    }


def take_requests(site_folder: Path, requests: Any) -> None:
    """Write requests that came from the center into the folder of the site that runs here."""
    repairs, resumptions = (_names(requests, kind) for kind in ("repairs", "resumptions"))
    if repairs or resumptions:
        make_folder(site_folder)
    if repairs:
        request_repairs(site_folder, repairs)
    if resumptions:
        request_resumption(site_folder, resumptions)


def forget_taken(site_folder: Path, taken: Any) -> None:
    """Remove requests at the center that the site has; what was asked since then stays."""
    now = read_requests(site_folder)
    if now["repairs"] and now["repairs"] == _names(taken, "repairs"):
        forget_repairs(site_folder, now["repairs"])
    if now["resumptions"] and now["resumptions"] == _names(taken, "resumptions"):
        forget_resumptions(site_folder, now["resumptions"])


def _names(requests: Any, kind: str) -> list[str]:
    found = requests.get(kind, []) if isinstance(requests, dict) else []
    return sorted(str(name) for name in found)
