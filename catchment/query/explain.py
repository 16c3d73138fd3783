"""EXPLAIN: the plan of a view, what each site computes and sends, and what the answers promise."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from catchment.aggregates.bounded_sets import BoundedSet, CountDistinct
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.shed_terms import terms_in
from catchment.functions.declared import AggregateFunction
from catchment.functions.installed import find_installed, functions_in
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.project.sections import Link
from catchment.quality.laws import law_of, sketch_bound
from catchment.query.fragment import Fragment, Lookup
from catchment.query.join import KINDS, LEFT, RIGHT, SIDES, Join
from catchment.query.narrowed_view import why_not_narrowed
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import LookupJoin, find
from catchment.query.sql.view_options import ALWAYS, BOUNDED
from catchment.query.types import sql_type
from catchment.units import format_bandwidth, format_duration, format_size


def explain(plan: QueryPlan, project: Project) -> str:
    """Return the whole explanation, as text."""
    sites = [line for side in plan.sides for line in _site_lines(side, project)]
    return "\n".join([plan.to_text(), *sites, *_contract_lines(plan, project)])


def explain_data(plan: QueryPlan, project: Project) -> dict[str, Any]:
    """Return the explanation as a JSON document."""
    fragment = plan.fragment
    options = plan.options
    return {
        "view": plan.name,
        "plan": plan.to_text(),
        "stream": fragment.stream,
        "join": _join(plan),
        "union": [s.scan.stream for s in plan.sides] if plan.is_union else None,
        "assembled": None if plan.assembly is None else str(plan.assembly),
        "window": {
            "size_us": plan.window.size_us,
            "slide_us": plan.window.slide_us,
            "offset_us": plan.window.offset_us,
        },
        "fragments": [
            {
                "site": site,
                "stream": side.scan.stream,
                "sends_to": _next(site, plan.root.site, project),
                "partials": _partials(side),
            }
            for side in plan.sides
            for site in side.scan.sites
        ],
        "columns": [{"name": c.name, "type": sql_type(c.type)} for c in plan.columns],
        "sink": plan.root.site,
        "contract": {"max_error": options.max_error, "confidence": options.confidence} if options.max_error else None,
        "policy": options.policy or project.defaults.policy,
        "freshness_us": project.defaults.freshness_us if options.freshness_us is None else options.freshness_us,
        "error": {
            a.name: sketch_bound(law_of(a), a.sketch_error, 1.0 - options.confidence) for a in fragment.aggregates
        },
        "shed": _shed(plan),
        "defers": plan.tolerates_deferral,
    }


def _join(plan: QueryPlan) -> dict[str, Any] | None:
    """Return the sides of a view that joins streams, and how their partials are paired; None for a view of one."""
    if plan.join is None:
        return None
    sides = [{"query": s.name, "stream": s.scan.stream, "sites": list(s.scan.sites)} for s in plan.sides]
    return {"at": plan.root.site, "sides": sides, **_pairing(plan.join)}


def _pairing(join: Join) -> dict[str, Any]:
    """Return how the partials of two sides are paired, after those of the join that the left side is."""
    found = {
        "kind": KINDS[join.preserved] or "inner",
        "on": [[f"{LEFT}.{left}", f"{RIGHT}.{right}"] for left, right in join.on],
        "compared": [str(c) for c in join.compared],
        "aggregates": {p.aggregate.name: str(p) for p in join.pairs},
    }
    return {**found, "left": _pairing(join.left)} if isinstance(join.left, Join) else found


def _next(site: str, sink: str, project: Project) -> str:
    return sink if site == sink else Routes.of(project).route(site)[0][1]


def _partials(plan: QueryPlan) -> list[str]:
    return [f"{f.name} {sql_type(f.type)}" for f in plan.fragment.schema]


def _site_lines(plan: QueryPlan, project: Project) -> list[str]:
    partials = ", ".join(_partials(plan))
    slices = len(list(plan.fragment.slicing.within(next(plan.window.containing(0)))))
    shared = f"each window is {slices} slices" if slices > 1 else "each window is one slice"
    lines = ["", f"at each site of {plan.scan.stream}, per slice and key ({shared}): {partials}"]
    if plan.gives_records:
        lines.append("  records travel: equal ones of a slice once, with their number; compressed, each exactly once")
    lines += [f"  {_describe_lookup(node.lookup)}" for node in find(plan.aggregate, LookupJoin)]
    for site in plan.scan.sites:
        lines.append(f"  {_route(site, plan.root.site, project)}")
    return lines


def _describe_lookup(lookup: Lookup) -> str:
    """Return which rows of a table records find, and what an exact answer means then."""
    when = "when the site starts"
    told = ""
    if lookup.refresh_us is not None:
        told = "windows say which, and "
        when += f", and again when its files have changed (looked at every {format_duration(lookup.refresh_us)})"
    return (
        f"{lookup.table} is read {when}; answers are exact as of the rows that it had when records were read "
        f"({told}{lookup.alias}._version names these in rows)"
    )


def _join_lines(plan: QueryPlan, join: Join) -> list[str]:
    """Return how the streams of a view are joined, innermost first, and what becomes of records without a partner."""
    streams = [fragment.stream for fragment in join.streams.values()]
    if len(streams) > len(SIDES):
        what = f"partials of {', '.join(streams)} are paired one stream after the other,"
    else:
        what = "partials of both streams are paired"
    lines = [f"at {plan.root.site}: {what} per window where {join.condition}"]
    found: Join | Fragment = join
    while isinstance(found, Join):
        lines += [_describe_alone(found, side) for side in found.preserved]
        found = found.left
    return lines


def _describe_alone(join: Join, side: str) -> str:
    """Return what becomes of the records of a side that have no partner."""
    what = f"records of {join.side(side).stream} ({side})"
    if side == LEFT and isinstance(join.left, Join):
        what = f"pairs of {join.side(side).stream}"
    return (
        f"  {what} without a partner are rows when their window closes; a partner that comes "
        f"late replaces them by a revision, which has all rows of the window"
    )


def _shed(plan: QueryPlan) -> str:
    """Return what is done with the view when its sites are overloaded."""
    terms = terms_in(plan.fragment.aggregates)
    options = plan.options
    if not terms:
        return "never sampled"
    if options.shed == BOUNDED and not all(t.bounded for t in terms):
        return "not sampled: a sample of " + ", ".join(t.of for t in terms if not t.bounded) + " has no bound"
    rows = ", each record with all rows that it becomes" if any(t.clustered for t in terms) else ""
    return f"sampled{rows}, weight {options.weight:g}; made exact afterwards: {options.repair.replace('_', ' ')}"


def _route(site: str, sink: str, project: Project) -> str:
    """Return the links from a site to the sink; what meets on the way is merged."""
    if site == sink:
        return f"{site} -> {sink}: stays here"
    links = [project.link(*link) for link in Routes.of(project).route(site)]
    sites = " -> ".join([site, *(link.destination for link in links)])
    return f"{sites}: {', then '.join(map(_link, links))}"


def _link(link: Link) -> str:
    speed = "unshaped" if link.bandwidth_bytes_per_s is None else format_bandwidth(link.bandwidth_bytes_per_s)
    return f"{speed}, latency {format_duration(link.latency_us)}" if link.latency_us else speed


def _contract_lines(plan: QueryPlan, project: Project) -> list[str]:
    options = plan.options
    lines = [""]
    if options.max_error is not None:
        share = 1 - options.confidence
        lines.append(f"contract: off by {options.max_error:g} or more in at most {share:.3g} of the windows")
        if plan.join is not None or plan.fragment.explodes:
            lines.append(_describe_learned(plan))
    else:
        lines.append("contract: none; a window is published when its slack has passed")
    for aggregate in plan.fragment.aggregates:
        if isinstance(aggregate, BoundedSet | Percentile):
            lines.append(f"{aggregate.name}: {_describe_set(aggregate)}")
    lines += _second_round_lines(plan)
    sketches = [a.name for a in plan.fragment.aggregates if not a.exact and not isinstance(a, BoundedSet | Percentile)]
    if sketches:
        lines.append(f"estimated from sketches: {', '.join(sketches)}")
    lines += _own_functions(plan)
    for explode in (e for side in plan.sides for e in side.fragment.explodes):
        lines.append(f"{explode.alias}: sites make rows of each record; coverage counts records, never rows")
    lines.append(f"policy: {options.policy or project.defaults.policy}")
    if terms_in(plan.fragment.aggregates):
        lines.append(f"under overload: {_shed(plan)}")
    if plan.tolerates_deferral:
        lines.append(f"under overload of a relay or of {plan.root.site}: some groups are merged later")
    if plan.join is not None:
        lines += _join_lines(plan, plan.join)
    if plan.assembly is not None:
        slice_length, lookback = (format_duration(us) for us in (plan.assembly.slice_us, plan.assembly.lookback_us))
        lines.append(
            f"at {plan.root.site}: {plan.assembly}; merged from slices of {slice_length}, which are kept in "
            f"{plan.lower}. A row belongs to the slice that its window ends in, and follows every revision of that "
            f"one and of those up to {lookback} before it"
        )
    elif plan.lower is not None:
        lines.append(
            f"at {plan.root.site}: from the newest rows of {plan.lower}, again with every revision of one; nothing "
            f"travels for it, and of a window that is not final the revisions of its windows of {plan.lower} are kept"
        )
    if plan.is_union:
        lines.append(f"at {plan.root.site}: partials of {len(plan.sides)} branches are merged per window and key")
    finish = "none, the aggregates are the answer" if plan.trivial else "the SELECT list and HAVING, at the center"
    if plan.top is not None:
        chosen = f"{plan.top}, chosen at the center from all rows"
        finish = chosen if plan.trivial else f"the SELECT list and HAVING, at the center; {chosen}"
    return [*lines, f"after the aggregates: {finish}"]


def _describe_learned(plan: QueryPlan) -> str:
    """Return what the contract of a join, or of a view that makes several rows of a record, rests on."""
    windows = ceil(1.0 / (1.0 - plan.options.confidence) - 1e-9) - 1
    what = "rows"
    waits = ""
    if plan.join is not None:
        what = "pairs"
        part = plan.options.max_error / len(plan.sides) if plan.options.max_error else 0.0
        waits = (
            f"each stream waits until it lacks {part:.3g} at the most, which is enough where late keys are as others; "
        )
    both_ways = ""
    if plan.join is not None and plan.join.gives_alone:
        what = "pairs and of rows without a partner"
        both_ways = "; a late partner takes such a row back, so it allows for as much in either direction"
    return (
        f"  {waits}the bound of counts and sums of {what} is learned from the last {windows} windows that closed while "
        f"records were awaited, and null before{both_ways}"
    )


def _own_functions(plan: QueryPlan) -> list[str]:
    """Return the functions of the project that a view calls, with the code and what a state of an aggregate takes."""
    lines = []
    for name in sorted(functions_in(plan.to_text())):
        found = find_installed(name)
        assert found is not None
        declared = found.declared
        size = ""
        if isinstance(declared, AggregateFunction):
            size = f", a state takes up to {declared.max_state_bytes} bytes"
        lines.append(f"{name}: Python of this project, in {Path(found.file).name}, the same at every site{size}")
    return lines


def _second_round_lines(plan: QueryPlan) -> list[str]:
    """Return what becomes of estimates beyond `max_distinct` once their window is final."""
    sets = [a for a in plan.fragment.aggregates if isinstance(a, CountDistinct | Percentile)]
    if not sets:
        return []
    reason = why_not_narrowed(plan)
    if plan.options.repair != ALWAYS:
        reason = f"repair is '{plan.options.repair}'"
    if reason is not None:
        return [f"beyond that they stay estimates: {reason}"]
    ranked = any(isinstance(a, Percentile) for a in sets)
    counted = any(isinstance(a, CountDistinct) for a in sets)
    sent = [
        *(["the values between the bounds of rank of its sketch (of the others their number)"] if ranked else []),
        *(["the hashes of its distinct values"] if counted else []),
    ]
    most = format_size(plan.options.repair_max_bytes)
    return [
        f"beyond that a final window is made exact from history, in a second round: per row sites send "
        f"{' and '.join(sent)}, {most} per window at the most"
    ]


def _describe_set(aggregate: BoundedSet | Percentile) -> str:
    """Return what of a set of distinct values travels, and what happens at its bound."""
    if isinstance(aggregate, Percentile):
        return (
            f"exact up to {aggregate.max_distinct} distinct values per row, each of which travels with its count (16 "
            f"bytes before compression) per slice and key; then a sketch, within {aggregate.sketch_error:.2g} of rank "
            "at 99%"
        )
    if isinstance(aggregate, CountDistinct):
        return (
            f"exact up to {aggregate.max_distinct} distinct values per row, then within "
            f"{2 * aggregate.sketch_error:.2g} at 95%; a hash of 8 bytes travels per distinct value of a slice and key"
        )
    return f"at most {aggregate.capacity} values, the least; each travels once per slice, key and update"
