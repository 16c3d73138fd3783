"""Second rounds: the center begins and ends the views that make the estimates of final windows exact.

For the windows that wait (`catchment.center.round_notes`) a view `VIEW_exact` is deployed, as for windows that are
computed again on request: sites read that part of their past and send only the values that decide the estimates. When
its windows are final, the center publishes the exact rows (`catchment.center.results.second_round`) and the view is
dropped. One round of a view at a time, `MAX_ROWS` rows each; the next one takes up the rows behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from catchment.aggregates.bounded_sets import MAX_SET, CountDistinct
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.second_round import ITEM_BYTES
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.pipeline import CenterPipeline
from catchment.center.results.second_round import RoundRule, assess_round, narrowed_rows
from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import without_repair
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import CatchmentError
from catchment.log_fields import about
from catchment.optimizer.sharing.deployed import Deployed
from catchment.query.narrowed_view import NarrowedRow, narrow_select, why_not_narrowed
from catchment.query.plan import QueryPlan
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import View
from catchment.query.sql.view_options import ALWAYS, NEVER, ViewOptions
from catchment.query.view_start import ViewStart
from catchment.query.window_repair import WindowRepair

SUFFIX = "_exact"  # behind the name of a view, in that of the one that makes its estimates exact
MAX_ROWS = 100  # of one round: each is a case of its query
MAX_WINDOWS = 64  # of one round
MARKS = 64  # values that stand for all that lie outside of intervals, at the most
_log = logging.getLogger(__name__)


def round_rules(deployment: Deployment) -> dict[str, RoundRule]:
    """Return how the estimates of each view that may have some are made exact."""
    found = {}
    for plan in deployment.plans:
        may_estimate = any(isinstance(a, Percentile | CountDistinct) for a in plan.answer.aggregates)
        if may_estimate and plan.name not in deployment.deployed.repairs:
            slices = -(-plan.window.size_us // plan.window.slide_us)
            copies = max(len({site for side in plan.sides for site in side.scan.sites}), 1) * slices
            refusal = _why_refused(plan, deployment)
            found[plan.name] = RoundRule(plan.options.repair_max_bytes, copies, refusal, plan.top is not None)
    return found


def _why_refused(plan: QueryPlan, deployment: Deployment) -> str | None:
    """Return why the estimates of a view stay what they are; None if they are made exact."""
    if deployment.project.sink:
        return "second rounds are made at the center only"
    reason = why_not_narrowed(plan)
    if reason is not None:
        return reason
    if plan.options.repair != ALWAYS:
        return f"repair is '{plan.options.repair}'"
    stream = deployment.catalog.streams[plan.fragment.stream]
    if not deployment.project.defaults.keeps_history(stream.history):
        return f"the stream {stream.name} keeps no history"
    changing = [lookup.table for lookup in plan.fragment.lookups if lookup.refresh_us is not None]
    if changing:
        return f"the rows of {', '.join(changing)} may be others by now than when records were read"
    return None


@dataclass
class SecondRounds:
    """Begins and ends second rounds, by what the center has noted."""

    watcher: DeploymentWatcher

    def step(self, pipeline: CenterPipeline) -> None:
        """End the rounds that are over, and begin those that are due; the center has reached what is deployed."""
        notes = pipeline.rounds_due
        if not notes.is_busy:
            return
        self._end(pipeline)
        busy = {repair.view for repair in self.watcher.deployment.deployed.repairs.values()}
        for query in [query for query in notes.waiting if query not in busy]:
            plan = next((p for p in self.watcher.deployment.plans if p.name == query), None)
            if plan is None or query not in pipeline.tables:
                notes.settle(query, list(notes.waiting[query]))  # the view was dropped
            elif not self._begin(pipeline, plan):
                return  # the deployment has changed: the next one is planned with what is deployed then

    def _end(self, pipeline: CenterPipeline) -> None:
        """Drop the views whose windows are final, once what they gave is on the disk; then remove their tables."""
        notes = pipeline.rounds_due
        deployed = self.watcher.deployment.deployed
        for helper in list(notes.helpers):
            repair = deployed.repairs.get(helper)
            running = pipeline.core.queries.get(helper)
            if repair is None:
                if helper not in pipeline.tables:
                    pipeline.remove_tables(helper)
                    notes.end(helper)
            elif running is not None and running.windows.is_final_until(repair.until_us):
                pipeline.checkpoint()
                notes.advance(repair.view, helper)
                self._change(partial(without_repair, helper))

    def _begin(self, pipeline: CenterPipeline, plan: QueryPlan) -> bool:
        """Begin a round of a view, if it has rows for one; return whether nothing was deployed."""
        notes = pipeline.rounds_due
        chosen, cursors, over = _choose_rows(pipeline, plan)
        if over:
            notes.settle(plan.name, over)
        if not chosen:
            return True
        deployment = self.watcher.deployment
        helper = f"{plan.view}{SUFFIX}"
        try:
            view = _helper_view(plan, helper, chosen)
            starts = [row.start_us for row in chosen]
            repair = WindowRepair(
                plan.name, min(starts), max(starts) + 1, max(starts) + plan.window.size_us, is_second_round=True
            )
            deployed = deployment.add([view]).deployed
            name = deployed.query_name(helper)
        except CatchmentError as error:
            told = "the estimates of %s stay estimates: %s"
            _log.warning(told, plan.name, error, extra=about(query=plan.name))
            notes.give_up(plan.name, error.message)
            return True
        notes.begin(name, cursors)
        before = deployment.deployed
        self._change(lambda now: deployed.repair(name, repair) if now.version == before.version else now)
        return False

    def _change(self, make: Callable[[Deployed], Deployed]) -> None:
        self.watcher.store.change(lambda now: make(now or self.watcher.deployment.deployed))


def _choose_rows(pipeline: CenterPipeline, plan: QueryPlan) -> tuple[list[NarrowedRow], dict[int, str], list[int]]:
    """Return the rows of the next round, how far their windows come with it, and the windows that have none left."""
    tables = pipeline.tables[plan.name]
    rule = pipeline.round_rules[plan.name]
    chosen: list[NarrowedRow] = []
    cursors: dict[int, str] = {}
    over: list[int] = []
    for start_us, cursor in sorted(pipeline.rounds_due.waiting[plan.name].items()):
        if len(chosen) >= MAX_ROWS or len(cursors) >= MAX_WINDOWS:
            break
        rows = tables.recall_answers([start_us])
        due = assess_round(plan.fragment, rule, rows.drop_columns([WINDOW_COLUMN]))
        found = [] if due is None else list(narrowed_rows(plan.fragment, due.places, rows))
        behind = sorted((row for row in found if _order(row) > cursor), key=_order)[: MAX_ROWS - len(chosen)]
        if behind:
            chosen += behind
            cursors[start_us] = _order(behind[-1])
        else:
            over.append(start_us)
    return chosen, cursors, over


def _order(row: NarrowedRow) -> str:
    return f"={row.keys!r}"


def _helper_view(plan: QueryPlan, name: str, rows: Sequence[NarrowedRow]) -> View:
    """Return the view that makes the estimates of some rows exact."""
    options = ViewOptions(
        start=ViewStart(at_us=min(row.start_us for row in rows)),
        shed=NEVER,
        policy=plan.options.policy,
        max_distinct=min(plan.options.repair_max_bytes // ITEM_BYTES + MARKS, MAX_SET),
        sites=plan.options.sites,
    )
    select = narrow_select(plan, rows)
    (parsed,) = parse_sql(f"CREATE MATERIALIZED VIEW `{name}` AS {select}", f"the second round of {plan.view}")
    assert isinstance(parsed, View)
    return View(name, parsed.select, options, parsed.text, parsed.where)
