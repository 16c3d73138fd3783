"""The pages of the reference that are made from the code: `python -m tools.reference` writes them all.

A page that fell behind the code fails `tests/test_reference.py`, so none of them is edited by hand.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.core import TyperArgument
from typer.main import get_command

from benchmarks import BENCHMARKS
from catchment import errors, facade
from catchment.cli.exit_codes import ExitCode
from catchment.cli.main import app
from catchment.query.options_reference import options_reference
from catchment.serve.metrics import METRICS
from catchment.serve.open_feeds import FeedRuns, Feeds

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_MADE = "This page is made from the code by `make reference`."
VALUE_NAMES = {Path: "PATH", int: "INTEGER", float: "NUMBER", str: "TEXT"}


# --- commands -----------------------------------------------------------------------------------------------------


def command_line() -> str:
    """Return the page of every command with its arguments and options."""
    head = f"""\
# Every command and its options

{_MADE} What commands print, and the keys of their JSON, is on
[the page of commands](commands.md); what they end with on [the page of exit codes](exit-codes.md).
A test checks that the commands and options of all examples exist; it does not run them."""
    return "\n\n".join([head, *(_command(words, command) for words, command in commands())]) + "\n"


def commands(command: Any = None, words: tuple[str, ...] = ("catchment",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return every command that help lists with the words that call it, groups left out."""
    for name, sub in getattr(command or get_command(app), "commands", {}).items():
        if sub.hidden:
            continue
        if getattr(sub, "commands", None):
            yield from commands(sub, (*words, name))
        else:
            yield (*words, name), sub


def _command(words: tuple[str, ...], command: Any) -> str:
    types = get_type_hints(command.callback)
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in command.params if p not in arguments and not p.hidden]
    usage = " ".join([*words, *map(_place, arguments)])
    rows = [_row(f"`{_place(p)}`", p, types[p.name]) for p in arguments]
    rows += [_row(_names(p, types[p.name]), p, types[p.name]) for p in options]
    table = "\n".join(["| argument or option | what it is | absent |", "|---|---|---|", *rows])
    examples = "\n".join(_examples(command))
    shown = f"```sh\n{examples}\n```" if examples else ""
    return "\n\n".join(filter(None, [f"## `{usage}`", _plain(command.help or ""), table, shown]))


