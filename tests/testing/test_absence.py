"""Sites that are away and return: what the others answer meanwhile, and what their return costs.

Catches: a dead site that delays the answers of the others ever longer, a center that holds more the longer sites are
away, a backlog that keeps fresh windows waiting or drains slower than its link. Cannot catch: what real sockets do.
`make test` runs minutes of it with a few sites, `make soak` the whole hour, `catchment bench absence` prints figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.absence.absence import measure_dead_site, measure_return


def check_answers(seen: Mapping[str, Any]) -> None:
    """Windows were answered in time all along, and are exact in the end (they were compared with the oracle)."""
    assert seen["windows"] > 10
    assert seen["without_a_site"] > 0
    assert seen["slowest_answer_s"] <= seen["allowed_answer_s"], "a site that is away costs its freshness once"
    assert seen["wrongly_missing"] == []
    assert seen["not_exact_in_the_end"] == 0
    assert seen["held_bytes_second_half"] <= 2 * seen["held_bytes_first_half"] + 10_000


def check_return(seen: Mapping[str, Any]) -> None:
    """Fresh windows had the records of all sites at once, and every backlog drained at the speed of its link."""
    assert seen["fresh_windows"] > 0
    assert seen["fresh_windows_that_lacked_records"] == 0
    assert seen["not_drained"] == []
    for site, backlog in seen["backlogs"].items():
        assert backlog["drained_s"] <= 1.5 * backlog["at_link_speed_s"] + 30, f"{site}: {backlog}"


def test_a_site_that_is_dead_for_minutes_delays_no_window_of_the_others_and_its_return_makes_all_exact() -> None:
    check_answers(measure_dead_site(away_s=180, after_s=60))


def test_sites_that_return_together_are_taken_at_link_speed_and_keep_no_fresh_window_waiting() -> None:
    seen = measure_return(sites=4, away_s=120, after_s=90)
    check_answers(seen)
    check_return(seen)


@pytest.mark.soak
def test_a_site_that_is_dead_for_an_hour_delays_no_window_of_the_others() -> None:
    check_answers(measure_dead_site(away_s=3600, after_s=300))


@pytest.mark.soak
def test_thirty_two_sites_that_return_together_after_an_hour_are_taken_at_link_speed() -> None:
    seen = measure_return(sites=32, away_s=3600, after_s=600)
    check_answers(seen)
    check_return(seen)
