"""Where the parts of a deployment keep what is durable, under a project's state folder."""

from __future__ import annotations

from pathlib import Path

from catchment.project.config import Project


def site_folder(project: Project, site: str) -> Path:
    """Return where a site keeps everything durable."""
    return project.state_folder / "sites" / site


def relay_folder(project: Project, name: str) -> Path:
    """Return where a relay keeps everything durable."""
    return project.state_folder / "relays" / name
