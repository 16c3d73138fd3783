"""Views of views: the answers are those of the nested query over all records, through revisions, restarts and kills.

Catches: a lower revision that does not reach the upper window, a row that stays though its lower rows are gone, a
window that is called exact while one of its lower windows is not, an enactment that is torn by a kill. Cannot catch:
what Spark makes of expressions; `tests/spark/test_nexmark.py` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.composed.query import ComposedQuery
from catchment.center.composed.windows import ComposedState, ComposedWindows, LowerProgress
from catchment.center.events import Compose
from catchment.center.statuses import EXACT, FINAL, ON_TIME, SUSPENDED
from catchment.errors import QueryError
from catchment.query.explain import explain
from catchment.timeline import START_OF_TIME_US, Window, WindowSpec
from tests.worlds.query_support import make_plan, make_project
from tests.worlds.sql_world import SqlTown, sorted_rows
from tests.worlds.tiers import examples

VIEWS = """
CREATE MATERIALIZED VIEW busy AS
  SELECT window.start AS began, page, country, count(*) AS n, sum(bytes) AS bytes FROM hits
  GROUP BY window(ts, '30 seconds'), page, country;
CREATE MATERIALIZED VIEW top AS
  SELECT window.start, page, country, count(*) AS n FROM hits
  GROUP BY window(ts, '20 seconds'), page, country ORDER BY n DESC LIMIT 2;
CREATE MATERIALIZED VIEW peaks AS
  SELECT window.start, page, max(n) AS peak, count(*) AS parts, sum(bytes) AS bytes FROM busy WHERE n > 1
  GROUP BY window(began, '1 minute'), page;
CREATE MATERIALIZED VIEW places AS
  SELECT window.start, country, count(*) AS times, max(n) AS n FROM top
  GROUP BY window(window_start, '1 minute', '20 seconds'), country;
CREATE MATERIALIZED VIEW highest AS
  SELECT window.start, max(peak) AS peak, count(*) AS pages FROM peaks GROUP BY window(start, '2 minutes');
