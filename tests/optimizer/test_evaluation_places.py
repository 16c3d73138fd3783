"""Where records are best evaluated: against every combination of places, each recomputed from its own project's routes.

The oracle knows nothing of the search: for given places it changes the project, lets routes be found again for every
sink, and adds up what links carry. Catches: a shortcut by which routes differ, records that are counted once per sink,
advice that makes things worse or that explain would not see when it was followed, and sites that cannot be light.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from catchment.deploy.deployment import Deployment
from catchment.optimizer.placement.evaluation_places import EvaluationPlanner, PlacesCost, place_evaluations
from catchment.optimizer.sharing.link_traffic import fragment_traffic, record_links
from catchment.optimizer.sharing.statistics import load_statistics
from catchment.project.routes import Routes
from catchment.serve.explanation import explain_deployment
from catchment.serve.explanation_text import explanation_text

HUBS = ("hub1", "hub2")
VIEWS = """
CREATE MATERIALIZED VIEW wide WITH (sink = '{sinks}') AS SELECT window.start, client, count(*) AS n, sum(bytes) AS b,
  min(bytes) AS low, max(bytes) AS high FROM hits GROUP BY window(ts, '10 seconds'), client;
CREATE MATERIALIZED VIEW narrow AS SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '1 minute');
"""


def write_world(
    folder: Path,
    *,
    seed: int = 0,
    sources: int = 3,
    rows_per_s: float = 1.0,
    light: Mapping[str, str] | None = None,
    with_bandwidths: bool = True,
    options: str = "",
) -> Path:
    """Write a project whose sources have links to two hubs and the center, with drawn bandwidths."""
    chance = random.Random(seed)
    names = [f"source{n}" for n in range(sources)]
    toml = '[project]\nname = "p"\ncenter = "center"\n[sites.center]\n'
    toml += "".join(f"[sites.{hub}]\n" for hub in HUBS)
    for name in names:
        place = (light or {}).get(name)
        toml += f"[sites.{name}]\n" + ("" if place is None else f'compute = false\nevaluate_at = "{place}"\n')
    pairs = [(s, to) for s in names for to in (*HUBS, "center")]
    pairs += [("hub1", "center"), ("hub2", "center"), ("center", "hub1"), ("hub2", "hub1")]
    for origin, to in pairs:
        toml += f'[[links]]\nfrom = "{origin}"\nto = "{to}"\nlatency = "{chance.randint(1, 90)} ms"\n'
        bandwidth = chance.choice((200, 1_000, 5_000))
        toml += f'bandwidth = "{bandwidth} bytes/s"\n' if with_bandwidths else ""
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(toml)
    stream = "CREATE STREAM hits (ts TIMESTAMP, client STRING, bytes BIGINT) WITH (event_time = 'ts', format = 'json', "
    stream += f"sites = '{','.join(names)}', path = 'data/{{site}}'{options});"
    (folder / "queries" / "q.sql").write_text(stream + VIEWS.format(sinks="center,hub1"))
    told = f"[streams.hits]\nrows_per_s = {rows_per_s * sources}\nrow_bytes = 40\n"
    (folder / "statistics.toml").write_text(told + "[streams.hits.distinct]\nclient = 100000\n")
    return folder


def planner_of(deployment: Deployment, choices: Mapping[str, Sequence[str]] | None = None) -> EvaluationPlanner:
    sharings = {part.project.sink: part.deployed.lasting for part in deployment.parts}
    every = {site: (site, *HUBS, "center") for site in deployment.sites}
    known = load_statistics(deployment.project, deployment.catalog)
    return EvaluationPlanner(deployment.project, sharings, known, choices or every)


def cost_by_hand(planner: EvaluationPlanner, places: Mapping[str, str]) -> PlacesCost:
    """Return what links carry under some places, with the routes of a project that is changed so."""
    project = place_evaluations(planner.project, places)
    light = {site: place for site, place in places.items() if site != place}
    carried: dict[tuple[str, str], float] = {}
    crossing: set[tuple[tuple[str, str], str]] = set()
    from_source: set[tuple[tuple[str, str], str]] = set()  # partials that a source itself sends, once for all sinks
    for sink, sharing in planner.sharings.items():
        routes = Routes.of(project.at_sink(sink, light) if sink else project)
        for demand in sharing.fragments.values():
            for link, rate in fragment_traffic(routes, demand, planner.statistics).items():
                if (link, demand.content) not in from_source:
                    carried[link] = carried.get(link, 0.0) + rate
                if link[0] in places:
                    from_source.add((link, demand.content))
        crossing |= {(link, stream) for link, streams in record_links(routes, sharing).items() for stream in streams}
    for link, stream in crossing:
        carried[link] = carried.get(link, 0.0) + planner.statistics.raw_bytes_per_s(stream, link[0])
    links = {link: project.link(*link) for link in carried}
    uses = [rate / limit for link, rate in carried.items() if (limit := links[link].bandwidth_bytes_per_s)]
    return PlacesCost(
        sum(max(0.0, use - 1) for use in uses),
        sum(uses),
        sum(carried.values()),
        sum(project.link(*pair).latency_us for pair in light.items()),
    )


def is_about(one: PlacesCost, other: PlacesCost) -> bool:
    numbers = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(a == pytest.approx(b, rel=1e-9, abs=1e-9) for a, b in numbers)


@pytest.mark.parametrize("seed", range(12))
def test_every_combination_costs_what_its_own_project_would(tmp_path: Path, seed: int) -> None:
    planner = planner_of(Deployment.load(write_world(tmp_path / "p", seed=seed, rows_per_s=10.0 ** (seed % 4 - 1))))
    for combination in itertools.product(*planner.may_evaluate.values()):
        places = dict(zip(planner.may_evaluate, combination, strict=True))
        assert is_about(planner.cost(places), cost_by_hand(planner, places)), places


@pytest.mark.parametrize("seed", range(12))
def test_no_single_change_is_better_than_what_is_found_and_one_site_gets_the_best(tmp_path: Path, seed: int) -> None:
    deployment = Deployment.load(write_world(tmp_path / "p", seed=seed, rows_per_s=10.0 ** (seed % 4 - 1)))
    planner = planner_of(deployment)
    better = planner.find_better()
    found = {**planner.places_now, **{site: place for site, (_, place) in better.changed.items()}}
    assert better.after <= better.before
    assert is_about(better.before, cost_by_hand(planner, planner.places_now))
    for site, choices in planner.may_evaluate.items():
        for place in choices:
            assert planner.cost({**found, site: place}) >= better.after
    for site, choices in planner.may_evaluate.items():
        alone = planner_of(deployment, {site: choices})
        best = min(alone.cost({site: place}) for place in choices)
        assert alone.find_better().after == best


def explained(folder: Path) -> dict[str, Any]:
    return explain_deployment(Deployment.load(folder))


@pytest.mark.parametrize("with_bandwidths", [True, False])
def test_advice_that_is_followed_gives_what_it_said_and_no_more_advice(tmp_path: Path, with_bandwidths: bool) -> None:
    before = explained(write_world(tmp_path / "before", with_bandwidths=with_bandwidths))
    advice = before["evaluation"]
    assert advice is not None, "a record is fewer bytes than the partials that it becomes at two sinks"
    assert advice["better_bytes_per_s"] < advice["bytes_per_s"]
    for told in advice["sites"]:
        assert f'[sites.{told["site"]}] compute = false, evaluate_at = "{told["better"]}"' in explanation_text(
            before, 500
        )
    followed = {told["site"]: told["better"] for told in advice["sites"]}
    folder = write_world(tmp_path / "after", light=followed, with_bandwidths=with_bandwidths)
    after = explained(folder)
    assert after["evaluation"] is None
    planner = planner_of(Deployment.load(folder))
    now = planner.cost(planner.places_now)
    assert now.bytes_per_s == pytest.approx(advice["better_bytes_per_s"])
    assert now.use == pytest.approx(advice["better_use"])


def test_records_that_are_many_stay_where_they_are_born(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "p", rows_per_s=1000.0)
    told = (folder / "statistics.toml").read_text().replace("client = 100000", "client = 10")
    (folder / "statistics.toml").write_text(told)
    assert explained(folder)["evaluation"] is None


def test_a_light_site_whose_link_is_too_slow_is_told_to_send_elsewhere(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "p", rows_per_s=100.0, light={"source0": "hub1"})
    text = (folder / "catchment.toml").read_text()
    slow = 'from = "source0"\nto = "hub1"\n'
    assert slow in text
    head, tail = text.split(slow)
    (folder / "catchment.toml").write_text(
        head + slow + tail.replace(tail.split("\n")[1], 'bandwidth = "1 bytes/s"', 1)
    )
    advice = explained(folder)["evaluation"]
    assert advice is not None
    (told,) = [told for told in advice["sites"] if told["site"] == "source0"]
    assert told["evaluated_at"] == "hub1"
    assert told["better"] != "hub1"


def test_nothing_is_advised_where_rates_are_assumed(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "p")
    (folder / "statistics.toml").unlink()
    assert explained(folder)["evaluation"] is None


@pytest.mark.parametrize("options", [", header = true", ""])
def test_sites_whose_files_a_light_site_cannot_read_keep_evaluating(tmp_path: Path, options: str) -> None:
    folder = write_world(tmp_path / "p", options=options)
    file = folder / "queries" / "q.sql"
    file.write_text(file.read_text().replace("format = 'json'", "format = 'csv'" if options else "format = 'parquet'"))
    assert explained(folder)["evaluation"] is None
