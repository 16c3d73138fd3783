"""What the other tests rely on: waiting ends when a state comes, and says which one did not; tiers scale searches."""

from __future__ import annotations

import socket

import pytest
from hypothesis import settings

from tests.worlds.tiers import EXAMPLES_PER_TIER, FEWEST, examples, seeds
from tests.worlds.waiting import TEST_PORTS, free_port, wait_until


def test_waiting_ends_as_soon_as_the_condition_holds() -> None:
    looked = iter([False, False, True])
    wait_until(lambda: next(looked), "the third look", pause_s=0.0)
    assert next(looked, None) is None


def test_waiting_in_vain_names_what_it_waited_for_and_the_last_state() -> None:
    with pytest.raises(AssertionError, match="in vain for: the sea to be empty\nlast state: full"):
        wait_until(lambda: False, "the sea to be empty", 0.0, state=lambda: "full", pause_s=0.0)


def test_a_port_is_given_once_and_can_be_listened_on() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    for port in ports:
        assert TEST_PORTS[0] <= port < TEST_PORTS[1]
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(("tier", "wanted"), [("quick", 20), ("test", 100), ("soak", 2_000)])
def test_searches_scale_with_the_tier(tier: str, wanted: int) -> None:
    loaded = settings.get_current_profile_name()
    try:
        settings.load_profile(tier)
        assert examples(100) == len(seeds(100)) == wanted == EXAMPLES_PER_TIER[tier]
        assert examples(5) >= FEWEST, "few examples stay enough to say something"
        assert settings.default is not None
        assert settings.default.deadline is None
    finally:
        settings.load_profile(loaded)
