"""What a command loads before it answers: only what it needs, so that looking at a project is quick.

Catches: an import at the head of a module that brings Spark, gRPC, a planner or tables into commands that need none.
Cannot catch: how long it takes; that is measured by `catchment bench footprint`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from catchment.deploy.reports.role_files import write_status
from catchment.project.config import Project
from tests.worlds.projects import write_project
from tests.worlds.waiting import free_port

TABLES = {"numpy", "pyarrow", "deltalake", "pandas"}
OTHERS = {"pyspark", "py4j", "duckdb", "grpc", "sqlglot", "scipy", "cryptography", "matplotlib", "psutil", "starlette"}
_ASK = (
    "import sys\n"
    "from catchment.cli.main import main\n"
    "try:\n    main()\nexcept SystemExit as ended:\n    code = ended.code\n"
    "print(code, *sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\n"
)


def loaded_by(*words: object) -> set[str]:
    """Run a command in a process of its own; return the packages that it has loaded."""
    ended = subprocess.run([sys.executable, "-c", _ASK, *map(str, words)], capture_output=True, text=True)
    assert ended.returncode == 0, f"it ended with {ended.returncode}: {ended.stdout}{ended.stderr}"
    code, *packages = ended.stderr.splitlines()[-1].split()
    assert code in ("0", "None"), ended.stderr
    return set(packages)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("show", "--help"), ("run", "--help"), ("init", "NEW")])
def test_help_loads_nothing_that_computes(words: tuple[str, ...], tmp_path: Path) -> None:
    given = [tmp_path / "new" if word == "NEW" else word for word in words]
    assert not loaded_by(*given) & (TABLES | OTHERS)


def test_the_status_of_a_project_is_shown_without_tables_planner_or_wire(published: Path) -> None:
    write_status(Project.load(published).state_folder / "center", {"queries": {}})
    assert not loaded_by("show", "status", "-p", published) & (TABLES | OTHERS)
    assert not loaded_by("show", "audit", "-p", published) & (TABLES | OTHERS)


@pytest.mark.parametrize("what", ["results", "windows", "revisions"])
def test_published_rows_are_read_without_planning_anything(what: str, published: Path) -> None:
    assert not loaded_by("show", what, "traffic", "-p", published) & OTHERS


def test_a_process_of_relays_loads_no_spark(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", ("a",), {})
    text = (folder / "catchment.toml").read_text().replace('to = "center"', 'to = "hub"')
    text += f'[sites.hub]\nlisten = "127.0.0.1:{free_port()}"\n[[links]]\nfrom = "hub"\nto = "center"\n'
    (folder / "catchment.toml").write_text(text.replace("[sites.center]", '[sites.center]\nlisten = "127.0.0.1:1"'))
    loaded = loaded_by("site", "hub", "-p", folder, "--seconds", "0.1", "--json")
    assert "grpc" in loaded, "it listens"
    assert not loaded & {"pyspark", "py4j", "duckdb"}
    assert (Project.load(folder).relay_folder("hub") / "status.json").exists()
