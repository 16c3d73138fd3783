"""Mistakes of users: each ends with 2 and says what, where and what to do; nothing of theirs is overwritten."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.shell import Shell

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def project(tmp_path: Path, published: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "p"))


def mistakes() -> Iterator[Any]:
    def case(name: str, words: str, message: str, place: str, hint: str) -> Any:
        return pytest.param(words, message, place, hint, id=name)

    yield case("no project", "explain {p}/nowhere", "there is no catchment.toml in", "", "catchment init FOLDER")
    yield case("unknown view", "explain {p} trafic", "there is no view 'trafic'", "", "traffic")
    yield case("unknown results", "show results nope -p {p}", "there is no view 'nope'", "p", "traffic")
    yield case("no results yet", "show windows quiet -p {p}", "query 'quiet' has not published", "state", "traffic")
    yield case(
        "no such window", "show revisions traffic 2001-01-01 -p {p}", "no window that starts", "", "show windows"
    )
    yield case(
        "not a time", "show revisions traffic soon -p {p}", "cannot read the time 'soon'", "", "2017-01-01 02:00"
    )
    yield case("bad results SQL", "sql SELEC -p {p}", "syntax error", "SELEC", "views are: audience, traffic")
    yield case("unknown table", "sql SELECT~*~FROM~trafic -p {p}", "trafic", "trafic", "audience, traffic")
    yield case("no SELECT", "sql DROP~VIEW~traffic -p {p}", "one SELECT was expected", "DROP", "views are")
    busy = "sites that have something to do: us, eu"
    yield case("unknown site", "site mars -p {p}", "site 'mars' has nothing to do", "", busy)
    yield case("site without a port", "site us -p {p}", "it has no fixed address", "catchment.toml", "listen =")
    yield case("center without a port", "center -p {p}", "it has no fixed address", "catchment.toml", "listen =")
    yield case("project is there", "init {p}", "already exists", "", "choose another folder")
    yield case("a file in the way", "init {p}/catchment.toml", "already exists", "", "choose another folder")
    yield case("demo over a project", "demo --folder {p}/queries", "is not the demo", "queries", "--folder")
    yield case("demo over a file", "demo --folder {p}/catchment.toml", "is not the demo", "toml", "--folder")
    yield case("no benchmark", "bench nope", "there is no benchmark 'nope'", "", "throughput")


@pytest.mark.parametrize(("words", "message", "place", "hint"), list(mistakes()))
def test_a_mistake_ends_with_2_and_says_what_where_and_what_to_do(
    shell: Shell, project: Path, words: str, message: str, place: str, hint: str
) -> None:
    code, out, err = shell.ends(*(w.format(p=project).replace("~", " ") for w in words.split()))
    assert code == 2
    assert out == ""
    said = err.splitlines()
    assert said[0].startswith("error: ")
    assert message in err
    assert hint in next(line for line in said if line.startswith("  hint: "))
    if place:
        assert place in next(line for line in said if line.startswith("  at: "))
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        ("catchment.toml", 2, 'nam = "x"', "has no option 'nam'"),
        ("catchment.toml", 2, "name = ", "this is not TOML"),
        ("queries/log.sql", 3, "CREATE MATERIALIZD VIEW traffic AS", "MATERIALIZD"),
        ("queries/log.sql", 4, "  SELECT window.start, nothing, code, count(*) AS n", "nothing"),
    ],
)
def test_a_mistake_in_a_file_names_its_line(
    shell: Shell, project: Path, file: str, line: int, text: str, message: str
) -> None:
    path = project / file
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines))
    for words in (("explain", project), ("run", project, "--once")):
        code, _, err = shell.ends(*words)
        assert code == 2
        assert message in err.splitlines()[0]
        assert re.search(rf"  at: {re.escape(str(path))}:{line}\b", err), err
        assert "  hint: " in err


def test_a_message_about_a_table_keeps_its_brackets(shell: Shell, project: Path) -> None:
    with (project / "catchment.toml").open("a") as file:
        file.write("[weather]\n")
    _, _, err = shell.ends("explain", project)
    assert err.startswith("error: there is no table [weather]\n")


def test_a_folder_that_another_process_uses_is_refused_before_spark_starts(shell: Shell, project: Path) -> None:
    outbox = project / "state" / "sites" / "us" / "outbox"
    outbox.mkdir()
    holding = (
        "import sys; from pathlib import Path; from catchment.wire.sending.outbox import Outbox\n"
        "kept = Outbox(Path(sys.argv[1]), 'us', 'center', 1000); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holding, str(outbox)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        code, _, err = shell.ends("run", project)
        other.communicate("")
    assert code == 2
    assert err.splitlines()[0] == f"error: the folder is in use by another process (number {other.pid})"
    assert f"  at: {outbox}" in err
    assert "  hint: end the other process first" in err


def test_the_demo_leaves_another_project_alone(shell: Shell, tmp_path: Path) -> None:
    shell("init", tmp_path / "mine")
    kept = tmp_path / "mine" / "state" / "results"
    kept.mkdir(parents=True)
    code, _, err = shell.ends("demo", "--folder", tmp_path / "mine")
    assert code == 2
    assert "is not the demo" in err
    assert kept.is_dir()


def test_init_overwrites_no_query(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "events.sql").write_text("-- mine")
    code, _, _ = shell.ends("init", tmp_path)
    assert code == 2
    assert (tmp_path / "queries" / "events.sql").read_text() == "-- mine"
    assert not (tmp_path / "catchment.toml").exists()


def test_an_edge_cloud_without_its_name_or_brokers_is_told_what_to_give(tmp_path: Path, shell: Shell) -> None:
    words = ("feeds", "edge", "north", "--mqtt", "127.0.0.1:1883", "-p", tmp_path)

    def said(*more: str) -> str:
        code, _, err = shell.ends(*words, *more)
        assert code == 2
        return re.sub(r"\s+", " ", err)

    assert '[edges] clouds = ["north"]' in said()
    (tmp_path / "feeds.toml").write_text('[edges]\nclouds = ["north"]\n')
    assert "give --cloud-mqtt HOST:PORT" in said()
    assert "another --app, such as north" in said("--cloud-mqtt", "127.0.0.1:1883")
