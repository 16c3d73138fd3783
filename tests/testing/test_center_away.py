"""Sites that are without their center: what they keep, what they do meanwhile, and what its return costs.

Catches: an outbox that grows beyond its bound, records that are lost or doubled by it, a site that misses what was
submitted meanwhile, senders that storm a center which is away or has returned. Cannot catch: what real sockets do
(`tests/e2e/test_separate_machines.py` has four hours of event time over real ones).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.absence.sites_away import BANDWIDTH_BYTES_PER_S, BEFORE_S, Absence, make_absence
from catchment.deploy.submit import submit
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.network import LANES, SimulatedLink
from catchment.testing.simulated.site import SimulatedSite
from catchment.testing.simulated.world import CENTER
from catchment.timeline import SECOND_US
from catchment.wire.sending.sender import MAX_RETRY_S

OUTBOX_MAX_BYTES = 3_000
GROWING_S = 30  # in which the delays between two attempts grow to the longest
FACT_BYTES = 500  # what facts may add to an outbox whose room updates have used
VIEW = """CREATE MATERIALIZED VIEW largest AS
  SELECT window.start, max(bytes) AS bytes FROM hits GROUP BY window(ts, '10 seconds');"""


def let_center_die(absence: Absence) -> None:
    begin_us = BEGIN_US + BEFORE_S * SECOND_US
    world = absence.world
    center = world.roles[CENTER, world.project.center]
    world.scheduler.at(begin_us, lambda: world.kill(center, back_after_us=absence.return_us - begin_us))


def submit_meanwhile(absence: Absence, file: Path) -> None:
    file.write_text(VIEW)
    middle_us = (BEGIN_US + BEFORE_S * SECOND_US + absence.return_us) // 2
    absence.world.scheduler.at(middle_us, lambda: _ignore(submit(absence.world.project, file)))


def watch_outboxes(absence: Absence, most: Counter[str]) -> None:
    for role in absence.world.sites():
        if isinstance(role.running, SimulatedSite):
            most[role.name] = max(most[role.name], role.running.outbox.size_bytes)
    absence.world.scheduler.after(SECOND_US, lambda: watch_outboxes(absence, most))


def count_calls(absence: Absence, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """Return how many calls each link carries in each second since the beginning, as they are made."""
    made: Counter[tuple[int, int]] = Counter()
    call = SimulatedLink.call

    def count(link: SimulatedLink, *given: object) -> None:
        made[id(link), (link.scheduler.now_us - BEGIN_US) // SECOND_US] += 1
        call(link, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedLink, "call", count)
    return made


def check_center_away(folder: Path, away_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    absence = make_absence(folder / "project", 3, 0, away_s, 120, f"{OUTBOX_MAX_BYTES} B")
    most: Counter[str] = Counter()
    let_center_die(absence)
    submit_meanwhile(absence, folder / "largest.sql")
    watch_outboxes(absence, most)
    calls = count_calls(absence, monkeypatch)
    absence.simulation.run().assert_right()

    assert absence.world.seen[RareState.LINK_BLOCKED], "updates have waited for room"
    assert all(OUTBOX_MAX_BYTES / 2 < size <= OUTBOX_MAX_BYTES + FACT_BYTES for size in most.values()), most
    windows = absence.world.store.windows("largest")
    assert windows is not None, "what was submitted meanwhile has reached the sites"
    assert windows.num_rows
    back_s = (absence.return_us - BEGIN_US) // SECOND_US
    per_s = LANES * (2 / MAX_RETRY_S)  # a lane waits for half of the longest delay at least
    while_away = [n for (_, second), n in calls.items() if BEFORE_S + GROWING_S <= second < back_s]
    assert max(while_away) <= 2 * per_s, "a center that is away is asked by each lane once a second at most"
    segment_bytes = 100  # fewer bytes than any segment has
    after = [n for (_, second), n in calls.items() if second >= back_s]
    assert max(after) <= 2 * per_s + BANDWIDTH_BYTES_PER_S / segment_bytes, "nor stormed when it returns"


def test_sites_without_their_center_keep_within_their_bounds_and_all_is_exact_after_its_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_center_away(tmp_path, 300, monkeypatch)


@pytest.mark.soak
def test_the_same_for_two_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_center_away(tmp_path, 7200, monkeypatch)


def _ignore(_: object) -> None:
    """Let a result go."""
