"""Every block of the documentation is executed, or says on the page why not.

Shell blocks run in this process, in a folder that has what they name: a project that has run, traces, examples. Blocks
that would start Spark, serve for ever or need another program have a `title` with the reason, which the site shows.
SQL and Python are executed by `test_docs.py`. Catches: commands that fail, and output that is no longer what is shown.
Cannot catch: whether a command does what the sentence beside it says.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from catchment.cli import output
from catchment.feeds.project import read_broker
from tests.test_docs import FENCE, ROOT
from tests.worlds.published import publish_project
from tests.worlds.shell import WIDTH, Shell

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
ELSEWHERE = ("sql", "feedsql", "python")  # executed by test_docs.py
READ_ONLY = ("text",)  # drawings, and the output of what cannot be run here
GENERATED = ROOT / "docs" / "reference" / "command-line.md"  # says at its head that its examples are not run

RATES = "src,dst,rate\nann,bob,1\nbob,ann,36\n"
SALES = "ts,shop,amount\n" + "".join(f"2026-03-01 12:{n:02}:00,{'ab'[n % 2]},{n}\n" for n in range(30))
TRACE = "ts,key\n" + "".join(f"{n * 0.5},{'abc'[n % 3]}\n" for n in range(600))
VIEW = """CREATE MATERIALIZED VIEW another AS
  SELECT window.start, count(*) AS requests FROM requests GROUP BY window(ts, '1 minute');"""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    tag: str
    reason: str  # why it is not executed here, as the page says it
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', fence["more"])
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(page, fence["tag"], title[1] if title else "", fence["text"], line))
    return found


BLOCKS = [block for page in PAGES if page != GENERATED for block in blocks_of(page)]


def these(*tags: str) -> pytest.MarkDecorator:
    chosen = [b for b in BLOCKS if b.tag in tags and not b.reason]
    names = [f"{b.page.relative_to(ROOT)}:{b.line}" for b in chosen]
    return pytest.mark.parametrize("block", chosen, ids=names)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    for console in (output.console, output.notes):
        monkeypatch.setattr(console, "width", WIDTH)
    return Shell(monkeypatch, capsys)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of somebody who reads the documentation, with everything in it that examples name."""
    publish_project(tmp_path / "my-project")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("notebooks"))
    for name, text in {"rates.csv": RATES, "trace.csv": TRACE, "data.csv": SALES, "another.sql": VIEW}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CATCHMENT_DATA", raising=False)
    return tmp_path


def test_every_block_has_a_tag_that_says_how_it_is_checked() -> None:
    known = {*ELSEWHERE, *READ_ONLY, "sh", "console", "toml", "yaml", "json"}
    assert [f"{b.page}:{b.line}: {b.tag!r}" for b in BLOCKS if b.tag not in known] == []


@these("sh")
def test_shell_blocks_run(block: Block, workplace: Path, shell: Shell) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "catchment", f"{line!r} cannot be run here: give the block a title with the reason"
            shell(*words[1:])


@these("console")
def test_output_is_what_the_page_shows(block: Block, workplace: Path, shell: Shell) -> None:
    command, _, shown = block.text.partition("\n")
    printed = shell(*shlex.split(command.removeprefix("$ catchment ")))
    assert printed.startswith(shown), "a page may leave out the end, nothing else"


@these("toml", "yaml", "json")
def test_files_that_are_shown_can_be_read(block: Block, tmp_path: Path) -> None:
    match block.tag:
        case "json":
            assert [json.loads(line) for line in block.text.splitlines()]
        case "yaml":
            assert yaml.safe_load(block.text)
        case "toml" if "mqtt" in tomllib.loads(block.text):
            (tmp_path / "feeds.toml").write_text(block.text)
            assert read_broker(tmp_path, "catchment") is not None
        case _:
            assert tomllib.loads(block.text)


def test_reasons_name_files_that_exist() -> None:
    named = [(b, path) for b in BLOCKS for path in re.findall(r"\b(?:tests|tools)/[\w/.]+", b.reason)]
    assert len(named) > 3
    assert [f"{b.page}:{b.line}: {path}" for b, path in named if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert pages - listed == set(), "add it to nav in mkdocs.yml"
