"""The doctor on the state folder of a project that ran on Spark and was stopped: each kind of damage has its name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from catchment.cli.main import app
from catchment.deploy.repairing.doctor import FIXED, WRONG, Finding, examine
from catchment.errors import StorageError
from catchment.project.config import PROJECT_FILE, Project
from tests.worlds.projects import write_project
from tests.worlds.state_fixtures import SPARK_KIND, newest_archives, unpack


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = unpack(newest_archives()[SPARK_KIND], tmp_path / "project")
    (folder / "state").chmod(0o700)
    return Project.load(folder)


def problems(project: Project, fix: bool = False) -> list[Finding]:
    return [found for found in examine(project, fix) if found.problem]


def newest_commit(state: Path) -> Path:
    return max((state / "results" / "numbers" / "_delta_log").glob("*.json"))


def first_data_file(table: Path) -> Path:
    """Return the data file of the oldest commit, which the journal may have forgotten."""
    first = min((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    return table / str(next(action["add"]["path"] for action in actions if "add" in action))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "torn commit": ("result table", lambda s: empty(newest_commit(s))),
    "old commit": ("result table", lambda s: empty(min((s / "results" / "numbers" / "_delta_log").glob("*.json")))),
    "data file": ("result table", lambda s: first_data_file(s / "results" / "numbers").unlink()),
    "journal entry": ("journal", lambda s: flip(next((s / "sites" / "a" / "journal").glob("journal-*.log")))),
    "snapshot": ("journal", lambda s: flip(next((s / "center" / "journal").glob("snapshot-*.bin")))),
    "lost checkpoint": ("Spark checkpoint", lambda s: shutil.rmtree(next(s.glob("sites/b/checkpoints/*/offsets")))),
    "lost journal of a site": ("Spark checkpoint", lambda s: shutil.rmtree(s / "sites" / "b" / "journal")),
    "lost journal of the center": ("inbox", lambda s: shutil.rmtree(s / "center" / "journal")),
    "record": ("record", lambda s: flip(s / "deployment.json")),
    "temporary file": ("temporary file", lambda s: empty(s / "center" / "views.json.tmp")),
    "mode": ("folder mode", lambda s: s.chmod(0o755)),
}
SAFE = {"torn commit", "temporary file", "mode"}


def test_a_project_that_was_stopped_is_fine(project: Project) -> None:
    assert problems(project) == []
    kinds = {found.what for found in examine(project)}
    assert {"journal", "outbox", "inbox", "Spark checkpoint", "result table", "record", "free disk"} <= kinds


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_by_name_and_mended_only_where_that_is_safe(project: Project, name: str) -> None:
    what, damage = DAMAGES[name]
    state = project.state_folder
    damage(state)
    found = problems(project)
    assert what in {finding.what for finding in found}, found
    assert all(finding.state == WRONG and finding.remedy for finding in found)
    mended = problems(project, fix=True)
    if name in SAFE:
        assert {finding.state for finding in mended} == {FIXED}
        assert problems(project) == []
    else:
        assert WRONG in {finding.state for finding in mended}
        assert len(problems(project)) == len(found), "what is not safe is left as it was"


def test_the_command_exits_with_1_if_something_is_wrong(project: Project) -> None:
    run = CliRunner().invoke(app, ["doctor", str(project.folder)])
    assert (run.exit_code, "all is fine" in run.output) == (0, True)
    empty(newest_commit(project.state_folder))
    run = CliRunner().invoke(app, ["doctor", str(project.folder), "--json"])
    assert run.exit_code == 1
    answer = json.loads(run.output)
    assert answer["wrong"] == 1
    run = CliRunner().invoke(app, ["doctor", str(project.folder), "--fix"])
    assert run.exit_code == 0
    assert "fixed" in run.output


def test_a_project_that_never_ran_has_no_state_to_check(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", ["a"], {"a": []})
    assert (folder / PROJECT_FILE).exists()
    with pytest.raises(StorageError, match="nothing has run here yet"):
        examine(Project.load(folder))
