"""Statistics from what sites measure: measured numbers replace declared ones.

Only the selectivity of all conditions of a fragment together is measured: each of n conditions is given the n-th root,
and a column that several fragments have conditions on is given the mean. The distinct values of a column are as many
equally likely ones as would give the groups per slice that its fragments had: a column with a few frequent values
counts as few. They are those of the site with most of them, because statistics are per site. Estimated groups assume
that keys are equally likely and ignore compression, so they are too high; the bytes that the fragments of a stream have
really sent, over the estimate for the same records, are the stream's `wire_ratio`: it corrects bytes and changes no
comparison between fragments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from statistics import fmean
from typing import Any

from catchment.optimizer.normal_form.expressions import columns_of
from catchment.optimizer.sharing.demand import FragmentDemand
from catchment.optimizer.sharing.demand_estimate import short_name
from catchment.optimizer.sharing.equally_likely import likely_values
from catchment.optimizer.sharing.record_sample import RecordSample
from catchment.optimizer.sharing.statistics import Statistics
from catchment.timeline import SECOND_US

# A condition that has kept no record so far may keep some later: its selectivity is not assumed to be 0.
LEAST_SELECTIVITY = 1e-4


def apply_measurements(
    known: Statistics,
    fragments: Mapping[str, FragmentDemand],
    sites: Mapping[str, Mapping[str, Any]],
    samples: Mapping[str, Mapping[str, RecordSample]] | None = None,
) -> Statistics:
    """Return the statistics with what sites have measured in place of what is declared.

    `samples` are some records of each stream, by site.
    """
    streams = dict(known.streams)
    for name in {d.source.stream for d in fragments.values()} & streams.keys():
        mine = {f: d for f, d in fragments.items() if d.source.stream == name}
        reported = {site: s["rows_per_s"].get(name) for site, s in sites.items()}
        rates = {site: float(rate) for site, rate in reported.items() if rate is not None}
        streams[name] = replace(
            streams[name],
            rows_per_s={**streams[name].rows_per_s, **rates},
            distinct={**streams[name].distinct, **_distinct(mine, sites), **_alike(mine, sites)},
            selectivity={**streams[name].selectivity, **_selectivity(mine, sites)},
            wire_ratio=1.0,
            batches_per_s=_batches_per_s(name, sites),
            samples={} if samples is None else samples.get(name, {}),
        )
        ratio = _wire_ratio(Statistics(streams), mine, sites) or known.streams[name].wire_ratio
        streams[name] = replace(streams[name], wire_ratio=ratio)
    return Statistics(streams)


def _wire_ratio(
    estimates: Statistics, fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """Return the bytes sent over the bytes estimated for the records that were read; None before anything was sent."""
    sent = expected = 0.0
    for site, reported in sites.items():
        for name, read in reported["fragments"].items():
            rate = estimates.of(fragments[name].source.stream).rows_per_s.get(site) if name in fragments else None
            if rate and read["bytes"]:
                sent += read["bytes"]
                expected += estimates.partial_bytes_per_s(fragments[name], site) * read["rows"] / rate
    return sent / expected if expected else None


def _batches_per_s(stream: str, sites: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return the micro-batches per second of a stream's time at one site, on average over the sites that know it."""
    rates = [rate for s in sites.values() if (rate := s.get("batches_per_s", {}).get(stream)) is not None]
    return fmean(rates) if rates else None


def _readings(
    fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[FragmentDemand, Any]]:
    for site in sites.values():
        for name, read in site["fragments"].items():
            if name in fragments:
                yield fragments[name], read


def _distinct(fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the distinct values of keys that are plain columns, from fragments without conditions."""
    found: dict[str, float] = {}
    for demand, read in _readings(fragments, sites):
        for sql, count in read["distinct"].items():
            if columns_of(sql) == {sql} and not demand.conditions:
                column = short_name(sql, demand.source.stream)
                found[column] = max(found.get(column, 1.0), count)
    return found


def _alike(fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return how many equally likely values of a column would give the groups that were met.

    A fragment with one key tells it of that column; one with more tells it of a column whose others are known.
    """
    joint: dict[tuple[str, ...], float] = {}
    for site in sites.values():
        for name, read in site["fragments"].items():
            demand = fragments.get(name)
            rate = site["rows_per_s"].get(demand.source.stream) if demand is not None else None
            if demand is None or demand.conditions or demand.source.adds_rows or not rate or not read.get("groups"):
                continue
            if all(columns_of(k.sql) == {k.sql} for k in demand.keys):
                columns = tuple(sorted(short_name(k.sql, demand.source.stream) for k in demand.keys))
                slice_rows = rate * demand.slicing.period_us / SECOND_US / len(demand.slicing.cuts_us)
                found = likely_values(slice_rows, read["groups"] * slice_rows / read["rows"])
                joint[columns] = max(joint.get(columns, 1.0), found)
    known: dict[str, float] = {}
    for columns in sorted(joint, key=len):
        unknown = [c for c in columns if c not in known]
        if len(unknown) == 1:
            rest = prod(known[c] for c in columns if c in known)
            known[unknown[0]] = max(joint[columns] / rest, 1.0)
    return known


def _selectivity(fragments: Mapping[str, FragmentDemand], sites: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the selectivity of conditions, by the columns that they are on."""
    found: dict[str, list[float]] = {}
    for demand, read in _readings(fragments, sites):
        if demand.conditions and read["selectivity"] is not None and not demand.source.adds_rows:
            each = max(read["selectivity"], LEAST_SELECTIVITY) ** (1 / len(demand.conditions))
            for condition in demand.conditions:
                for column in columns_of(condition):
                    found.setdefault(short_name(column, demand.source.stream), []).append(each)
    return {column: fmean(values) for column, values in found.items()}
