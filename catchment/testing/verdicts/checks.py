"""What must hold of a simulated deployment: checked on what it published, against the oracle.

At any time: a status never goes back, revisions count up, and no answer holds more records than there are. At the end,
when faults are over and streams have been read: every window is answered, answers together with what was registered as
too late are those of the oracle, and a window that lacks a site says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.bounded_sets import CountDistinct
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.shed_terms import terms_in
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.late.repair import LEFT_OUT
from catchment.center.results.layout import flatten_states, key_columns, without_retracted
from catchment.center.results.newest_rows import newest_revisions
from catchment.center.results.second_round import STAYS
from catchment.center.running_query import RunningQuery
from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME
from catchment.center.windows.close import LATE_SAMPLED
from catchment.query.fragment import Fragment
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import Node, Sink, WindowAggregate, transform
from catchment.query.sql.view_options import NEVER
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.tables import MemoryStore
from catchment.testing.simulated.world import World
from catchment.testing.verdicts.oracle import ViewOracle
from catchment.testing.verdicts.stated_bounds import RunTally, tally_bounds
from catchment.timeline import SECOND_US, START_OF_TIME_US

FEW_DISTINCT = 1000  # more distinct values than any simulated row has
LONG_HORIZON_US = 60 * SECOND_US  # longer than sites are away
ORDER = (EARLY, ON_TIME, EXACT, FINAL)
_TOLERANCE = 1e-9

Rows = dict[tuple[Any, ...], tuple[Any, ...]]  # keys -> values


class ViewCheck:
    """Checks what one view has published."""

    def __init__(
        self, world: World, plan: QueryPlan, oracle: ViewOracle, from_us: int, dead: Sequence[str], sink: str = ""
    ) -> None:
        self._world = world
        self._sink = sink
        self._store: MemoryStore = world.stores[sink]
        self._plan = plan
        self._oracle = oracle
        self._from_us = from_us
        self._dead = [site for site in dead if plan.options.sites is None or site in plan.options.sites]
        self._windows = _window_log(self._store, plan.name)
        self._known: dict[tuple[str, ...], dict[int, Rows]] = {}

    def problems(self) -> Iterator[str]:
        """Yield what is wrong, each with the view and the window."""
        for start_us, log in self._windows.items():
            yield from (f"{self._plan.name} at {self._at(start_us)}: {p}" for p in self._log_problems(log))
        yield from (f"{self._plan.name} {p}" for p in self._answer_problems())
        if any(_may_be_estimate(a) for a in self._plan.fragment.aggregates):
            yield from (f"{self._plan.name} {p}" for p in self._estimate_problems())

    def tally_bounds(self) -> RunTally:
        """Return how the bounds that the view has stated have held; none are judged where a source broke its word."""
        streams = {side.fragment.stream for side in self._plan.sides}
        if any(arrivals.breaks_word for (stream, _), arrivals in self._world.workload.items() if stream in streams):
            return RunTally()
        return tally_bounds(self._store, self._plan, self._expected(()))

    def _log_problems(self, log: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        ranks = [ORDER.index(row["status"]) for row in log]
        # Also before a move, when the fragment of the view may have been another one.
        reasons = [row["reason"] for row in log]
        may_defer = self._may_defer or any("groups were deferred" in r or r == LATE_SAMPLED for r in reasons)
        # An exact window may turn out to lack late records, which wait or are left out.
        if self._may_shed or may_defer or _stands(log) or _leaves_out(log):
            ranks = [rank for rank in ranks if rank != ORDER.index(ON_TIME)]
        if ranks != sorted(ranks):
            yield f"its status went back: {[row['status'] for row in log]}"
        revisions = [row["revision"] for row in log if row["rows_changed"]]
        always_has_rows = self._plan.join is None and not may_defer
        if always_has_rows and revisions != list(range(1, len(revisions) + 1)):
            yield f"its revisions are {revisions}"
        if revisions != sorted(set(revisions)):  # those of a join, and of groups that wait, may have no rows
            yield f"its revisions do not count up: {revisions}"
        for row in log:
            if row["status"] == EXACT and row["missing_sites"]:
                yield f"it is exact without {row['missing_sites']}"
            if not set(row["missing_sites"]) <= set(self._plan.options.sites or row["missing_sites"]):
                yield f"it misses {row['missing_sites']}, and is about {self._plan.options.sites}"
            if not 0.0 <= row["coverage"] <= 1.0 + _TOLERANCE:
                yield f"its coverage is {row['coverage']}"

    @property
    def _has_moved(self) -> bool:
        """Whether the view may have moved: what came too late may then be registered by both of its fragments."""
        return bool(self._world.seen[RareState.QUERY_MOVED])

    @property
    def _has_begun_late(self) -> bool:
        return self._has_moved or self._from_us > START_OF_TIME_US

    @property
    def _may_defer(self) -> bool:
        center = self._world.center_at(self._sink)
        known = {} if center is None else center.deployment.deferrable
        return any(self._plan.name in fragment.queries for fragment in known.values())

    @property
    def _may_shed(self) -> bool:
        return bool(terms_in(self._plan.fragment.aggregates))

    @property
    def _is_outer_join(self) -> bool:
        return self._plan.join is not None and self._plan.join.gives_alone

    def _at(self, start_us: int) -> str:
        return f"{(start_us - self._world.start_us) / 1e6:g} s"

    def _answer_problems(self) -> Iterator[str]:
        expected = {s: rows for s, rows in self._expected(()).items() if s >= self._from_us}
        found = self._answered()
        expired = self._expired()
        for start_us in sorted(expected.keys() | found.keys()):
            if self._has_begun_late and start_us > self._world.scheduler.now_us:
                continue  # a fragment that begins during a run lacks the records that were ahead of the clock
            last = self._windows[start_us][-1] if start_us in self._windows else None
            where = f"at {self._at(start_us)} ({last['status'] if last else 'not published'})"
            late = expired.get(start_us)
            if late is not None:
                self._world.note(RareState.RECORDS_EXPIRED)
                if self._plan.join is not None:
                    continue  # what is registered are sides, whose pairs cannot be added to the answers
            without = self._may_lack(start_us, last)
            was_final = start_us < self._renewed_from_us()  # when a site was healed: what came since is left out
            stands = last is not None and last["status"] == ON_TIME and _stands(self._windows[start_us])
            if self._is_outer_join and (without or was_final or stands):
                continue  # without some records others have no partner, so rows may be more and fewer
            if was_final or stands:  # it says that what came since is left out, or which site it lacks
                alone = {} if start_us not in found else self._lowered(found[start_us])
                yield from (f"{where}: {p}" for p in _too_many(alone, expected.get(start_us, {})))
                continue
            if without and self._is_pending(start_us):  # its former answer has more of a dead site, and stands for now
                alone = {} if start_us not in found else self._lowered(found[start_us])
                yield from (f"{where}: {p}" for p in _too_many(alone, expected.get(start_us, {})))
                if self._plan.join is None:
                    least = self._expected(without).get(start_us, {})
                    yield from (f"{where}, again: {p}" for p in _too_few(self._computed_again(start_us), least))
                continue
            least = self._expected(without).get(start_us, {}) if without else expected.get(start_us, {})
            states = _together(found.get(start_us), late, self._plan.fragment)
            rows = {} if states is None else self._lowered(states)
            if late is not None and self._has_moved:
                answers = found.get(start_us)
                alone = {} if answers is None else self._lowered(answers)
                yield from (f"{where}: {p}" for p in _too_many(alone, expected.get(start_us, {})))
                yield from (f"{where}: {p}" for p in _too_few(rows, least))
            elif without:  # they may have read records that they never sent, or that came before the view began
                yield from (f"{where}: {p}" for p in _too_many(rows, expected.get(start_us, {})))
                yield from (f"{where}: {p}" for p in _too_few(rows, least))
            elif last is not None and _stands(self._windows[start_us]) and self._are_counted(rows, least):
                yield from (f"{where}: {p}" for p in _too_many(rows, least))
            else:
                yield from (f"{where}: {p}" for p in _difference(rows, expected.get(start_us, {})))
                is_whole = late is None and last is not None and self._is_repaired(last)
                if is_whole and last is not None and last["status"] not in (EXACT, FINAL):
                    yield f"{where}: nothing is missing, and it is not exact: {last['reason']}"

    def _estimate_problems(self) -> Iterator[str]:
        """Yield estimates that say they are exact and are not, and final ones that do not say why they stay."""
        rows = self._store.rows("results", self._plan.name)
        if rows is None or self._dead or self._is_renewed():
            return
        measured = [a.name for a in self._plan.fragment.aggregates]
        truth = self._oracle.values(_without_sketches(self._plan))
        expired = self._expired()
        newest = newest_revisions(rows)
        starts = newest["window_start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        keys = list(zip(*(c.to_pylist() for c in key_columns(newest).values()), strict=True))
        estimated = {c.name: c.source for c in self._plan.columns if c.source in self._estimates()}
        for number, row in enumerate(newest.to_pylist()):
            start_us = starts[number]
            key = keys[number] if keys else ()
            if row["retracted"] or start_us < self._from_us or start_us in expired or start_us not in truth:
                continue
            right = _rows(truth[start_us], self._plan.fragment, self._plan.fragment.aggregates).get(key)
            log = self._windows[start_us]
            for column, source in estimated.items():
                bound = row["bound"][column]
                is_right = right is not None and _is_close([row[column]], [right[measured.index(source)]])
                if bound == 0.0 and log[-1]["status"] == FINAL and not is_right:
                    yield f"at {self._at(start_us)}: {key} says that {column} is exact: {row[column]}, not {right}"
                if bound and log[-1]["status"] == FINAL and not any(STAYS in entry["reason"] for entry in log):
                    yield f"at {self._at(start_us)}: {column} of {key} stays an estimate, and does not say why"

    def _estimates(self) -> set[str]:
        return {a.name for a in self._plan.fragment.aggregates if _may_be_estimate(a)}

    def _may_lack(self, start_us: int, last: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Return the sites whose records a window may lack: those that died.

        A view that began during the run did not wait for a site that was away, and says so in its windows. A window of
        which the others have no record is not published, and says nothing.
        """
        if self._from_us == START_OF_TIME_US and not self._is_renewed():
            return tuple(sorted(self._dead))
        named = self._began_after(start_us) if last is None else last["missing_sites"]
        return tuple(sorted({*self._dead, *named}))

    @property
    def _running(self) -> RunningQuery:
        center = self._world.center_at(self._sink)
        assert center is not None
        return center.pipeline.core.queries[self._plan.name]

    def _is_pending(self, start_us: int) -> bool:
        """Return whether the former answer of a window still stands, until what is computed again is whole."""
        return self._running.windows.renewed.is_pending(start_us)

    def _computed_again(self, start_us: int) -> Rows:
        """Return what has come again of a window."""
        tables = self._running.windows.state.late.tables.get(start_us, [])
        states = _together(pa.concat_tables(tables) if tables else None, None, self._plan.fragment)
        return {} if states is None else self._lowered(states)

    def _is_renewed(self) -> bool:
        return bool(self._running.query.renewal)

    def _renewed_from_us(self) -> int:
        """Return from when on windows were computed again; the start of time if none were."""
        taken_us = self._running.sources.taken_from_us
        return START_OF_TIME_US if taken_us is None or not self._is_renewed() else taken_us

    def _began_after(self, start_us: int) -> Iterator[str]:
        """Yield the sites that count in the view from a later instant on."""
        for part in self._running.sources.parts:
            yield from (site for site in part.roster.present if part.roster.from_us(site) > start_us)

    def _are_counted(self, rows: Rows, expected: Rows) -> bool:
        """Return whether an answer that stands lacks records that were counted as not merged.

        What a site sends beyond what the answer has of it, in one batch with that, cannot be told from it.
        """
        unmerged = self._running.windows.state.unmerged_records
        lacking = sum(values[0] - rows.get(key, (0,))[0] for key, values in expected.items() if _are_counts(values[0]))
        return unmerged > 0 and lacking <= unmerged

    def _is_repaired(self, last: Mapping[str, Any]) -> bool:
        """Return whether a window becomes exact; one that was shed or deferred may be past its repair horizon first."""
        may_lack = self._may_shed or "groups were deferred" in last["reason"]
        horizon_us = self._world.project.defaults.repair_horizon_us
        return self._plan.options.repair != NEVER and not (may_lack and horizon_us < LONG_HORIZON_US)

    def _expected(self, without: tuple[str, ...]) -> dict[int, Rows]:
        """Return what every window holds without the records of some sites, computed once."""
        if without not in self._known:
            self._known[without] = self._compute_expected(without)
        return self._known[without]

    def _compute_expected(self, without: Sequence[str]) -> dict[int, Rows]:
        fragment = self._plan.fragment
        aggregates = _measured(fragment)
        return {
            start: _rows(partials.lower(states, list(fragment.key_names), aggregates), fragment, aggregates)
            for start, states in self._oracle.states(self._plan, without).items()
            if states.num_rows
        }

    def _answered(self) -> dict[int, pa.Table]:
        """Return the newest published (keys, states) of each window."""
        rows = self._store.rows("results", self._plan.name)
        return {} if rows is None else _by_window(flatten_states(without_retracted(newest_revisions(rows))))

    def _expired(self) -> dict[int, pa.Table]:
        """Return the (keys, states) that were registered as too late."""
        late = self._store.rows("late", self._plan.name)
        if late is None:
            return {}
        states = late["state"].combine_chunks()
        columns = {f.name: pc.struct_field(states, f.name) for f in states.type}
        starts = late["window_start"].cast(pa.timestamp("us")).cast(pa.int64())
        return _by_window(pa.table({WINDOW_COLUMN: starts, **columns}))

    def _lowered(self, states: pa.Table) -> Rows:
        fragment = self._plan.fragment
        return _rows(
            partials.lower(states, list(fragment.key_names), _measured(fragment)), fragment, _measured(fragment)
        )


