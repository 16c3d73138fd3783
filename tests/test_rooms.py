"""The layout is the architecture: rooms import one way, and only the Spark room knows Spark."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import catchment

PACKAGE = Path(catchment.__file__).parent

# From the bottom up: a room may import those before it. Files beside the rooms are the ground that all stand on.
ROOMS = (
    "",
    "storage",
    "project",
    "keys",
    "functions",
    "aggregates",
    "quality",
    "query",
    "optimizer",
    "wire",
    "shedding",
    "progress",
    "site",
    "center",
    "relay",
    "records",
    "replay",
    "sinks",
    "files",
    "receivers",
    "deploy",
    "light",
    "vectorised",
    "feeds",
    "sim",
    "testing",
    "spark",
    "serve",
    "control",
    "cli",
)
GROUND = ("arrays", "errors", "log_fields", "timeline", "units", "version")


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            if node.module == "catchment":
                yield from ((f"catchment.{alias.name}", node.lineno) for alias in node.names)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_from_rooms_below_it(path: Path) -> None:
    mine = _room(path)
    if mine == "" and path.stem in ("__init__", "facade"):
        return  # the public face may reach everything
    for module, line in _imports(path):
        if not module.startswith("catchment."):
            continue
        target = module.split(".")[1]
        if mine == "":
            assert target in GROUND, f"{path}:{line} reaches up to {module}"
        elif target in ROOMS:
            assert ROOMS.index(target) <= ROOMS.index(mine), f"{path}:{line} reaches up to {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_spark_room_imports_pyspark(path: Path) -> None:
    if _room(path) == "spark":
        return
    found = [f"{path}:{line}" for module, line in _imports(path) if module.split(".")[0] in ("pyspark", "py4j")]
    assert not found


def test_every_room_is_on_the_map() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms <= set(ROOMS)
    text = (PACKAGE.parent / "docs" / "internals" / "architecture.md").read_text()
    assert [r for r in sorted(rooms) if f"`{r}/`" not in text] == []
