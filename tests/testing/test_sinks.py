"""Views that are answered at other sites than the center, or at several, in whole simulated deployments.

Catches: an answer that one sink has and another has not, partials that reach a sink twice or that no view there needs,
a sink that waits for another one, a number that an exit uses twice after a crash, an exit that outlives its process.
The oracle recomputes every view from the raw records, at every sink.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import change_at_sink
from catchment.deploy.store import DeploymentStore
from catchment.deploy.submit import drop, submit_text
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import share
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.generate import BEGIN_US, draw_features
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.disk import DiskFault
from catchment.testing.simulated.network import GREETING_BYTES
from catchment.testing.simulated.site import SimulatedSite
from catchment.testing.simulated.world import RESTART_US, SITE
from catchment.timeline import SECOND_US
from tests.testing.test_view_sites import SELECT, SITES, SPAN_US, STREAM, at, records
from tests.worlds.tiers import seeds

HERE = f"CREATE MATERIALIZED VIEW here AS {SELECT};"
THERE = f"CREATE MATERIALIZED VIEW there WITH (sink = 'tokyo') AS {SELECT};"
BOTH = f"CREATE MATERIALIZED VIEW both WITH (sink = 'center,tokyo') AS {SELECT};"
STAR: Mapping[str, Sequence[str]] = dict.fromkeys(SITES, ("center", "tokyo"))


OVER_HUB: Mapping[str, Sequence[str]] = {**dict.fromkeys(SITES, ("hub",)), "hub": ("center", "tokyo")}


def make_simulation(
    folder: Path,
    *views: str,
    links: Mapping[str, Sequence[str]] = STAR,
    sharing: str = "full",
    of_links: str = "",
    make_records: Callable[[int], pa.Table] = records,
) -> DeploymentSimulation:
    lines = ['[project]\nname = "sinks"\ncenter = "center"\n[sites.center]']
    lines += [f"[sites.{name}]" for name in dict.fromkeys((*SITES, *links, "tokyo")) if name != "center"]
    lines += [f'[[links]]\nfrom = "{origin}"\nto = "{to}"\n{of_links}' for origin, ends in links.items() for to in ends]
    lines.append(f'[defaults]\nsharing = "{sharing}"\nfreshness = "10 s"\nrepair_horizon = "10 minutes"')
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text("\n".join(lines))
    stream = STREAM.replace("path =", f"sites = '{','.join(SITES)}', path =")
    (folder / "queries" / "all.sql").write_text("\n".join([stream, *views]))
    deployment = Deployment.load(folder)
    hits = deployment.catalog.streams["hits"]
    workload = {("hits", site): ArrivingRecords.of(hits, site, make_records(n)) for n, site in enumerate(SITES)}
    return DeploymentSimulation(deployment, workload, 1)


def rows_at(simulation: DeploymentSimulation, sink: str, view: str) -> list[tuple[object, ...]]:
    rows = simulation.world.stores[sink].results(view)
    assert rows is not None
    return sorted((r["window_start"], r["page"], r["n"], r["bytes"]) for r in rows.to_pylist())


def sent_bytes(simulation: DeploymentSimulation) -> dict[tuple[str, str], int]:
    return {name: link.events.sent_bytes for name, link in simulation.world.links.items()}


def test_a_view_of_two_sinks_is_answered_at_both_and_each_is_sent_what_it_would_be_alone(tmp_path: Path) -> None:
    runs = {name: make_simulation(tmp_path / name, view) for name, view in {"both": BOTH, "one": HERE}.items()}
    for run in runs.values():
        run.run().assert_right()
    expected = rows_at(runs["one"], "", "here")
    assert [rows_at(runs["both"], sink, "both") for sink in ("", "tokyo")] == [expected, expected]
    both, one = sent_bytes(runs["both"]), sent_bytes(runs["one"])
    assert {link: count for link, count in both.items() if link[1] == "center"} == one
    for site in SITES:  # only the name of the fragment, and so the size of a frame, differs
        assert both[site, "tokyo"] == pytest.approx(both[site, "center"], rel=0.1)


def test_what_leaves_for_a_sink_is_what_its_views_need(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", THERE)
    simulation.run().assert_right()
    assert rows_at(simulation, "tokyo", "there")
    assert simulation.world.store.results("there") is None
    to_center = [count for (_, to), count in sent_bytes(simulation).items() if to == "center"]
    assert all(count % GREETING_BYTES == 0 for count in to_center), "a site greets the center, and sends nothing"


@pytest.mark.parametrize("sharing", ["none", "full"])
def test_routes_to_a_sink_may_lead_over_relays_and_over_the_center(tmp_path: Path, sharing: str) -> None:
    links = {"us": ("center",), "eu": ("hub",), "asia": ("hub", "tokyo"), "hub": ("center",), "center": ("tokyo",)}
    simulation = make_simulation(tmp_path / "p", HERE, BOTH, THERE, links=links, sharing=sharing)
    assert Deployment.load(simulation.world.project.folder).sinks["tokyo"].routes.relays == ("center", "hub")
    simulation.run().assert_right()
    assert rows_at(simulation, "tokyo", "both") == rows_at(simulation, "", "both")


def many_records(seed: int) -> pa.Table:
    """As many as fill tables that are worth to be named."""
    numbers = np.random.default_rng(seed)
    times_us = BEGIN_US + np.sort(numbers.integers(0, SPAN_US, 2000))
    return pa.table(
        {
            "ts": pa.array(times_us).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array([f"p{n}" for n in numbers.integers(0, 200, 2000)]),
            "bytes": pa.array(numbers.integers(0, 1000, 2000)),
        }
    )


OTHER = (
    "CREATE MATERIALIZED VIEW other AS SELECT window.start, bytes % 97 AS b, max(bytes) AS m FROM hits "
    "GROUP BY window(ts, '5 seconds'), bytes % 97;"
)


@pytest.mark.parametrize("bandwidth", ["", 'bandwidth = "500 bytes/s"'], ids=["wide", "narrow"])
@pytest.mark.parametrize("beside", [(), (OTHER,)], ids=["alone", "beside another view"])
def test_what_two_sinks_get_through_a_hub_crosses_the_first_link_once(
    tmp_path: Path, bandwidth: str, beside: tuple[str, ...]
) -> None:
    """Also where the link is the limit, and a policy decides what leaves when, and beside what only one sink gets."""
    runs = {
        name: make_simulation(
            tmp_path / name, *beside, view, links=OVER_HUB, of_links=bandwidth, make_records=many_records
        )
        for name, view in {"one": HERE, "both": BOTH}.items()
    }
    for run in runs.values():
        run.run().assert_right()
    assert rows_at(runs["both"], "tokyo", "both") == rows_at(runs["one"], "", "here")
    assert runs["both"].world.seen[RareState.TABLE_NAMED]
    one, both = sent_bytes(runs["one"]), sent_bytes(runs["both"])
    for site in SITES:
        assert both[site, "hub"] < 1.5 * one[site, "hub"], "tables once; greetings, headers and marks twice"


@pytest.mark.parametrize("to", ["center", "tokyo"])
def test_tables_that_are_named_outlive_the_ends_of_processes_on_either_side(tmp_path: Path, to: str) -> None:
    links = {**OVER_HUB, "hub": (to,), to: tuple({"center", "tokyo"} - {to})}
    simulation = make_simulation(tmp_path / "p", BOTH, links=links, make_records=many_records)
    world = simulation.world
    names = ["hub", "us", "hub", "eu", to, "hub", "asia"]
    for turn, name in enumerate(names):
        for role in [role for role in world.roles.values() if role.name == name]:
            at(simulation, 5 + 5 * turn, lambda role=role: world.kill(role, back_after_us=SECOND_US))  # type: ignore[misc]
    simulation.run().assert_right()
    assert world.seen[RareState.TABLE_NAMED]
    assert rows_at(simulation, "tokyo", "both") == rows_at(simulation, "", "both")


def test_a_sink_that_is_away_holds_up_nobody_else(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", BOTH)
    world = simulation.world
    (tokyo,) = (role for role in world.roles.values() if role.name == "tokyo")
    at(simulation, 5, lambda: world.kill(tokyo, back_after_us=100 * SECOND_US))
    simulation.run().assert_right()
    assert rows_at(simulation, "tokyo", "both") == rows_at(simulation, "", "both")
    log = world.store.windows("both")
    assert log is not None
    assert {tuple(row["missing_sites"]) for row in log.to_pylist()} == {()}


def test_a_site_that_ends_while_its_exits_start_sends_nothing_any_more(tmp_path: Path) -> None:
    world = make_simulation(tmp_path / "p", BOTH).world
    site = world.roles[SITE, "us"]
    links = [world.link("us", end) for end in ("center", "tokyo")]
    ended_between = 0
    with world:
        for link in links:
            link.weather.carries_requests = False
        world.run_until(world.start_us + 30 * SECOND_US)
        assert isinstance(site.running, SimulatedSite)
        assert not any(exit_.outbox.is_empty for exit_ in site.running.exits), "something waits at each exit"
        world.kill(site, back_after_us=None)
        for link in links:
            link.weather.carries_requests = True
        for call in count():
            before = [link.events.sent_bytes for link in links]
            world.disk.plan_fault(site.folder, call, DiskFault.KILL)
            world.start(site)
            if site.running is not None:
                break
            begun = [link.events.sent_bytes for link in links]
            ended_between += begun[0] > before[0] and begun[1] == before[1]
            site.is_dead = True  # so that it is not started again by itself
            world.run_until(world.scheduler.now_us + RESTART_US)
            site.is_dead = False
            assert [link.events.sent_bytes for link in links] == begun, f"it ended at call {call} of its disk"
    assert ended_between, "it ended when one exit had started and the other had not"


def test_a_view_is_submitted_to_a_sink_that_answered_nothing_before_and_dropped_again(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", HERE)
    project = simulation.world.project
    told: list[Mapping[str, object]] = []
    at(simulation, 8, lambda: told.append(submit_text(project, BOTH + THERE)))
    at(simulation, 30, lambda: told.append(drop(project, "there")))
    simulation.run().assert_right()
    queries = [(q["query"], q.get("sink")) for q in told[0]["queries"]]  # type: ignore[attr-defined]
    assert queries == [("both", None), ("both", "tokyo"), ("there", "tokyo")]
    assert rows_at(simulation, "tokyo", "both")
    current = simulation.world.current()
    assert [plan.name for plan in current.sinks["tokyo"].plans] == ["both"]
    assert [plan.name for plan in current.plans] == ["here", "both"]


def test_a_view_is_replaced_by_one_at_another_sink(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", HERE, BOTH)
    moved = f"CREATE OR REPLACE MATERIALIZED VIEW here WITH (sink = 'tokyo') AS {SELECT};"
    at(simulation, 12, lambda: submit_text(simulation.world.project, moved))
    simulation.run().assert_right()
    current = simulation.world.current()
    assert [plan.name for plan in current.plans] == ["both"]
    assert [plan.name for plan in current.sinks["tokyo"].plans] == ["both", "here"]
    assert rows_at(simulation, "tokyo", "here")


def test_queries_move_at_a_sink_and_those_of_the_center_stay(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", BOTH, THERE, HERE, sharing="none")
    world = simulation.world

    def move() -> None:
        def share_all(now: Deployed) -> Deployed:
            return now.move(share(now.sharing.queries.values(), Strength.FULL, lambda demand: 1.0))

        DeploymentStore(world.project.state_folder).change(
            lambda now: change_at_sink(now or world.current().deployed, "tokyo", share_all)
        )

    at(simulation, 15, move)
    simulation.run().assert_right()
    deployed = world.current().deployed
    assert len(deployed.sharing.fragments) == 2, "one for each query of the center, as before"
    assert len({d.fragment for d in deployed.sinks["tokyo"].sharing.derivations.values()}) == 1
    assert None not in deployed.sinks["tokyo"].leaving.values(), "the sink has told until where the old ones are wanted"
    assert rows_at(simulation, "tokyo", "there") == rows_at(simulation, "tokyo", "both")


@pytest.mark.parametrize("seed", seeds(2))
def test_under_any_faults_answers_at_every_sink_become_those_of_the_oracle(seed: int) -> None:
    features = draw_features(random.Random(seed)) | {Feature.SINKS}
    run_seed(seed, Draw(only=features)).assert_right()