"""
PEAKS = """SELECT began // 60000000 * 60000000 AS start, page, max(n) AS peak, count(*) AS parts,
  sum(bytes)::BIGINT AS bytes FROM (
    SELECT ts // 30000000 * 30000000 AS began, page, country, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY ALL)
  WHERE n > 1 GROUP BY ALL"""
ORACLES = {
    "peaks": PEAKS,
    "places": """SELECT s AS start, country, count(*) AS times, max(n) AS n FROM (
      SELECT *, unnest([w, w - 20000000, w - 40000000]) AS s FROM (
        SELECT *, row_number() OVER (PARTITION BY w ORDER BY n DESC, page NULLS FIRST, country NULLS FIRST) AS place
        FROM (SELECT ts // 20000000 * 20000000 AS w, page, country, count(*) AS n FROM hits GROUP BY ALL))
      WHERE place <= 2) GROUP BY ALL""",
    "highest": f"""SELECT start // 120000000 * 120000000 AS start, max(peak) AS peak, count(*) AS pages
      FROM ({PEAKS}) GROUP BY ALL""",
}


@settings(max_examples=examples(6))
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(["streaming", "batching", "spillway"]))
def test_a_run_ends_with_the_answers_of_the_nested_query(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: str
) -> None:
    town = SqlTown(tmp_path_factory.mktemp("town"), VIEWS, seed, policy)
    town.run(steps=14)
    for view, oracle in ORACLES.items():
        assert sorted_rows(town.center.rows(view)) == sorted_rows(town.expected(oracle)), view
    for view in ORACLES:
        assert statuses(town, view) <= {EXACT, FINAL}


def test_killed_before_any_append_it_publishes_what_it_would_have(tmp_path: Path) -> None:
    whole = SqlTown(tmp_path / "whole", VIEWS, 5, "streaming")
    whole.run(steps=8)
    total = whole.center.store.appends
    assert total > 40
    for kill in range(1, total, max(total // examples(8), 1)):
        town = SqlTown(tmp_path / str(kill), VIEWS, 5, "streaming")
        town.center.store.killed_at = kill
        town.run(steps=8)
        assert town.center.store.killed_at is None, "it was killed"
        for kind, query in whole.center.store.tables:
            assert everything(town, kind, query) == everything(whole, kind, query), (kill, kind, query)


def everything(town: SqlTown, kind: str, query: str) -> list[dict[str, Any]]:
    found = town.center.store.all(kind, query)
    assert found is not None
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def statuses(town: SqlTown, view: str) -> set[str]:
    log = town.center.store.all("windows", view)
    assert log is not None
    return set({row["window_start"]: row["status"] for row in log.to_pylist()}.values())


# --- when windows are published, and with which status ------------------------------------------------------------

MINUTE = 60_000_000
QUERY = ComposedQuery("upper", "lower", WindowSpec.tumbling(2 * MINUTE), WindowSpec.tumbling(MINUTE))


def lower(minute: int, revision: int, status: str, missing: tuple[str, ...] = ()) -> Compose:
    window = Window(minute * MINUTE, (minute + 1) * MINUTE)
    return Compose("lower", window, revision, status, 1.0, missing, "", 0, (), True)


def progress(passed: int, complete: int | None = None, final: int = 0) -> LowerProgress:
    done = passed if complete is None else complete
    return LowerProgress(START_OF_TIME_US, passed * MINUTE, done * MINUTE, final * MINUTE)


def settle(windows: ComposedWindows, known: LowerProgress) -> list[tuple[int, int, str, bool]]:
    found = windows.settle(known, 0)
    return [(c.window.start_us // MINUTE, c.revision, c.status, c.has_new_rows) for c in found]


def test_a_window_waits_for_its_last_lower_window_and_follows_their_statuses() -> None:
    windows = ComposedWindows(ComposedState(QUERY))
    windows.note(lower(0, 1, ON_TIME, ("eu",)))
    assert settle(windows, progress(1)) == []
    assert settle(windows, progress(2, complete=0)) == [(0, 1, ON_TIME, True)], "the second one is empty so far"
    windows.note(lower(0, 2, EXACT))
    assert settle(windows, progress(2, complete=0)) == [(0, 2, ON_TIME, True)], "a site has not passed the empty one"
    assert settle(windows, progress(2)) == [(0, 2, EXACT, False)]
    windows.note(lower(1, 1, EXACT))
    assert settle(windows, progress(2)) == [(0, 3, EXACT, True)]
    assert settle(windows, progress(2)) == []
    windows.note(lower(0, 2, FINAL))
    windows.note(lower(1, 1, FINAL))
    assert settle(windows, progress(9, final=2)) == [(0, 3, FINAL, False)]
    assert windows.state.windows == {}, "what is final is forgotten"


def test_a_lower_window_whose_answers_could_not_be_finished_suspends_it() -> None:
    windows = ComposedWindows(ComposedState(QUERY))
    windows.note(lower(0, 1, EXACT))
    assert settle(windows, progress(2)) == [(0, 1, EXACT, True)]
    windows.note_unfinished([0])
    assert settle(windows, progress(2)) == [(0, 1, SUSPENDED, False)]
    windows.note(lower(0, 2, EXACT))
    assert settle(windows, progress(2)) == [(0, 2, EXACT, True)]


def test_windows_that_the_lower_view_has_not_wholly_seen_are_not_answered() -> None:
    windows = ComposedWindows(ComposedState(QUERY))
    windows.note(lower(1, 1, EXACT))
    windows.note(lower(2, 1, EXACT))
    assert settle(windows, LowerProgress(MINUTE, 9 * MINUTE, 9 * MINUTE, 0)) == [(2, 1, EXACT, True)]


# --- planning -------------------------------------------------------------------------------------------------------

LOWER = """CREATE MATERIALIZED VIEW busy AS
  SELECT window.start, cpid, count(*) AS n FROM beacons GROUP BY window(ts, '1 minute'), cpid;"""


def test_explain_says_that_nothing_travels_and_what_is_kept() -> None:
    plan = make_plan(
        LOWER
        + "CREATE MATERIALIZED VIEW v AS SELECT window.start, max(n) AS n FROM busy GROUP BY window(start, '1 hour')"
    )
    text = explain(plan, make_project())
    assert "from the newest rows of busy" in text
    assert "nothing travels for it" in text
    assert "at each site" not in text


@pytest.mark.parametrize(
    ("select", "problem"),
    [
        ("SELECT window.start, max(n) AS n FROM busy GROUP BY window(n, '1 hour')", "not over the event time"),
        (
            "SELECT window.start, count(*) AS n FROM busy b JOIN clicks c ON b.cpid = c.cpid "
            "GROUP BY window(ts, '1 hour')",
            "a view is not joined with a stream",
        ),
        ("SELECT window_start, cpid FROM busy UNION ALL SELECT ts, cpid FROM clicks", "reads a view that aggregates"),
    ],
)
def test_what_a_view_of_a_view_cannot_be_is_refused(select: str, problem: str) -> None:
    with pytest.raises(QueryError, match=problem):
        make_plan(f"{LOWER} CREATE MATERIALIZED VIEW v AS {select}")


@pytest.mark.parametrize("option", ["max_error = 0.1", "emit_early = '1 s'", "slack = 'adaptive'"])
def test_options_of_sites_are_refused(option: str) -> None:
    select = "SELECT window.start, max(n) AS n FROM busy GROUP BY window(start, '1 hour')"
    with pytest.raises(QueryError, match="reads another view"):
        make_plan(f"{LOWER} CREATE MATERIALIZED VIEW v WITH ({option}) AS {select}")
