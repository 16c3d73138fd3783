"""The sites that a view names (`sites = 'us,eu'`): its streams are read there, and it waits for no other site.

A view that is read through (one without GROUP BY) may name sites too; what reads it then reads those that both name. A
site that was retired may still be named: the view goes on over the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from catchment.errors import QueryError
from catchment.project.options import did_you_mean
from catchment.query.catalog import Catalog
from catchment.query.sql.statements import Stream, View


@dataclass(frozen=True)
class StreamAtSites(Stream):
    """A stream as a view reads it that names sites."""

    named_sites: tuple[str, ...] = field(kw_only=True)


def common_sites(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the sites that are in both of two choices, each of which may be all sites (None)."""
    if one is None or other is None:
        return other if one is None else one
    return tuple(site for site in one if site in other)


def read_at_sites(stream: Stream, sites: tuple[str, ...] | None, view: View, catalog: Catalog) -> Stream:
    """Return a stream as it is read at some sites of those where it is born."""
    if sites is None:
        return stream
    for site in sites:
        if site not in catalog.project.sites and site not in catalog.retired_sites:
            raise QueryError(
                f"view {view.name!r} names the undeclared site {site!r}",
                where=view.where,
                hint=did_you_mean(site, catalog.project.sites),
            )
    born = tuple(stream.sites or ())
    read = tuple(site for site in born if site in sites)
    if not read:
        named = ", ".join(sites) or "none"
        retired = [site for site in sites if site in catalog.retired_sites]
        raise QueryError(
            f"view {view.name!r} reads stream {stream.name!r} at {named} only, where it is not born",
            where=view.where,
            hint=f"bring {', '.join(retired)} back with catchment sites add, or drop the view"
            if retired
            else f"{stream.name} is born at {', '.join(born)}",
        )
    own = {f.name: getattr(stream, f.name) for f in fields(Stream)}
    return StreamAtSites(**own | {"sites": read}, named_sites=tuple(sorted(sites)))


def check_named_sites(view: View, streams: Iterable[Stream], catalog: Catalog) -> None:
    """Refuse a view that names a site where none of its streams is born."""
    read = list(dict.fromkeys(stream.name for stream in streams))
    born = dict.fromkeys(site for name in read for site in catalog.streams[name].sites or ())
    for site in view.options.sites or ():
        if site not in born and site not in catalog.retired_sites:
            raise QueryError(
                f"view {view.name!r} names the site {site!r}, where no stream that it reads is born",
                where=view.where,
                hint=f"leave it out: {', '.join(read)} is born at {', '.join(born)}",
            )
