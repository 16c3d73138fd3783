"""Projects and records drawn from a seed: sites, links, streams, views and what arrives, as the features ask for."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.arrays import Ints
from catchment.query.catalog import Catalog
from catchment.query.sql.statements import Stream
from catchment.testing.campaigns.features import EVERYTHING, Feature, Features
from catchment.testing.simulated.records import ArrivingRecords, Workload
from catchment.timeline import SECOND_US

BEGIN_US = 1_767_225_600 * SECOND_US  # 2026-01-01
SPAN_US = 30 * SECOND_US  # event times of the records
# Drawn apart, so that a seed draws of everything else what it always did.
LATER = (
    Feature.OVERLOAD,
    Feature.PAST,
    Feature.SHAPES,
    Feature.RESTORED,
    Feature.LOST,
    Feature.UPGRADE,
    Feature.MESH,
    Feature.SITES,
    Feature.PROGRESS,
    Feature.SINKS,
    Feature.ROUNDS,
    Feature.REROUTE,
)
STARTS = ("start = 'all'", "start = '8 s'", "start = '2026-01-01 00:00:05'")
TIGHT_SHARE = 0.3  # of the projects whose center may hold almost nothing for open windows
PROMISES = ("", "slack = 'fixed:0'", "slack = 'fixed:3'", "slack = 'mp-k-slack'", "max_error = 0.3, confidence = 0.8")
INDIRECT_PROMISE = "max_error = 0.2, confidence = 0.7"  # of joins and explode: bounds after three windows
THIRD_SHARE = 0.3  # of the joins that join a third stream
SINK = "k0"  # a site that has no stream, at which views are answered
NAMED_SHARE = 0.6  # of the views that name sites, where some do
PROMISED_SHARE = 0.8  # of the views over a stream that is shed, where views have contracts
POLICIES = ("batching", "streaming", "spillway", "hybrid:0.25", "lazy-empirical")
PAGES = ("a", "b", "c", "ä")
STATING_SHARE = 0.4  # of the records, where sources state their progress
MARKER_SHARE = 0.5  # of the statements that are made once more, by a marker
SECTIONS = {"a": "north", "b": "south", "c": "north"}  # ä is in no section

_CALLS = (
    "count(*) AS n",
    "sum(bytes) AS bytes",
    "min(ms) AS low",
    "max(ms) AS high",
    "avg(bytes) AS mean",
    "count(ms) AS known",
    "sum(ms) AS ms_sum",
    "count(*) FILTER (WHERE bytes > 20) AS big",
    "approx_count_distinct(user) AS users",
)
_BOUNDED_CALLS = ("count(*) AS n", "sum(bytes) AS bytes", "avg(bytes) AS mean")
_CONDITIONS = ("", "", "WHERE bytes > 5", "WHERE page <> 'c'", "WHERE user IN (1, 2) OR bytes IS NULL")
_KEYS = (("page",), ("user",), ("page", "user"), ())


_FUNCTIONS = """import catchment
import pyarrow.compute as pc


@catchment.function(takes=["DOUBLE", "BIGINT"], returns="DOUBLE")
def per_byte(ms, size):
    return pc.divide(ms, pc.cast(pc.add(size, 1), "float64"))


@catchment.aggregate(takes=["DOUBLE"], state={"low": "DOUBLE", "high": "DOUBLE"}, returns="DOUBLE")
class reach:
    def lift(self, values):
        return values, values

    def combine(self, left, right):
        return pc.min_element_wise(left.low, right.low), pc.max_element_wise(left.high, right.high)

    def lower(self, state):
        return pc.subtract(state.high, state.low)