def _place(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _names(option: Any, annotation: Any) -> str:
    value = "" if option.is_flag else f" {_value_name(annotation)}"
    return ", ".join(f"`{name}{value}`" for name in (*option.opts, *option.secondary_opts))


def _value_name(annotation: Any) -> str:
    kinds = _plain_types(annotation)
    return next((name for kind, name in VALUE_NAMES.items() if kind in kinds), "NAME")


def _plain_types(annotation: Any) -> tuple[Any, ...]:
    """The types of an annotation such as `list[str] | None`: what one value of the option is."""
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return tuple(kind for part in inner for kind in _plain_types(part)) if inner else (annotation,)


def _row(name: str, parameter: Any, annotation: Any) -> str:
    choices = [kind for kind in _plain_types(annotation) if inspect.isclass(kind) and issubclass(kind, Enum)]
    listed = "".join(f" One of {', '.join(f'`{choice.value}`' for choice in kind)}." for kind in choices)
    return f"| {name} | {_cell(_plain(parameter.help or '') + listed)} | {_cell(_absent(parameter))} |"


def _absent(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = getattr(parameter.default, "value", parameter.default)
    if default is None or default is False or default == () or callable(default):
        return ""
    return f"`{default}`"


def _examples(command: Any) -> Iterator[str]:
    for line in re.split(r"\n\n|   \|   ", command.epilog or ""):
        example = line.strip().removeprefix("Examples:").removeprefix("Example:").strip()
        if example.startswith("catchment "):
            yield example


# --- Python -------------------------------------------------------------------------------------------------------

PYTHON_CLASSES = (
    facade.Catchment,
    facade.RunningProject,
    facade.Results,
    facade.Change,
    facade.Explanation,
    facade.ServedDashboard,
    Feeds,
    FeedRuns,
)


def python_interface() -> str:
    """Return the page of the public Python interface."""
    head = f"""\
# Python

{_MADE} What is not on this page may change between versions. [The guide](../guides/notebooks.md)
shows how it is used in a notebook; `catchment.testing` is described in [testing](../testing.md), and the interface of a
sink of your own in [sinks](../guides/sinks.md).

## `catchment`"""
    opened = "\n\n".join(
        [_function("catchment.open", facade.open), _function("catchment.open_feeds", facade.open_feeds)]
    )
    kinds = [error for error in vars(errors).values() if inspect.isclass(error) and error.__module__ == errors.__name__]
    rows = [f"| `{kind.__name__}` | {_cell(inspect.getdoc(kind) or '')} |" for kind in kinds]
    table = "\n".join(["| error | what it says |", "|---|---|", *rows])
    raised = """\
Each has a `message`, and where it helps a place (`where`) and a `hint`. `CatchmentError` is in `catchment`, the others
are in `catchment.errors`."""
    return "\n\n".join([head, opened, *map(_class, PYTHON_CLASSES), "## Errors", raised, table]) + "\n"


def _class(cls: type) -> str:
    parts = [f"## `{cls.__name__}`", inspect.getdoc(cls) or ""]
    fields = getattr(cls, "__dataclass_fields__", {})
    if fields:
        parts.append(
            "\n".join(["| field | type |", "|---|---|", *(f"| `{n}` | `{f.type}` |" for n, f in fields.items())])
        )
    for name, member in public_members(cls):
        if isinstance(member, property):
            parts.append(f"### `.{name}`\n\n{inspect.getdoc(member)}")
        else:
            parts.append(_function(f".{name}", member, level="###"))
    return "\n\n".join(parts)


def public_members(cls: type) -> list[tuple[str, Any]]:
    """Return the methods and properties of a class that are part of the interface, in their order in the code."""
    own = [(name, member) for name, member in vars(cls).items() if not name.startswith("_")]
    return [(name, member) for name, member in own if isinstance(member, property) or inspect.isfunction(member)]


def _function(name: str, function: Callable[..., Any], level: str = "###") -> str:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    signature = f"```text\n{name}({arguments}){returns}\n```"
    return f"{level} `{name}`\n\n{signature}\n\n{inspect.getdoc(function)}"


# --- metrics and exit codes ---------------------------------------------------------------------------------------


def metrics() -> str:
    """Return the page of all metrics."""
    head = f"""\
# Metrics

{_MADE} `/metrics` of [the dashboard](../guides/dashboard.md) answers in Prometheus's text format."""
    rows = [f"| `{name}` | {kind} | {_cell(meaning)} |" for name, (kind, meaning) in METRICS.items()]
    return "\n\n".join([head, "\n".join(["| metric | kind | what it says |", "|---|---|---|", *rows])]) + "\n"


def exit_codes() -> str:
    """Return the page of all exit codes."""
    head = f"""\
# Exit codes

{_MADE} They are the same for all commands."""
    rows = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n\n".join([head, "\n".join(["| code | when |", "|---|---|", *rows])]) + "\n"


# --- measurements -------------------------------------------------------------------------------------------------

MEASURED = {  # which page has the figures of a benchmark
    "absence": "../reliability",
    "backfill": "history",
    "bounds": "shedding",
    "center": "center",
    "center_scale": "throughput",
    "edge": "edge-aggregation",
    "edge_policies": "edge-aggregation",
    "feeds": "feeds",
    "footprint": "footprint",
    "join": "sharing",
    "many_queries": "throughput",
    "topic": "throughput",
    "order": "order",
    "order_traces": "order",
    "peers": "throughput",
    "place": "feeds",
    "place_spark": "feeds",
    "rounds": "history",
    "scale": "throughput",
    "placement": "sharing",
    "sharing": "sharing",
    "shed": "shedding",
    "throughput": "throughput",
    "ways": "../reliability",
    "wire": "edge-aggregation",
}


def benchmarks() -> str:
    """Return the page of all benchmarks: what each measures, its parts, and where its figures are."""
    head = f"""\
# All benchmarks

{_MADE} `catchment bench NAME` runs one, `catchment bench data` lists the data that some of
them need. Full results are kept in `benchmarks/results/` with the machine and the commit; where they are,
`catchment bench report` writes the tables of these pages from them. Older figures stand on their pages with the command
and the commit."""
    rows = []
    for name, place in BENCHMARKS.items():
        module = importlib.import_module(place)
        parts = ", ".join(f"`{part}`" for part in getattr(module, "PARTS", ()))
        page = MEASURED[name]
        rows.append(f"| `{name}` | {_cell(module.DESCRIPTION)} | {parts} | [{Path(page).name}]({page}.md) |")
    return (
        "\n\n".join(
            [head, "\n".join(["| benchmark | what it measures | parts | figures |", "|---|---|---|---|", *rows])]
        )
        + "\n"
    )


# ------------------------------------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[], str]] = {
    "options.md": options_reference,
    "command-line.md": command_line,
    "python.md": python_interface,
    "metrics.md": metrics,
    "exit-codes.md": exit_codes,
    "../measurements/benchmarks.md": benchmarks,
}


def _plain(text: str) -> str:
    """A help text without the marks of its colours."""
    return re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)\]", "", inspect.cleandoc(text))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def write_pages(folder: Path = FOLDER) -> list[str]:
    """Write every page; return those that changed."""
    changed = []
    for name, make in PAGES.items():
        page, text = folder / name, make()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


if __name__ == "__main__":
    for written in write_pages():
        print((FOLDER / written).resolve().relative_to(FOLDER.parents[1]))
