"""Where the records of each site are best evaluated: where they are born, or at the other end of a link.

A site that evaluates sends partials; one that does not sends its records once, for all views and sinks, and the site at
the end of that link sends their partials on, merged with those of others there. Records are fewer bytes where they are
rarer than partials are wide, and where several fragments would be sent of them.

Places are compared by what all links would carry together: first by what is asked beyond the bandwidths that links
declare, then by the summed use of these, then by bytes, then by the latency of the links that records cross. The search
changes one site at a time while that is better; it ends where no single change is, which need not be the best of all.

Only sites that nothing is sent to may send records, so their places change no other site's routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from catchment.optimizer.sharing.link_traffic import traffic_of_sinks
from catchment.optimizer.sharing.share import SharingState
from catchment.optimizer.sharing.statistics import Statistics
from catchment.project.config import Project
from catchment.project.routes import LinkName, Routes

MAX_TRIES = 500  # of other places, of which each looks at all links; the search ends at the bound, with what it found
MIN_GAIN = 0.1  # of the summed use of links, or of the bytes where links declare no bandwidth

Places = Mapping[str, str]  # site where streams are born -> site that evaluates their records


@dataclass(frozen=True, order=True)
class PlacesCost:
    """What links would carry under some places; the lesser is the better."""

    overload: float  # what is asked beyond bandwidths, in bandwidths
    use: float  # shares of their bandwidths, over all links that declare one
    bytes_per_s: float
    latency_us: int  # of the links that records cross


@dataclass(frozen=True)
class BetterPlaces:
    """Places that cost less than those in force, and what both cost."""

    before: PlacesCost
    after: PlacesCost
    changed: Mapping[str, tuple[str, str]]  # site -> who evaluates its records now, and who should

    @property
    def is_worthwhile(self) -> bool:
        """Whether they save so much that it is worth a change of the project."""
        if not self.changed:
            return False
        if self.before.overload > self.after.overload:
            return True
        by_use = self.before.use > 0
        before, after = (c.use if by_use else c.bytes_per_s for c in (self.before, self.after))
        return after <= (1 - MIN_GAIN) * before


@dataclass(frozen=True)
class EvaluationPlanner:
    """Compares places for the sharing that is deployed at the center and at other sinks (by their names)."""

    project: Project
    sharings: Mapping[str, SharingState]
    statistics: Statistics
    may_evaluate: Mapping[str, Sequence[str]]  # site -> who may evaluate its records, itself where it computes
    _costs: dict[frozenset[tuple[str, str]], PlacesCost] = field(default_factory=dict, compare=False)

    @cached_property
    def _routes(self) -> dict[str, Routes]:
        """The routes to each sink where every site that computes evaluates its own records."""
        own = {site: site for site in self.may_evaluate if not self.project.is_light(site)}
        project = place_evaluations(self.project, own)
        return {sink: Routes.of(project.at_sink(sink, {}) if sink else project) for sink in self.sharings}

    @cached_property
    def places_now(self) -> dict[str, str]:
        """Where the records of each site are evaluated as the project is."""
        routes = Routes.of(self.project)
        return {site: routes.hops[site] if site in routes.light else site for site in self.may_evaluate}

    def find_better(self) -> BetterPlaces:
        """Return the best places that changes of single sites lead to."""
        now = self.places_now
        best = dict(now)
        is_better = True
        while is_better:
            is_better = False
            for site, choices in self.may_evaluate.items():
                if len(self._costs) >= MAX_TRIES:
                    break
                tried = min(choices, key=lambda place: (self.cost({**best, site: place}), place))
                if self.cost({**best, site: tried}) < self.cost(best):
                    best[site] = tried
                    is_better = True
        changed = {site: (now[site], place) for site, place in best.items() if place != now[site]}
        return BetterPlaces(self.cost(now), self.cost(best), changed)

    def cost(self, places: Places) -> PlacesCost:
        """Return what links would carry under these places."""
        key = frozenset(places.items())
        if key not in self._costs:
            self._costs[key] = self._compute_cost(places)
        return self._costs[key]

    def _compute_cost(self, places: Places) -> PlacesCost:
        rates = self.traffic(places)
        limits = {link: self.project.link(*link).bandwidth_bytes_per_s for link in rates}
        uses = [rate / limit for link, rate in rates.items() if (limit := limits[link])]
        crossed = [self.project.link(site, place) for site, place in places.items() if site != place]
        return PlacesCost(
            sum(max(0.0, use - 1.0) for use in uses),
            sum(uses),
            sum(rates.values()),
            sum(link.latency_us for link in crossed),
        )

    def traffic(self, places: Places) -> dict[LinkName, float]:
        """Return the bytes per second on each link, over all sinks; records cross their link once for all of them."""
        sent = {site: place for site, place in places.items() if site != place}
        parts = [
            (Routes(known.center, {**known.hops, **sent}, frozenset(sent)), self.sharings[sink])
            for sink, known in self._routes.items()
        ]
        return {link: summed.bytes_per_s for link, summed in traffic_of_sinks(parts, self.statistics).items()}


def place_evaluations(project: Project, places: Places) -> Project:
    """Return a project in which the records of some sites are evaluated at these places."""
    sites = dict(project.sites)
    for site, place in places.items():
        is_own = place == site
        sites[site] = replace(sites[site], compute=is_own, evaluate_at=None if is_own else place)
    return replace(project, sites=sites)
