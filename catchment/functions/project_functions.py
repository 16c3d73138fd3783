"""The functions of a project: read from its folder, never from anywhere else.

`functions.py` in the project folder, or the file or folder that `functions` in catchment.toml names; of a folder, every
`*.py` file in it. Each site has the project folder, and so the code; `disagreement` says where two of them differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from catchment.errors import ConfigError
from catchment.functions.installed import FunctionsFile, InstalledFunction, install
from catchment.project.config import FUNCTIONS_FILE, PROJECT_FILE, Project

MAX_FUNCTIONS = 64  # that a project may have; a site names them all when it connects


@dataclass(frozen=True)
class ProjectFunctions:
    """The functions of a project, by the names that queries call them by."""

    by_name: Mapping[str, InstalledFunction] = field(default_factory=dict)
    files: tuple[FunctionsFile, ...] = ()

    def find(self, name: str) -> InstalledFunction | None:
        return self.by_name.get(name.lower())

    @cached_property
    def summary(self) -> str:
        """The functions with the digits of their code, as one text: what a site says when it connects."""
        return " ".join(sorted(f.installed_name for f in self.by_name.values()))


def load_functions(project: Project) -> ProjectFunctions:
    """Read and run the functions of a project; those that are installed already are not run again."""
    files = tuple(_read(path) for path in _find_files(project))
    found: dict[str, InstalledFunction] = {}
    for file in files:
        for name, function in install(file).items():
            if name in found:
                raise ConfigError(
                    f"two functions are named {name!r}", where=file.name, hint=f"the other one is in {found[name].file}"
                )
            found[name] = function
    if len(found) > MAX_FUNCTIONS:
        raise ConfigError(f"the project has {len(found)} functions", hint=f"at most {MAX_FUNCTIONS} are possible")
    return ProjectFunctions(found, files)


def _find_files(project: Project) -> Iterable[Path]:
    path = project.folder / project.functions
    if path.is_dir():
        return sorted(path.glob("*.py"))
    if not path.is_file():
        if project.functions == FUNCTIONS_FILE:
            return ()
        raise ConfigError(
            f"functions = {project.functions!r} is neither a file nor a folder",
            where=str(project.folder / PROJECT_FILE),
            hint="paths are relative to the project folder",
        )
    return (path,)


def _read(path: Path) -> FunctionsFile:
    try:
        return FunctionsFile(str(path), path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as cause:
        raise ConfigError("this file is not UTF-8 text", where=str(path)) from cause


def disagreement(mine: str, theirs: str) -> str | None:
    """Return which function two sides have other code of, by their summaries; None where they agree.

    A function that only one side has is no disagreement: a view that needs it is not planned on the other side.
    """
    here = dict(_split(name) for name in mine.split())
    there = dict(_split(name) for name in theirs.split())
    differing = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    if not differing:
        return None
    return ", ".join(f"{name} is {there[name]} there and {here[name]} here" for name in differing)


def _split(installed_name: str) -> tuple[str, str]:
    name, _, digits = installed_name.rpartition("__")
    return name, digits
