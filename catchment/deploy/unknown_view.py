"""A view that does not exist is said to be unknown, which is another mistake than to ask too soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from catchment.errors import CatchmentError, ConfigError
from catchment.project.options import did_you_mean

if TYPE_CHECKING:
    from catchment.project.config import Project


@contextmanager
def asking_about(project: Project, view: str) -> Iterator[None]:
    """Where what is asked of a view fails and there is no such view, say that instead."""
    try:
        yield
    except CatchmentError as error:
        known = _known_views(project)
        if view in known:
            raise
        hint = did_you_mean(view, known)
        raise ConfigError(f"there is no view {view!r}", where=str(project.folder), hint=hint) from error


def _known_views(project: Project) -> list[str]:
    """Return the views that are declared or submitted, under the names that they are asked for by."""
    from catchment.deploy.deployment import Deployment
    from catchment.project.config import Project
    from catchment.query.catalog import load_catalog

    deployment = Deployment.plan(load_catalog(Project.load(project.folder)))
    names = ({*part.catalog.views, *(plan.name for plan in part.plans)} for part in deployment.parts)
    return sorted(set[str]().union(*names))
