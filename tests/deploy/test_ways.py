"""Segments go around a link that is down or congested, over a site that forwards: all of them, each once.

Real sockets on loopback, each site with its own keys; the direct link is a proxy that the test throttles and cuts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.deploy.reports.role_files import read_status
from catchment.wire.sending.sender import Sender
from tests.worlds.waiting import PATIENCE_S, wait_until
from tests.worlds.ways_world import AROUND, DIRECT, KEYS, TOKENS, WaysWorld, ways_world
from tests.worlds.wire_support import landed_segments


def wait_for_way(sender: Sender, way: list[str], world: WaysWorld) -> None:
    """Go on to append, as a site does, until segments take a way."""

    def is_used() -> bool:
        return bool(sender.ways.status()["used"] == way)

    wait_until(is_used, f"the way {way}", act=lambda: world.keep_busy(sender), state=sender.ways.status)


def check_all_landed(world: WaysWorld) -> None:
    """Everything that was appended has landed once, and nothing else has."""
    numbers = [segment.sequence for segment in landed_segments(world.inbox)]
    assert sorted(numbers) == list(range(world.outbox.next_sequence))
    assert {segment.origin for segment in landed_segments(world.inbox)} == {"a"}


@pytest.mark.parametrize("security", ["", KEYS], ids=["loopback", "keys"])
def test_a_link_that_is_cut_is_gone_around_and_taken_again_when_it_is_back(tmp_path: Path, security: str) -> None:
    with ways_world(tmp_path, security) as world:
        sender = world.make_sender()
        sender.start()
        try:
            world.append(3)
            sender.notify()
            assert sender.wait_until_empty(PATIENCE_S)
            world.link.cut()
            wait_for_way(sender, AROUND, world)
            assert sender.wait_until_empty(PATIENCE_S)
            forwarded = world.forwarding.status("b")["center"]
            assert forwarded["bytes_sent"] > 0
            assert "down" in sender.ways.status()["reason"]
            world.link.mend()
            wait_for_way(sender, DIRECT, world)
            assert sender.wait_until_empty(PATIENCE_S)
        finally:
            sender.stop()
        check_all_landed(world)


def test_a_link_throttled_to_a_tenth_is_gone_around(tmp_path: Path) -> None:
    with ways_world(tmp_path, bandwidth="400 KB/s") as world:
        world.link.bytes_per_s = 400_000.0
        sender = world.make_sender()
        sender.start()
        try:
            wait_for_way(sender, DIRECT, world)
            assert sender.wait_until_empty(PATIENCE_S)
            world.link.bytes_per_s = 40_000.0
            wait_for_way(sender, AROUND, world)
            assert sender.wait_until_empty(PATIENCE_S)
            world.link.bytes_per_s = 400_000.0
            wait_for_way(sender, DIRECT, world)
            assert sender.wait_until_empty(PATIENCE_S)
        finally:
            sender.stop()
        check_all_landed(world)
        sent = sender.ways.bytes_by_link()
        assert set(sent) == {"b", "center"}
        assert sum(sent.values()) >= sender.snapshot().bytes_acked


def test_what_is_under_way_when_a_process_is_killed_is_sent_again_over_the_other_way(tmp_path: Path) -> None:
    with ways_world(tmp_path) as world:
        world.link.bytes_per_s = 1_000.0
        first = world.make_sender()
        first.start()
        world.append(20)
        first.notify()
        wait_until(lambda: world.link.bytes_carried > 2_000, "something to be under way")
        first.stop()  # the outbox is all that stays
        world.link.cut()
        second = world.make_sender()
        second.start()
        try:
            assert second.wait_until_empty(PATIENCE_S)
        finally:
            second.stop()
        check_all_landed(world)


def test_with_tokens_alone_nothing_is_forwarded(tmp_path: Path) -> None:
    """A receiver knows only hashes of tokens, and so do others: they do not prove an origin to the end."""
    with ways_world(tmp_path, TOKENS) as world:
        sender = world.make_sender()
        assert not sender.ways.has_several
        assert world.forwarding.running == []


def test_a_site_that_only_forwards_writes_a_status(tmp_path: Path) -> None:
    with ways_world(tmp_path) as world:
        world.forwarding.write_status("b")
        told = read_status(world.project.site_folder("b"))
        assert told is not None
        assert told["forwarded"] == {}


def test_a_site_that_only_forwards_takes_no_segments(tmp_path: Path) -> None:
    with ways_world(tmp_path) as world:
        connections = world.connections()
        address = world.forwarding.connections.addresses["b"]
        sender = connections.make_sender(world.project.link("a", "b"), "a", address, world.outbox)
        sender.start()
        try:
            wait_until(lambda: "only forwards" in (sender.snapshot().last_error or ""), "a refusal")
        finally:
            sender.stop()
        assert sender.snapshot().bytes_acked == 0
