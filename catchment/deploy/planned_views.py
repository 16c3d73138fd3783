"""Views are planned once per process as long as they and what they read stay the same.

A plan follows from its view and from all that is declared but other views and sinks; so does what sharing sees of it.
A process that follows what is deployed meets the same views again at every version, and a simulated deployment at every
start of a process. A view that reads another view is planned every time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from catchment.optimizer.sharing.demand import SharedQuery, queries_of_plan
from catchment.query.catalog import Catalog
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.query.sql.statements import View

MAX_PLANS = 1_000  # that are remembered; beyond, the one that was made first is forgotten


@dataclass(frozen=True)
class PlannedView:
    """A view as it was planned, under the name of its query, and as sharing sees it."""

    view: View
    catalog: Catalog
    plan: QueryPlan
    queries: tuple[SharedQuery, ...]

    @classmethod
    def make(cls, view: View, catalog: Catalog, name: str) -> PlannedView:
        """Plan a view."""
        plan = plan_view(view, catalog).renamed(name)
        return cls(view, catalog, plan, queries_of_plan(plan, catalog))

    def holds_for(self, view: View, catalog: Catalog) -> bool:
        """Return whether planning the view by a catalog would give the same."""
        is_same_view = (self.view.where, self.view) == (view.where, view)
        reads_views = any(isinstance(catalog.find(name), View) for name in view.reads)
        return is_same_view and not reads_views and self._declares_same(catalog)

    def _declares_same(self, catalog: Catalog) -> bool:
        """Return whether a catalog is the same, but for other views and for sinks."""
        views, sinks = self.catalog.views, self.catalog.sinks
        return catalog is self.catalog or replace(catalog, views=views, sinks=sinks) == self.catalog


_known: dict[tuple[str, str, str], PlannedView] = {}  # by the names of the query, of its view and of its sink


def planned(view: View, catalog: Catalog, name: str) -> PlannedView:
    """Return a view as it is planned, under the name of its query."""
    key = name, view.name, catalog.project.sink
    found = _known.get(key)
    if found is None or not found.holds_for(view, catalog):
        found = PlannedView.make(view, catalog, name)
        _known.pop(key, None)
        while len(_known) >= MAX_PLANS:
            _known.pop(next(iter(_known)), None)
        _known[key] = found
    return found
