"""Kept results, and the tables of the documentation that are made from them.

A full run of a benchmark is kept as `results/NAME-COMMIT.json`, with the machine, the commit and every raw figure. A
page of the documentation shows one between `<!-- bench NAME -->` and `<!-- end -->`; `catchment bench report` writes
what stands there anew from the newest result of that name, and a test holds that pages show what the results say.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table

from benchmarks import BENCHMARKS
from catchment.errors import ConfigError

RESULTS = Path(__file__).parent / "results"
PAGES = Path(__file__).parents[1] / "docs"
Join = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
_SHOWN = re.compile(r"(<!-- bench (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def keep_result(result: Mapping[str, Any]) -> Path:
    """Write a full run down, in place of an earlier one of the same commit."""
    RESULTS.mkdir(exist_ok=True)
    path = path_of(result)
    path.write_text(json.dumps(result, indent=1, default=str, sort_keys=True) + "\n", encoding="utf-8")
    return path


def keep_part(result: Mapping[str, Any], join: Join) -> Path:
    """Write parts of a full run down, together with the other parts that were measured at the same commit."""
    path = path_of(result)
    return keep_result(join(json.loads(path.read_text(encoding="utf-8")), result) if path.exists() else result)


def path_of(result: Mapping[str, Any]) -> Path:
    """Return where a result is kept."""
    return RESULTS / f"{result['benchmark']}-{result['commit']}.json"


def newest_result(name: str) -> dict[str, Any]:
    """Return the result of a benchmark that was measured last."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob(f"{name}-*.json")]
    if not kept:
        raise ConfigError(f"no result of the benchmark {name!r} is kept", hint=f"run: catchment bench {name}")
    newest: dict[str, Any] = max(kept, key=lambda result: str(result["measured_at"]))
    return newest


def update_pages(write: bool = True) -> list[Path]:
    """Bring every page to the newest results; return the pages that were not."""
    changed = []
    for page in sorted(PAGES.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        wanted = _SHOWN.sub(lambda m: f"{m[1]}{_section(m[2])}{m[3]}", text)
        if wanted != text:
            changed.append(page)
            if write:
                page.write_text(wanted, encoding="utf-8")
    return changed


def _section(name: str) -> str:
    result = newest_result(name)
    shown = importlib.import_module(BENCHMARKS[name]).render(result)
    tables = "\n".join(markdown_of(shown))
    return f"{tables}\nMeasured by `catchment bench {name}` at {result['commit']}: {result['machine']}.\n"


def markdown_of(shown: RenderableType) -> Iterator[str]:
    """What a benchmark prints, as Markdown: tables as tables, everything else as text."""
    if isinstance(shown, Group):
        for part in shown.renderables:
            yield from markdown_of(part)
    elif isinstance(shown, Table):
        yield from _markdown_table(shown)
    else:
        yield f"{_plain(shown)}\n"


def _markdown_table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"**{_plain(table.title)}**\n"
    columns = [[_cell(c) for c in (column.header, *column.cells)] for column in table.columns]
    head, *rows = zip(*columns, strict=True)
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _cell(content: RenderableType) -> str:
    return _plain(content).replace("|", "\\|").replace("\n", " ")


def _plain(content: RenderableType) -> str:
    console = Console(width=10_000, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(content, end="")
    return capture.get().strip()
