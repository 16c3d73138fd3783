"""What would change if a site, a link, a rate or a query did: the difference, before anything is deployed.

Both sides are planned anew from what is declared and submitted, at the rates that are known now, so that nothing but
the change tells them apart. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import known_statistics
from catchment.errors import ConfigError
from catchment.optimizer.sharing.statistics import Statistics
from catchment.project.config import Project
from catchment.project.options import did_you_mean
from catchment.project.sections import Link
from catchment.query.catalog import Catalog
from catchment.query.sql.parse import parse_file
from catchment.query.sql.statements import View
from catchment.serve.explanation import explain_deployment
from catchment.units import parse_bandwidth

_NO_STATE = ".what-if"  # a state folder that does not exist: nothing is deployed in it


@dataclass(frozen=True)
class Changes:
    """What is asked for, as it is written.

    `sites` are NAME=LIKE (a site as another one is), `links` FROM:TO=BANDWIDTH or FROM:TO=xFACTOR, `rates` STREAM=ROWS
    (per second and site) or STREAM=xFACTOR, `queries` files of CREATE MATERIALIZED VIEW.
    """

    sites: Sequence[str] = ()
    links: Sequence[str] = ()
    rates: Sequence[str] = ()
    queries: Sequence[Path] = ()


def compare_changes(deployment: Deployment, changes: Changes) -> dict[str, Any]:
    """Return what is predicted before and after some changes, link by link and view by view."""
    rates = known_statistics(deployment)
    before = _planned(deployment.catalog)
    after, changed_rates = _change(deployment.catalog, rates, changes)
    then = explain_deployment(_planned(after), statistics=changed_rates)
    now = explain_deployment(before, statistics=rates)
    return {
        "wan_bytes_per_s": {"now": _total(now), "then": _total(then)},
        "links": _pairs(now["links"], then["links"], ("from", "to"), ("bytes_per_s", "utilisation")),
        "views": _pairs(_views(now), _views(then), ("view",), ("answered_after_s", "fragment")),
        "fragments": _pairs(_fragments(now), _fragments(then), ("fragment",), ("sites", "serves")),
    }


def _planned(catalog: Catalog) -> Deployment:
    return Deployment.plan(replace(catalog, project=replace(catalog.project, state=_NO_STATE)))


def _total(answer: Mapping[str, Any]) -> float:
    return float(sum(link["bytes_per_s"] for link in answer["links"]))


def _views(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "view": view["view"],
            "answered_after_s": view["predicted"]["answered_after_s"],
            "fragment": ", ".join(s["fragment"] for s in view["sharing"].get("sides", (view["sharing"],))),
        }
        for view in answer["views"]
    ]


def _fragments(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for site in answer["sites"]:
        for fragment in site["fragments"]:
            known = found.setdefault(
                fragment["fragment"], {"fragment": fragment["fragment"], "sites": [], "serves": fragment["serves"]}
            )
            known["sites"].append(site["site"])
    return list(found.values())


def _pairs(
    now: Sequence[Mapping[str, Any]], then: Sequence[Mapping[str, Any]], keys: Sequence[str], values: Sequence[str]
) -> list[dict[str, Any]]:
    """Return what stands on either side, by its key: the values now and then, None where it is not there."""
    sides = [{tuple(row[key] for key in keys): row for row in rows} for rows in (now, then)]
    places = dict.fromkeys([*sides[0], *sides[1]])
    told = []
    for place in places:
        pair = [None if place not in side else {value: side[place][value] for value in values} for side in sides]
        told.append({**dict(zip(keys, place, strict=True)), "now": pair[0], "then": pair[1]})
    return told


# --- making the changes -----------------------------------------------------------------------------------------


def _change(catalog: Catalog, rates: Statistics, changes: Changes) -> tuple[Catalog, Statistics]:
    for text in changes.sites:
        catalog, rates = _add_site(catalog, rates, *_split(text, "NAME=LIKE, such as tokyo=asia"))
    for text in changes.links:
        catalog = replace(catalog, project=_change_link(catalog.project, text))
    for text in changes.rates:
        rates = _change_rate(rates, *_split(text, "STREAM=x2 or STREAM=5000"))
    views = [statement for path in changes.queries for statement in parse_file(path)]
    if not all(isinstance(view, View) for view in views):
        raise ConfigError("a query to try out is CREATE MATERIALIZED VIEW", where=", ".join(map(str, changes.queries)))
    return catalog.add(*views), rates


def _split(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ConfigError(f"cannot read {text!r}", hint=f"write {form}")
    return name.strip(), value.strip()


def _add_site(catalog: Catalog, rates: Statistics, name: str, like: str) -> tuple[Catalog, Statistics]:
    """Return the catalog and the rates with another site that is as one that is declared."""
    project = catalog.project
    if name in project.sites:
        raise ConfigError(f"there is a site {name!r} already", hint="choose another name")
    if like not in project.sites:
        raise ConfigError(f"there is no site {like!r}", hint=did_you_mean(like, project.sites))
    links = {(name, to): replace(link, origin=name) for (origin, to), link in project.links.items() if origin == like}
    changed = replace(
        project,
        sites={**project.sites, name: replace(project.sites[like], listen=None)},
        links={**project.links, **links},
    )
    streams = {
        n: replace(s, sites=(*(s.sites or ()), name)) if like in (s.sites or ()) else s
        for n, s in catalog.streams.items()
    }
    known = {
        n: replace(s, rows_per_s={**s.rows_per_s, name: s.rows_per_s[like]}) if like in s.rows_per_s else s
        for n, s in rates.streams.items()
    }
    return replace(catalog, project=changed, streams=streams), Statistics(known)


def _change_link(project: Project, text: str) -> Project:
    ends, wanted = _split(text, "FROM:TO=x0.5 or FROM:TO='32 KB/s'")
    origin, _, destination = ends.partition(":")
    link = project.link(origin, destination)
    changed = replace(link, bandwidth_bytes_per_s=_changed_bandwidth(link, wanted))
    return replace(project, links={**project.links, (origin, destination): changed})


def _changed_bandwidth(link: Link, wanted: str) -> float:
    if not wanted.startswith("x"):
        return parse_bandwidth(wanted)
    if link.bandwidth_bytes_per_s is None:
        raise ConfigError(
            f"the link {link.origin} -> {link.destination} has no declared bandwidth to multiply",
            hint="give a bandwidth, such as '2 MB/s'",
        )
    return link.bandwidth_bytes_per_s * _factor(wanted)


def _change_rate(rates: Statistics, stream: str, wanted: str) -> Statistics:
    if stream not in rates.streams:
        raise ConfigError(f"there is no stream {stream!r}", hint=did_you_mean(stream, rates.streams))
    known = rates.streams[stream]
    if wanted.startswith("x"):
        changed = {site: rate * _factor(wanted) for site, rate in known.rows_per_s.items()}
    else:
        changed = dict.fromkeys(known.rows_per_s, _number(wanted, "rows per second, such as 5000"))
    return Statistics({**rates.streams, stream: replace(known, rows_per_s=changed)})


def _factor(text: str) -> float:
    return _number(text[1:], "a factor, such as x2 or x0.5")


def _number(text: str, form: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"cannot read {text!r}", hint=f"write {form}")
    return number
