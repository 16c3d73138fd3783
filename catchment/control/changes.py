"""What operators may change in a deployment: each function takes the project folder and returns what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catchment.project.config import Project

Answer = Mapping[str, Any]


def submit(
    folder: Path, text: str, file: str = "the submitted text", dry_run: bool = False, yes: bool = False
) -> Answer:
    """Add views, unless a link would overflow and nobody has said `yes`; in a dry run only say what would change."""
    from catchment.control import submission

    return submission.submit(folder, text, file, dry_run, yes)


def drop(folder: Path, query: str) -> Answer:
    """Drop a view; its published answers are kept."""
    from catchment.deploy.submit import drop as drop_query

    return drop_query(Project.load(folder), query)


def submit_feeds(folder: Path, text: str, file: str = "the submitted text", users: list[str] | None = None) -> Answer:
    """Add feed views, for everyone or for some users; the running cloud begins them within seconds."""
    from catchment.feeds.runs.cloud_role import submissions_of

    return submissions_of(folder).submit(text, file, users or ())


def drop_feeds(folder: Path, views: list[str], users: list[str] | None = None) -> Answer:
    """End feed views that were submitted, or end them for some users."""
    from catchment.feeds.runs.cloud_role import submissions_of

    return submissions_of(folder).drop(views, users or ())


def repair(folder: Path, query: str) -> Answer:
    """Ask the sites to repair what was shed of a view."""
    from catchment.deploy.repairing.repairs import ask_for_repair

    return ask_for_repair(folder, query)


def repair_windows(folder: Path, query: str, start_us: int, before_us: int | None = None) -> Answer:
    """Compute final windows of a view again, from the histories of the sites."""
    from catchment.deploy.repairing import repair_windows as windows

    return windows.repair_windows(folder, query, start_us, before_us)


def resume(folder: Path, query: str) -> Answer:
    """Let a suspended view go on."""
    from catchment.deploy.repairing.suspended import resume as resume_view

    return resume_view(Project.load(folder), query)


def add_site(folder: Path, name: str, from_us: int | None = None) -> Answer:
    """Let a site count from a window on."""
    from catchment.deploy import sites

    return sites.add_site(folder, name, from_us)


def retire_site(folder: Path, name: str, from_us: int | None = None, after_us: int | None = None) -> Answer:
    """Let a site count no more from a window on, or when it has completed every window before an instant."""
    from catchment.deploy import sites

    if after_us is not None:
        return sites.retire_site_after(folder, name, after_us)
    return sites.retire_site(folder, name, from_us)


def move_site(folder: Path, name: str, to: str) -> Answer:
    """Let a site or a relay send to another next site, while everything runs."""
    from catchment.deploy import sites

    return sites.move_site(folder, name, to)


def replace_site(folder: Path, name: str, from_us: int | None = None) -> Answer:
    """Let a site whose disk was lost go on with an empty one."""
    from catchment.deploy import sites

    return sites.replace_site(folder, name, from_us)


def heal_site(folder: Path, name: str) -> Answer:
    """Let a site, relay or center with older or lost state come back."""
    from catchment.deploy.repairing import heal

    return heal.heal(folder, name)
