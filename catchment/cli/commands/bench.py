"""`catchment bench`: run a benchmark of a checkout and print what it measured."""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Group

import catchment
from catchment.cli.output import JsonFlag, console, emit, notes
from catchment.errors import ConfigError

FOLDER = Path(catchment.__file__).parent.parent / "benchmarks"

_EPILOG = """Examples:

catchment bench

catchment bench throughput --quick --json

catchment bench quick

catchment bench data

catchment bench report

catchment bench plot benchmarks/results/sharing-arrivals-widened.json --plot arrivals.png"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=_EPILOG)(bench)


def bench(
    name: Annotated[
        str | None,
        typer.Argument(help="A benchmark; or data, quick, report or plot. Leave it out to list the benchmarks."),
    ] = None,
    kept: Annotated[Path | None, typer.Argument(help="With plot: the kept result that is drawn again.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller run, which shows that it works, not how fast it is.")
    ] = False,
    part: Annotated[list[str] | None, typer.Option("--part", help="Run only this part; may be repeated.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the result into this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a benchmark and print what it measured, on which data, commit and machine.

    `bench quick` runs short forms that show in a few minutes where this machine stands; nothing of it is kept.
    `bench data` lists the data sets and where to get them; `bench report` updates the tables of the docs from the
    results that full runs have kept; `bench plot RESULT --plot FILE` draws a kept result again.
    """
    found = _benchmarks()
    if name is None:
        listed = [{"name": n, "description": _load(n).DESCRIPTION} for n in sorted(found)]
        emit({"benchmarks": listed}, as_json, _list_benchmarks)
    elif name == "data" and found:
        emit({"data": importlib.import_module("benchmarks.data").list_files()}, as_json, _list_data)
    elif name == "quick" and found:
        results = [_run(chosen, True, None) for chosen in importlib.import_module("benchmarks").QUICK]
        emit({"results": results}, as_json, lambda a: Group(*(_load(r["benchmark"]).render(r) for r in a["results"])))
    elif name == "report" and found:
        pages = importlib.import_module("benchmarks.report").update_pages()
        emit({"pages": [str(p) for p in pages]}, as_json, lambda a: f"{len(a['pages'])} pages changed")
    elif name == "plot" and found:
        emit({"plot": str(_plot_kept(kept, plot))}, as_json, lambda a: f"drawn in {a['plot']}")
    elif name not in found:
        where = f"choose one of {', '.join(sorted(found))}" if found else "run from a checkout of the repository"
        raise ConfigError(f"there is no benchmark {name!r}", hint=where)
    else:
        _measure(name, quick, part, plot, as_json)


def _measure(name: str, quick: bool, part: list[str] | None, plot: Path | None, as_json: bool) -> None:
    module = _load(name)
    if plot is not None and not hasattr(module, "plot"):
        raise ConfigError(f"the benchmark {name!r} cannot be drawn", hint="run it without --plot")
    result = _run(name, quick, part)
    emit(result, as_json, module.render)
    join = getattr(module, "join_parts", None)  # of benchmarks that may be run part by part
    if not quick and (not part or join is not None):
        report = importlib.import_module("benchmarks.report")
        kept = report.keep_part(result, join) if part else report.keep_result(result)
        notes.print(f"kept in {kept}")
    if plot is not None:
        module.plot(result, plot)
        notes.print(f"drawn in {plot}")
    if not as_json:
        console.print(f"commit {result['commit']}, {result['machine']}", style="dim")


def _run(name: str, quick: bool, part: list[str] | None) -> dict[str, Any]:
    """Run a benchmark; return what it measured, and where and when."""
    module = _load(name)
    parts = {"parts": _parts(module, name, part)} if part else {}
    signal.signal(signal.SIGTERM, _end)
    result: dict[str, Any] = module.run(lambda text: notes.print(text, highlight=False), quick, **parts)
    return {"benchmark": name, "quick": quick, **_circumstances(), **result}


def _end(number: int, frame: object) -> None:
    """End as after an error, so that a benchmark ends the brokers, clouds and devices that it has started."""
    sys.exit(128 + number)


def _plot_kept(kept: Path | None, path: Path | None) -> Path:
    """Draw a kept result; its name begins with that of its benchmark."""
    if kept is None or path is None:
        raise ConfigError(
            "nothing says what is to be drawn, and where to",
            hint="catchment bench plot benchmarks/results/RESULT.json --plot FILE.png",
        )
    try:
        result = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the result cannot be read: {error}", where=str(kept)) from error
    name = result.get("benchmark") or kept.name.partition("-")[0]
    module = _load(name) if name in _benchmarks() else None
    if module is None or not hasattr(module, "plot"):
        raise ConfigError(f"a result of the benchmark {name!r} cannot be drawn", where=str(kept))
    module.plot(result, path)
    return path


def _list_benchmarks(answer: Mapping[str, Any]) -> str:
    return "\n".join(f"{b['name']:<14} {b['description']}" for b in answer["benchmarks"])


def _list_data(answer: Mapping[str, Any]) -> str:
    lines = []
    for file in answer["data"]:
        lines.append(f"{file['name']:<16} {'here' if file['is_there'] else 'missing':<8} {file['path']}")
        lines.append(f"{'':<16} {file['origin']}; licence: {file['licence']}")
    return "\n".join(lines)


def _parts(module: ModuleType, name: str, asked: list[str]) -> list[str]:
    there = list(getattr(module, "PARTS", ()))
    unknown = [part for part in asked if part not in there]
    if unknown:
        hint = f"choose one of {', '.join(there)}" if there else "run it without --part"
        raise ConfigError(f"the benchmark {name!r} has no part {unknown[0]!r}", hint=hint)
    return asked


def _benchmarks() -> dict[str, str]:
    """Return the benchmarks of this checkout, name to module; none where catchment is installed without them."""
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
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"commit": commit or "unknown", "machine": machine, "measured_at": measured_at}
