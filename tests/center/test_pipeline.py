"""The center as it runs, without Spark: a thread consumes the inbox, and what it fails with is raised at the next tick.

Result tables are kept in memory. Restarts come between journal and inbox, where a segment could be
lost or counted twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from catchment.center.events import Expired, Publish
from catchment.center.pipeline import FAILURE_FILE, CenterPipeline
from catchment.center.query import CenterQuery
from catchment.center.results.write import ResultTables
from catchment.errors import EngineError, StorageError
from catchment.progress.consumer import CAUSE, SEGMENTS_PER_ENTRY
from catchment.progress.events import Ticked
from catchment.project.config import Project
from catchment.project.sections import Defaults, Site
from catchment.query.fragment import Fragment
from catchment.site.core import SiteCore
from catchment.site.events import FragmentAdded, LowMarkRaised
from catchment.site.policies.registry import policy_by_name
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import Message, Segment
from catchment.wire.receiving.inbox import Inbox
from tests.worlds.waiting import wait_until
from tests.worlds.world import Record, Tables, lifted, make_fragment, naive

WINDOW = WindowSpec.tumbling(10)
FAST = Defaults(trigger_us=1_000)
RECORDS: list[Record] = [(1, "a", 5), (3, "b", 7), (11, "a", 1), (12, "a", 2), (25, "c", 9)]


class MemoryTables:
    """Result tables in memory, as a center calls them."""

    def __init__(self, fragment: Fragment) -> None:
        self.memory = Tables(fragment)
        self.broken = False

    def publish(self, number: int, revisions: Sequence[Publish], on_unfinished: object = None) -> None:
        if self.broken:
            raise OSError("no space left\non the device")
        if revisions:
            self.memory.enact(number, revisions)

    def register_late(self, number: int, expired: Sequence[Expired]) -> None:
        assert not expired

    def recall(self, wanted: pa.Table) -> pa.Table:
        return self.memory.recall(wanted)

    def flush(self) -> None:
        """Memory needs none."""

    def remove_torn(self, first_number: int) -> list[str]:
        return []

    def compact(self) -> None:
        pass

    def next_number(self) -> int:
        return max(self.memory.done, default=-1) + 1


class World:
    """A center with one query of one site, whose segments are made by a site core."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fragment = make_fragment(WINDOW)
        self.tables = MemoryTables(self.fragment)
        self.site = SiteCore()
        self.site.handle(FragmentAdded(self.fragment, policy_by_name("streaming")), 0)
        self.landed = 0
        self.open()

    def open(self) -> None:
        project = Project(
            "p", self.folder, "center", {"center": Site("center")}, {}, defaults=Defaults(trigger_us=1_000)
        )
        query = CenterQuery("q", self.fragment, WINDOW, ("a",), 1_000_000)
        inbox = Inbox(self.folder / "inbox")
        tables = cast("ResultTables", self.tables)
        self.center = CenterPipeline(project, inbox, [query], {"q": self.fragment}, {}, {"q": tables}, ManualClock(0))

    def send(self) -> int:
        """Let segments of all records land, one record each; return how many there are."""
        events = [lifted(self.fragment, [record]) for record in RECORDS]
        return self.land([*events, LowMarkRaised("s", END_OF_TIME_US)])

    def land(self, events: Sequence[Any]) -> int:
        """Let the segments land that a site makes of these events; return how many there are."""
        sent: list[list[Message]] = []
        for event in events:
            actions = [*self.site.handle(event, 0), *self.site.handle(Ticked(), 0)]
            sent += [list(action.messages) for action in actions]
        for number, messages in enumerate(sent, start=self.landed):
            self.center.inbox.accept(encode_segment(Segment("a", "life", number, tuple(messages))).data)
        self.landed += len(sent)
        return len(sent)

    def consume_all(self) -> None:
        while self.center.consume():
            pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_thread_consumes_what_lands(world: World) -> None:
    world.center.start()
    try:
        world.send()
        wait_until(lambda: world.center.consumed, "all that landed to be consumed")
        world.center.tick()
    finally:
        world.center.stop()
    assert world.tables.memory.answer() == naive(WINDOW, RECORDS)


def test_a_crash_between_journal_and_inbox_loses_nothing_and_counts_nothing_twice(world: World) -> None:
    landed = world.send()
    run = world.center.consumer.read(world.center.fragments)
    assert run is not None
    assert run.end == landed
    world.center.host.submit(CAUSE, [*run.events, Ticked()], batch=run.end)
    world.center.stop()
    assert world.center.inbox.size_bytes > 0
    world.open()
    assert world.center.consumed
    assert not world.center.consume()
    assert world.tables.memory.answer() == naive(WINDOW, RECORDS)


def test_a_crash_before_the_journal_consumes_the_same_segments_again(world: World) -> None:
    world.send()
    assert world.center.consumer.read(world.center.fragments) is not None
    world.center.stop()
    world.open()
    world.consume_all()
    assert world.center.consumed
    assert world.tables.memory.answer() == naive(WINDOW, RECORDS)


def test_what_the_thread_fails_with_is_raised_at_the_next_tick(world: World) -> None:
    world.tables.broken = True
    world.center.start()
    world.send()

    def failed() -> bool:
        try:
            world.center.tick()
        except EngineError:
            return True
        return False

    wait_until(failed, "the failure of the thread")
    with pytest.raises(EngineError, match=r"^the center stopped: no space left\n") as caught:
        world.center.tick()
    world.center.stop()
    assert isinstance(caught.value.__cause__, OSError)
    assert FAILURE_FILE in (caught.value.hint or "")
    assert "on the device" in (world.center.folder / FAILURE_FILE).read_text()


def test_an_entry_takes_a_bounded_number_of_segments(world: World) -> None:
    for number in range(SEGMENTS_PER_ENTRY + 1):
        world.center.inbox.accept(encode_segment(Segment("a", "life", number, ())).data)
    assert world.center.consume()
    assert world.center.consumer.position == SEGMENTS_PER_ENTRY
    assert not world.center.consumed
    assert world.center.consume()
    assert world.center.consumed


def test_a_center_whose_journal_was_lost_is_refused_while_its_results_are_there(tmp_path: Path) -> None:
    """It would publish under numbers that the tables know, and everything would be dropped as repeated."""
    world = World(tmp_path)
    world.send()
    world.consume_all()
    assert world.tables.memory.published
    world.center.stop()
    shutil.rmtree(tmp_path / "state" / "center" / "journal")
    with pytest.raises(StorageError, match="the journal accounts for 0 of the"):
        world.open()


def test_what_waits_for_an_answer_is_merged_before_its_window_is_computed_again(world: World) -> None:
    """The answer may stand, and then what has waited for it would be in none."""
    first, late = lifted(world.fragment, [(1, "a", 5)]), lifted(world.fragment, [(2, "a", 3)])
    world.land([first, LowMarkRaised("s", 10)])
    world.consume_all()
    world.land([late])
    world.consume_all()
    center = world.center
    assert center.core.outstanding == 1
    (query,) = center.queries
    again = replace(query, fragment=replace(world.fragment, name="again"), renewal=1)
    fragments = {"q": world.fragment, "again": again.fragment}
    center.deploy([again], fragments, {}, center.tables, center.orders, {})
    assert not center.core.outstanding
    assert world.tables.memory.answer() == naive(WINDOW, [(1, "a", 5), (2, "a", 3)])
