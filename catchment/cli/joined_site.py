"""Running a site in a folder with a `site.toml`: it follows its center while it runs, and waits for its first work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from catchment.cli.output import notes
from catchment.errors import ConfigError
from catchment.project.joined_site import SITE_FILE, JoinedSite

if TYPE_CHECKING:
    from catchment.control.follower import Follower
    from catchment.deploy.deployment import Deployment

LOOK_EVERY_S = 0.5


@contextmanager
def joined_deployment(folder: Path, name: str | None, seconds: float | None = None) -> Iterator[Deployment]:
    """Follow the center of a site; give what the site is to run, as soon as there is something.

    A site that was told before begins at once, with or without the center. Otherwise it waits until the center answers
    and a stream that some view reads is born here, for so many seconds if that is limited.
    """
    from catchment.control.center_link import CenterLink
    from catchment.control.follower import Follower
    from catchment.project.config import security_of

    joined = JoinedSite.load(folder)
    if name not in (None, joined.name):
        where = str(folder / SITE_FILE)
        raise ConfigError(f"this is the folder of site {joined.name!r}, not of {name!r}", where=where)
    center = CenterLink(joined.center_address, security_of(joined))
    with Follower(joined, center) as follower:
        yield _wait_for_work(joined, follower, seconds)


def _wait_for_work(joined: JoinedSite, follower: Follower, seconds: float | None) -> Deployment:
    deadline_s = None if seconds is None else time.monotonic() + seconds
    found, reason = _look(joined, follower)
    if found is None:
        notes.print(f"waiting: {reason}", highlight=False, soft_wrap=True)
    while found is None:
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise ConfigError(f"{joined.name!r} has had nothing to do: {reason}", where=str(joined.folder))
        time.sleep(LOOK_EVERY_S)
        found, reason = _look(joined, follower)
    return found


def _look(joined: JoinedSite, follower: Follower) -> tuple[Deployment | None, str]:
    """Return what is deployed if this site has a part in it, or why it waits."""
    from catchment.deploy.deployment import Deployment

    if follower.read_installed() is None:
        return None, follower.refused or follower.failure or f"nothing was heard of {joined.center_address} yet"
    deployment = Deployment.load(joined.folder)
    relays = (relay for part in deployment.parts for relay in part.routings.hubs)
    if joined.name in (*deployment.sites, *deployment.sinks, *relays):
        return deployment, ""
    return None, f"no view reads a stream from {joined.name!r}; at the center: catchment sites add {joined.name}"