def _measured(fragment: Fragment) -> list[Any]:
    """Return the aggregates whose values are those of the oracle; estimates are looked at apart."""
    terms = terms_in(fragment.aggregates)
    return [a for a in fragment.aggregates if a not in terms and not _may_be_estimate(a)]


def _may_be_estimate(aggregate: Aggregate) -> bool:
    return isinstance(aggregate, CountDistinct | Percentile) and aggregate.max_distinct < FEW_DISTINCT


def _without_sketch(aggregate: Aggregate) -> Aggregate:
    if isinstance(aggregate, CountDistinct | Percentile):
        return replace(aggregate, max_distinct=FEW_DISTINCT) if _may_be_estimate(aggregate) else aggregate
    return aggregate


def _without_sketches(plan: QueryPlan) -> QueryPlan:
    """Return a plan whose distinct counts and percentiles keep all their values."""

    def widen(node: Node) -> Node:
        if not isinstance(node, WindowAggregate):
            return node
        return replace(node, aggregates=tuple(map(_without_sketch, node.aggregates)))

    root = transform(plan.root, widen)
    assert isinstance(root, Sink)
    return QueryPlan(root)


def _window_log(store: MemoryStore, view: str) -> dict[int, list[Mapping[str, Any]]]:
    """Return every revision and status of each window, oldest first."""
    log = store.windows(view)
    found: dict[int, list[Mapping[str, Any]]] = {}
    if log is None:
        return found
    starts = log["window_start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    for start, row in zip(starts, log.to_pylist(), strict=True):
        found.setdefault(start, []).append(row)
    return found


def _stands(log: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a window was computed again, and its former answer was better."""
    return any(row["reason"].startswith("its former answer stands") for row in log)


def _leaves_out(log: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether records of a window came too late to be merged."""
    return any(row["reason"] == LEFT_OUT for row in log)


def _by_window(table: pa.Table) -> dict[int, pa.Table]:
    starts = pc.unique(table[WINDOW_COLUMN]).to_pylist()
    rest = table.drop_columns([WINDOW_COLUMN])
    return {start: rest.filter(pc.equal(table[WINDOW_COLUMN], start)) for start in starts}


def _together(found: pa.Table | None, late: pa.Table | None, fragment: Fragment) -> pa.Table | None:
    """Return answers with what came too late for them."""
    parts = [t for t in (found, late) if t is not None]
    if not parts:
        return None
    measured = [a for a in fragment.aggregates if not _may_be_estimate(a)]  # what was made exact merges with nothing
    names = [*fragment.key_names, *(s.name for a in measured for s in a.states)]
    schema = pa.schema([fragment.schema.field(n) for n in names])
    tables = [t.select(names).cast(schema) for t in parts]
    return partials.combine(pa.concat_tables(tables), list(fragment.key_names), measured)


def _rows(lowered: pa.Table, fragment: Fragment, aggregates: Sequence[Any]) -> Rows:
    names = [a.name for a in aggregates]
    return {tuple(r[k] for k in fragment.key_names): tuple(r[n] for n in names) for r in lowered.to_pylist()}


def _difference(found: Rows, expected: Rows) -> Iterator[str]:
    for key in sorted(found.keys() | expected.keys(), key=repr):
        if key not in found or key not in expected or not _is_close(found[key], expected[key]):
            yield f"{key} is {found.get(key)}, expected {expected.get(key)}"


def _too_many(found: Rows, most: Rows) -> Iterator[str]:
    """Yield the keys whose first value, if it is a count, is more than there are records."""
    for key, values in found.items():
        high = most.get(key, (0,))[0]
        if _are_counts(values[0], high) and values[0] > high:
            yield f"{key} counts {values[0]} records, and there are {high}"


def _too_few(found: Rows, least: Rows) -> Iterator[str]:
    """Yield the keys whose first value, if it is a count, lacks records that must be there."""
    for key, values in least.items():
        count = found.get(key, (0,))[0]
        if _are_counts(count, values[0]) and count < values[0]:
            yield f"{key} counts {count} records, and at least {values[0]} must be there"


def _are_counts(*values: Any) -> bool:
    """Return whether values can be counts; a function of the project may give anything else first."""
    return all(isinstance(value, int) for value in values)


def _is_close(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return all(
        a == b
        or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-6))
        for a, b in zip(found, expected, strict=True)
    )
