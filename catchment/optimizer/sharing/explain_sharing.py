"""Why a query is answered from its fragment: what else was possible, and what each choice would add on the links.

The choices of a run, where sites compute and the center answers, are: derive from a fragment that runs (adds nothing),
run a wider fragment in its place that serves both, or run a fragment of its own. Each has the bytes that it adds on all
links together, merged where routes meet. Bytes are estimated from measured rates where there are some, else from
declared ones, else from guesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.derive import describe_derivation, is_derivable
from catchment.optimizer.sharing.generalize import generalizations
from catchment.optimizer.sharing.link_traffic import bytes_over_links, fragment_traffic, link_traffic
from catchment.optimizer.sharing.share import BytesOf
from catchment.optimizer.sharing.statistics import Statistics
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.units import format_estimated_bandwidth


def explain_sharing(query: str, deployed: Deployed, statistics: Statistics, project: Project) -> dict[str, Any]:
    """Return a query's fragment, who shares it, what crosses each link for it, and the choices there were."""
    sharing = deployed.sharing
    fragment = sharing.derivations[query].fragment
    choices = list(_choices(sharing.queries[query], deployed, bytes_over_links(Routes.of(project), statistics)))
    return {
        "strength": deployed.strength.value,
        "fragment": fragment,
        "shared_with": [u for u in sharing.users(fragment) if u != query],
        "derivation": describe_derivation(sharing.derivations[query]),
        "links": list(_links(query, deployed, statistics, project)),
        "merges": list(_merges(query, deployed, statistics, project)),
        "choices": choices,
        "why": _why(choices, deployed.strength, is_alone=len(_fragments_of_stream(query, deployed)) == 1),
    }


def _fragment_of(query: str, deployed: Deployed) -> FragmentDemand:
    """Return the fragment of a query, at the sites that it wants."""
    demand = deployed.sharing.fragments[deployed.derivation(query).fragment]
    return demand.at_sites_of([deployed.sharing.queries[query].demand])


def _links(query: str, deployed: Deployed, statistics: Statistics, project: Project) -> Iterator[dict[str, Any]]:
    demand = _fragment_of(query, deployed)
    rates = link_traffic(project, deployed.sharing, statistics)
    for link, rate in fragment_traffic(Routes.of(project), demand, statistics).items():
        limit = project.link(*link).bandwidth_bytes_per_s
        yield {
            "from": link[0],
            "to": link[1],
            "fragment_bytes_per_s": rate,
            "bytes_per_s": rates[link],
            "utilisation": rates[link] / limit if limit else None,
        }


def _merges(query: str, deployed: Deployed, statistics: Statistics, project: Project) -> Iterator[dict[str, Any]]:
    """Yield the sites on the route where partials of several sites meet, and what merging them there saves."""
    demand = _fragment_of(query, deployed)
    routes = Routes.of(project)
    rates = fragment_traffic(routes, demand, statistics)
    for relay in routes.relays:
        behind = [s for s in demand.source.sites if routes.sender(relay, s) is not None]
        if len(behind) > 1:
            here = [s for s in behind if s == relay or s in routes.light_sites_at(relay)]
            own = sum(statistics.partial_bytes_per_s(demand, site) for site in here)
            arriving = own + sum(rate for link, rate in rates.items() if link[1] == relay)
            yield {
                "at": relay,
                "of": behind,
                "bytes_per_s_in": arriving,
                "bytes_per_s_out": rates[relay, routes.hops[relay]],
            }


def _choices(query: SharedQuery, deployed: Deployed, bytes_of: BytesOf) -> Iterator[dict[str, Any]]:
    """Yield the choices that there are if the query is added last; the one in force is marked."""
    sharing = deployed.sharing
    chosen = deployed.derivation(query.name).fragment
    for name, demand in sharing.fragments.items():
        others = [u for u in sharing.users(name) if u != query.name]
        if not others or name in deployed.leaving:
            continue
        if is_derivable(query.demand, demand):
            yield _choice("derive", name, others, 0.0, name == chosen)
            continue
        wider = min(map(bytes_of, generalizations(demand, query.demand)), default=None)
        if wider is not None:
            yield _choice("widen", name, others, wider - bytes_of(demand), False)
    alone = len(sharing.users(chosen)) == 1
    yield _choice("own", chosen if alone else query.demand.name, [], bytes_of(query.demand), alone)


def _choice(kind: str, fragment: str, others: list[str], added: float, chosen: bool) -> dict[str, Any]:
    return {"kind": kind, "fragment": fragment, "with": others, "added_bytes_per_s": added, "chosen": chosen}


def _fragments_of_stream(query: str, deployed: Deployed) -> list[str]:
    """Return the fragments that read the stream of a query."""
    stream = deployed.sharing.queries[query].demand.source.stream
    return [name for name, demand in deployed.sharing.fragments.items() if demand.source.stream == stream]


def _why(choices: Sequence[Mapping[str, Any]], strength: Strength, *, is_alone: bool) -> str:
    chosen = next(c for c in choices if c["chosen"])
    if chosen["kind"] == "derive":
        own = next(c for c in choices if c["kind"] == "own")
        return f"derived from what {', '.join(chosen['with'])} needs too: saves {_rate(own['added_bytes_per_s'])}"
    if strength is Strength.NONE:
        return "nothing is shared at this strength"
    others = [c for c in choices if not c["chosen"]]
    if not others and is_alone:
        return "nothing else reads this stream"
    if not others:
        return "no other fragment reads this stream through the same look-ups in a way that fits"
    least = min(others, key=lambda c: c["added_bytes_per_s"])
    return (
        f"its own fragment sends {_rate(chosen['added_bytes_per_s'])}; to {least['kind']} {least['fragment']} would "
        f"add {_rate(least['added_bytes_per_s'])}"
    )


def explain_text(explained: Mapping[str, Any]) -> str:
    """Return what `explain_sharing` returned as lines for people."""
    lines = [f"shares: {explained['fragment']} ({explained['why']})"]
    lines += [
        f"  {row['from']} -> {row['to']}: about {_rate(row['fragment_bytes_per_s'])} of this fragment, "
        f"{_rate(row['bytes_per_s'])} in all"
        for row in explained["links"]
    ]
    lines += [
        f"  merged at {row['at']} of {', '.join(row['of'])}: {_rate(row['bytes_per_s_in'])} come, "
        f"{_rate(row['bytes_per_s_out'])} go on"
        for row in explained["merges"]
    ]
    lines += [
        f"  {'*' if c['chosen'] else ' '} {c['kind']} {c['fragment']}: adds {_rate(c['added_bytes_per_s'])}"
        for c in explained["choices"]
    ]
    return "\n".join(lines)


def _rate(bytes_per_s: float) -> str:
    return format_estimated_bandwidth(bytes_per_s)
