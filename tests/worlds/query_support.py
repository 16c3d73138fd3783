"""What the tests of the query room share: a project, its streams, and golden files.

A golden file is SQL: a title line `--# ...`, statements, and what is expected as comment lines `--> ...`. A
bare SELECT stands for the view `v`. Run the tests with CATCHMENT_GOLDEN=write to rewrite the expected lines,
and read the difference before committing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from catchment.project.config import Project
from catchment.project.sections import Link, Site
from catchment.query.catalog import Catalog
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql

FIXTURES = Path(__file__).parents[1] / "golden"
TITLE, EXPECTED = "--# ", "--> "

SCHEMA = """
CREATE STREAM beacons (
    ts TIMESTAMP, cpid INT, bw STRING, country STRING, url STRING, client STRING, bytes BIGINT, ms FLOAT,
    price DECIMAL(10, 2), arrived TIMESTAMP, geo STRUCT<lat: DOUBLE, lon: DOUBLE>, tags ARRAY<STRING>
) WITH (event_time = 'ts', sites = 'us,eu', path = 'data/{site}');
CREATE STREAM clicks (ts TIMESTAMP, cpid INT, page STRING) WITH (event_time = 'ts', path = 'clicks/{site}');
CREATE TABLE providers (cpid INT, name STRING, tier INT) WITH (path = 'providers.csv');
CREATE TABLE regions (country STRING, region STRING) WITH (path = 'regions.parquet');
"""


def make_project(folder: Path = Path("project"), **changes: object) -> Project:
    sites = {name: Site(name) for name in ("us", "eu", "center")}
    links = {(name, "center"): Link(name, "center") for name in ("us", "eu")}
    settings: dict[str, object] = {"sites": sites, "links": links, **changes}
    return Project("test", folder, "center", **settings)  # type: ignore[arg-type]


@cache
def base_catalog() -> Catalog:
    return Catalog(make_project()).add(*parse_sql(SCHEMA, "schema.sql"))


def make_catalog(sql: str = "", file: str = "q.sql") -> Catalog:
    """The catalog of the schema and of some statements; a bare SELECT becomes the view `v`."""
    return base_catalog().add(*parse_sql(as_view(sql), file))


def make_plan(sql: str, view: str = "v") -> QueryPlan:
    catalog = make_catalog(sql)
    return plan_view(catalog.view(view), catalog)


def as_view(sql: str) -> str:
    return f"CREATE MATERIALIZED VIEW v AS\n{sql}" if sql.lstrip().upper().startswith("SELECT") else sql


@dataclass(frozen=True)
class Golden:
    """One case of a golden file."""

    title: str
    sql: str
    expected: str


def read_golden(name: str) -> list[Golden]:
    return list(_cases((FIXTURES / name).read_text(encoding="utf-8")))


def _cases(text: str) -> Iterator[Golden]:
    for block in text.split(TITLE)[1:]:
        title, *lines = block.strip().splitlines()
        sql = [line for line in lines if not line.startswith(EXPECTED.strip())]
        expected = [line.removeprefix(EXPECTED) for line in lines if line.startswith(EXPECTED.strip())]
        yield Golden(title, "\n".join(sql).strip(), "\n".join(expected))


def check_golden(name: str, case: Golden, found: str) -> None:
    """Compare with what the file says, or write it there when that was asked for."""
    if os.environ.get("CATCHMENT_GOLDEN") == "write":
        _rewrite(name, lambda c: found if c.title == case.title else c.expected)
    else:
        assert found == case.expected


def _rewrite(name: str, expected: Callable[[Golden], str]) -> None:
    blocks = []
    for case in read_golden(name):
        lines = [f"{EXPECTED}{line}".rstrip() for line in expected(case).splitlines()]
        blocks.append("\n".join([f"{TITLE}{case.title}", case.sql, *lines]))
    head = (FIXTURES / name).read_text(encoding="utf-8").split(TITLE)[0]
    (FIXTURES / name).write_text(head + "\n\n".join(blocks) + "\n", encoding="utf-8")
