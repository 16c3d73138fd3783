"""A view whose last step fails on a row, without Spark: it is suspended at the center, and nothing else is.

Catches: a center that one view's expression ends, for now or at every restart; answers that are lost, doubled or shown
unfinished; revisions that repeat. Cannot catch: which errors of Spark are those of a row; `tests/spark` does.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.pipeline import CenterPipeline
from catchment.center.query import CenterQuery
from catchment.center.results.read import read_results, read_windows
from catchment.center.results.write import UNFINISHED, ResultTables, UnfinishedRowsError
from catchment.center.statuses import EXACT, FINAL, SUSPENDED
from catchment.project.config import Project
from catchment.project.sections import Defaults, Site
from catchment.site.core import SiteCore
from catchment.site.events import FragmentAdded, LowMarkRaised
from catchment.site.policies.registry import policy_by_name
from catchment.timeline import ManualClock, WindowSpec
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import Segment
from catchment.wire.receiving.inbox import Inbox
from tests.worlds.tiers import examples
from tests.worlds.world import Answer, Record, lifted, make_fragment, naive

WINDOW = WindowSpec.tumbling(10)
HORIZON_US = 1_000


class World:
    """A center with a healthy view `q`, and a view `p` whose last step fails on some keys; both of one site."""

    def __init__(self, folder: Path, failing: str = "x", nulls: bool = False) -> None:
        self.folder = folder
        self.failing = set(failing)
        self.nulls = nulls
        self.clock = ManualClock(0)
        own = make_fragment(WINDOW)
        self.fragments = {name: replace(own, name=name) for name in ("q", "p")}
        self.site = SiteCore()
        for fragment in self.fragments.values():
            self.site.handle(FragmentAdded(fragment, policy_by_name("streaming")), 0)
        self.segments = 0
        self.open()

    def open(self) -> None:
        project = Project("p", self.folder, "center", {"center": Site("center")}, {}, defaults=Defaults())
        queries = [CenterQuery(n, f, WINDOW, ("a",), HORIZON_US) for n, f in self.fragments.items()]
        tables = {n: self._tables(n) for n in self.fragments}
        inbox = Inbox(self.folder / "inbox")
        self.center = CenterPipeline(project, inbox, queries, self.fragments, {}, tables, self.clock)

    def crash(self) -> None:
        self.center.host.journal.close()
        self.open()

    def _tables(self, name: str) -> ResultTables:
        return ResultTables(
            self.folder / "state",
            name,
            self.fragments[name],
            self._finish if name == "p" else _columns,
            finish_each=self._finish_each,
            publishes_nulls=self.nulls,
        )

    def _finish(self, rows: pa.Table) -> pa.Table:
        if self.failing & set(rows["k"].to_pylist()):
            raise UnfinishedRowsError("[DIVIDE_BY_ZERO] Division by zero.")
        return _columns(rows)

    def _finish_each(self, rows: pa.Table) -> pa.Table:
        fails = pc.is_in(rows["k"], value_set=pa.array(sorted(self.failing), pa.string()))
        done = _columns(rows)
        total = pc.if_else(fails, None, done["total"])
        return done.set_column(done.column_names.index("total"), "total", total).append_column(UNFINISHED, fails)

    def send(self, records: Sequence[Record], mark_us: int) -> None:
        """Let a batch land, and consume it."""
        partials = [replace(lifted(f, records), fragment=n) for n, f in self.fragments.items() if records]
        for action in self.site.handle_all([*partials, LowMarkRaised("s", mark_us)], 0):
            segment = Segment("a", "life", self.segments, action.messages)
            self.center.inbox.accept(encode_segment(segment).data)
            self.segments += 1
        self.consume()

    def consume(self) -> None:
        while self.center.consume():
            pass
        self.clock.advance(20_000_000)
        self.center.tick()

    def answer(self, name: str) -> Answer:
        rows = read_results(self.folder / "state", name).to_pylist()
        return {(_us(r["window_start"]), r["k"]): (r["n"], r["total"]) for r in rows}

    def log(self, name: str) -> list[tuple[int, int, str]]:
        """The revisions of a view: window, revision, status."""
        log = read_windows(self.folder / "state", name).to_pylist()
        return [(_us(w["window_start"]), w["revision"], w["status"]) for w in log]


def _columns(rows: pa.Table) -> pa.Table:
    kept = rows.drop_columns(["window_start", "window_end"])
    return kept.append_column("retracted", pa.array([False] * rows.num_rows))


def _us(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)


def test_a_view_whose_last_step_fails_is_suspended_alone_and_a_restart_is_fine(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send([(1, "a", 5), (2, "x", 1)], 10)
    world.send([(11, "a", 6)], 20)
    for _ in range(2):
        assert world.answer("q") == {(0, "a"): (1, 5), (0, "x"): (1, 1), (10, "a"): (1, 6)}
        assert world.log("q") == [(0, 1, EXACT), (10, 1, EXACT)]
        assert world.answer("p") == {}
        assert world.log("p") == [(0, 1, SUSPENDED), (10, 1, SUSPENDED)]
        status = world.center.status()["queries"]
        assert status["q"]["unfinished"] is None
        assert status["p"]["unfinished"]["reason"] == "[DIVIDE_BY_ZERO] Division by zero."
        assert status["p"]["unfinished"]["windows_us"] == (0, 10)
        world.crash()


def test_what_was_held_back_is_published_when_the_view_is_resumed_but_for_the_rows_that_fail(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send([(1, "a", 5), (2, "x", 1)], 10)
    world.send([(3, "b", 6)], 20)  # late: a repair of a window whose answer is not finished
    world.center.resume(["p", "q", "unknown"])
    world.consume()
    assert world.answer("p") == {(0, "a"): (1, 5), (0, "b"): (1, 6)}
    assert world.log("p")[-1] == (0, 3, EXACT)
    assert world.center.status()["queries"]["p"]["unfinished"] is None
    world.send([(21, "a", 5)], 30)
    assert world.log("p")[-1] == (20, 1, EXACT), "it goes on"
    world.send([(31, "x", 5)], 40)
    assert world.log("p")[-1] == (30, 1, SUSPENDED), "and is suspended again when it fails again"


def test_a_final_window_that_was_held_back_is_final_when_it_is_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send([(1, "a", 5), (2, "x", 1)], 10)
    world.send([(5_001, "a", 6)], 6_000)
    world.failing.clear()
    world.center.resume(["p"])
    world.consume()
    assert world.answer("p") == world.answer("q") == {(0, "a"): (1, 5), (0, "x"): (1, 1), (5_000, "a"): (1, 6)}
    assert (0, 2, FINAL) in world.log("p")


def test_rows_that_fail_are_published_as_null_where_the_view_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, nulls=True)
    world.send([(1, "a", 5), (2, "x", 1)], 10)
    assert world.answer("p") == {(0, "a"): (1, 5), (0, "x"): (1, None)}
    assert world.log("p") == [(0, 1, EXACT)]
    (reason,) = read_windows(tmp_path / "state", "p")["reason"].to_pylist()
    assert reason.endswith("; 1 rows could not be finished")
    assert world.center.status()["queries"]["p"]["unfinished"] is None


@pytest.mark.parametrize("place", ["before the rows", "after the rows", "before the journal"])
def test_a_crash_while_a_view_is_being_suspended_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    world = World(tmp_path)
    with monkeypatch.context() as dying:
        tables = world.center.tables["p"]
        store = tables._store
        real = store.append

        def append(kind: str, query: str, number: int, make: Any) -> None:
            if kind == "results" and query == "p" and place == "before the rows":
                make()
                raise OSError("died")
            real(kind, query, number, make)
            if kind == "results" and query == "p" and place == "after the rows":
                raise OSError("died")

        object.__setattr__(tables, "store", store)
        dying.setattr(type(store), "append", lambda self, *given: append(*given))
        if place == "before the journal":
            dying.setattr(world.center, "_journal_notes", lambda: 1 / 0)
        with pytest.raises((OSError, ZeroDivisionError)):
            world.send([(1, "a", 5), (2, "x", 1)], 10)
    world.crash()
    world.consume()
    assert world.log("p") == [(0, 1, SUSPENDED)]
    assert world.center.status()["queries"]["p"]["unfinished"]["windows"] == 1
    world.failing.clear()
    world.center.resume(["p"])
    world.consume()
    assert world.answer("p") == world.answer("q") == {(0, "a"): (1, 5), (0, "x"): (1, 1)}


records = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abx"), st.integers(0, 9)), max_size=24)


@settings(max_examples=examples(20))
@given(data=records, seed=st.integers(0, 10_000))
def test_whenever_it_fails_and_is_resumed_in_the_end_the_answers_are_those_of_the_oracle(
    data: list[Record], seed: int
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        newest = 0
        for start in range(0, len(data), 4):
            batch = data[start : start + 4]
            newest = max(newest, *(ts for ts, _, _ in batch))
            world.failing = set(chance.choice(["", "x", "ax"]))
            world.send(batch, newest)
            if chance.random() < 0.3:
                world.center.resume(["p"])
            if chance.random() < 0.3:
                world.crash()
        world.failing.clear()
        world.send([(99, "a", 1)], 100)
        for _ in range(2):  # rows that failed when they were resumed are held back no more: a repair brings them
            world.center.resume(["p"])
            world.consume()
        expected = naive(WINDOW, [*data, (99, "a", 1)])
        assert world.answer("q") == expected
        shown = world.answer("p")
        assert all(expected[place] == value for place, value in shown.items())
        revisions = [(start, revision) for start, revision, _ in world.log("p") if revision]
        assert all(a <= b for a, b in zip(*_by_window(revisions), strict=True))


def _by_window(revisions: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return each revision of a window, and the one after it."""
    seen: dict[int, int] = {}
    before, after = [], []
    for start, revision in revisions:
        before.append(seen.get(start, 0))
        after.append(revision)
        seen[start] = revision
    return before, after
