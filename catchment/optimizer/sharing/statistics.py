"""What is known about streams (rates, sizes, distinct values, selectivities), and what follows for a demand.

Declared in `statistics.toml` beside `catchment.toml`:

    [streams.edits]
    rows_per_s = 1200          # at all its sites together
    row_bytes = 400            # size of one raw record
    wire_ratio = 0.2           # bytes sent per estimated byte of partials: compression, skew; absent: 1
    [streams.edits.share]      # of the records at each site; absent: equal shares
    ohio = 0.3
    [streams.edits.distinct]   # distinct values of a column, in the long run, at one site
    page = 20000
    [streams.edits.selectivity] # the share of the records that a condition on a column keeps
    bot = 0.3

A column of a look-up table is named TABLE.COLUMN. What is not declared is guessed
(`catchment.optimizer.sharing.demand_estimate` has the estimates).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catchment.errors import ConfigError, PlanError
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery, width_of
from catchment.optimizer.sharing.demand_estimate import DemandEstimate, StreamStatistics
from catchment.project import option_kinds as kinds
from catchment.project.config import Project
from catchment.project.options import Option, OptionKind, did_you_mean, read_options
from catchment.project.toml_file import TomlFile
from catchment.query.catalog import Catalog
from catchment.query.sql.connectors import GeneratorConnector
from catchment.query.sql.statements import Stream
from catchment.timeline import SECOND_US

FILE = "statistics.toml"

MAX_ESTIMATES = 200_000  # that are remembered; then all are forgotten
DEFAULT_ROWS_PER_S = 1_000.0  # at each site of a stream about which nothing is declared or measured

_TABLE = OptionKind("a table of numbers", dict)
STREAM = (
    Option("rows_per_s", kinds.number(open_low=False), required=True),
    Option("row_bytes", kinds.number(), required=True),
    Option("wire_ratio", kinds.number()),
    Option("share", _TABLE),
    Option("distinct", _TABLE),
    Option("selectivity", _TABLE),
)


@dataclass(frozen=True)
class Statistics:
    """What is known about all streams.

    Estimates are remembered: where thousands of queries are planned, few differ in more than the sites that they name.
    """

    streams: Mapping[str, StreamStatistics]
    _estimates: dict[tuple[str, float, int], float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def of(self, stream: str) -> StreamStatistics:
        """Return the statistics of a stream, or raise an error where there are none."""
        if stream not in self.streams:
            raise PlanError(
                f"no rates are declared for stream {stream!r}",
                hint=f"add to {FILE}: [streams.{stream}] with rows_per_s and row_bytes",
            )
        return self.streams[stream]

    def raw_bytes_per_s(self, stream: str, site: str) -> float:
        """Return the bytes per second of raw records at a site."""
        known = self.of(stream)
        return known.rows_per_s.get(site, 0.0) * known.row_bytes

    def partial_bytes_per_s(self, demand: FragmentDemand, site: str) -> float:
        """Return the bytes per second of a demand's partials at a site: each group of each slice once."""
        return self.merged_bytes_per_s(demand, (site,))

    def merged_bytes_per_s(self, demand: FragmentDemand, sites: Sequence[str] | None = None) -> float:
        """Return the bytes per second of a demand's partials after those of some sites (or of all) are merged."""
        known = self.of(demand.source.stream)
        merged = demand.source.sites if sites is None else tuple(sites)
        sample = known.sample_of(merged)
        rows_per_s = known.rows_at(merged)
        key = demand.content, rows_per_s, id(sample)  # samples are kept by what is known of their stream
        if key not in self._estimates:
            if len(self._estimates) >= MAX_ESTIMATES:
                self._estimates.clear()
            self._estimates[key] = DemandEstimate(demand, known, sample).bytes_per_s(rows_per_s)
        return self._estimates[key]

    def answer_bytes_per_s(self, query: SharedQuery) -> float:
        """Return the bytes per second of a query's answers."""
        known = self.of(query.demand.source.stream)
        sites = query.demand.source.sites
        size_s = query.window.size_us / SECOND_US
        slide_s = query.window.slide_us / SECOND_US
        estimate = DemandEstimate(query.demand, known, known.sample_of(sites))
        return estimate.groups(known.rows_at(sites) * size_s) / slide_s * query.result_bytes

    def sent_bytes_per_s(self, demand: FragmentDemand) -> float:
        """Return the bytes per second of a demand's partials at all its sites together."""
        known = self.of(demand.source.stream)
        if known.samples:
            return sum(self.partial_bytes_per_s(demand, site) for site in demand.source.sites)
        like = {known.rows_at((site,)): site for site in demand.source.sites}  # sites of one rate send alike
        rates = Counter(known.rows_at((site,)) for site in demand.source.sites)
        return sum(count * self.partial_bytes_per_s(demand, like[rate]) for rate, count in rates.items())


