"""Views as users write them, from records at two sites to the rows that a reader of the results sees, without Spark.

The sites, the center and the result tables are the real ones (`live_world`, `ResultTables`); DuckDB takes the place of
Spark for expressions over records, and memory that of Delta. Records come out of order, in batches, through restarts,
so that most windows are revised. What a reader sees in the end is compared with DuckDB over all records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.composed.assembled import AssembledTables
from catchment.center.composed.query import ComposedQuery
from catchment.center.composed.tables import ComposedTables, LowerView, make_all_tables
from catchment.center.composed.windows import in_order
from catchment.center.deployed_changes import composed_changes
from catchment.center.events import Compose, Publish
from catchment.center.query import CenterQuery
from catchment.center.results.bounds import column_laws
from catchment.center.results.layout import INSTANT
from catchment.center.results.newest_rows import newest_revisions
from catchment.center.results.write import ResultTables
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import queries_of_plan
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.deployed import Deployed
from catchment.query.catalog import Catalog
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_views
from catchment.query.sql.parse import parse_sql
from catchment.testing.simulated.evaluate import evaluate_rows
from catchment.timeline import ManualClock
from tests.worlds.live_world import LiveCenter, LiveSite, Speaker
from tests.worlds.sharing_support import SECOND, base_catalog, duck, make_hits

STREAMS = ("hits", "other")
HORIZON_US = 3600 * SECOND


class KilledError(Exception):
    """The process was killed."""


@dataclass
class MemoryStore:
    """Tables in memory, with the promises of those in a folder; the process can be killed before an append."""

    tables: dict[tuple[str, str], list[pa.Table]] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    appends: int = 0
    killed_at: int | None = None  # the number of the append before which the process is killed, once

    def append(self, kind: str, query: str, number: int, make: Callable[[], pa.Table]) -> None:
        if self.numbers.get((kind, query), -1) < number:
            if self.appends == self.killed_at:
                self.killed_at = None
                raise KilledError
            self.appends += 1
            self.tables.setdefault((kind, query), []).append(make())
            self.numbers[kind, query] = number

    def read(self, kind: str, query: str, columns: Sequence[str], starts: pa.Array) -> pa.Table | None:
        rows = self.all(kind, query)
        if rows is None:
            return None
        wanted = starts.cast(pa.timestamp("us")).cast(INSTANT)
        return rows.filter(
            pc.is_in(
                rows["window_start"],
                value_set=wanted.combine_chunks() if isinstance(wanted, pa.ChunkedArray) else wanted,
            )
        ).select(list(columns))

    def all(self, kind: str, query: str) -> pa.Table | None:
        parts = self.tables.get((kind, query))
        return pa.concat_tables(parts, promote_options="permissive") if parts else None

    def newest_number(self, kind: str, query: str) -> int | None:
        return self.numbers.get((kind, query))

    def flush(self, kind: str, query: str) -> None:
        """Memory needs none."""

    def remove_torn(self, kind: str, query: str, first_number: int) -> list[str]:
        return []

    def remove(self, kind: str, query: str) -> None:
        self.tables.pop((kind, query), None)
        self.numbers.pop((kind, query), None)

    def compact(self, kind: str, query: str) -> None:
        """Pieces in memory cost nothing."""


class TableCenter(LiveCenter):
    """A center that writes its result tables; `plans` are those of all its views."""

    def __init__(self, folder: Path, clock: ManualClock, horizon_us: int, plans: dict[str, QueryPlan]) -> None:
        self.plans = plans
        self.store = MemoryStore()
        self.tables = make_all_tables(plans.values(), partial(self._make_tables, folder))
        super().__init__(folder, clock, horizon_us)

    def _make_tables(self, folder: Path, plan: QueryPlan, lower: LowerView | None) -> ResultTables:
        from catchment.spark.evaluation.finish import make_finish

        assert plan.trivial, "expressions over aggregates need Spark"
        given = (folder, plan.name, plan.fragment, make_finish(None, plan), column_laws(plan))
        if lower is None:
            return ResultTables(*given, store=self.store)
        if plan.assembly is not None:
            return AssembledTables(*given, store=self.store, lower=lower.tables, assembly=plan.assembly)
        return ComposedTables(
            *given,
            store=self.store,
            lower=lower.tables,
            lower_columns=tuple(c.name for c in lower.plan.columns),
            evaluate=partial(evaluate_rows, plan.fragment),
        )

    def deploy(self, deployed: Deployed, plans: Mapping[str, QueryPlan] | None = None) -> None:
        super().deploy(deployed, plans)
        composed = [ComposedQuery.of(plan) for plan in self.plans.values() if plan.lower is not None]
        events = list(composed_changes(self.core, in_order(composed)))
        if events:
            self.host.submit("deploy", events)

    def consume(self, sender: Speaker, upto: int) -> None:
        """The same; a process that is killed meanwhile is started again."""
        try:
            super().consume(sender, upto)
        except KilledError:
            self.restart(checkpoint=False)
            self.batches = self.host.batches["inbox"] + 1
            self.repair()

    def repair(self, everything: bool = False) -> None:
        try:
            super().repair(everything)
        except KilledError:
            self.restart(checkpoint=False)
            super().repair(everything)

    def _query(self, view: str, deployed: Deployed, plan: QueryPlan | None) -> CenterQuery:
        query = super()._query(view, deployed, plan)
        self.kept[query.name] = self.kept[view]  # of a view that is assembled from slices, those are asked for
        self.answered[query.name] = self.answered[view]
        return replace(query, whole_windows=self.plans[view].top is not None)

    def _recall(self, name: str, wanted: pa.Table) -> pa.Table:
        return self.tables[name].recall(wanted)

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        for name, tables in self.tables.items():
            tables.publish(number, [a for a in actions if isinstance(a, Publish) and a.query == name])
        for name in dict.fromkeys(a.query for a in actions if isinstance(a, Compose)):
            tables = self.tables[name]
            assert isinstance(tables, ComposedTables)
            due = [a for a in actions if isinstance(a, Compose) and a.query == name]
            tables.compose(number, due, lambda windows, reason: None)
        return super()._enact(number, actions)

    def rows(self, view: str) -> list[dict[str, Any]]:
        """What a reader of the newest answers sees: the columns of the view, times as microseconds."""
        found = self.store.all("results", view)
        if found is None:
            return []
        newest = newest_revisions(found)
        shown = newest.filter(pc.invert(newest["retracted"]))
        columns = {
            c.name: shown[c.name if c.name in shown.column_names else c.source] for c in self.plans[view].columns
        }
        return to_rows(pa.table({n: c.cast(pa.int64()) if c.type == INSTANT else c for n, c in columns.items()}))


class SqlTown:
    """Two sites and a center under views of `hits` and `other`; records come late, twice read, through restarts."""

    def __init__(self, folder: Path, views: str, seed: int, policy: str = "batching") -> None:
        self.rng = np.random.default_rng(seed)
        self.clock = ManualClock(0)
        self.catalog: Catalog = base_catalog().add(*parse_sql(views, "q.sql"))
        self.plans = dict(plan_views(self.catalog))
        self.streams = [s for s in STREAMS if any(s in view.reads for view in self.catalog.views.values())]
        self.sites = [LiveSite(folder / n, n, self.streams, policy, 20 * SECOND, self.clock) for n in ("us", "eu")]
        self.center = TableCenter(folder / "center", self.clock, HORIZON_US, self.plans)
        self.given: dict[str, list[pa.Table]] = {stream: [] for stream in self.streams}
        queries = [q for plan in self.plans.values() for q in queries_of_plan(plan, self.catalog)]
        deployed = deploy_first(queries, Strength.FULL, lambda demand: len(demand.keys) + 1.0)
        self.center.deploy(deployed, self.plans)
        for site in self.sites:
            site.deploy(deployed)

    def run(self, steps: int = 20) -> None:
        """Read, send and restart at random, then end: everything has come in."""
        for _ in range(steps):
            self.step()
        for site in self.sites:
            site.end()
            self.center.consume(site, len(site.out))
        self.center.repair(everything=True)

    def step(self) -> None:
        self.clock.advance(int(self.rng.integers(0, 5 * SECOND)))
        site = self.sites[int(self.rng.integers(0, 2))]
        records = make_hits(self.rng, int(self.rng.integers(1, 15)))
        stream = (
            self.streams[int(self.rng.integers(0, len(self.streams)))] if len(self.streams) > 1 else self.streams[0]
        )
        records = records.select([c.name for c in self.catalog.streams[stream].columns])
        self.given[stream].append(records)
        site.batch(stream, records)
        if self.rng.random() < 0.1:
            self.center.restart(checkpoint=bool(self.rng.random() < 0.5))
        sender = self.sites[int(self.rng.integers(0, 2))]
        self.center.consume(sender, self.center.seen[sender.name] + int(self.rng.integers(1, 4)))

    def expected(self, sql: str) -> list[dict[str, Any]]:
        """What DuckDB answers over all records that were read, in tables named as streams; times are microseconds."""
        connection = duck()
        for stream, batches in self.given.items():
            connection.register(stream, pa.concat_tables(batches) if batches else self._no_records(stream))
        return to_rows(connection.sql(sql).to_arrow_table())

    def _no_records(self, stream: str) -> pa.Table:
        return make_hits(self.rng, 0).select([c.name for c in self.catalog.streams[stream].columns])


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def sorted_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows as sorted tuples, so that two engines' answers can be compared."""
    return sorted(
        (tuple(row.values()) for row in rows), key=lambda row: [(v is not None, str(type(v)), v) for v in row]
    )
