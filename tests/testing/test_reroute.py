"""Sites that are moved to other routes while everything runs, in whole simulated deployments.

Catches: a partial that is lost or counted twice where a site changes its next relay, a mark that overtakes what is
still on its way by the old route, a number that an exit uses twice after a crash, an old relay that all wait for.
The oracle recomputes every view from the raw records.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.routes.move_routes import move_routes
from catchment.deploy.store import DeploymentStore
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.generate import draw_features
from catchment.testing.simulated.network import GREETING_BYTES
from catchment.timeline import SECOND_US
from tests.testing.test_view_sites import SELECT, SITES, STREAM, at, records
from tests.worlds.tiers import seeds

FIRST_SEED = 6  # in this one and the next, sites are moved twice each
VIEW = f"CREATE MATERIALIZED VIEW pages AS {SELECT};"
HUBS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(SITES, ("near", "far", "center")),
    "near": ("center", "far"),
    "far": ("center",),
}


def make_simulation(folder: Path, *views: str) -> DeploymentSimulation:
    """Return a simulation in which every site sends through the near hub, and has other links."""
    lines = ['[project]\nname = "hubs"\ncenter = "center"\n[sites.center]\n[sites.near]\n[sites.far]']
    lines += [f"[sites.{name}]" for name in SITES]
    for origin, ends in HUBS.items():
        for to in ends:
            is_short = to == "near" or (origin, to) in (("near", "center"), ("far", "center"))
            latency_ms = 10 if is_short else 2_000
            lines.append(f'[[links]]\nfrom = "{origin}"\nto = "{to}"\nlatency = "{latency_ms} ms"')
    lines.append('[defaults]\nfreshness = "10 s"\nrepair_horizon = "20 s"\nrelay_wait = "2 s"')
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text("\n".join(lines))
    stream = STREAM.replace("path =", f"sites = '{','.join(SITES)}', path =")
    (folder / "queries" / "all.sql").write_text("\n".join([stream, *views]))
    deployment = Deployment.load(folder)
    assert deployment.routes.relays == ("near",)
    hits = deployment.catalog.streams["hits"]
    workload = {("hits", site): ArrivingRecords.of(hits, site, records(n)) for n, site in enumerate(SITES)}
    return DeploymentSimulation(deployment, workload, 1)


def move(simulation: DeploymentSimulation, hops: Mapping[str, str]) -> None:
    """Move sites to other next ones, as the center does."""
    made = move_routes(simulation.world.current(), hops)
    before = DeploymentStore(simulation.world.project.state_folder).version
    assert made.version > before, "nothing could be moved"
    DeploymentStore(simulation.world.project.state_folder).change(lambda now: made)


def sent(simulation: DeploymentSimulation, origin: str, to: str) -> int:
    return simulation.world.links[origin, to].events.sent_bytes if (origin, to) in simulation.world.links else 0


@pytest.mark.parametrize(
    "hops", [{"us": "center"}, {"us": "far", "eu": "far"}, {"near": "far"}, dict.fromkeys(SITES, "far")]
)
def test_a_site_or_a_relay_that_is_moved_sends_by_the_new_route_and_answers_stay_right(
    tmp_path: Path, hops: dict[str, str]
) -> None:
    simulation = make_simulation(tmp_path / "p", VIEW)
    at(simulation, 12, lambda: move(simulation, hops))
    simulation.run().assert_right()
    for site, to in hops.items():
        assert sent(simulation, site, to) > 10 * GREETING_BYTES
    deployed = simulation.world.current().deployed
    assert dict(deployed.hops) == hops
    assert None not in deployed.leaving.values(), "the center has told until where the old fragments are wanted"


def test_a_relay_that_is_away_holds_up_nothing_that_was_moved_around_it(tmp_path: Path) -> None:
    """The windows before the move wait for what the relay has; those after it do not."""
    simulation = make_simulation(tmp_path / "p", VIEW)
    world = simulation.world
    (near,) = (role for role in world.roles.values() if role.name == "near")
    at(simulation, 8, lambda: world.kill(near, back_after_us=200 * SECOND_US))
    at(simulation, 12, lambda: move(simulation, dict.fromkeys(SITES, "far")))
    while_away: list[tuple[object, ...]] = []
    at(simulation, 55, lambda: while_away.extend(_answers(simulation)))
    simulation.run().assert_right()
    starts = sorted({row[0] for row in _answers(simulation)})  # type: ignore[type-var]
    after = [row for row in _answers(simulation) if row[0] in starts[-3:-1]]  # the last one ends with the stream
    assert after
    assert set(after) <= set(while_away), "they were whole while the relay was away"
    assert not set(_answers(simulation)) <= set(while_away), "what the relay had came when it was back"


def _answers(simulation: DeploymentSimulation) -> list[tuple[object, ...]]:
    rows = simulation.world.store.results("pages")
    return [] if rows is None else [(r["window_start"], r["page"], r["n"], r["bytes"]) for r in rows.to_pylist()]


def test_a_site_is_moved_there_and_back_and_its_first_exit_goes_on_with_its_numbers(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", VIEW)
    at(simulation, 5, lambda: move(simulation, {"us": "center"}))
    at(simulation, 25, lambda: move(simulation, {"us": "near"}))
    exits: list[str] = []
    (us,) = (role for role in simulation.world.sites() if role.name == "us")
    at(simulation, 60, lambda: exits.extend(leaving.name for leaving in us.running.exits))  # type: ignore[union-attr]
    simulation.run().assert_right()
    assert exits == ["", ">center"]
    assert not simulation.world.current().deployed.hops


@pytest.mark.parametrize("seed", [FIRST_SEED + seed for seed in seeds(2)])
def test_under_any_faults_answers_become_those_of_the_oracle_though_sites_are_moved(seed: int) -> None:
    features = draw_features(random.Random(seed)) | {Feature.REROUTE}
    run_seed(seed, Draw(only=features)).assert_right()


def test_a_relay_that_is_healed_knows_those_that_were_moved_away_from_it(tmp_path: Path) -> None:
    """What they had sent to it is lost with its disk, and they come back to it later."""
    simulation = make_simulation(tmp_path / "p", VIEW)
    world = simulation.world
    (near,) = (role for role in world.roles.values() if role.name == "near")
    at(simulation, 5, lambda: move(simulation, {"us": "center"}))
    at(simulation, 18, lambda: world.put_back(near, None))
    at(simulation, 20, lambda: world.start(near))
    at(simulation, 22, lambda: world.heal(near))
    at(simulation, 35, lambda: move(simulation, {"us": "near"}))
    simulation.run().assert_right()
    assert {row["status"] for row in _last_windows(simulation)} == {"final"}


def _last_windows(simulation: DeploymentSimulation) -> list[dict[str, object]]:
    log = simulation.world.store.windows("pages")
    assert log is not None
    return list({row["window_start"]: row for row in log.to_pylist()}.values())
