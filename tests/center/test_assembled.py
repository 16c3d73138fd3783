"""Sessions, growing windows and calendar periods are those of all records, through late records and restarts.

The oracle sorts all records of a key and cuts them where a gap is. Catches: sessions that touch and are not merged, a
late record that joins two sessions and leaves one of them published, a session that is cut otherwise than promised, an
enactment that is torn by a kill. Cannot catch: what Spark makes of expressions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate, partials
from catchment.center.composed.assembled import assemble, window_bounds
from catchment.center.composed.query import ComposedQuery
from catchment.center.statuses import EXACT, FINAL
from catchment.errors import QueryError, TimelineError
from catchment.query.assembly import MAX_SLICES, CalendarPeriods, GrowingWindows, Sessions
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import Window, WindowSpec
from tests.worlds.query_support import make_plan
from tests.worlds.sql_world import SqlTown, sorted_rows
from tests.worlds.tiers import examples

SECOND = 1_000_000
DAY = 24 * 3600 * SECOND
MICROSECOND = timedelta(microseconds=1)
VIEWS = """
CREATE MATERIALIZED VIEW visits AS
  SELECT session_window.start, session_window.end, page, count(*) AS n, sum(bytes) AS bytes, median(user) AS middle
  FROM hits GROUP BY session_window(ts, '10 seconds'), page;
CREATE MATERIALIZED VIEW ended AS
  SELECT window.start AS minute, count(*) AS visits, max(n) AS most, min(start) AS earliest FROM visits
  GROUP BY window(window_start, '1 minute');
CREATE MATERIALIZED VIEW cut WITH (max_session = '40 seconds') AS
  SELECT window.start AS began, count(*) AS n FROM hits WHERE user IS NOT NULL
  GROUP BY session_window(ts, '20 seconds');
CREATE MATERIALIZED VIEW growing AS
  SELECT window.start, window.end, country, count(*) AS n, count(DISTINCT user) AS users
  FROM hits GROUP BY cumulate(ts, '15 seconds', '1 minute'), country;
CREATE MATERIALIZED VIEW days AS
  SELECT window.start, window.end, page, count(*) AS n FROM hits
  GROUP BY calendar_window(ts, 'day', 'Europe/Berlin'), page;
CREATE MATERIALIZED VIEW weeks AS
  SELECT window.start, window.end, page, count(*) AS n FROM hits
  GROUP BY calendar_window(ts, 'week', 'America/New_York'), page;
CREATE MATERIALIZED VIEW months AS
  SELECT window.start, window.end, count(*) AS n FROM hits GROUP BY calendar_window(ts, 'month', 'UTC');
