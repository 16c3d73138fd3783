"""From a project folder to what runs: every view planned, every mistake found before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from catchment.center.events import CenterQuery
from catchment.center.results import RESERVED
from catchment.config import PROJECT_FILE, QUERIES_FOLDER, Project
from catchment.errors import ConfigError, QueryError
from catchment.query.build import plan_view
from catchment.query.catalog import Catalog, load_catalog
from catchment.query.plan import QueryPlan
from catchment.query.statements import Stream
from catchment.site.policies import policy_by_name
from catchment.spark.site_pipeline import FragmentPlan


@dataclass(frozen=True)
class Deployment:
    """A project with all its views planned."""

    project: Project
    catalog: Catalog
    plans: tuple[QueryPlan, ...]

    @classmethod
    def load(cls, folder: Path) -> Deployment:
        """Read and plan a project."""
        return cls.plan(load_catalog(Project.load(folder)))

    @classmethod
    def plan(cls, catalog: Catalog) -> Deployment:
        """Plan every view of a catalog."""
        if not catalog.views:
            raise QueryError(
                "no materialized view is declared",
                where=str(catalog.project.folder / QUERIES_FOLDER),
                hint="add queries/NAME.sql with CREATE MATERIALIZED VIEW ... AS SELECT ...",
            )
        plans = tuple(plan_view(view, catalog) for view in catalog.views.values())
        for plan in plans:
            _check_names(plan, catalog)
            _check_options(plan, catalog)
        return cls(catalog.project, catalog, plans)

    def streams_at(self, site: str) -> tuple[Stream, ...]:
        """The streams born at a site that some view reads."""
        read = {p.fragment.stream for p in self.plans}
        return tuple(s for s in self.catalog.streams.values() if s.name in read and site in (s.sites or ()))

    def fragments_at(self, site: str) -> tuple[FragmentPlan, ...]:
        """The fragments that run at a site, with their policies."""
        default = self.project.defaults.policy
        return tuple(
            FragmentPlan(p.fragment, policy_by_name(p.options.policy or default))
            for p in self.plans
            if site in (self.catalog.streams[p.fragment.stream].sites or ())
        )

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites where a stream that some view reads is born."""
        return tuple(s for s in self.project.sites if self.streams_at(s))

    @cached_property
    def center_queries(self) -> tuple[CenterQuery, ...]:
        defaults = self.project.defaults
        return tuple(
            CenterQuery(
                p.name,
                p.fragment,
                p.window,
                tuple(self.catalog.streams[p.fragment.stream].sites or ()),
                defaults.repair_horizon_us,
                defaults.freshness_us if p.options.freshness_us is None else p.options.freshness_us,
            )
            for p in self.plans
        )


def center_address(project: Project) -> str:
    """host:port where the processes of sites find the center."""
    listen = project.sites[project.center].listen
    if listen is None or listen[1] == 0:
        raise ConfigError(
            f"processes of their own cannot find the center {project.center!r}: it has no fixed address",
            where=str(project.folder / PROJECT_FILE),
            hint=f'set listen = "host:port" in [sites.{project.center}], or run all in one process: catchment run',
        )
    return f"{listen[0]}:{listen[1]}"


def _check_names(plan: QueryPlan, catalog: Catalog) -> None:
    for column in plan.columns:
        if column.name.lower() in RESERVED and column.source != column.name:
            raise QueryError(
                f"view {plan.name!r} has a column {column.name!r}, a name that every result table uses itself",
                where=catalog.views[plan.name].where,
                hint=f"give it another name: {column.sql} AS my_{column.name} (reserved are {', '.join(RESERVED)})",
            )


def _check_options(plan: QueryPlan, catalog: Catalog) -> None:
    """An option that would be accepted and not heeded is refused."""
    asked = {"emit_early": plan.options.emit_early_us is not None, "repair = false": not plan.options.repair}
    for option, wanted in asked.items():
        if wanted:
            raise QueryError(
                f"view {plan.name!r} asks for {option}, which cannot be run yet",
                where=catalog.views[plan.name].where,
                hint="leave it out: windows are published when they close, and late records always repair them",
            )
