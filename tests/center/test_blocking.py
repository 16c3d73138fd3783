"""A segment that was acknowledged and cannot be merged blocks its own site, and nobody else.

The oracle is a second run in which that site falls silent at the same moment: everything that is published must be
equal, whatever is wrong with the segment and however often the center is restarted.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate
from catchment.center.query import CenterQuery
from catchment.center.statuses import FINAL, ON_TIME
from catchment.errors import WireError
from catchment.progress import blocking
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.messages import Message, Progress, Segment, Updates
from catchment.wire.receiving.set_aside import SetAside, request_resume
from catchment.wire.sending.uplink import Introduction, RefusedError
from tests.worlds.tiers import examples
from tests.worlds.world import Center, Record, Site, deliver_some, make_fragment, naive

WINDOW = WindowSpec.tumbling(10)
FRESHNESS = 5
SITES = ("a", "b", "c")
BAD = "b"  # the site that sends the poison


def _fragment() -> Fragment:
    simple = make_fragment(WINDOW)
    sketches = (
        make_aggregate("approx_count_distinct", "v", pa.int64(), name="distinct"),
        make_aggregate("percentile_approx", "v", pa.int64(), (0.5,), name="median"),
        make_aggregate("approx_top_k", "v", pa.int64(), ("3",), name="top"),
    )
    return replace(simple, aggregates=(*simple.aggregates, *sketches))


class World:
    """Three sites and a center; `open_again` is the center after a restart."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        fragment = _fragment()
        query = CenterQuery("q", fragment, WINDOW, SITES, 1_000, FRESHNESS)
        self.center = Center(folder / "center", query, self.clock)
        self.sites = {name: Site(folder / name, name, fragment, "batching", self.clock) for name in SITES}

    def deliver(self, name: str) -> None:
        deliver_some(self.sites[name], self.center, random.Random(0), all_of_it=True)

    def round(self, number: int, senders: Iterable[str]) -> None:
        """Every site reads a window's worth of records; some of them deliver it."""
        for name in SITES:
            self.sites[name].batch(_records(name, number), 10 * (number + 1))
        for name in senders:
            self.deliver(name)
        self.settle()

    def settle(self) -> None:
        self.center.consume()
        self.clock.advance(FRESHNESS + 1)
        self.center.tick()

    def published(self) -> list[tuple[Any, ...]]:
        return [
            (p.window, p.revision, p.status, p.coverage, p.missing_sites, p.reason, p.rows.to_pylist())
            for p in self.center.tables.published
        ]


def _records(site: str, number: int) -> list[Record]:
    return [(10 * number + 1, key, SITES.index(site) + number) for key in "xy"]


# ---- what can be wrong with a segment


def _with_column(updates: Updates, name: str, value: object) -> Updates:
    column = updates.table.schema.get_field_index(name)
    values = pa.array([value] * updates.rows, updates.table.schema.field(name).type)
    return replace(updates, table=updates.table.set_column(column, updates.table.schema.field(name), values))


def _update(change: Callable[[Updates], Updates]) -> Callable[[Message], Message]:
    return lambda message: change(message) if isinstance(message, Updates) else message


def _wrong_total(message: Message) -> Message:
    return replace(message, updates_total=message.updates_total + 7) if isinstance(message, Progress) else message


def _doubled(updates: Updates) -> Updates:
    """Large rows, twice each, though their site counts them once."""
    large = _with_column(updates, "total__sum", 2**62)
    return replace(large, table=pa.concat_tables([large.table, large.table]))


POISON: dict[str, Callable[[Message], Message]] = {
    "wrong total": _wrong_total,
    "rows that are not counted": _update(lambda u: replace(u, table=u.table.slice(1))),
    "no hll": _update(lambda u: _with_column(u, "distinct__hll", b"\x03\x01\x07\x0c")),
    "no kll": _update(lambda u: _with_column(u, "median__kll", b"junk")),
    "no top-k": _update(lambda u: _with_column(u, "top__topk", b"x" * 30)),
    "a top-k that is too short": _update(lambda u: _with_column(u, "top__topk", b"x")),
    "a slice of no calendar": _update(lambda u: _with_column(u, SLICE_COLUMN, 2**61)),
    "a slice between slices": _update(lambda u: _with_column(u, SLICE_COLUMN, 3)),
    "no slice": _update(lambda u: _with_column(u, SLICE_COLUMN, None)),
    "another schema": _update(lambda u: replace(u, table=u.table.select([SLICE_COLUMN, "k"]))),
    "rows that are there twice": _update(_doubled),
}


def _poisoned(data: bytes, change: Callable[[Message], Message]) -> bytes:
    segment = decode_segment(data)
    messages = tuple(change(message) for message in segment.messages)
    assert messages != segment.messages
    return encode_segment(Segment(segment.origin, segment.epoch, segment.sequence, messages)).data


def _send_poison(world: World, change: Callable[[Message], Message]) -> None:
    site = world.sites[BAD]
    (pending,) = site.outbox.pending()
    world.center.inbox.accept(_poisoned(site.pending_bytes(pending.sequence), change))
    site.outbox.ack(pending.sequence)


