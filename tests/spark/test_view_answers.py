"""A feed view that reads the answers of a materialized view, in a project that runs on Spark and is started again.

Which answers there are is counted by hand from the records. Notices are told apart by the numbers of the events that
met, so that an answer that had become two events, or none after the second start, would show.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import catchment
from tests.worlds.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOML = """[project]
name = "answers"
center = "hub"

[sites.hub]

[defaults]
trigger = "200 ms"
"""
QUERIES = """CREATE STREAM visits (ts TIMESTAMP, area BIGINT)
WITH (event_time = 'ts', sites = 'hub', path = 'visits', slack = '1 second');
CREATE MATERIALIZED VIEW busy AS
SELECT window.start, area, count(*) AS n FROM visits GROUP BY window(ts, '1 minute'), area;

CREATE STREAM location (user BIGINT, x DOUBLE) WITH (device = 'user');
CREATE TABLE homes (user BIGINT, area BIGINT) WITH (path = 'homes.csv');
CREATE STREAM crowds (start BIGINT, area BIGINT, n BIGINT) WITH (born = 'cloud', view = 'busy', key = 'area');
CREATE FEED VIEW crowded WITH (lifetime = '1 hour') AS SELECT a.user, c.area, c.n, c.start AS began
FROM location a JOIN homes h ON a.user = h.user JOIN crowds c ON c.area = h.area WHERE c.n > 1;
"""
HOMES = ((1, 7), (2, 7), (2, 8))
Answer = tuple[int, int, int]  # minute, area, visits


def write_visits(folder: Path, name: str, visits: list[tuple[int, int]]) -> None:
    """Write visits of (minute, area) to a file that appears whole."""
    lines = [
        json.dumps({"ts": (START + timedelta(minutes=minute, seconds=5 * at)).isoformat(), "area": area})
        for at, (minute, area) in enumerate(visits)
    ]
    (folder / f"{name}.part").write_text("".join(line + "\n" for line in lines))
    (folder / f"{name}.part").rename(folder / "visits" / f"{name}.json")


def read_notices(project: catchment.Catchment) -> list[dict[str, Any]]:
    try:
        found = project.sql('SELECT "user" AS u, area, n, began, notice FROM crowded')
    except catchment.CatchmentError:
        return []  # nothing is published yet
    assert not isinstance(found, str | None)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def answers_of(notices: list[dict[str, Any]]) -> set[tuple[int, Answer]]:
    """Return who was told of which answer."""
    begin_us = int(START.timestamp() * 1e6)
    return {(row["u"], ((row["began"] - begin_us) // 60_000_000, row["area"], row["n"])) for row in notices}


def told(answers: set[Answer]) -> set[tuple[int, Answer]]:
    return {(user, answer) for answer in answers for user, area in HOMES if answer[1] == area and answer[2] > 1}


@pytest.mark.spark
def test_a_feed_view_is_told_each_answer_of_a_view_once_through_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "visits").mkdir()
    (tmp_path / "catchment.toml").write_text(TOML)
    (tmp_path / "queries" / "q.sql").write_text(QUERIES)
    (tmp_path / "homes.csv").write_text("user,area\n" + "".join(f"{u},{a}\n" for u, a in HOMES))
    (tmp_path / "location.csv").write_text("at_s,user,x\n0.2,1,1.0\n0.4,2,2.0\n1.0,1,3.0\n")
    write_visits(tmp_path, "first", [(0, 7), (0, 7), (0, 8), (1, 8), (1, 8), (1, 8), (4, 9)])
    first: set[Answer] = {(0, 7, 2), (0, 8, 1), (1, 8, 3)}
    project = catchment.open(tmp_path)
    with project.start(spark=spark) as running:
        wait_until(lambda: answers_of(read_notices(project)) >= told(first), "the first answers")
        running.wait(0)
    write_visits(tmp_path, "second", [(5, 7), (5, 7), (5, 7), (6, 8), (6, 8), (9, 9)])
    second: set[Answer] = {(4, 9, 1), (5, 7, 3), (6, 8, 2)}
    with project.start(spark=spark):
        wait_until(lambda: answers_of(read_notices(project)) >= told(second), "the second answers")
    notices = read_notices(project)
    assert answers_of(notices) == told(first | second)
    events: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for row in notices:
        view, key = str(row["notice"]).rsplit(" ", 1)
        events.setdefault((view, key.split(",")[1]), set()).add((row["began"], row["area"]))
    assert all(len(answers) == 1 for answers in events.values()), "an event is one answer"
    per_view = {(view, answer) for (view, _), answers in events.items() for answer in answers}
    assert len(per_view) == len(events), "an answer is one event"
