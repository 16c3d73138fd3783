"""Benchmarks: `catchment bench NAME` runs a benchmark of a checkout and prints what it measured."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

import catchment
from catchment.cli.output import JsonFlag, console, emit, notes
from catchment.errors import ConfigError

FOLDER = Path(catchment.__file__).parent.parent / "benchmarks"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples: catchment bench   |   catchment bench throughput --quick --json")(bench)


def bench(
    name: Annotated[str | None, typer.Argument(help="Which benchmark; absent: list them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run: shows that it works, not how fast.")] = False,
    part: Annotated[list[str] | None, typer.Option("--part", help="Only this part of it; may be repeated.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw what was measured into this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure, and say what was compared, with which data, on which commit and machine."""
    found = sorted(_benchmarks())
    if name is None:
        listed = {"benchmarks": [{"name": n, "description": _load(n).DESCRIPTION} for n in found]}
        emit(
            listed,
            as_json,
            lambda a: "\n".join(f"{b['name']:<12} {b['description']}" for b in a["benchmarks"]),
        )
        return
    if name not in found:
        where = "run from a checkout of the repository" if not found else f"there are {', '.join(found)}"
        raise ConfigError(f"there is no benchmark {name!r}", hint=where)
    module = _load(name)
    parts = {"parts": _parts(module, name, part)} if part else {}
    if plot is not None and not hasattr(module, "plot"):
        raise ConfigError(f"the benchmark {name!r} has no picture", hint="run it without --plot")
    result: dict[str, Any] = module.run(lambda text: notes.print(text, highlight=False), quick, **parts)
    result = {"benchmark": name, "quick": quick, **_circumstances(), **result}
    emit(result, as_json, module.render)
    if plot is not None:
        module.plot(result, plot)
        notes.print(f"drawn in {plot}")
    if not as_json:
        console.print(f"commit {result['commit']}, {result['machine']}", style="dim")


def _parts(module: ModuleType, name: str, asked: list[str]) -> list[str]:
    there = list(getattr(module, "PARTS", ()))
    unknown = [part for part in asked if part not in there]
    if unknown:
        hint = f"there are {', '.join(there)}" if there else "run it without --part"
        raise ConfigError(f"the benchmark {name!r} has no part {unknown[0]!r}", hint=hint)
    return asked


def _benchmarks() -> dict[str, str]:
    """The benchmarks of the checkout this runs from, name to module; none where catchment is installed without them."""
    if not (FOLDER / "__init__.py").exists():
        return {}
    if str(FOLDER.parent) not in sys.path:
        sys.path.insert(0, str(FOLDER.parent))
    found: dict[str, str] = importlib.import_module("benchmarks").BENCHMARKS
    return found


def _load(name: str) -> ModuleType:
    return importlib.import_module(_benchmarks()[name])


def _circumstances() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "-C", str(FOLDER), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return {"commit": commit or "unknown", "machine": machine}
