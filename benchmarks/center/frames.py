"""A center without Spark, and frames as its sites would send them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.pipeline import CenterPipeline
from catchment.center.results.bounds import column_laws
from catchment.center.results.read import read_results
from catchment.center.results.store import DeltaStore
from catchment.center.results.write import ResultTables
from catchment.deploy.deployment import Deployment
from catchment.progress.admission import Admission
from catchment.query.fragment import Fragment
from catchment.query.plan import QueryPlan
from catchment.testing.simulated.evaluate import finish
from catchment.timeline import SystemClock
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import Progress, Segment, Updates
from catchment.wire.receiving.inbox import Inbox

WINDOW_US = 10_000_000
KEYS = 100_000
KEEP_HOURS = 1

_PROJECT = '[project]\nname = "center"\ncenter = "center"\n[sites.center]\n'
_SITE = '[sites.{0}]\n[[links]]\nfrom = "{0}"\nto = "center"\n'
_SQL = """
CREATE STREAM events (ts TIMESTAMP, key BIGINT, value DOUBLE)
  WITH (event_time = 'ts', sites = '{sites}', connector = 'files', path = 'data/{{site}}', format = 'parquet');
CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, key, count(*) AS n, sum(value) AS total FROM events GROUP BY window(ts, '10 seconds'), key;
"""


class CenterWorld:
    """The center of a project with so many sites, which answers counts and sums per window and key."""

    def __init__(self, folder: Path, sites: int) -> None:
        self.names = [f"site{number}" for number in range(sites)]
        (folder / "queries").mkdir(parents=True)
        (folder / "catchment.toml").write_text(_PROJECT + "".join(map(_SITE.format, self.names)))
        (folder / "queries" / "q.sql").write_text(_SQL.format(sites=",".join(self.names)))
        deployment = Deployment.load(folder)
        (plan,) = deployment.plans
        self.deployment = deployment
        self.state = deployment.project.state_folder
        self.fragment: Fragment = deployment.fragments_at(self.names[0])[0].fragment
        self.inbox = Inbox(self.state / "center" / "inbox", admit=self._admit)
        self.pipeline = CenterPipeline(
            deployment.project,
            self.inbox,
            deployment.center_queries,
            deployment.deployed.known,
            deployment.deployed.begun_after,
            {plan.name: self._make_tables(plan)},
            SystemClock(),
        )
        self.sent_total = 0.0  # the sum of values in the frame that was made last
        self._chance = np.random.default_rng(7)

    def frame(
        self, site: int, number: int, slice_us: int, *, rows: int, mark_us: int, first_key: int | None = None
    ) -> bytes:
        """Return a segment with partials of one slice and how far its site has come."""
        keys = self._chance.choice(KEYS, rows, replace=False) if first_key is None else np.arange(rows) + first_key
        values = self._chance.lognormal(3, 1, rows)
        self.sent_total = float(values.sum())
        raw = pa.table({"slice_us": np.full(rows, slice_us), "key": keys.astype(np.int64), "value": values})
        names = ["slice_us", *self.fragment.key_names]
        arguments = {a.name: "value" if a.argument is not None else None for a in self.fragment.aggregates}
        table = partials.lift(raw.rename_columns([*names, "value"]), names, self.fragment.aggregates, arguments)
        messages = (
            Updates(self.fragment.name, table.cast(self.fragment.schema), ((slice_us, rows),)),
            Progress(self.fragment.name, mark_us, rows * (number + 1)),
        )
        return encode_segment(Segment(self.names[site], "made", number, messages)).data

    def published_totals(self) -> dict[int, float]:
        """Return the sum of all totals of each published window, by its start."""
        rows = read_results(self.state, "totals")
        starts = rows["window_start"].cast(pa.timestamp("us")).cast(pa.int64())
        summed = pa.table({"start": starts, "total": rows["total"]}).group_by("start").aggregate([("total", "sum")])
        return dict(zip(summed["start"].to_pylist(), summed["total_sum"].to_pylist(), strict=True))

    def close(self) -> None:
        self.pipeline.stop()

    def _make_tables(self, plan: QueryPlan) -> ResultTables:
        return ResultTables(
            self.state,
            plan.name,
            plan.fragment,
            partial(finish, plan),
            column_laws(plan),
            1.0 - plan.options.confidence,
            self.deployment.late_delta(plan),
            self.deployment.source_key(plan),
            store=DeltaStore(self.state, KEEP_HOURS),
        )

    def _admit(self, segment: Segment) -> None:
        Admission(self.pipeline.fragments, self.deployment.routings, self.deployment.births).check(segment)
