"""Views that name sites, in whole simulated deployments: they answer for those sites, wait for them alone, and share.

The example is that of Jonathan et al. (SoCC'18, section 2): one query over the streams of three sites, another over two
of these. Catches: partials of a site that a view leaves out, a window that waits for such a site or names it, partials
that are sent twice. The oracle recomputes every view from the raw records of its sites.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.submit import drop, submit_text
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.generate import BEGIN_US, draw_features
from catchment.testing.simulated.network import GREETING_BYTES
from catchment.timeline import SECOND_US
from tests.worlds.tiers import seeds

SITES = ("us", "eu", "asia")
SPAN_US = 40 * SECOND_US
STAR = dict.fromkeys(SITES, "center")
STREAM = "CREATE STREAM hits (ts TIMESTAMP, page STRING, bytes BIGINT) WITH (event_time = 'ts', path = 'data/{site}');"
SELECT = (
    "SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '5 seconds'), page"
)
QUERY_1 = f"CREATE MATERIALIZED VIEW query_1 AS {SELECT};"
QUERY_2 = f"CREATE MATERIALIZED VIEW query_2 WITH (sites = 'eu,us') AS {SELECT};"


def records(seed: int) -> pa.Table:
    numbers = np.random.default_rng(seed)
    return pa.table(
        {
            "ts": pa.array(np.sort(BEGIN_US + numbers.integers(0, SPAN_US, 120))).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array([f"p{n}" for n in numbers.integers(0, 4, 120)]),
            "bytes": pa.array(numbers.integers(0, 1000, 120)),
        }
    )


def make_simulation(
    folder: Path, *views: str, links: Mapping[str, str] = STAR, sharing: str = "full"
) -> DeploymentSimulation:
    lines = ['[project]\nname = "sites"\ncenter = "center"\n[sites.center]']
    lines += [f"[sites.{name}]" for name in dict.fromkeys((*SITES, *links))]
    lines += [f'[[links]]\nfrom = "{origin}"\nto = "{destination}"' for origin, destination in links.items()]
    lines.append(f'[defaults]\nsharing = "{sharing}"\nfreshness = "10 s"\nrepair_horizon = "10 minutes"')
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text("\n".join(lines))
    (folder / "statistics.toml").write_text("[streams.hits]\nrows_per_s = 3\nrow_bytes = 40\n")
    stream = STREAM.replace("path =", f"sites = '{','.join(SITES)}', path =")
    (folder / "queries" / "all.sql").write_text("\n".join([stream, *views]))
    deployment = Deployment.load(folder)
    hits = deployment.catalog.streams["hits"]
    workload = {("hits", site): ArrivingRecords.of(hits, site, records(n)) for n, site in enumerate(SITES)}
    return DeploymentSimulation(deployment, workload, 1)


def at(simulation: DeploymentSimulation, after_s: int, act: Callable[[], object]) -> None:
    def carry_out() -> None:
        act()

    simulation.world.scheduler.at(BEGIN_US + after_s * SECOND_US, carry_out)


def sent_bytes(simulation: DeploymentSimulation) -> dict[str, int]:
    """The bytes on the link of each site."""
    return {origin: link.events.sent_bytes for (origin, _), link in simulation.world.links.items()}


def log_of(simulation: DeploymentSimulation, view: str) -> list[dict[str, Any]]:
    log = simulation.world.store.windows(view)
    assert log is not None
    return list(log.to_pylist())


def total(simulation: DeploymentSimulation, view: str) -> int:
    rows = simulation.world.store.results(view)
    assert rows is not None
    return sum(row["n"] for row in rows.to_pylist())


def test_two_queries_of_overlapping_sites_are_one_fragment_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    runs = {
        name: make_simulation(tmp_path / name, *views)
        for name, views in {"one": [QUERY_1], "two": [QUERY_2], "both": [QUERY_1, QUERY_2]}.items()
    }
    for run in runs.values():
        run.run().assert_right()
    assert len(runs["both"].world.current().deployed.sharing.fragments) == 1
    sent = {name: sent_bytes(run) for name, run in runs.items()}
    assert sent["both"] == sent["one"]
    greeted = sent["two"].pop("asia")
    assert greeted % GREETING_BYTES == 0
    assert sent["two"] == {site: count for site, count in sent["one"].items() if site != "asia"}
    assert (total(runs["both"], "query_1"), total(runs["both"], "query_2")) == (360, 240)


@pytest.mark.parametrize("sharing", ["none", "strict"])
def test_views_of_sites_answer_for_those_where_little_is_shared(tmp_path: Path, sharing: str) -> None:
    views = (QUERY_2, QUERY_1, f"CREATE MATERIALIZED VIEW far WITH (sites = 'asia') AS {SELECT};")
    simulation = make_simulation(tmp_path / "p", *views, sharing=sharing)
    simulation.run().assert_right()
    assert [total(simulation, view) for view in ("query_1", "query_2", "far")] == [360, 240, 120]


def test_a_view_does_not_wait_for_a_site_that_it_does_not_name(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", QUERY_1, QUERY_2)
    world = simulation.world
    (asia,) = (role for role in world.sites() if role.name == "asia")
    at(simulation, 20, lambda: world.kill(asia, back_after_us=100 * SECOND_US))
    simulation.run().assert_right()
    assert any("asia" in row["missing_sites"] for row in log_of(simulation, "query_1"))
    assert {tuple(row["missing_sites"]) for row in log_of(simulation, "query_2")} == {()}
    assert {row["coverage"] for row in log_of(simulation, "query_2")} == {1.0}


@pytest.mark.parametrize(("first", "then"), [(QUERY_1, QUERY_2), (QUERY_2, QUERY_1)])
def test_the_second_query_is_submitted_and_shares_whatever_the_order(tmp_path: Path, first: str, then: str) -> None:
    simulation = make_simulation(tmp_path / "p", first)
    at(simulation, 20, lambda: submit_text(simulation.world.project, then))
    simulation.run().assert_right()
    assert len({d.fragment for d in simulation.world.current().deployed.sharing.derivations.values()}) == 1


def test_a_site_that_only_a_dropped_query_wanted_sends_no_more(tmp_path: Path) -> None:
    runs = [make_simulation(tmp_path / name, QUERY_1, QUERY_2) for name in ("kept", "dropped")]
    at(runs[1], 10, lambda: drop(runs[1].world.project, "query_1"))
    for run in runs:
        run.run().assert_right()
    kept, dropped = map(sent_bytes, runs)
    assert dropped["asia"] < kept["asia"] / 2
    assert (dropped["us"], dropped["eu"]) == (kept["us"], kept["eu"])
    (demand,) = runs[1].world.current().deployed.sharing.fragments.values()
    assert demand.source.sites == ("us", "eu")


def test_a_query_of_all_sites_comes_back_after_its_fragment_ended_at_one(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "p", QUERY_1, QUERY_2)
    at(simulation, 15, lambda: drop(simulation.world.project, "query_1"))
    at(simulation, 30, lambda: submit_text(simulation.world.project, QUERY_1))
    simulation.run().assert_right()


def test_behind_a_relay_sites_that_come_merged_are_not_shared(tmp_path: Path) -> None:
    """The relay merges eu with asia, so query 2 has a fragment of its own; us with eu it may merge."""
    links = {"us": "center", "eu": "hub", "asia": "hub", "hub": "center"}
    simulation = make_simulation(tmp_path / "p", QUERY_1, QUERY_2, links=links)
    simulation.run().assert_right()
    assert len(simulation.world.current().deployed.sharing.fragments) == 2


def test_a_relay_all_of_whose_sites_are_named_serves_both(tmp_path: Path) -> None:
    links = {"us": "hub", "eu": "hub", "asia": "center", "hub": "center"}
    simulation = make_simulation(tmp_path / "p", QUERY_1, QUERY_2, links=links)
    simulation.run().assert_right()
    assert len(simulation.world.current().deployed.sharing.fragments) == 1


@pytest.mark.parametrize("seed", seeds(2))
def test_under_any_faults_views_of_sites_become_those_of_the_oracle(seed: int) -> None:
    features = (draw_features(random.Random(seed)) | {Feature.SITES}) - {Feature.RESTORED, Feature.LOST}
    run_seed(seed, Draw(only=features)).assert_right()
