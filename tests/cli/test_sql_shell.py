"""The shell of `catchment sql`: statements over several lines, completion, mistakes that do not end it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from catchment.center.results.sql import SqlLimits
from catchment.cli.main import main
from catchment.cli.sql_shell import CONTINUED, PROMPT, SqlShell, run_shell
from catchment.errors import CatchmentError
from tests.worlds.published import publish_project


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_project(tmp_path_factory.mktemp("shell") / "p")


@dataclass
class Session:
    folder: Path
    rows: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    errors: list[CatchmentError] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = SqlLimits(10**9, 60.0)
        self.shell = SqlShell(self.folder / "state", limits, self.rows.append, self.said.append, self.errors.append)


@pytest.fixture
def session(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("CATCHMENT_HISTORY", str(tmp_path / "history"))
    return Session(folder)


def test_a_statement_ends_with_a_semicolon_and_may_have_several_lines(session: Session) -> None:
    shell = session.shell
    assert shell.prompt == PROMPT
    shell.take("SELECT sum(requests) AS n")
    assert shell.prompt == CONTINUED
    assert session.rows == []
    shell.take("FROM traffic;")
    assert session.rows == [[{"n": 5}]]
    assert shell.prompt == PROMPT


def test_a_mistake_is_told_and_the_shell_goes_on(session: Session) -> None:
    session.shell.take("SELECT * FROM trafic;")
    (error,) = session.errors
    assert "trafic" in error.message
    session.shell.take("SELECT 1 AS one;")
    assert session.rows == [[{"one": 1}]]
    assert not session.shell.is_over


def test_names_of_views_columns_and_words_are_completed(session: Session) -> None:
    assert session.shell.complete("traf") == ["traffic", "traffic__revisions"]
    assert "requests" in session.shell.complete("req")
    assert session.shell.complete("sel") == ["SELECT"]
    assert session.shell.complete("nothing_begins_so") == []


def test_views_are_listed_and_the_shell_is_left(session: Session) -> None:
    session.shell.take("\\d")
    assert "traffic" in session.said[-1].splitlines()
    session.shell.take("\\?")
    assert "end with ;" in session.said[-1]
    session.shell.take("\\q")
    assert session.shell.is_over


def test_ctrl_c_forgets_a_statement_and_the_end_of_input_answers_one(session: Session) -> None:
    def lines() -> Iterator[str | type[BaseException]]:
        yield "SELECT 1 AS forgotten"
        yield KeyboardInterrupt
        yield "SELECT 2 AS two"
        yield EOFError

    coming = lines()

    def read_line(prompt: str) -> str:
        line = next(coming)
        if isinstance(line, str):
            return line
        raise line

    run_shell(session.shell, read_line)
    assert session.rows == [[{"two": 2}]]


def test_statements_come_through_a_pipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("CATCHMENT_HISTORY", str(tmp_path / "history"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 1 AS one;\nSELECT 2 AS two;\n"))
    monkeypatch.setattr(sys, "argv", ["catchment", "sql", "-p", str(folder), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    out = capsys.readouterr().out
    assert '"one": 1' in out
    assert '"two": 2' in out
