"""The words and rooms of the house: a class name means one thing, and a room says what it is for."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import catchment

PACKAGE = Path(catchment.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
ROOMS = [path for path in TREES if path.name == "__init__.py"]
SPARK = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): tree
    for path, tree in TREES.items()
    if path.is_relative_to(PACKAGE / "spark") and path.name != "__init__.py"
}


def imported_modules(tree: ast.Module) -> set[str]:
    """The modules that a module names in its imports, wherever they stand in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_public_class_name_stands_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.parent.relative_to(PACKAGE.parent)))
def test_every_room_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(TREES[path])
    assert docstring, f"{path} has no docstring"
    assert docstring.partition("\n\n")[0].endswith("."), "it begins with a sentence"


def test_every_module_of_the_spark_room_needs_spark() -> None:
    """It imports PySpark, or a module of the room that does: anything else could live in a room without a JVM."""
    imports = {name: imported_modules(tree) for name, tree in SPARK.items()}
    needing = {name for name, found in imports.items() if any(m.split(".")[0] in ("pyspark", "py4j") for m in found)}
    while more := {name for name, found in imports.items() if name not in needing and found & needing}:
        needing |= more
    assert sorted(SPARK.keys() - needing) == []
