"""The live comparison of placements: its projects can be deployed in every way, and its judge finds what is wrong.

Catches: a way that cannot be planned, links that are not slowed as the rule says, records that go to a stream before
its query came, and a judge that lets wrong answers pass.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.placement.fourteen_sites import (
    BEGIN,
    LIVE_WAYS,
    SPEED,
    STREAM,
    FourteenSites,
    LiveEdit,
    LiveWay,
    bandwidth_of,
    packed_bytes_per_s,
    slowings,
    widest_ends,
    workload_queries,
)
from benchmarks.placement.live import QUICK, Sources
from benchmarks.placement.live_answers import count_wrong, ended_windows
from benchmarks.placement.placement import join_parts
from catchment.deploy.deployment import Deployment
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import View

QUERIES = workload_queries()
OWN = LIVE_WAYS[1]


def draw_edits(count: int) -> list[LiveEdit]:
    sites = ("ohio", "oregon", "ireland", "seoul", "mumbai", "saopaulo")
    return [LiveEdit(sites[n % len(sites)], n / 100, {"page": f"page {n * n % 101}"}) for n in range(count)]


def deploy_all(folder: Path, way: LiveWay) -> Deployment:
    world = FourteenSites.of(draw_edits(600), slowings(len(QUERIES))[0])
    world.write(folder, way, QUERIES[0], QUERIES)
    deployment = Deployment.load(folder)
    for query in QUERIES[1:]:
        deployment = deployment.add([s for s in parse_sql(query.to_sql(way), query.name) if isinstance(s, View)])
    return deployment


@pytest.mark.parametrize("way", LIVE_WAYS, ids=lambda way: way.name)
def test_every_way_deploys_the_twelve_queries_at_their_sinks(tmp_path: Path, way: LiveWay) -> None:
    deployment = deploy_all(tmp_path / "project", way)
    assert {part.project.center for part in deployment.parts} == {query.sink for query in QUERIES}
    read = [side.scan.stream for part in deployment.parts for side in part.sides]
    assert len(read) == len(QUERIES)
    assert set(read) == {query.stream(way) for query in QUERIES}
    assert len(set(read)) == (1 if way.is_shared else len(QUERIES))


@pytest.mark.parametrize("way", LIVE_WAYS, ids=lambda way: way.name)
def test_records_are_evaluated_where_the_way_says_for_every_sink(tmp_path: Path, way: LiveWay) -> None:
    deployment = deploy_all(tmp_path / "project", way)
    world = FourteenSites.of(draw_edits(600), slowings(len(QUERIES))[0])
    for part in deployment.parts:
        assert {site: part.routes.hops[site] for site in world.sources} == world.evaluated_at(way)


@pytest.mark.parametrize("number", [0, 1])
def test_the_fullest_link_is_asked_for_what_the_rule_says(number: int) -> None:
    edits = draw_edits(600)
    slowing = slowings(12)[number]
    world = FourteenSites.of(edits, slowing)
    ends = widest_ends(world.declared)
    asked = [
        slowing.streams * rate / (world.slowed * bandwidth_of(world.declared.link(site, ends[site])))
        for site, rate in packed_bytes_per_s(edits).items()
    ]
    assert max(asked) == pytest.approx(slowing.asked)


def test_a_stream_is_given_what_is_born_after_its_query_came_and_nothing_else(tmp_path: Path) -> None:
    edits = draw_edits(60)
    for stream in (STREAM, "later"):
        for site in {edit.site for edit in edits}:
            (tmp_path / "data" / stream / site).mkdir(parents=True)
    sources = Sources(tmp_path, OWN, QUERIES[:2], edits, QUICK, lambda text: None)
    sources.open_from_s = {STREAM: 0.0}
    sources._write(edits[:20])
    sources.open_from_s["later"] = edits[30].born_s
    sources._write(edits[20:])
    for stream, expected in ((STREAM, edits), ("later", edits[30:])):
        lines = [line for path in (tmp_path / "data" / stream).glob("*/*.json") for line in path.open()]
        assert sorted(lines) == sorted(edit.line for edit in expected)
        assert sources.fed_to(stream) == expected


def test_windows_that_ended_begin_with_the_first_answer_or_after_the_submission() -> None:
    first = BEGIN + timedelta(seconds=20)
    assert ended_windows(first, 0.0, 40 / SPEED, 10) == [first, first + timedelta(seconds=10)]
    assert ended_windows(None, 11 / SPEED, 45 / SPEED, 10) == [first, first + timedelta(seconds=10)]
    assert ended_windows(None, 11 / SPEED, 25 / SPEED, 10) == []


def test_the_judge_counts_rows_that_are_missing_too_many_or_other() -> None:
    columns = ["start", "channel", "total", "pages"]
    expected = [(1, "a", 5, 200), (1, "b", 6, 3)]
    assert count_wrong(expected, expected, columns) == 0
    assert count_wrong(expected[:1], expected, columns) == 1
    assert count_wrong([*expected, expected[0]], expected, columns) == 1
    assert count_wrong([(1, "a", 4, 200), expected[1]], expected, columns) == 2  # one is missing, one too many
    assert count_wrong([(1, "a", 5, 209), (1, "b", 6, 2)], expected, columns) == 0  # within the error of the sketch
    assert count_wrong([(1, "a", 5, 211), expected[1]], expected, columns) == 1
    assert count_wrong([expected[0], (1, "b", 6, 5)], expected, columns) == 1


def test_parts_of_one_commit_are_kept_together() -> None:
    earlier = {"parts": ["scale", "live"], "scale": 1, "live": 2, "commit": "abc"}
    later = {"parts": ["live", "baselines"], "live": 3, "baselines": 4, "commit": "abc"}
    assert join_parts(earlier, later) == {
        "parts": ["baselines", "scale", "live"],
        "baselines": 4,
        "scale": 1,
        "live": 3,
        "commit": "abc",
    }
