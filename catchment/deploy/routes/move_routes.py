"""Moving sites to other routes while everything runs, with the protocol by which queries move to other fragments.

A site that is moved has another next site. Whatever comes from it, or through it, is computed by new fragments from a
slice on that each site chooses for itself, and these take the new routes (`catchment.project.routings`). The old ones
are finished on the routes on which they began, and end when the windows that they feed are final.
"""

from __future__ import annotations

from collections.abc import Mapping

from catchment.deploy.deployment import Deployment
from catchment.errors import CatchmentError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.routes import Routes


def changed_sites(before: Routes, after: Routes) -> frozenset[str]:
    """Return the sites whose routes are others than before."""
    return frozenset(site for site in after.hops if site not in before.hops or before.route(site) != after.route(site))


def declared_hops(routes: Routes, hops: Mapping[str, str]) -> dict[str, str]:
    """Return those of the next sites that are others than are declared."""
    return {site: to for site, to in hops.items() if routes.hops.get(site) != to}


def move_routes(deployment: Deployment, hops: Mapping[str, str]) -> Deployed:
    """Return what is deployed for one sink with these next sites; as it is, if it cannot be moved now, or so.

    A view that names some of its sites may not be answered from partials that come merged with those of others; and
    every link must carry what a view with a contract needs.
    """
    routings = deployment.routings
    if not deployment.possible_ends.issuperset(hops.values()):
        return deployment.deployed
    moved = {**deployment.deployed.hops, **hops}
    try:
        after = routings.declared.moved(moved)
        chosen = declared_hops(routings.declared, moved)
        changed = deployment.deployed.reroute(chosen, changed_sites(routings.current, after))
        if changed is not deployment.deployed:
            Deployment.plan_at(deployment.declared.at_sink(deployment.project.center), changed)
    except CatchmentError:
        return deployment.deployed
    return changed