def load_statistics(project: Project, catalog: Catalog) -> Statistics:
    """Return the statistics that a project declares; a generator knows its own rate."""
    path = project.folder / FILE
    declared = _read_file(path, catalog) if path.is_file() else {}
    generated = {
        s.name: StreamStatistics(dict.fromkeys(s.sites or (), s.connector.rows_per_s), _raw_bytes(s))
        for s in catalog.streams.values()
        if isinstance(s.connector, GeneratorConnector)
    }
    return Statistics({**generated, **declared})


def fill_with_guesses(known: Statistics, catalog: Catalog) -> Statistics:
    """Return the statistics with guesses for the other streams: enough to compare ways of sharing."""
    guessed = {
        s.name: StreamStatistics(dict.fromkeys(s.sites or (), DEFAULT_ROWS_PER_S), _raw_bytes(s))
        for s in catalog.streams.values()
    }
    return Statistics({**guessed, **known.streams})


def _raw_bytes(stream: Stream) -> float:
    return float(sum(width_of(c.type) for c in stream.columns))


def _read_file(path: Path, catalog: Catalog) -> dict[str, StreamStatistics]:
    file = TomlFile.load(path)
    for name in file.tables:
        if name != "streams":
            raise ConfigError(f"there is no table [{name}]", where=file.at(None, name), hint="possible: [streams.NAME]")
    return {name: _read_stream(file, name, given, catalog) for name, given in file.tables.get("streams", {}).items()}


def _read_stream(file: TomlFile, name: str, given: Any, catalog: Catalog) -> StreamStatistics:
    header = f"streams.{name}"
    if name not in catalog.streams:
        raise ConfigError(
            f"there is no stream {name!r}", where=file.at(header, None), hint=did_you_mean(name, catalog.streams)
        )
    stream = catalog.streams[name]
    read = read_options(given, STREAM, what=f"[{header}]", where=lambda key: file.at(header, key))
    columns = [c.name for c in stream.columns]
    columns += [f"{t.name}.{c.name}" for t in catalog.tables.values() for c in t.columns]
    tables = {
        key: _numbers(file, f"{header}.{key}", read[key] or {}, possible, most)
        for key, possible, most in (
            ("share", stream.sites or (), 1.0),
            ("distinct", columns, math.inf),
            ("selectivity", columns, 1.0),
        )
    }
    shares = tables["share"] or {site: 1 / len(stream.sites or ("",)) for site in stream.sites or ()}
    if tables["share"] and not math.isclose(sum(shares.values()), 1.0, rel_tol=1e-3):
        raise ConfigError(
            f"the shares of stream {name!r} add up to {sum(shares.values()):g}",
            where=file.at(f"{header}.share", None),
            hint="they are parts of 1",
        )
    rates = {site: read["rows_per_s"] * shares.get(site, 0.0) for site in stream.sites or ()}
    ratio = read["wire_ratio"] or 1.0
    return StreamStatistics(rates, read["row_bytes"], tables["distinct"], tables["selectivity"], ratio)


def _numbers(file: TomlFile, table: str, given: dict[str, Any], possible: Any, most: float) -> dict[str, float]:
    known = [Option(name, kinds.number(high=most)) for name in possible]
    read = read_options(given, known, what=f"[{table}]", where=lambda key: file.at(table, key))
    return {name: float(value) for name, value in read.items() if value is not None}
