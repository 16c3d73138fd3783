"""`catchment doctor`: check the state folder of a project without starting anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from catchment.cli.exit_codes import ExitCode
from catchment.cli.output import JsonFlag, emit
from catchment.cli.project_folder import FolderWord, OptionalProject, project_folder
from catchment.cli.tables import plain_table
from catchment.project.config import Project


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(epilog="Examples: catchment doctor -p my-project   |   catchment doctor -p my-project --fix")(doctor)


def doctor(
    folder: FolderWord = None,
    project: OptionalProject = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Carry out the remedies that are safe, where no process is running.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check the state folder of a project; exit with code 1 if something is wrong."""
    from catchment.deploy.repairing.doctor import WRONG, examine

    findings = examine(Project.load(project_folder(folder, project)), fix)
    wrong = sum(finding.state == WRONG for finding in findings)
    emit({"wrong": wrong, "findings": [finding.to_json() for finding in findings]}, as_json, _render)
    if wrong:
        raise typer.Exit(ExitCode.WRONG)


def _render(answer: Mapping[str, Any]) -> RenderableType:
    notable = [found for found in answer["findings"] if found["state"] != "fine"]
    checked = f"{len(answer['findings'])} checks, {answer['wrong']} wrong"
    rows = [
        {
            "state": found["state"],
            "what": found["what"],
            "where": found["path"],
            "problem": found["problem"],
            "remedy": f"{found['remedy']} (--fix)"
            if found["safe_to_fix"] and found["state"] == "wrong"
            else found["remedy"],
        }
        for found in notable
    ]
    return plain_table(rows, checked) if rows else f"{checked}: all is fine"