"""


@dataclass(frozen=True)
class GeneratedProject:
    """A project folder that was written, and the views that may be submitted later."""

    folder: Path
    sites: tuple[str, ...]
    relays: tuple[str, ...]
    submissions: tuple[str, ...]
    features: Features


def draw_features(chance: random.Random) -> Features:
    """Draw which features are enabled: each with one chance, which differs by seed."""
    share = chance.choice((0.1, 0.25, 0.4, 0.6))
    drawn = {f for f in Feature if f not in LATER and chance.random() < share}
    apart = random.Random()
    apart.setstate(chance.getstate())
    return frozenset(drawn | {f for f in LATER if apart.random() < share})


def write_project(folder: Path, chance: random.Random, features: Features = EVERYTHING) -> GeneratedProject:
    """Write a project that has these features into a folder."""
    return _Writer(folder, chance, features).write()


@dataclass
class _Writer:
    folder: Path
    chance: random.Random
    features: Features
    sites: tuple[str, ...] = field(init=False)
    relays: tuple[str, ...] = field(init=False)

    def write(self) -> GeneratedProject:
        self.sites = tuple(f"s{i}" for i in range(self.chance.choice((2, 2, 2, 3, 4))))
        self.relays = tuple(f"r{i}" for i in range(self.chance.randint(1, 2))) if self._has(Feature.RELAY) else ()
        (self.folder / "queries").mkdir(parents=True)
        (self.folder / "catchment.toml").write_text(self._toml())
        named = [
            "hits",
            *["load"] * self._has(Feature.SHED),
            *["busy"] * self._has(Feature.OVERLOAD),
            *["views"] * self._has(Feature.JOIN),
        ]
        streams = [self._stream(name, shed=name in ("load", "busy")) for name in named]
        if self._has(Feature.LOOKUP):
            lines = "".join(f"{page},{section}\n" for page, section in SECTIONS.items())
            (self.folder / "sections.csv").write_text("page,section\n" + lines)
            options = "path = 'sections.csv', format = 'csv'"
            if len(self.sites) == 2:  # then windows say in which version of it records were looked up
                options += ", refresh = '1 minute'"
            streams.append(f"CREATE TABLE sections (page STRING, section STRING) WITH ({options});")
        views = map(self._name_sinks, map(self._name_sites, self._views()))
        (self.folder / "queries" / "all.sql").write_text("\n".join([*streams, *views]) + "\n")
        if self._has(Feature.SHAPES):
            (self.folder / "functions.py").write_text(_FUNCTIONS)
        is_declared = self.chance.random() < 0.5  # then a view that is submitted may widen what runs
        if is_declared and not self._has(Feature.THROTTLE):  # a contract that a slow link could not keep is refused
            rates = [f"[streams.{name}]\nrows_per_s = {self.chance.choice((1, 100))}\nrow_bytes = 40" for name in named]
            (self.folder / "statistics.toml").write_text("\n".join(rates) + "\n")
        submissions = tuple(map(self._name_sinks, map(self._name_sites, self._submissions())))
        return GeneratedProject(self.folder, self.sites, self.relays, submissions, self.features)

    def _submissions(self) -> Iterator[str]:
        if self._has(Feature.SUBMIT):
            yield from (self._view(f"late_{i}", "hits") for i in range(2))
        if self._has(Feature.PAST):
            start = self.chance.choice((*STARTS, STARTS[0]))
            yield self._view("late_past", "load" if self._has(Feature.SHED) else "hits", _BOUNDED_CALLS, start)
            if self._has(Feature.CONTRACT):
                promise = f"max_error = 0.1, confidence = 0.9, {start}"
                yield self._view("late_promised", "hits", _BOUNDED_CALLS, promise)
            if self._has(Feature.JOIN):
                yield self._join("late_joined", start)
        if self._has(Feature.SUBMIT) and self._has(Feature.SHAPES):
            chance = self._own_chance
            for view in chance.sample(self._shapes(chance), 2):
                yield view.replace("MATERIALIZED VIEW ", "MATERIALIZED VIEW late_", 1)

    def _shapes(self, chance: random.Random) -> list[str]:
        """Return views of other shapes than one stream in windows of one size."""
        keys = chance.choice(((), ("page",), ("user",)))
        own = "".join(f", {key}" for key in keys)
        gap_s = chance.choice((1, 2, 3))
        step_s, steps = chance.choice(((1, 4), (2, 5), (3, 2)))
        unit = chance.choice(("day", "week", "month"))
        select = f"SELECT window.start, window.end{own}, count(*) AS n, sum(bytes) AS bytes FROM hits"
        where = chance.choice(_CONDITIONS)
        outer = chance.choice(("", "OUTER "))
        is_promised = self._has(Feature.CONTRACT) and random.Random(select + where).random() < PROMISED_SHARE
        promise = f"WITH ({INDIRECT_PROMISE}) " if is_promised else ""
        return [
            f"CREATE MATERIALIZED VIEW visits AS {select} {where} GROUP BY session_window(ts, '{gap_s} s'){own};",
            f"CREATE MATERIALIZED VIEW growing AS {select} {where} "
            f"GROUP BY cumulate(ts, '{step_s} s', '{step_s * steps} s'){own};",
            f"CREATE MATERIALIZED VIEW calendar AS {select} {where} "
            f"GROUP BY calendar_window(ts, '{unit}', 'UTC'){own};",
            f"CREATE MATERIALIZED VIEW parts {promise}AS SELECT window.start, place, part, count(*) AS n, "
            "sum(bytes) AS bytes FROM hits "
            f"LATERAL VIEW {outer}posexplode(array(page, CAST(user AS STRING))) p AS place, part {where} "
            "GROUP BY window(ts, '6 s'), place, part;",
            "CREATE MATERIALIZED VIEW own AS SELECT window.start, page, reach(ms) AS reach, "
            "max(per_byte(ms, bytes)) AS most, per_byte(max(ms), sum(bytes)) AS share "
            f"FROM hits {where} GROUP BY window(ts, '6 s', '3 s'), page;",
            "CREATE MATERIALIZED VIEW minutes AS SELECT window.start, max(n) AS most, count(*) AS rows "
            "FROM v0 GROUP BY window(start, '60 s');",
        ]

    @property
    def _own_chance(self) -> random.Random:
        """A chance of its own, so that a seed draws of everything else what it always did."""
        return random.Random(f"{sorted(self.features)} {self.sites} shapes")

    def _has(self, feature: Feature) -> bool:
        return feature in self.features

    def _toml(self) -> str:
        chance = self.chance
        horizon_s = chance.choice((5, 15, 60, 600))
        lines = ['[project]\nname = "simulated"\ncenter = "center"\n[sites.center]']
        lines += [self._site(number, name) for number, name in enumerate((*self.sites, *self.relays))]
        lines += [f"[sites.{SINK}]"] if self._sink == SINK else []
        routes = list(self._routes())
        around = self._links_around(routes)
        for link in self._links_to_sink(routes + around):
            lines.append(f'[[links]]\nfrom = "{link[0]}"\nto = "{link[1]}"')
        for origin, destination in routes + around:
            lines.append(
                f'[[links]]\nfrom = "{origin}"\nto = "{destination}"\nlatency = "{chance.choice((0, 20, 300))} ms"'
            )
            if self._has(Feature.THROTTLE):
                lines.append(
                    f'bandwidth = "{chance.choice((2, 5, 50))} KB/s"\noutbox_max = "{chance.choice((1, 3, 100))} KB"'
                )
        for origin, destination in self._other_links({*routes, *around, *self._links_to_sink(routes + around)}):
            lines.append(f'[[links]]\nfrom = "{origin}"\nto = "{destination}"\nlatency = "900 ms"')
        if self.features & {Feature.SKEW, Feature.STEP_BACK}:
            jump = 'max_jump = "1 h"\n'  # so that no record is too far ahead of a clock that is behind
        else:
            jump = ""
        policy = chance.choice(POLICIES) if self._has(Feature.POLICY) else "batching"
        lines.append(
            f'[defaults]\n{jump}trigger = "1 s"\nslack = "{chance.choice((0, 1, 3))} s"\n'
            f'repair_horizon = "{horizon_s} s"\n'
            f'repair_spread = "{chance.choice((0, 5))} s"\nrepair_after = "{chance.choice((1, 5))} s"\n'
            f'freshness = "{chance.choice((3, 10, 30))} s"\nrelay_wait = "{chance.choice((0, 2, 5))} s"\n'
            f'policy = "{policy}"\nsharing = "{chance.choice(("none", "strict", "full", "max"))}"'
        )
        # Of its own chance, so that everything else that a seed draws stays as it is.
        if random.Random(f"{sorted(self.features)} {self.sites}").random() < TIGHT_SHARE:
            lines.append('[limits]\nopen_state = "1 KB"')
        return "\n".join(lines) + "\n"

    def _site(self, number: int, name: str) -> str:
        return f"[sites.{name}]" + (f'\nlisten = "127.0.0.1:{9000 + number}"' if self._has(Feature.MESH) else "")

    def _links_around(self, routes: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return links by which every site can go around its own, over the next one."""
        if not self._has(Feature.MESH):
            return []
        hops = dict(routes)
        after = zip(self.sites, (*self.sites[1:], self.sites[0]), strict=True)
        wanted = [link for site, other in after for link in ((site, other), (other, hops[site]))]
        return [link for link in dict.fromkeys(wanted) if link not in routes]

    def _other_links(self, known: set[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return links that no declared route takes, by which sites and relays may be moved to other routes."""
        if not self._has(Feature.REROUTE):
            return []
        ends = (*self.sites, *self.relays)
        wanted = [(site, end) for site in ends for end in (*ends, "center") if site != end]
        chance = random.Random(f"{sorted(self.features)} {self.sites} other routes")
        return [link for link in wanted if link not in known and (link[1] == "center" or chance.random() < 0.5)]

    def _routes(self) -> Iterator[tuple[str, str]]:
        chain = [*self.relays, "center"]
        yield from pairwise(chain)
        for site in self.sites[1:]:
            yield site, self.chance.choice(chain)
        yield self.sites[0], self.chance.choice(self.relays or chain)

    def _stream(self, name: str, *, shed: bool) -> str:
        options = [f"event_time = 'ts', sites = '{','.join(self.sites)}', path = 'data/{name}/{{site}}'"]
        options += ["shed = true"] if shed else []
        options += ["source = 'user'"] if self.chance.random() < 0.5 else []
        columns = "ts TIMESTAMP, page STRING, user INT, bytes BIGINT, ms DOUBLE"
        if self._has(Feature.PROGRESS):
            columns += ", done TIMESTAMP"
            options.append("progress_column = 'done'")
        return f"CREATE STREAM {name} ({columns}) WITH ({', '.join(options)});"

    def _views(self) -> Iterator[str]:
        for number in range(self.chance.choice((1, 1, 2, 3))):
            yield self._view(f"v{number}", "hits")
        if self._has(Feature.CONTRACT):
            promised = self._view("promised", "hits", calls=_BOUNDED_CALLS, options=self._promise())
            yield promised
            yield from self._promised_otherwise(promised)
        if self._has(Feature.SHED):
            is_promised = self._has(Feature.CONTRACT) and self.chance.random() < PROMISED_SHARE
            yield self._view("sampled", "load", calls=_BOUNDED_CALLS, options=self._promise() if is_promised else "")
        if self._has(Feature.OVERLOAD):
            yield self._view("tolerant", "busy")
            yield self._view("patient", "busy", options=f"weight = {self.chance.choice((0.5, 2))}")
        if self._has(Feature.LOOKUP):
            yield (
                f"CREATE MATERIALIZED VIEW looked AS SELECT window.start, section, count(*) AS n, sum(bytes) AS bytes "
                f"FROM hits {self.chance.choice(('', 'LEFT '))}JOIN sections ON hits.page = sections.page "
                f"GROUP BY {self._window('ts')}, section;"
            )
        if self._has(Feature.JOIN):
            yield self._join("joined")
        if self._has(Feature.SHAPES):
            chance = self._own_chance
            yield from chance.sample(self._shapes(chance), chance.randint(1, 3))
        if self._has(Feature.ROUNDS):
            yield self._estimated()

    def _estimated(self) -> str:
        """Return a view whose rows have more values than it may keep: estimates, until a second round."""
        chance = random.Random(f"{sorted(self.features)} {self.sites} rounds")
        keys = chance.choice((("page",), (), ("page", "user")))
        window = chance.choice(("window(ts, '10 s')", "window(ts, '10 s')", "window(ts, '12 s', '6 s')"))
        calls = ["median(bytes) AS middle", "count(DISTINCT bytes) AS sizes", "percentile(ms, array(0.1, 0.9)) AS ends"]
        selected = ", ".join(["window.start", *keys, "count(*) AS n", *chance.sample(calls, chance.randint(1, 3))])
        return (
            f"CREATE MATERIALIZED VIEW estimated WITH (max_distinct = {chance.choice((2, 5))}) AS SELECT {selected} "
            f"FROM hits {chance.choice(_CONDITIONS)} GROUP BY {', '.join([window, *keys])};"
        )

    def _join(self, name: str, options: str = "") -> str:
        """Return a join; of which kind is drawn of a chance of its own, so that seeds draw what they always did."""
        inner = (
            f"CREATE MATERIALIZED VIEW {name} {self._with(options)} AS SELECT window.start, a.page, count(*) AS n, "
            f"sum(a.bytes) AS bytes, sum(a.bytes * b.bytes) AS both FROM hits a JOIN views b ON a.user = b.user "
            f"GROUP BY {self._window('b.ts')}, a.page;"
        )
        chance = random.Random(inner)
        kind = chance.choice(("", "LEFT ", "RIGHT ", "FULL "))
        if self._has(Feature.CONTRACT) and chance.random() < PROMISED_SHARE:
            inner = _with_option(inner, INDIRECT_PROMISE)
        if chance.random() < THIRD_SHARE:
            third = chance.choice(("", "LEFT "))
            inner = inner.replace(
                " GROUP BY ", f" {third}JOIN hits c ON b.user = c.user AND a.page = c.page GROUP BY ", 1
            )
        return inner.replace(" JOIN ", f" {kind}JOIN ", 1)

    def _name_sites(self, view: str) -> str:
        """Return a view that may name some of its sites, by a chance of its own; one that reads a view has none."""
        chance = random.Random(f"{view} {self.sites}")
        if not self._has(Feature.SITES) or "FROM v0" in view or chance.random() < 1 - NAMED_SHARE:
            return view
        return _with_option(
            view, f"sites = '{','.join(chance.sample(self.sites, chance.randint(1, len(self.sites))))}'"
        )

    @property
    def _sink(self) -> str | None:
        """The site beside the center at which views are answered, if there is one: one of its own, or a relay."""
        chance = random.Random(f"{sorted(self.features)} {self.sites} sink")
        return chance.choice((SINK, *self.relays[:1])) if self._has(Feature.SINKS) else None

    def _name_sinks(self, view: str) -> str:
        """Return a view that may be answered elsewhere too, or only there; what others read is answered everywhere."""
        sink = self._sink
        if sink is None or "FROM v0" in view:
            return view
        chance = random.Random(f"{view} sink")
        is_read = "VIEW v0 " in view
        named = f"center,{sink}" if is_read else chance.choice((None, sink, f"center,{sink}", f"{sink},center"))
        return view if named is None else _with_option(view, f"sink = '{named}'")

    def _links_to_sink(self, routes: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return links by which every site reaches the sink: some by themselves, the others through the center."""
        sink = self._sink
        if sink is None:
            return []
        chance = random.Random(f"{sorted(self.features)} {self.sites} links to a sink")
        direct = [(site, sink) for site in self.sites if chance.random() < 0.6]
        return [link for link in dict.fromkeys((*direct, ("center", sink))) if link not in routes]

    def _promised_otherwise(self, view: str) -> Iterator[str]:
        """Yield the same view with other contracts, or none: their fragment is one, and each has marks of its own.

        They are drawn of a chance of their own, so that a seed draws of everything else what it always did.
        """
        chance = random.Random(view)
        head, _, body = view.partition(" WITH (")
        options, _, query = body.partition(") AS ")
        rest = ", ".join(o for o in options.split(", ") if not o.startswith(("max_error", "confidence")))
        for number, promise in enumerate(chance.sample(PROMISES, chance.choice((0, 1, 2)))):
            given = ", ".join(o for o in (promise, rest) if o)
            named = head.replace(" promised", f" promised_{number}")
            yield f"{named} WITH ({given}) AS {query}" if given else f"{named} AS {query}"

    def _promise(self) -> str:
        return f"max_error = {self.chance.choice((0.05, 0.2))}, confidence = 0.9"

    def _view(self, name: str, stream: str, calls: tuple[str, ...] = _CALLS, options: str = "") -> str:
        keys = self.chance.choice(_KEYS)
        chosen = [calls[0], *self.chance.sample(calls[1:], self.chance.randint(0, 2))]
        where = self.chance.choice(_CONDITIONS)
        grouped = ", ".join([self._window("ts"), *keys])
        selected = ", ".join(["window.start", *keys, *chosen])
        given = self._with(options)
        return f"CREATE MATERIALIZED VIEW {name} {given} AS SELECT {selected} FROM {stream} {where} GROUP BY {grouped};"

    def _with(self, options: str) -> str:
        given = [options] if options else []
        if self._has(Feature.EARLY) and self.chance.random() < 0.7:
            given.append("emit_early = '2 s'")
        return f"WITH ({', '.join(given)})" if given else ""

    def _window(self, column: str) -> str:
        size_s = self.chance.choice((4, 6, 10, 10))
        if self._has(Feature.SLIDING) and self.chance.random() < 0.5:
            return f"window({column}, '{size_s} seconds', '{size_s // 2} seconds')"
        return f"window({column}, '{size_s} seconds')"


def _with_option(view: str, option: str) -> str:
    """Return a statement that makes a view with one option more."""
    head, _, query = view.partition(" AS SELECT ")
    head, has_options, options = head.partition(" WITH (")
    given = f"{option}, {options.removesuffix(')')}" if has_options else option
    return f"{head.rstrip()} WITH ({given}) AS SELECT {query}"


def draw_workload(catalog: Catalog, chance: random.Random, features: Features = EVERYTHING) -> Workload:
    """Draw the records of every stream at every site, and when they arrive."""
    numbers = np.random.default_rng(chance.randrange(2**32))
    workload = {}
    for stream in catalog.streams.values():
        for site in stream.sites or ():
            count = int(numbers.choice([8, 20, 50]))
            records, arrival_us = _draw_records(numbers, count, features)
            if stream.progress_column is not None:
                apart = np.random.default_rng(zlib.crc32(f"{stream.name} {site} {count}".encode()))
                records, arrival_us = _state_progress(stream, records, arrival_us, apart)
            workload[stream.name, site] = ArrivingRecords.of(stream, site, records, arrival_us)
    return workload


def _draw_records(
    numbers: np.random.Generator, count: int, features: Features
) -> tuple[pa.Table, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    times_us = np.sort(BEGIN_US + numbers.integers(0, SPAN_US, count))
    arrival_us = times_us + numbers.integers(0, SECOND_US, count)
    if Feature.LATE in features:
        late = numbers.random(count) < 0.15
        arrival_us = arrival_us + late * numbers.integers(0, 20 * SECOND_US, count)
    if Feature.STRAY in features:
        stray = numbers.random(count) < 0.03
        far_us = numbers.choice([7200 * SECOND_US, 3 * 86400 * SECOND_US, 400 * 86400 * SECOND_US], count)
        times_us = times_us + stray * far_us
    absent = numbers.random(count) < (0.05 if Feature.BAD in features else 0.0)
    table = pa.table(
        {
            "ts": pa.array(times_us, mask=absent).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array([PAGES[i] for i in numbers.integers(0, len(PAGES), count)]),
            "user": pa.array(numbers.integers(1, 4, count), pa.int32(), mask=numbers.random(count) < 0.05),
            "bytes": pa.array(numbers.integers(0, 50, count), mask=numbers.random(count) < 0.05),
            "ms": pa.array(numbers.integers(0, 400, count) / 4, mask=numbers.random(count) < 0.05),
        }
    )
    if Feature.DUPLICATE in features:
        again = np.flatnonzero(numbers.random(count) < 0.1)
        table = pa.concat_tables([table, table.take(pa.array(again))])
        arrival_us = np.concatenate([arrival_us, arrival_us[again] + numbers.integers(0, 3 * SECOND_US, again.size)])
    return table, arrival_us


def _state_progress(
    stream: Stream, records: pa.Table, arrival_us: Ints, numbers: np.random.Generator
) -> tuple[pa.Table, Ints]:
    """Return records some of which state the progress of their source, and markers that state nothing else.

    Most statements are true: nothing before the instant arrives later from the source, or from any where they speak for
    the whole stream. Some promise too much.
    """
    progress = str(stream.progress_column)
    order = np.argsort(arrival_us, kind="stable")
    records = records.take(pa.array(order))
    arrival_us = arrival_us[order]
    times_us = np.asarray(records[stream.event_time].cast(pa.int64()).fill_null(2**62))
    users = records["user"].to_pylist()
    stated: list[int | None] = []
    for row, user in enumerate(users):
        is_whole = stream.source is None or user is None
        later = [int(times_us[i]) for i in range(row + 1, len(users)) if is_whole or users[i] == user]
        promised_us = min(*later, int(arrival_us[row])) if later else int(arrival_us[row])
        promised_us += int(numbers.choice([0, 0, 0, 0, 5 * SECOND_US]))
        stated.append(promised_us if numbers.random() < STATING_SHARE else None)
    records = records.append_column(progress, pa.array(stated, pa.int64()).cast(pa.timestamp("us", tz="UTC")))
    chosen = np.flatnonzero([s is not None and numbers.random() < MARKER_SHARE for s in stated])
    again = records.take(pa.array(chosen))
    kept = ("user", progress)
    markers = {f.name: again[f.name] if f.name in kept else pa.nulls(len(chosen), f.type) for f in records.schema}
    return pa.concat_tables([records, pa.table(markers)]), np.concatenate([arrival_us, arrival_us[chosen]])
