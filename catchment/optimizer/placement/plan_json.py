"""A WAN plan as a JSON document: links, fragments, what is shared, and which choices there were."""

from __future__ import annotations

from typing import Any

from catchment.optimizer.placement.cost import utilisation
from catchment.optimizer.placement.greedy import PlacementChoice
from catchment.optimizer.placement.operators import merge_name
from catchment.optimizer.placement.planner import WanPlan
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.derive import describe_derivation
from catchment.query.plan_nodes import describe_aggregate, describe_window


def write_plan(plan: WanPlan) -> dict[str, Any]:
    """Return a document with `wan_bytes_per_s`, `links`, `fragments` and `shared`."""
    return {
        "wan_bytes_per_s": plan.wan_bytes_per_s,
        "links": _links(plan),
        "fragments": [_fragment(plan, name, site) for name in plan.sharing.fragments for site in _origins(plan, name)],
        "shared": [*_shared_fragments(plan), *_shared_streams(plan)],
    }


def _links(plan: WanPlan) -> list[dict[str, Any]]:
    """Return the links that carry something, the fullest first."""
    topology = plan.placement.topology
    rows = [
        {"from": a, "to": b, "bytes_per_s": rate, "utilisation": utilisation((a, b), rate, topology)}
        for (a, b), rate in plan.placement.rates.items()
        if rate > 0
    ]
    return sorted(rows, key=lambda row: (-(row["utilisation"] or 0.0), row["from"], row["to"]))


def _origins(plan: WanPlan, fragment: str) -> tuple[str, ...]:
    return plan.sharing.fragments[fragment].source.sites


def _fragment(plan: WanPlan, name: str, origin: str) -> dict[str, Any]:
    """Return one fragment over the records of one site: where it is computed, and what else was possible."""
    demand = plan.sharing.fragments[name]
    users = plan.sharing.users(name)
    operator = f"aggregate {name} of {origin}"
    first = plan.placement.decisions[users[0], operator]
    return {
        "name": name,
        "stream": demand.source.stream,
        "origin": origin,
        "computed_at": list(plan.placement.running(operator)),
        "merged_at": _merges(plan, name),
        "queries": list(users),
        "joins": [_join(plan.sharing.queries[u]) for u in users if plan.sharing.queries[u].view],
        "keys": [k.sql for k in demand.keys],
        "aggregates": [describe_aggregate(a) for a in demand.aggregates],
        "windows": [describe_window(w) for w in demand.windows],
        "where": demand.fragment().where,
        "bytes_per_s": plan.statistics.partial_bytes_per_s(demand, origin),
        "choices": [_choice(c, c == first.chosen) for c in first.choices],
    }


def _merges(plan: WanPlan, name: str) -> list[str]:
    """Return every site where partials of a fragment are merged."""
    begin = merge_name(name)
    merges = (n for n in plan.placement.graph.operators if n == begin or n.startswith(f"{begin} "))
    return list(dict.fromkeys(site for n in merges for site in plan.placement.running(n)))


def _join(side: SharedQuery) -> dict[str, Any]:
    """Return the view that a fragment is a side of: pairs are made where its answer is wanted."""
    return {"query": side.view, "side": side.name, "at": side.sink}


def _choice(choice: PlacementChoice, chosen: bool) -> dict[str, Any]:
    return {
        "kind": choice.kind.value,
        "site": choice.site,
        "added_bytes_per_s": choice.added.wan_bytes_per_s,
        "ahead_bytes_per_s": choice.ahead.wan_bytes_per_s,
        "over_capacity_bytes_per_s": choice.added.overload + choice.ahead.overload,
        "chosen": chosen,
    }


def _shared_fragments(plan: WanPlan) -> list[dict[str, Any]]:
    """Return the fragments that serve several queries, and how each query's partials come from them."""
    shared = {name: plan.sharing.users(name) for name in plan.sharing.fragments}
    return [
        {
            "kind": "fragment",
            "fragment": name,
            "queries": list(users),
            "derivations": [describe_derivation(plan.sharing.derivations[q]) for q in users],
        }
        for name, users in shared.items()
        if len(users) > 1
    ]


def _shared_streams(plan: WanPlan) -> list[dict[str, Any]]:
    """Return the streams of which one copy on a link serves several queries."""
    return [
        {"kind": "stream", "stream": made[0], "from": link[0], "to": link[1], "queries": users}
        for (made, link), users in sorted(plan.placement.users.items())
        if users > 1
    ]
