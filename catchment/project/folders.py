"""The folders in which sites and relays keep their durable state, under the project's state folder."""

from __future__ import annotations

from pathlib import Path

from catchment.project.config import Project


def site_folder(project: Project, site: str) -> Path:
    """Return the folder of a site's durable state."""
    return project.state_folder / "sites" / site


def relay_folder(project: Project, name: str) -> Path:
    """Return the folder of a relay's durable state."""
    return project.state_folder / "relays" / name