@pytest.mark.parametrize("kind", POISON)
@settings(max_examples=examples(2))
@given(healthy=st.integers(0, 3), crashes=st.sets(st.integers(0, 7)))
def test_poison_of_one_site_changes_nothing_but_that_this_site_is_missing(
    kind: str, healthy: int, crashes: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        poisoned, silent = World(Path(folder) / "poisoned"), World(Path(folder) / "silent")
        for number in range(healthy):
            poisoned.round(number, SITES)
            silent.round(number, SITES)
        for number in range(healthy, healthy + 4):
            silent.round(number, ("a", "c"))
            for site in SITES:
                poisoned.sites[site].batch(_records(site, number), 10 * (number + 1))
            for site in ("a", "c"):
                poisoned.deliver(site)
            if number == healthy:
                _send_poison(poisoned, POISON[kind])
            else:
                with pytest.raises(RefusedError, match="'b' is blocked here"):
                    poisoned.deliver(BAD)
            if number in crashes:
                poisoned.center.crash()
            poisoned.settle()
        assert poisoned.published() == silent.published()
        assert poisoned.published()[-1][4] == (BAD,)
        assert poisoned.sites[BAD].outbox.pending(), "what is refused stays where it is"

        told = poisoned.center.consumer.blocked_status()
        for _ in range(3):
            poisoned.center.crash()
            assert poisoned.center.consumer.blocked_status() == told
        assert set(told) == {BAD}
        assert told[BAD]["segments"] == 1


def test_what_is_told_of_a_blocked_site_names_the_segment_the_reason_and_the_way_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.round(0, SITES)
    world.sites[BAD].batch(_records(BAD, 1), 20)
    _send_poison(world, POISON["no kll"])
    world.clock.advance(11)
    blocked_us = world.clock.now_us()
    world.center.consume()
    (told,) = world.center.consumer.blocked_status().values()
    assert told["since_us"] == blocked_us
    assert told["segment"] == 1
    assert "'b' sends partials of 'q' that cannot be read" in told["reason"]
    assert "touch" in told["way_out"]
    with pytest.raises(RefusedError, match="segment 1 could not be merged") as refused:
        world.center.inbox.greet(Introduction(BAD, world.sites[BAD].outbox.epoch))
    assert refused.value.reason == "blocked"
    assert not refused.value.retryable


@pytest.mark.parametrize("crash_at", ["nowhere", "before it is tried", "after it was tried"])
def test_a_site_is_resumed_where_it_stopped_and_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: str
) -> None:
    def cannot_read(segment: Segment, fragments: object) -> None:
        if segment.origin == BAD and segment.sequence >= 1:
            raise WireError("a sketch of another version")

    world = World(tmp_path)
    world.round(0, SITES)
    with monkeypatch.context() as older_center:
        older_center.setattr(blocking, "check_soundness", cannot_read)
        for name in SITES:  # two segments of each site are in when the first one turns out to be poison
            for number in (1, 2):
                world.sites[name].batch(_records(name, number), 10 * (number + 1))
            world.deliver(name)
        world.settle()
    assert world.center.consumer.blocked_status()[BAD]["segments"] == 2
    assert world.center.tables.published[-1].status == ON_TIME

    world.center.consumer.resume_requested()
    assert BAD in world.center.core.blocked, "nobody has asked for it yet"
    request_resume(world.center.inbox.folder, BAD)
    if crash_at == "before it is tried":
        world.center.host.submit("resume", [blocking.SiteResumed(BAD)])
        world.center.crash()
    world.center.consumer.resume_requested()
    if crash_at == "after it was tried":
        world.center.crash()
    for name in SITES:
        world.sites[name].batch([], END_OF_TIME_US)
        world.deliver(name)
    world.settle()
    assert world.center.consumer.blocked_status() == {}
    assert world.center.inbox.set_aside.origins() == []
    records = [record for name in SITES for number in range(3) for record in _records(name, number)]
    assert world.center.tables.answer() == naive(WINDOW, records)
    assert {p.window: p.status for p in world.center.tables.published}.popitem()[1] == FINAL


def test_a_site_whose_segment_still_cannot_be_merged_is_blocked_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.round(0, SITES)
    world.sites[BAD].batch(_records(BAD, 1), 20)
    _send_poison(world, POISON["no kll"])
    world.settle()
    for _ in range(2):
        request_resume(world.center.inbox.folder, BAD)
        world.center.consumer.resume_requested()
        assert world.center.core.blocked == {}
        world.settle()
        assert set(world.center.core.blocked) == {BAD}
        assert world.center.inbox.set_aside.sequences(BAD) == [1]


def test_what_is_set_aside_is_bounded_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    aside = SetAside(tmp_path, max_bytes=25)
    aside.explain("b", 3, "because", 7)
    for sequence in (3, 4, 5, 6):
        aside.add("b", sequence, b"0123456789")
    aside.add("b", 3, b"0123456789")
    assert aside.sequences("b") == [3, 4]
    assert aside.describe("b")["dropped_segments"] == 2
    assert "catchment sites replace b" in aside.describe("b")["way_out"]
    reopened = SetAside(tmp_path, max_bytes=25)
    reopened.add("b", 7, b"0123456789")
    assert reopened.describe("b")["dropped_segments"] == 3
    reopened.forget("b")
    assert reopened.origins() == []
    reopened.add("c", 0, b"0123456789")
    assert reopened.sequences("c") == [0]