"""
WEEKS = """SELECT -241200000000 AS start, 363600000000 AS end, page, count(*) AS n FROM hits GROUP BY ALL"""
MONTHS = """SELECT 0 AS start, 2678400000000 AS end, count(*) AS n FROM hits"""
DAYS = """SELECT -3600000000 AS start, 82800000000 AS end, page, count(*) AS n FROM hits GROUP BY ALL"""
GROWING = """SELECT ts // 60000000 * 60000000 AS start, edge, country, count(*) AS n, count(DISTINCT "user") AS users
  FROM (SELECT *, unnest([w + 15000000, w + 30000000, w + 45000000, w + 60000000]) AS edge FROM (
    SELECT *, ts // 60000000 * 60000000 AS w FROM hits)) WHERE ts < edge GROUP BY ALL"""


def sessions_of(records: list[dict[str, Any]], gap_us: int) -> Iterator[list[dict[str, Any]]]:
    """The records of each session, in order, from those of one key."""
    session: list[dict[str, Any]] = []
    for record in sorted(records, key=lambda r: r["ts"]):
        if session and record["ts"] - session[-1]["ts"] >= gap_us:
            yield session
            session = []
        session.append(record)
    if session:
        yield session


def expected_visits(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_page = groupby(sorted(records, key=lambda r: str(r["page"])), key=lambda r: r["page"])
    found = []
    for page, of_page in [(page, list(rows)) for page, rows in by_page]:
        for session in sessions_of(of_page, 10 * SECOND):
            known = [r["bytes"] for r in session if r["bytes"] is not None]
            users = [r["user"] for r in session if r["user"] is not None]
            start, end = session[0]["ts"], session[-1]["ts"] + 10 * SECOND
            middle = float(median(users)) if users else None
            found.append((start, end, page, len(session), sum(known) if known else None, middle))
    return [{str(place): value for place, value in enumerate(row)} for row in found]


def expected_ends(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sessions by the minute of the slice that they end in."""
    minutes: dict[int, list[dict[str, Any]]] = {}
    for visit in expected_visits(records):
        slice_us = (visit["1"] - 10 * SECOND) // (10 * SECOND) * (10 * SECOND)
        minutes.setdefault(slice_us // (60 * SECOND) * (60 * SECOND), []).append(visit)
    return [
        {"minute": m, "visits": len(v), "most": max(r["3"] for r in v), "earliest": min(r["0"] for r in v)}
        for m, v in minutes.items()
    ]


def expected_cuts(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a long session, the records from 40 seconds before the slice of its last one on."""
    found = []
    for session in sessions_of([r for r in records if r["user"] is not None], 20 * SECOND):
        since = session[-1]["ts"] // (20 * SECOND) * (20 * SECOND) - 40 * SECOND
        kept = [r for r in session if r["ts"] >= since]
        found.append({"began": kept[0]["ts"], "n": len(kept)})
    return found


def statuses(town: SqlTown, view: str) -> set[str]:
    log = town.center.store.all("windows", view)
    assert log is not None
    return set({row["window_start"]: row["status"] for row in log.to_pylist()}.values())


@settings(max_examples=examples(3))
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(["streaming", "batching", "spillway"]))
def test_a_run_ends_with_the_windows_of_all_records(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: str
) -> None:
    town = SqlTown(tmp_path_factory.mktemp("town"), VIEWS, seed, policy)
    town.run(steps=12)
    records = pa.concat_tables(town.given["hits"]).to_pylist()
    assert sorted_rows(town.center.rows("visits")) == sorted_rows(expected_visits(records))
    assert sorted_rows(town.center.rows("ended")) == sorted_rows(expected_ends(records))
    assert sorted_rows(town.center.rows("cut")) == sorted_rows(expected_cuts(records))
    assert sorted_rows(town.center.rows("growing")) == sorted_rows(town.expected(GROWING))
    assert sorted_rows(town.center.rows("days")) == sorted_rows(town.expected(DAYS))
    assert sorted_rows(town.center.rows("weeks")) == sorted_rows(town.expected(WEEKS))
    assert sorted_rows(town.center.rows("months")) == sorted_rows(town.expected(MONTHS))
    for view in ("visits", "ended", "cut", "growing", "days", "weeks", "months"):
        assert statuses(town, view) <= {EXACT, FINAL}


def test_killed_before_any_append_it_publishes_what_it_would_have(tmp_path: Path) -> None:
    views = VIEWS.split("CREATE MATERIALIZED VIEW growing")[0]
    whole = SqlTown(tmp_path / "whole", views, 3, "streaming")
    whole.run(steps=6)
    total = whole.center.store.appends
    for kill in range(1, total, max(total // examples(4), 1)):
        town = SqlTown(tmp_path / str(kill), views, 3, "streaming")
        town.center.store.killed_at = kill
        town.run(steps=6)
        assert town.center.store.killed_at is None, "it was killed"
        for kind, query in whole.center.store.tables:
            mine, others = (t.center.store.all(kind, query) for t in (town, whole))
            assert mine is not None
            assert others is not None
            assert mine.to_pylist() == others.to_pylist(), (kill, kind, query)


def test_a_late_record_that_joins_two_sessions_retracts_one_of_them(tmp_path: Path) -> None:
    town = SqlTown(tmp_path, VIEWS, 0, "streaming")
    site, other = town.sites
    site.batch("hits", hits([100, 112, 200]))
    town.given["hits"].append(hits([100, 112, 200]))
    for sender in (site, other):
        town.center.consume(sender, len(sender.out))
    for sender in (other,):
        sender.end()
        town.center.consume(sender, len(sender.out))
    before = [(r["start"] // SECOND, r["n"]) for r in town.center.rows("visits")]
    site.batch("hits", hits([106]))
    site.end()
    town.center.consume(site, len(site.out))
    town.center.repair(everything=True)
    after = sorted((r["start"] // SECOND, r["end"] // SECOND, r["n"]) for r in town.center.rows("visits"))
    assert set(before) <= {(100, 1), (112, 1), (200, 1)}
    assert after == [(100, 122, 3), (200, 210, 1)]


def hits(seconds: list[int]) -> pa.Table:
    n = len(seconds)
    columns = {"ts": pa.array([s * SECOND for s in seconds], pa.int64()), "page": pa.array(["a"] * n)}
    nothing = {"user": pa.int32(), "country": pa.string(), "bytes": pa.int64(), "ms": pa.float64(), "bot": pa.bool_()}
    return pa.table({**columns, **{name: pa.nulls(n, type_) for name, type_ in nothing.items()}})


# --- assembling slices --------------------------------------------------------------------------------------------

AGGREGATES = (
    make_aggregate("min", "ts", pa.timestamp("us", "UTC"), name="_first"),
    make_aggregate("max", "ts", pa.timestamp("us", "UTC"), name="_last"),
    make_aggregate("count", None, None, name="n"),
)


@settings(max_examples=examples(100))
@given(
    records=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["a", "b", None])), min_size=1, max_size=30),
    gap=st.integers(1, 8),
)
def test_parts_of_slices_that_touch_are_one_session(records: list[tuple[int, str | None]], gap: int) -> None:
    times = np.array([at for at, _ in records], np.int64)
    raw = pa.table(
        {
            SLICE_COLUMN: pa.array(times // gap * gap),
            "key": pa.array([key for _, key in records], pa.string()),
            "ts": to_instants(times),
        }
    )
    slices = partials.lift(raw, [SLICE_COLUMN, "key"], AGGREGATES)
    found = set()
    for start in range(0, 64 // gap * gap + 1, gap):
        rows = assemble(Sessions(gap, 100 * gap), Window(start, start + gap), slices, ["key"], AGGREGATES)
        for row in partials.lower(rows, ["key"], AGGREGATES).to_pylist() if rows.num_rows else []:
            found.add((row["key"], row["_first"].microsecond, row["_last"].microsecond, row["n"]))
    expected = set()
    for key in {key for _, key in records}:
        for session in sessions_of([{"ts": at} for at, of in records if of == key], gap):
            expected.add((key, session[0]["ts"], session[-1]["ts"], len(session)))
    assert found == expected


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Beirut", "Australia/Lord_Howe"]
CHANGES = ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-05", "2026-07-01"]  # most change clocks


@settings(max_examples=examples(40))
@given(
    zone=st.sampled_from(ZONES),
    day=st.sampled_from(CHANGES),
    minutes=st.lists(st.integers(-3000, 3000), min_size=1, max_size=25),
)
def test_a_calendar_day_has_the_records_of_its_local_date(zone: str, day: str, minutes: list[int]) -> None:
    days = CalendarPeriods("day", zone)
    start_us = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * SECOND
    times = np.array([start_us + minute * 60 * SECOND for minute in minutes], np.int64)
    raw = pa.table({SLICE_COLUMN: pa.array(times // days.slice_us * days.slice_us), "ts": to_instants(times)})
    slices = partials.lift(raw, [SLICE_COLUMN], AGGREGATES)
    found: Counter[date] = Counter()
    for at in range(start_us - 4 * DAY, start_us + 4 * DAY, days.slice_us):
        window = Window(at, at + days.slice_us)
        rows = assemble(days, window, slices, [], AGGREGATES)
        if rows.num_rows:
            lowered = partials.lower(rows, [], AGGREGATES)
            began, ended = (bound[0].as_py() for bound in window_bounds(days, window, lowered))
            local = began.astimezone(ZoneInfo(zone))
            assert (local.hour, local.minute) == (0, 0) or local.date() != (began - MICROSECOND).astimezone(
                ZoneInfo(zone)
            ).date(), "a day begins at midnight, or when clocks skip it"
            assert began <= lowered["_first"][0].as_py() <= lowered["_last"][0].as_py() < ended
            found[local.date()] += lowered["n"][0].as_py()
    assert found == Counter(to_utc(at).astimezone(ZoneInfo(zone)).date() for at in times.tolist())


@settings(max_examples=examples(60))
@given(
    zone=st.sampled_from(ZONES),
    unit=st.sampled_from(["day", "week", "month"]),
    day=st.dates(date(2023, 12, 1), date(2027, 3, 31)),
    quarter=st.integers(0, 95),
)
def test_each_slice_is_read_for_the_period_of_its_local_date(zone: str, unit: str, day: date, quarter: int) -> None:
    periods = CalendarPeriods(unit, zone)
    at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(minutes=15 * quarter)
    at_us = (at - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND // periods.slice_us * periods.slice_us
    last_us = periods.last_slice_us(at_us)
    start_us = periods.start_us(last_us)
    assert start_us is not None, "a period ends with the slice that reads it"
    assert start_us <= at_us <= last_us
    assert last_us - start_us <= periods.lookback_us, "everything of a period is read for it"
    local = [to_utc(us).astimezone(ZoneInfo(zone)).date() for us in (start_us, at_us, last_us + periods.slice_us - 1)]
    name = {"day": "%Y-%m-%d", "week": "%G-%V", "month": "%Y-%m"}[unit]
    assert len({day.strftime(name) for day in local}) == 1
    before, after = (to_utc(us).astimezone(ZoneInfo(zone)).date() for us in (start_us - 1, last_us + periods.slice_us))
    assert local[0].strftime(name) not in (before.strftime(name), after.strftime(name))


def to_instants(times_us: Any) -> pa.Array:
    return pa.array(times_us).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))


def to_utc(at_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(TimelineError, match="Mars"):
        CalendarPeriods("day", "Mars/Olympus")


def test_a_window_reads_the_slices_before_and_after_it() -> None:
    query = ComposedQuery("v", "v.slices", WindowSpec.tumbling(10), WindowSpec.tumbling(10), 30, 10)
    assert [w.start_us for w in query.reading(100)] == [90, 100, 110, 120, 130]
    assert query.settled_us(Window(100, 110)) == 120


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Sessions(10, 5), "1 to"),
        (lambda: Sessions(10, 10 * MAX_SLICES + 1), "1 to"),
        (lambda: GrowingWindows(10, 15), "whole"),
        (lambda: GrowingWindows(10, 10), "whole"),
    ],
)
def test_a_lookback_is_bounded(made: Any, message: str) -> None:
    with pytest.raises(TimelineError, match=message):
        made()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE MATERIALIZED VIEW v WITH (max_error = 0.1) AS SELECT count(*) AS n FROM beacons "
        "GROUP BY session_window(ts, '1 minute')",
        "CREATE MATERIALIZED VIEW v WITH (emit_early = '1 minute') AS SELECT count(*) AS n FROM beacons "
        "GROUP BY session_window(ts, '1 minute')",
        "SELECT country, count(*) AS n FROM beacons GROUP BY session_window(ts, '1 minute'), country "
        "ORDER BY n LIMIT 3",
        "SELECT window.start AS window_start, count(*) AS n FROM beacons GROUP BY session_window(ts, '1 minute')",
        "CREATE MATERIALIZED VIEW s AS SELECT window.start, count(*) AS n FROM beacons "
        "GROUP BY session_window(ts, '1 minute'); "
        "CREATE MATERIALIZED VIEW v AS SELECT max(n) AS n FROM s GROUP BY window(start, '1 hour')",
        "SELECT count(*) AS n FROM (SELECT ts FROM beacons UNION ALL SELECT ts FROM beacons) "
        "GROUP BY session_window(ts, '1 minute')",
    ],
)
def test_what_sessions_cannot_have_is_refused_with_a_hint(sql: str) -> None:
    with pytest.raises(QueryError) as caught:
        make_plan(sql)
    assert caught.value.hint


def test_a_renamed_view_has_slices_of_its_own() -> None:
    plan = make_plan("SELECT count(*) AS n FROM beacons GROUP BY session_window(ts, '1 minute')").renamed("v@2")
    assert plan.lower == "v@2.slices"
    assert plan.slices is not None
    assert plan.slices.name == "v@2.slices"
