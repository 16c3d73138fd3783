"""Older and lost state is healed, in whole simulated deployments: recomputed from history, replaced at the center.

Catches: a record that is counted twice or not at all after a site came back with an older copy or an empty disk, an
exact answer that is given up for a worse one, a window that claims to be exact and lacks what nobody has any more.
Cannot catch: what Spark reads of history and of sources; `tests/spark/test_heal.py` does that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from catchment.center.statuses import EXACT, FINAL
from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.heal import heal
from catchment.errors import WireError
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.generate import BEGIN_US, draw_features
from catchment.testing.simulated.site import SimulatedSite
from catchment.testing.simulated.world import CENTER, SITE, Role, StateCopy, WorldOptions
from catchment.timeline import SECOND_US
from catchment.wire.sending.outbox import Outbox
from tests.testing.test_past import SELECT, SITES, STREAM, TOML, hits
from tests.worlds.tiers import seeds

MINUTE_US = 60 * SECOND_US
BEHIND_A_RELAY = TOML.replace('from = "a"\nto = "center"', 'from = "a"\nto = "r"').replace(
    "[[links]]", '[sites.r]\n[[links]]\nfrom = "r"\nto = "center"\n[[links]]', 1
)


def make_simulation(folder: Path, toml: str = TOML) -> DeploymentSimulation:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(toml + 'repair_horizon = "30 minutes"\n')
    stream = STREAM.replace("event_time = 'ts',", "event_time = 'ts', sites = 'a,b,c',")
    (folder / "queries" / "all.sql").write_text(f"{stream}\nCREATE MATERIALIZED VIEW pages AS {SELECT};\n")
    deployment = Deployment.load(folder)
    declared = deployment.catalog.streams["hits"]
    workload = {("hits", s): ArrivingRecords.of(declared, s, *hits(seed)) for seed, s in enumerate(SITES)}
    return DeploymentSimulation(deployment, workload, 1, options=WorldOptions(tick_us=25 * SECOND_US))


class Incident:
    """A deployment in which one role comes back with an older copy of its state, or with none, and is healed."""

    def __init__(
        self,
        folder: Path,
        toml: str = TOML,
        role: tuple[str, str] = (SITE, "a"),
        *,
        is_lost: bool,
        heals: bool = True,
    ) -> None:
        self.simulation = make_simulation(folder, toml)
        self.world = self.simulation.world
        self.role: Role = self.world.roles[role]
        self.copied: StateCopy | None = None
        if not is_lost:
            self.at(24, self._copy)
        self.at(40, lambda: self.world.put_back(self.role, self.copied))
        self.at(41, lambda: self.world.start(self.role))
        if heals:
            self.at(46, lambda: self.world.heal(self.role))

    def _copy(self) -> None:
        self.copied = self.world.copy_state(self.role)

    def at(self, minute: float, act: Callable[[], object]) -> None:
        def carry_out() -> None:
            act()

        self.world.scheduler.at(BEGIN_US + round(minute * MINUTE_US), carry_out)

    def log(self) -> list[dict[str, Any]]:
        log = self.world.store.windows("pages")
        assert log is not None
        return list(log.to_pylist())

    def last(self) -> dict[datetime, dict[str, Any]]:
        """The newest entry of each window in the log."""
        return {row["window_start"]: row for row in self.log()}

    def last_error(self, site: str) -> str:
        """Why a site cannot send, if it cannot."""
        running = self.world.roles[SITE, site].running
        assert isinstance(running, SimulatedSite)
        return running.exits.center.sender.snapshot().last_error or ""

    def revised(self) -> set[str]:
        """The windows that were computed again, by the minute of their start."""
        return {r["window_start"].isoformat()[11:16] for r in self.log() if r["reason"].startswith("computed again")}


@pytest.mark.parametrize(
    ("toml", "is_lost"),
    [
        pytest.param(TOML, False, id="direct, older copy"),
        pytest.param(TOML, True, id="direct, empty disk", marks=pytest.mark.soak),
        pytest.param(BEHIND_A_RELAY, False, id="behind a relay, older copy", marks=pytest.mark.soak),
        pytest.param(BEHIND_A_RELAY, True, id="behind a relay, empty disk", marks=pytest.mark.soak),
    ],
)
def test_a_site_that_comes_back_with_another_state_is_refused_and_then_healed(
    tmp_path: Path, toml: str, is_lost: bool
) -> None:
    incident = Incident(tmp_path / "project", toml, is_lost=is_lost)
    refused: list[str] = []
    incident.at(45, lambda: refused.append(incident.last_error("a")))
    incident.simulation.run().assert_right()
    assert "catchment sites heal" in refused[0], "before it is healed it is refused"
    assert {row["status"] for row in incident.last().values()} == {FINAL}
    assert not any(row["missing_sites"] for row in incident.last().values())
    assert {"00:20", "00:25", "00:30"} <= incident.revised(), "windows within the horizon are computed again"


@pytest.mark.parametrize("is_lost", [False, True], ids=["older copy", "empty disk"])
def test_a_relay_that_comes_back_with_another_state_is_healed_with_all_behind_it(tmp_path: Path, is_lost: bool) -> None:
    incident = Incident(tmp_path / "project", BEHIND_A_RELAY, ("relay", "r"), is_lost=is_lost)
    incident.simulation.run().assert_right()
    assert {row["status"] for row in incident.last().values()} == {FINAL}
    assert not any(row["missing_sites"] for row in incident.last().values())


def test_a_relay_with_an_older_copy_acknowledges_nothing_to_senders_that_cannot_notice_it(tmp_path: Path) -> None:
    toml = BEHIND_A_RELAY.replace('from = "b"\nto = "center"', 'from = "b"\nto = "r"')
    incident = Incident(tmp_path / "project", toml, ("relay", "r"), is_lost=False, heals=False)
    world = incident.world
    newest: list[StateCopy] = []
    acknowledged: list[int] = []

    def cut(carries: bool) -> None:
        world.link("a", "r").weather.carries_requests = carries

    def note_acknowledged() -> None:
        running = world.roles[SITE, "a"].running
        assert isinstance(running, SimulatedSite)
        acknowledged.append(running.outbox.lowest_unacked)

    incident.at(23, lambda: cut(False))  # so nothing is acknowledged to a since the copy was made
    incident.at(39.9, lambda: newest.append(world.copy_state(incident.role)))
    incident.at(42, note_acknowledged)
    incident.at(42, lambda: cut(True))
    incident.at(50, note_acknowledged)
    incident.at(50, lambda: world.put_back(incident.role, newest[0]))  # the operator has found the newest copy
    incident.at(51, lambda: world.start(incident.role))
    incident.simulation.run().assert_right()
    assert acknowledged[0] == acknowledged[1], "what the older copy took would be gone with it"
    assert {row["status"] for row in incident.last().values()} == {FINAL}
    assert not any(row["missing_sites"] for row in incident.last().values())


@pytest.mark.parametrize(
    ("before", "after"), [(BEHIND_A_RELAY, TOML), (TOML, BEHIND_A_RELAY)], ids=["a relay goes", "a relay comes"]
)
def test_a_site_sends_by_another_link_once_it_is_healed(tmp_path: Path, before: str, after: str) -> None:
    folder = tmp_path / "project"
    simulation = make_simulation(folder, before)
    world = simulation.world

    def change_links() -> None:
        for role in world.roles.values():
            world.kill(role, back_after_us=None)
        (folder / "catchment.toml").write_text(after + 'repair_horizon = "30 minutes"\n')
        project = Project.load(folder)
        with pytest.raises(WireError, match="belongs to the link a -> ") as refused:
            Outbox(project.site_folder("a") / "outbox", "a", Routes.of(project).next_inbox("a"), 1_000)
        assert "catchment sites heal a" in str(refused.value.hint)
        heal(folder, "a")
        world.reload()

    world.scheduler.at(BEGIN_US + 40 * MINUTE_US, change_links)
    simulation.run().assert_right()
    assert world.roles.keys() >= {(SITE, "a")}
    last = {row["window_start"]: row for row in world.store.windows("pages").to_pylist()}  # type: ignore[union-attr]
    assert {row["status"] for row in last.values()} == {FINAL}
    assert not any(row["missing_sites"] for row in last.values())


def test_an_exact_answer_stands_where_its_records_are_gone_and_other_windows_name_the_site(tmp_path: Path) -> None:
    incident = Incident(tmp_path / "project", is_lost=True)
    arrivals = incident.world.logs["hits", "a"].arrivals
    gone = arrivals.times_us < BEGIN_US + 37 * MINUTE_US
    held: dict[str, tuple[str, tuple[str, ...]]] = {}

    def look() -> None:
        arrivals.are_good[gone] = False  # the source no longer has what was read before
        for start, row in incident.last().items():
            held[start.isoformat()[11:16]] = row["status"], tuple(row["missing_sites"])

    incident.at(40, look)
    incident.simulation.run()
    assert held["00:20"] == (EXACT, ())
    assert "00:20" not in incident.revised()
    last = {start.isoformat()[11:16]: row for start, row in incident.last().items()}
    for minute, (status, _) in held.items():
        row = last[minute]
        if status in (EXACT, FINAL):
            assert (row["status"], row["missing_sites"]) == (FINAL, []), f"{minute}: what was exact stands"
        else:
            assert row["status"] == FINAL
            assert row["missing_sites"] == ["a"], f"{minute} lacks what nobody has"
    assert {row["status"] for minute, row in last.items() if minute > "00:45"} == {FINAL}
    assert not any(row["missing_sites"] for minute, row in last.items() if minute > "00:40")


def test_while_a_site_is_healed_the_others_windows_are_published_in_time(tmp_path: Path) -> None:
    incident = Incident(tmp_path / "project", is_lost=False)
    incident.simulation.run().assert_right()
    first = {row["window_start"]: row for row in reversed(incident.log())}
    for start, row in first.items():
        delay_us = (row["published_at"] - start).total_seconds() * SECOND_US - 5 * MINUTE_US
        assert delay_us < 15 * MINUTE_US, f"{start} was first published {delay_us / MINUTE_US:g} minutes after its end"


def test_a_second_healing_begins_before_the_first_has_ended(tmp_path: Path) -> None:
    incident = Incident(tmp_path / "project", is_lost=True)
    incident.at(46, lambda: incident.world.put_back(incident.role, None))
    incident.at(47, lambda: incident.world.start(incident.role))
    incident.at(48, lambda: incident.world.heal(incident.role))
    incident.at(49, lambda: incident.world.heal(incident.world.roles[SITE, "b"]))
    incident.at(49, lambda: incident.world.kill(incident.world.roles[CENTER, "center"], power_cut=True))
    incident.simulation.run().assert_right()
    assert {row["status"] for row in incident.last().values()} == {FINAL}
    assert not any(row["missing_sites"] for row in incident.last().values())


def test_what_a_center_learns_beside_its_journal_is_noticed_when_it_starts_again(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "project")
    world = simulation.world

    def learn_and_end() -> None:
        assert world.center is not None
        frontier = world.center.pipeline.core.frontiers["a"]
        frontier.marks = {fragment: mark_us + 1 for fragment, mark_us in frontier.marks.items()}
        world.kill(world.roles[CENTER, "center"])

    world.scheduler.at(BEGIN_US + 20 * MINUTE_US, learn_and_end)
    problems = simulation.run().problems
    assert problems == ["center center knows something else after its restart: how far sites have come"]


def test_a_center_that_has_lost_its_disk_publishes_everything_again(tmp_path: Path) -> None:
    incident = Incident(tmp_path / "project", BEHIND_A_RELAY, (CENTER, "center"), is_lost=True)
    refused: list[str] = []
    incident.at(45, lambda: refused.append(incident.last_error("b")))
    incident.simulation.run().assert_right()
    assert "catchment sites heal" in refused[0], "an empty center is recognised"
    assert {row["status"] for row in incident.last().values()} == {FINAL}
    assert not any(row["missing_sites"] for row in incident.last().values())
    assert min(incident.last()).isoformat()[11:16] == "00:00"


def test_a_window_that_is_renewed_twice_before_anything_came_again_is_replaced_once() -> None:
    run_seed(104, Draw(only=frozenset({Feature.EARLY, Feature.LOST, Feature.RESTORED}))).assert_right()


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("feature", [Feature.RESTORED, Feature.LOST])
def test_under_any_faults_what_was_older_or_lost_becomes_what_the_oracle_says(seed: int, feature: Feature) -> None:
    features = draw_features(random.Random(seed)) | {feature}
    run_seed(seed, Draw(only=features)).assert_right()
