"""What the documentation shows is true: its SQL plans, its commands and options exist, its links lead somewhere.

Catches: pages that fell behind the code. Cannot catch: prose that is wrong, nor figures, which come from benchmarks.
Nothing is run that takes long: commands are checked against the command line's own description of itself.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import catchment
from catchment.cli.main import app
from catchment.feeds.language.read_program import read_program
from catchment.project.config import Project
from catchment.project.sections import Link, Site
from catchment.query.catalog import Catalog
from catchment.query.planning.build import plan_views
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream, View

ROOT = Path(catchment.__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(p.relative_to(ROOT)) for p in PAGES]

SHELL = ("sh", "bash", "shell", "console", "")
pages = pytest.mark.parametrize("page", PAGES, ids=NAMES)


FENCE = re.compile(r"^```(?P<tag>\w*)(?P<more>[^\n]*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, *tags: str) -> list[str]:
    return [fence["text"] for fence in FENCE.finditer(page.read_text(encoding="utf-8")) if fence["tag"] in tags]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# --- SQL --------------------------------------------------------------------------------------------------------

DECLARES = re.compile(r"\bCREATE\s+(STREAM|TABLE|MATERIALIZED)\b", re.IGNORECASE)


@pages
def test_sql_examples_are_parsed_and_those_that_are_whole_are_planned(page: Path) -> None:
    text = "\n".join(b for b in blocks(page, "sql") if DECLARES.search(b))
    statements = parse_sql(text, str(page)) if text else ()
    declared = {s.name.lower() for s in statements if hasattr(s, "columns")}
    views = [s for s in statements if isinstance(s, View)]
    whole = [v for v in views if {r.lower() for r in v.reads} <= declared]
    kept = [s for s in statements if not isinstance(s, View) or s in whole]
    sites = {site for s in statements if isinstance(s, Stream) for site in s.sites or ()} | {"us", "eu"}
    links = {(site, "center"): Link(site, "center") for site in sites - {"center"}}
    named = (*sorted(sites - {"center"}), "center")
    project = Project("docs", ROOT, "center", {s: Site(s, http=("127.0.0.1", 8420)) for s in named}, links)
    assert set(plan_views(Catalog(project).add(*kept))) >= {v.name for v in whole if _stays(v, kept)}


def _stays(view: View, statements: list[Any]) -> bool:
    return not any(type(s).__name__ == "DropView" and s.name == view.name for s in statements)


def test_the_readme_shows_the_queries_of_the_demo() -> None:
    (shown,) = (b for b in blocks(ROOT / "README.md", "sql") if "CREATE STREAM" in b)
    (demo,) = (ROOT / "catchment" / "demo_project" / "queries").glob("*.sql")
    theirs = {s.name: s for s in parse_sql(demo.read_text(), str(demo)) if isinstance(s, Stream | View)}
    statements = parse_sql(shown, "README.md")
    assert {type(s) for s in statements} == {Stream, View}
    for statement in statements:
        assert isinstance(statement, Stream | View)
        assert statement == theirs[statement.name], "the README says that this is the demo's"


@pages
def test_feed_programs_are_read(page: Path) -> None:
    for block in blocks(page, "feedsql"):
        assert read_program(block).templates


# --- commands ---------------------------------------------------------------------------------------------------


def shown_commands(page: Path) -> Iterator[str]:
    """Commands of catchment: lines of shell blocks, and what stands in backticks."""
    for block in blocks(page, *SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|;|(?<!\w)\|(?!\w)", line):
                words = part.strip().removeprefix("$ ").removeprefix(".venv/bin/")
                if words.startswith("catchment "):
                    yield words
    yield from re.findall(r"`(catchment [a-z-][^`]*)`", prose(page))


@cache
def root() -> Any:
    return get_command(app)


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words name, and the words behind it."""
    command, rest = root(), words[1:]
    while rest and getattr(command, "commands", None):
        if rest[0].startswith("-"):
            break
        assert rest[0] in command.commands, f"there is no command {' '.join(words)!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def check_command(text: str) -> None:
    command, rest = resolve(shlex.split(text, comments=True))
    options = {o: p for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")}
    options |= dict.fromkeys(("--help", "-h"))
    arguments = [p for p in command.params if not any(o.startswith("-") for o in p.opts)]
    given = iter(rest)
    places = 0
    for word in given:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            places += 1
            continue
        assert name in options, f"{text!r}: {command.name} has no option {name}, only {sorted(options)}"
        taken = options[name]
        if taken is not None and not taken.is_flag and not value:
            next(given, None)
    most = sum(1 if a.nargs == 1 else 10**6 for a in arguments)
    assert places <= most, f"{text!r}: {command.name} takes {most} arguments"


@pages
def test_every_command_that_is_shown_exists_with_its_options(page: Path) -> None:
    for text in shown_commands(page):
        check_command(text)


def test_the_check_of_commands_refuses_what_does_not_exist() -> None:
    check_command("catchment show results traffic -p demo -n 5 --json  # a remark")
    check_command('catchment sql "SELECT 1; SELECT 2" --project=demo')
    for wrong in ("catchment shew", "catchment show nothing", "catchment run --twice", "catchment run a b"):
        with pytest.raises(AssertionError):
            check_command(wrong)


def all_commands(command: Any, words: tuple[str, ...] = ("catchment",)) -> Iterator[tuple[str, ...]]:
    """The words of every command that help lists, groups left out."""
    for name, sub in getattr(command, "commands", {}).items():
        if sub.hidden:
            continue
        if getattr(sub, "commands", None):
            yield from all_commands(sub, (*words, name))
        else:
            yield (*words, name)


def test_the_page_of_commands_has_a_row_for_every_command() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    rows = [tuple(words.split()) for words in re.findall(r"^\| `(catchment [^`]+)` \|", page, re.MULTILINE)]
    found = set(all_commands(root()))
    assert ("catchment", "feeds", "place") in found, "commands of groups are found"
    assert {command for command in found if not any(row[: len(command)] == command for row in rows)} == set()


def test_the_examples_of_help_texts_exist_with_their_options() -> None:
    shown = 0
    for words in all_commands(root()):
        command, _ = resolve(list(words))
        for line in re.split(r"\n\n|   \|   ", command.epilog or ""):
            example = line.strip().removeprefix("Examples:").removeprefix("Example:").strip()
            if example.startswith("catchment "):
                check_command(example)
                shown += 1
    assert shown >= len(set(all_commands(root())))


@pages
def test_every_make_target_that_is_shown_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = "\n".join(blocks(page, *SHELL))
    shown = {*re.findall(r"^(?:\$ )?make ([\w-]+)", lines, re.MULTILINE), *re.findall(r"`make ([\w-]+)`", prose(page))}
    assert shown <= targets


def test_the_readme_begins_with_two_commands_that_the_makefile_has() -> None:
    first = next(b for b in blocks(ROOT / "README.md", *SHELL) if "make " in b)
    assert re.findall(r"^make (\w+)", first, re.MULTILINE) == ["demo", "test"]


# --- Python -----------------------------------------------------------------------------------------------------


@pages
def test_python_examples_compile_and_import_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_the_methods_that_the_readme_calls_exist() -> None:
    for block in blocks(ROOT / "README.md", "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute):
                owners = (catchment, catchment.Catchment, catchment.Results, catchment.RunningProject)
                assert any(hasattr(owner, node.attr) for owner in owners), ast.unparse(node)


GUIDES = [page for page in PAGES if page.parent != ROOT and blocks(page, "python")]
EXAMPLES = [
    pytest.param(page, block, id=f"{page.name} {n}")
    for page in GUIDES
    for n, block in enumerate(blocks(page, "python"), start=1)
]


@pytest.mark.parametrize(("page", "block"), EXAMPLES)
def test_python_examples_of_the_guides_run_and_give_the_figures_that_stand_behind_them(page: Path, block: str) -> None:
    """An example asserts what it says, or has the figures of a line in the remark behind it."""
    names: dict[str, Any] = {}
    exec(compile(block, str(page), "exec"), names)
    remarks = [(line, remark) for line, _, remark in (part.partition("  # ") for part in block.splitlines()) if remark]
    told = [(line, figure) for line, remark in remarks for figure in re.findall(r"\b\d+\.\d+\b", remark)]
    assert told or "assert " in block, "an example that says nothing about what comes of it"
    for line, figure in told:
        value = eval(line, names)
        found = getattr(value, "error", value)
        assert round(found, len(figure.partition(".")[2])) == float(figure), line


# --- links ------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pages
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{target} is not there"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}: headings are {sorted(anchors(found))}"


# --- the map ----------------------------------------------------------------------------------------------------

PACKAGE = ROOT / "catchment"
MAP = ROOT / "docs" / "internals" / "architecture.md"
PATH = re.compile(r"(?P<path>(?:\w+/)*(?:\w+\.py|\w+/))(?:: (?P<name>\w+))?")
CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")


@cache
def class_names(path: Path) -> frozenset[str]:
    """Return the classes of a module, or of all modules below a folder."""
    modules = path.rglob("*.py") if path.is_dir() else [path]
    return frozenset(name for m in modules for name in re.findall(r"^class (\w+)", m.read_text(), re.MULTILINE))


def find_path(name: str, line: str) -> Path | None:
    """Return where a path of the map is: in the repository, in the package, or in the room that its row is about."""
    row = re.match(r"\| `(\w+)/` \|", line)
    below = sorted((PACKAGE / row[1]).rglob(name.rstrip("/"))) if row else []
    return next((path for path in (ROOT / name, PACKAGE / name, *below) if path.exists()), None)


def check_map(text: str) -> int:
    """Check the paths and classes in backticks; return how many there are."""
    checked = 0
    for line in text.splitlines():
        for quoted in re.findall(r"`([^`]+)`", line):
            named = PATH.fullmatch(quoted)
            if named is not None:
                path = find_path(named["path"], line)
                assert path is not None, f"{quoted} is not there"
                assert named["name"] is None or named["name"] in class_names(path), f"{quoted}: there is no such class"
            elif CLASS.fullmatch(quoted):
                assert quoted in class_names(PACKAGE), f"there is no class {quoted}"
            else:
                continue
            checked += 1
    return checked


def test_every_path_and_class_that_the_map_names_exists() -> None:
    assert check_map(prose(MAP)) > 50


def test_the_map_lists_every_room() -> None:
    rooms = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `(\w+)/` \|", prose(MAP), re.MULTILINE))


def test_the_check_of_the_map_refuses_what_does_not_exist() -> None:
    assert check_map("`site/core.py: SiteCore` and `SiteCore` in `catchment.toml`") == 2
    for wrong in ("`site/heart.py`", "`site/core.py: CenterCore`", "`SiteHeart`", "| `wire/` | `host.py` |"):
        with pytest.raises(AssertionError):
            check_map(wrong)


# --- security ---------------------------------------------------------------------------------------------------


def test_every_line_of_the_threat_model_names_tests_that_exist() -> None:
    lines = [
        line for line in (ROOT / "docs" / "guides" / "security.md").read_text().splitlines() if line.startswith("|")
    ][2:]
    assert len(lines) > 20
    for line in lines:
        proofs = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
        assert proofs, f"no test proves: {line}"
        for path, name in proofs:
            assert f"def {name}(" in (ROOT / path).read_text(), f"there is no {path}::{name}"
