"""A fragment that begins in the past takes each batch in exactly once, and says what is still to come.

The oracle is a fragment that was there from the beginning and took every batch live.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate
from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.reconcile import site_changes
from catchment.errors import ConfigError, QueryError
from catchment.query.fragment import SLICE_COLUMN, Fragment, Key
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import View
from catchment.query.view_start import ViewStart
from catchment.site.backfill import (
    CHUNK_ROWS,
    FIRST_CHUNK_ROWS,
    MAX_LOST_SPANS,
    Backfill,
    BackfillPace,
    NeededBatches,
    PastAbsorbed,
    PastBatch,
    PastBatches,
    add_span,
    choose_chunk,
    drop_before,
)
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, FragmentAdded, LinkMeasured, LowMarkRaised, Send
from catchment.site.policies.registry import policy_by_name
from catchment.storage.codec import decode, encode
from catchment.timeline import START_OF_TIME_US, WindowSpec
from catchment.wire.messages import Backfilled, Backfilling, Progress, Updates

F = Fragment(
    "f",
    "s",
    "ts",
    (Key("k", "k", pa.int64()),),
    (make_aggregate("count", None, None, name="n"),),
    (WindowSpec.tumbling(10),),
)
COUNT = F.aggregates[0].states[0].name
VIEW = "CREATE MATERIALIZED VIEW v WITH (start = '{}') AS SELECT count(*) AS n FROM s GROUP BY window(ts, '1 s')"


def partials(rows: list[tuple[int, int]]) -> pa.Table:
    """One record per (slice, key)."""
    columns = {
        SLICE_COLUMN: [s for s, _ in rows],
        "k": [k for _, k in rows],
        COUNT: [1] * len(rows),
    }
    return pa.table(columns).select(F.schema.names).cast(F.schema)


def begin(past: PastBatches, begin_us: int = START_OF_TIME_US + 1) -> tuple[SiteCore, list[object]]:
    core = SiteCore()
    core.handle(LowMarkRaised("s", 35, read_us=39), 0)
    sent = core.handle(FragmentAdded(F, policy_by_name("batching"), begin_us=begin_us, past=past), 0)
    return core, messages(sent)


def messages(actions: tuple[Send, ...]) -> list[object]:
    return [m for action in actions for m in action.messages]


def test_where_it_begins_is_stated_before_its_mark_and_that_its_past_is_in_behind_all_of_it() -> None:
    core, said = begin(PastBatches(3, START_OF_TIME_US + 1, 40))
    assert said == [Backfilling("f", START_OF_TIME_US + 1, 40), Progress("f", START_OF_TIME_US + 1, 0)]
    first = messages(core.handle(PastAbsorbed("f", 0, 2, partials([(0, 1), (30, 1)]), ((0, 1), (30, 1))), 1))
    assert [type(m) for m in first] == [Updates, Progress], "the slice that is over leaves, the open one waits"
    last = messages(core.handle(PastAbsorbed("f", 2, 3, partials([(10, 2)]), ((10, 1),), ((5, 9),)), 2))
    assert [type(m) for m in last] == [Updates, Backfilled]
    assert last[1] == Backfilled("f", ((5, 9),))
    assert not core.backfills
    core.validate()


def test_past_batches_that_come_again_or_to_a_dropped_fragment_change_nothing() -> None:
    core, _ = begin(PastBatches(2, START_OF_TIME_US + 1, 40))
    event = PastAbsorbed("f", 0, 1, partials([(0, 1)]), ((0, 1),))
    core.handle(event, 1)
    assert not [m for m in messages(core.handle(event, 2)) if isinstance(m, Updates)]
    assert core.backfills["f"].records == 1
    assert not core.handle(PastAbsorbed("gone", 0, 1, partials([]), ()), 3)
    assert core.past_of("s") == [range(1, 2)]


def test_a_blocked_link_is_told_where_it_begins_and_nothing_of_its_past() -> None:
    core = SiteCore()
    core.handle(LowMarkRaised("s", 35, read_us=39), 0)
    core.handle(LinkMeasured(None, 0, True), 0)
    past = PastBatches(1, START_OF_TIME_US + 1, 40)
    said = messages(core.handle(FragmentAdded(F, policy_by_name("batching"), begin_us=past.from_us, past=past), 0))
    assert [type(m) for m in said] == [Backfilling, Progress]
    assert not messages(core.handle(PastAbsorbed("f", 0, 1, partials([(0, 1)]), ((0, 1),)), 1))
    freed = messages(core.handle(LinkMeasured(None, 0, False), 2))
    assert [type(m) for m in freed] == [Updates, Backfilled, Progress]


def test_a_backfill_goes_on_where_it_was_after_a_restart() -> None:
    core, _ = begin(PastBatches(3, 5, 40), begin_us=5)
    core.handle(PastAbsorbed("f", 0, 2, partials([(10, 1)]), ((10, 1),)), 1)
    again = SiteCore()
    again.restore(decode(encode(core.snapshot())))
    assert again.backfills["f"] == core.backfills["f"]
    last = messages(again.handle(PastAbsorbed("f", 2, 3, partials([]), ()), 2))
    assert last == [Backfilled("f")]


def test_the_past_of_a_fragment_is_what_was_read_before_it_was_added() -> None:
    def added(
        start: ViewStart | None, newest_us: int | None, batches: int, until_us: int | None = None
    ) -> FragmentAdded:
        plan = FragmentPlan(F, policy_by_name("batching"), begun=True, start=start, until_us=until_us)
        event, *_ = site_changes(SiteCore(), "s", [plan], newest_us, batches)
        assert isinstance(event, FragmentAdded)
        return event

    assert added(ViewStart(), 39, 7).past == PastBatches(7, START_OF_TIME_US + 1, 40)
    assert added(ViewStart(back_us=10), 39, 7).past == PastBatches(7, 30, 40)
    assert added(ViewStart(at_us=12), 39, 7).past == PastBatches(7, 12, 40)
    assert added(ViewStart(at_us=12), 39, 7).begin_us == 12
    assert added(ViewStart(at_us=99), 39, 7).past == PastBatches(7, 99, 100), "records ahead of the clock were read"
    assert added(ViewStart(at_us=99), None, 7).past == PastBatches(7, 99, 100), "and they alone do not move event time"
    assert added(ViewStart(at_us=99), 39, 0).past is None, "it begins in the future, and nothing was read"
    assert added(ViewStart(at_us=99), 39, 7, until_us=99).past is None, "nothing is wanted"
    assert added(None, None, 7).past is None, "it does not begin in the past"
    assert added(ViewStart(), None, 0).past is None, "nothing was read"
    assert added(ViewStart(at_us=12), 39, 7, until_us=20).past == PastBatches(7, 12, 20, is_bounded=True)
    assert added(ViewStart(at_us=12), 39, 7, until_us=50).past == PastBatches(7, 12, 40)
    assert added(None, 39, 7) == FragmentAdded(F, policy_by_name("batching"), begin_us=40)


batches_of_history = st.lists(
    st.one_of(
        st.none(),
        st.builds(
            lambda rows, low: PastBatch(rows, (low, low + 10) if rows else None), st.integers(0, 9), st.integers(0, 119)
        ),
    ),
    min_size=1,
    max_size=30,
)


@given(
    history=batches_of_history,
    from_us=st.integers(0, 100),
    rows=st.integers(1, 12),
    most=st.integers(1, 5),
    unwritten=st.sets(st.integers(0, 29)),
    until_us=st.one_of(st.none(), st.integers(101, 120)),
)
def test_chunks_cover_every_batch_once_and_pass_over_only_what_is_not_wanted(
    history: list[PastBatch | None], from_us: int, rows: int, most: int, unwritten: set[int], until_us: int | None
) -> None:
    past = PastBatches(len(history), from_us, until_us or 200, is_bounded=until_us is not None)
    backfill = Backfill.of(past)
    chosen: list[int] = []
    lost = False
    while not backfill.is_over:
        chunk = choose_chunk(backfill, history.__getitem__, lambda n: None, rows, most, unwritten)
        assert chunk.first == backfill.next_batch
        if chunk.is_empty:
            assert chunk.first in unwritten
            unwritten.discard(chunk.first)
            continue
        assert chunk.first < chunk.end <= chunk.first + most
        assert chunk.rows <= rows or len(chunk.batches) == 1
        assert not unwritten & {*range(chunk.first, chunk.end)}
        chosen += chunk.batches
        lost = lost or bool(chunk.lost)
        backfill.advance(PastAbsorbed("f", chunk.first, chunk.end, partials([]), (), chunk.lost))
    known = [(n, b.times) for n, b in enumerate(history) if b is not None and b.times is not None]
    assert chosen == [n for n, (low, high) in known if high > from_us and low < past.until_us]
    assert lost == (None in history)
    assert backfill.lost == (((from_us, past.until_us),) if lost else ())


def test_what_is_lost_is_no_more_than_what_is_wanted() -> None:
    backfill = Backfill.of(PastBatches(1, 50, 200))
    assert choose_chunk(backfill, lambda n: None, lambda n: (10, 70)).lost == ((50, 70),)
    assert choose_chunk(backfill, lambda n: None, lambda n: (10, 50)).lost == ()
    assert choose_chunk(backfill, lambda n: None, lambda n: None).lost == ((50, 200),)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=100))
def test_lost_spans_hold_every_lost_instant_in_order_and_within_their_bound(given_spans: list[tuple[int, int]]) -> None:
    spans: tuple[tuple[int, int], ...] = ()
    for span in given_spans:
        spans = add_span(spans, span)
    assert len(spans) <= MAX_LOST_SPANS
    assert all(high < low for (_, high), (low, _) in pairwise(spans))
    lost = {instant for low, high in given_spans for instant in range(low, high)}
    assert lost <= {instant for low, high in spans for instant in range(low, high)}


@given(rows=st.lists(st.tuples(st.integers(-5, 5).map(lambda n: 10 * n), st.integers(0, 2))), cut=st.integers(-60, 60))
def test_slices_that_start_before_the_begin_are_dropped(rows: list[tuple[int, int]], cut: int) -> None:
    table, counts = drop_before(partials(rows), tuple((s, 1) for s, _ in rows), cut)
    assert table[SLICE_COLUMN].to_pylist() == [s for s, _ in rows if s >= cut]
    assert counts == tuple((s, 1) for s, _ in rows if s >= cut)


def test_batches_that_are_owed_or_still_to_be_read_are_needed() -> None:
    needed = NeededBatches(frozenset({2}), (range(5, 10**9),))
    assert [number for number in (1, 2, 4, 5, 10**9 - 1, 10**9) if number in needed] == [2, 5, 10**9 - 1]


def test_a_limited_link_is_given_what_it_can_take_and_the_next_chunk_waits_for_it() -> None:
    pace = BackfillPace(1_000.0)
    assert pace.chunk_rows == FIRST_CHUNK_ROWS
    pace.note_sent(100, 5_000, 0)
    assert not pace.may_read(4_999_999)
    assert pace.may_read(5_000_000)
    assert pace.chunk_rows == 40, "two seconds of the link"
    assert BackfillPace(None).chunk_rows == CHUNK_ROWS
    free = BackfillPace(None)
    free.note_sent(100, 5_000, 0)
    assert free.may_read(0)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("all", ViewStart()),
        ("ALL", ViewStart()),
        ("2 hours", ViewStart(back_us=7_200_000_000)),
        ("1500 us", ViewStart(back_us=1500)),
        ("1970-01-02 00:00:00", ViewStart(at_us=86_400_000_000)),
        ("1970-01-02T01:00:00+01:00", ViewStart(at_us=86_400_000_000)),
        ("1970-01-01 00:00:00.000007", ViewStart(at_us=7)),
    ],
)
def test_a_start_is_read_as_it_is_written(text: str, start: ViewStart) -> None:
    assert ViewStart.read(text) == start
    assert ViewStart.read(start.write()) == start
    sql = VIEW.format(text)
    (view,) = parse_sql(sql, "here")
    assert isinstance(view, View)
    assert view.options.start == start
    assert parse_sql(view.to_sql(), "again") == (view,)


@pytest.mark.parametrize("text", ["yesterday", "0 s", "-1 hour", "2026-13-01", ""])
def test_a_start_that_is_none_is_refused_with_what_is_possible(text: str) -> None:
    sql = VIEW.format(text)
    with pytest.raises((QueryError, ConfigError), match="start") as caught:
        parse_sql(sql, "here")
    assert "'all', a duration" in str(caught.value.hint)


def test_live_batches_and_past_ones_merge_to_what_all_of_them_are() -> None:
    core, _ = begin(PastBatches(2, START_OF_TIME_US + 1, 40))
    sent: list[object] = []
    sent += messages(core.handle_all([Absorbed("f", partials([(30, 1), (40, 1)]), ((30, 1), (40, 1)))], 1))
    sent += messages(core.handle(PastAbsorbed("f", 0, 2, partials([(0, 1), (30, 1)]), ((0, 1), (30, 1))), 2))
    sent += messages(core.handle(LowMarkRaised("s", 60), 3))
    counts: dict[tuple[int, int], int] = {}
    for update in (m for m in sent if isinstance(m, Updates)):
        for row in update.table.to_pylist():
            place = row[SLICE_COLUMN], row["k"]
            counts[place] = counts.get(place, 0) + row[COUNT]
    assert counts == {(0, 1): 1, (30, 1): 2, (40, 1): 1}
