"""Sources that state their own progress: what is believed, what closes at once, and who is blamed for what comes after.

Catches: a window that closes before every source has stated its end, a statement that is lost or falls, records that
are not counted against the source that did not keep its word. Cannot catch: how statements are read from records of
real sources; `tests/spark` does that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.site.core import SiteCore
from catchment.site.events import FragmentAdded, LowMarkRaised, Observed
from catchment.site.policies.registry import policy_by_name
from catchment.site.slack.rules.base import COVERED
from catchment.site.stated_progress import HEARD_SCHEMA, MAX_STATING, ProgressStated, StatedProgress, Statements
from catchment.storage.codec import decode, encode
from catchment.timeline import SECOND_US, START_OF_TIME_US
from catchment.vectorised.expressions import InputColumn
from catchment.vectorised.heard import HeardSources
from catchment.vectorised.records import RecordColumns
from catchment.wire.messages import Progress, Standing, Updates
from tests.worlds.contract_site import FRAGMENT, observed, plan
from tests.worlds.site_support import absorbed, fragment
from tests.worlds.slack_support import NAMES, WINDOW, fleet, stall, world
from tests.worlds.tiers import examples

F = fragment()
FAR_US = 10**15
TIME = pa.timestamp("us", tz="UTC")


@dataclass
class Naive:
    """The definition, from everything that was ever read."""

    heard: set[str] = field(default_factory=set)
    stated: list[tuple[str | None, int]] = field(default_factory=list)
    late: int = 0

    def stated_of(self, source: str | None) -> int:
        return max((us for name, us in self.stated if name in (source, None)), default=START_OF_TIME_US)

    def take(self, rows: list[tuple[str | None, int | None, int | None]]) -> None:
        self.late += sum(event is not None and event < self.stated_of(source) for source, event, _ in rows)
        self.heard |= {source or "null" for source, event, stated in rows if event is not None}
        self.heard |= {source for source, _, stated in rows if stated is not None and source is not None}
        self.stated += [(source, stated) for source, _, stated in rows if stated is not None]

    def mark_us(self) -> int:
        whole = max((us for name, us in self.stated if name is None), default=START_OF_TIME_US)
        own = [max((us for n, us in self.stated if n == s), default=START_OF_TIME_US) for s in self.heard]
        return max(whole, min(own, default=START_OF_TIME_US))


# (source, event time or None for a marker, what it states)
RECORDS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 100), st.none() | st.integers(0, 100))
MARKERS = st.tuples(st.sampled_from(["a", "b", "c", None]), st.none(), st.integers(0, 100))
BATCHES = st.lists(st.lists(st.one_of(RECORDS, MARKERS), max_size=6), max_size=12)


def read(rows: list[tuple[str | None, int | None, int | None]], before: Statements) -> pa.Table:
    """What a pass over files hears of these rows, of which those without an event time are markers."""
    heard = HeardSources("done", ("ts", "v"), "ts", InputColumn(pa.string(), "source"), before)
    table = pa.table(
        {
            "source": pa.array([r[0] for r in rows], pa.string()),
            "ts": pa.array([r[1] for r in rows], pa.int64()).cast(TIME),
            "done": pa.array([r[2] for r in rows], pa.int64()).cast(TIME),
            "v": pa.array([None if r[1] is None else 1 for r in rows], pa.int64()),
        }
    )
    records = RecordColumns.of(table, table.schema)
    is_marker = heard.find_markers(records)
    assert is_marker.tolist() == [r[1] is None and r[2] is not None for r in rows]
    return heard.hear(records.filter(pa.array(~is_marker)), records.filter(pa.array(is_marker)))


@settings(max_examples=examples(200))
@given(batches=BATCHES)
def test_what_is_believed_and_counted_is_what_the_definition_says_of_all_that_was_read(batches: list) -> None:  # type: ignore[type-arg]
    here, naive = StatedProgress(), Naive()
    for rows in batches:
        table = read(rows, here.statements)
        here.take_in(ProgressStated("s", table, FAR_US))
        naive.take(rows)
        here = decode(encode(here))
        assert here.mark_us == naive.mark_us()
        assert sum(here.late.values()) == naive.late
        for source in ("a", "b", "c"):
            assert here.statements.of(source) == naive.stated_of(source)


@settings(max_examples=examples(50))
@given(rows=st.lists(RECORDS | MARKERS, max_size=20), cut=st.integers(0, 20))
def test_what_tasks_hear_of_parts_is_what_one_hears_of_all(rows: list, cut: int) -> None:  # type: ignore[type-arg]
    heard = HeardSources("done", ("ts",), "ts", InputColumn(pa.string(), "source"))
    both = heard.merge([read(rows[:cut], Statements()), read(rows[cut:], Statements())])
    assert both.sort_by("source").equals(read(rows, Statements()).sort_by("source"))


def heard(*rows: tuple[str | None, int, int, int | None], limit_us: int = FAR_US) -> ProgressStated:
    columns = zip(*rows, strict=True) if rows else ((),) * 4
    arrays = [pa.array(c, f.type) for c, f in zip(columns, HEARD_SCHEMA, strict=True)]
    return ProgressStated("s", pa.table(arrays, schema=HEARD_SCHEMA), limit_us)


def marks(actions: tuple[object, ...]) -> list[int]:
    return [m.low_mark_us for a in actions for m in a.messages if isinstance(m, Progress)]  # type: ignore[attr-defined]


def started() -> SiteCore:
    core = SiteCore()
    core.handle(FragmentAdded(F, policy_by_name("batching")), 0)
    return core


def test_windows_that_all_sources_have_stated_leave_at_once_whatever_the_slack() -> None:
    core = started()
    core.handle_all([absorbed(F, [(3, "a", 1), (18, "b", 1)]), LowMarkRaised("s", -82), heard(("x", 2, 0, None))], 18)
    sent = core.handle(heard(("x", 0, 0, 20)), 19)
    assert marks(sent) == [20]
    assert sum(m.rows for a in sent for m in a.messages if isinstance(m, Updates)) == 2
    assert core.low_mark_us("s") == 20


def test_one_source_that_states_nothing_is_waited_for() -> None:
    core = started()
    core.handle_all([absorbed(F, [(3, "a", 1)]), heard(("x", 1, 0, None), ("y", 1, 0, None))], 5)
    assert core.handle(heard(("x", 0, 0, 20)), 6) == ()
    assert marks(core.handle(heard(("y", 0, 0, 10)), 7)) == [10]


def test_what_is_stated_for_the_whole_stream_holds_for_all_sources() -> None:
    core = started()
    core.handle_all([absorbed(F, [(3, "a", 1)]), heard(("x", 1, 0, None), ("y", 1, 0, None))], 5)
    assert marks(core.handle(heard((None, 0, 0, 30)), 6)) == [30]


def test_records_after_a_statement_are_late_are_sent_and_are_counted_against_their_source() -> None:
    core = started()
    core.handle(heard(("x", 1, 0, 40), ("y", 1, 0, 40)), 40)
    (late,) = [
        m
        for a in core.handle_all([absorbed(F, [(3, "a", 1)]), heard(("x", 1, 1, None))], 41)
        for m in a.messages
        if isinstance(m, Updates)
    ]
    assert late.records == ((0, 1),)
    status = core.stated_status()["s"]
    assert status["late_after_stated"] == {"x": 1}
    assert status["late_records"] == 1


def test_an_instant_ahead_of_what_the_clock_allows_is_not_believed() -> None:
    core = started()
    assert core.handle(heard((None, 0, 0, 101), limit_us=100), 5) == ()
    assert core.stated_status()["s"]["implausible"] == 1
    assert marks(core.handle(heard((None, 0, 0, 100), limit_us=100), 5)) == [100]


def test_statements_survive_a_restart_and_hold_for_fragments_that_are_added_later() -> None:
    core = started()
    core.handle(heard(("x", 1, 0, 40)), 40)
    again = SiteCore()
    again.restore(decode(encode(core.snapshot())))
    assert again.statements_of("s") == core.statements_of("s") == Statements(START_OF_TIME_US, {"x": 40})
    late = fragment("g")
    sent = again.handle(FragmentAdded(late, policy_by_name("batching"), begin_us=10), 41)
    assert [m.low_mark_us for a in sent for m in a.messages if isinstance(m, Progress) and m.fragment == "g"] == [40]


def test_beyond_the_bound_on_sources_only_the_whole_stream_is_believed() -> None:
    here = StatedProgress()
    rows = [(f"d{i}", 1, 0, 50) for i in range(MAX_STATING + 1)]
    here.take_in(heard(*rows))
    assert here.unfollowed
    assert here.mark_us == START_OF_TIME_US
    here.take_in(heard((None, 0, 0, 60)))
    assert here.mark_us == 60
    assert len(here.stated) == MAX_STATING


@pytest.mark.parametrize("name", NAMES)
def test_every_controller_closes_what_all_sources_have_stated_as_complete(name: str) -> None:
    here = world(name).run(fleet(4, delay=stall(1.2, 2.0)), 2 * SECOND_US)
    waiting = here.controller.low_mark_us
    stated = 2 * SECOND_US
    assert waiting < stated
    here.controller.believe({f"s{i}": stated for i in range(4)}, stated, 2 * SECOND_US)
    closed = here.controller.advance(2 * SECOND_US)
    assert here.controller.low_mark_us == stated
    assert {c.reason for c in closed} == {COVERED}
    assert all(c.coverage == 1.0 and c.bound == 0.0 for c in closed)
    assert [c.end_us for c in closed] == sorted(c.end_us for c in closed)


@pytest.mark.parametrize("name", ["adaptive", "progress"])
def test_a_statement_of_a_stalled_source_lets_windows_go_that_wait_for_it_alone(name: str) -> None:
    quick = fleet(3)
    told, untold = (world(name).run([*quick, *fleet(4, delay=stall(1.2, 5.0))[3:]], 3 * SECOND_US) for _ in range(2))
    now = 3 * SECOND_US
    told.controller.believe({"s3": now - 100_000}, START_OF_TIME_US, now)
    told.controller.advance(now)
    untold.controller.advance(now)
    assert told.controller.low_mark_us > untold.controller.low_mark_us
    assert told.controller.low_mark_us <= now


@settings(max_examples=examples(30))
@given(
    name=st.sampled_from(NAMES),
    steps=st.lists(st.tuples(st.integers(0, 40), st.integers(-2 * SECOND_US, 2 * SECOND_US)), min_size=3, max_size=25),
)
def test_with_statements_of_any_kind_windows_close_once_and_in_order(name: str, steps: list) -> None:  # type: ignore[type-arg]
    here = world(name)
    rng = np.random.default_rng(len(steps))
    now, ends = 0, []
    for pause, ahead in steps:
        now += (1 + pause) * 50_000
        rows = [(now, s, now - int(rng.integers(0, 400_000)), 1.0) for s in "abc"]
        here.deliver(rows, now)
        here.controller.believe({"a": now + ahead}, now + min(ahead, 0) * 2, now)
        here.controller = decode(encode(here.controller))
        here.closings += here.controller.advance(now)
        here.controller.settle(now)
    ends = [c.end_us for c in here.closings]
    assert ends == sorted(set(ends))
    assert all((end - WINDOW.size_us) % WINDOW.slide_us == 0 for end in ends)
    assert all(0.0 <= c.coverage <= 1.0 and c.bound >= 0.0 for c in here.closings)


def test_a_contract_view_is_told_complete_by_a_statement_and_says_so_in_its_standing() -> None:
    core = SiteCore()
    core.handle(FragmentAdded(FRAGMENT, policy_by_name("batching"), slacks=(plan("fixed:15"),)), 0)
    now = 20 * SECOND_US
    rows = [("d1", second * SECOND_US, 1) for second in range(20)]
    core.handle(Observed(FRAGMENT.name, "q", observed(rows)), now)
    assert core.contract_status(now)["q"]["low_mark_us"] == 4 * SECOND_US
    table = pa.table([["d1"], [20], [0], [18 * SECOND_US]], schema=HEARD_SCHEMA)
    sent = core.handle(ProgressStated(FRAGMENT.stream, table, FAR_US), now)
    assert core.contract_status(now)["q"]["low_mark_us"] == 18 * SECOND_US
    standings = [m for a in sent for m in a.messages if isinstance(m, Standing)]
    closings = [closing for standing in standings for closing in standing.closings]
    assert [c.end_us for c in closings] == [second * SECOND_US for second in range(5, 19)]
    assert all(c.reason == COVERED and not c.sources for c in closings)
