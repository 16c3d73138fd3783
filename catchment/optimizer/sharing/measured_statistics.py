"""From what sites measured to what the planner knows: measured numbers take the place of declared ones.

A selectivity is known of a fragment's conditions together; where there are several, each is given its root, and a
column that several fragments tell of the mean. Distinct values of a column are those of the site with most of them,
since statistics speak of one site. Estimates of groups take keys for equally likely and know nothing of compression, so
they are too high; what the fragments of a stream have really sent, over what is estimated for the same records, is its
`wire_ratio`, one for all of them: it makes bytes true and changes no comparison between fragments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from catchment.optimizer.normal_form.expressions import columns_of
from catchment.optimizer.sharing.demand import FragmentDemand
from catchment.optimizer.sharing.statistics import Statistics, short_name

# A condition that kept nothing so far may keep something later: it is not believed to be impossible.
LEAST_SELECTIVITY = 1e-4


def measured(
    known: Statistics, fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]
) -> Statistics:
    """`known` with what the sites' statistics say of the streams that they read."""
    streams = dict(known.streams)
    for name in {d.source.stream for d in fragments.values()} & streams.keys():
        mine = {f: d for f, d in fragments.items() if d.source.stream == name}
        told = {site: s["rows_per_s"].get(name) for site, s in sites.items()}
        rates = {site: float(rate) for site, rate in told.items() if rate is not None}
        streams[name] = replace(
            streams[name],
            rows_per_s={**streams[name].rows_per_s, **rates},
            distinct={**streams[name].distinct, **_distinct(mine, sites)},
            selectivity={**streams[name].selectivity, **_selectivity(mine, sites)},
            wire_ratio=1.0,
        )
        ratio = _wire_ratio(Statistics(streams), mine, sites) or known.streams[name].wire_ratio
        streams[name] = replace(streams[name], wire_ratio=ratio)
    return Statistics(streams)


def _wire_ratio(
    estimates: Statistics, fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """Return bytes that left over bytes estimated for the records that were read; None before anything has left."""
    sent = expected = 0.0
    for site, told in sites.items():
        for name, read in told["fragments"].items():
            rate = estimates.of(fragments[name].source.stream).rows_per_s.get(site) if name in fragments else None
            if rate and read["bytes"]:
                sent += read["bytes"]
                expected += estimates.partials(fragments[name], site) * read["rows"] / rate
    return sent / expected if expected else None


def _readings(
    fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[FragmentDemand, Any]]:
    for site in sites.values():
        for name, read in site["fragments"].items():
            if name in fragments:
                yield fragments[name], read


def _distinct(fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Of keys that are plain columns, over fragments that leave no record out."""
    found: dict[str, float] = {}
    for demand, read in _readings(fragments, sites):
        for sql, count in read["distinct"].items():
            if columns_of(sql) == {sql} and not demand.conditions:
                column = short_name(sql, demand.source.stream)
                found[column] = max(found.get(column, 1.0), count)
    return found


def _selectivity(fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for demand, read in _readings(fragments, sites):
        if demand.conditions and read["selectivity"] is not None and not demand.source.lookups:
            each = max(read["selectivity"], LEAST_SELECTIVITY) ** (1 / len(demand.conditions))
            for condition in demand.conditions:
                for column in columns_of(condition):
                    found.setdefault(short_name(column, demand.source.stream), []).append(each)
    return {column: fmean(values) for column, values in found.items()}
