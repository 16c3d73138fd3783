"""Looking at a project before it runs: help, `check`, `explain`, `whatif`, and errors that point at their place."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.worlds.shell import Shell
from tools.reference import commands

pytestmark = pytest.mark.usefixtures("narrow")


def test_research_tools_stand_apart_in_the_help(shell: Shell) -> None:
    text = shell("--help")
    panels = re.split(r"╭─ ", text)
    (research,) = [panel for panel in panels if panel.startswith("Research tools")]
    named = set(re.findall(r"^│ (\w+) ", research, re.MULTILINE))
    assert named == {"shed", "simulate", "bench"}
    assert text.index("Research tools") > text.index("demo")


WITHOUT_PROJECT = {"demo", "init", "pack", "shed", "bench", "simulate", "feeds place", "device"}


def test_every_command_about_a_project_takes_its_folder_in_the_same_way() -> None:
    lacking = {
        " ".join(words[1:])
        for words, command in commands()
        if "-p" not in {option for parameter in command.params for option in parameter.opts}
    }
    assert {name for name in lacking if not name.startswith(tuple(WITHOUT_PROJECT))} == set()


def test_the_folder_as_a_word_still_works_and_two_folders_are_refused(shell: Shell, published: Path) -> None:
    assert shell.json("explain", published) == shell.json("explain", "-p", published)
    one = shell.json("explain", "traffic", "-p", published)
    assert shell.json("explain", published, "traffic") == one
    shell.monkeypatch.chdir(published)
    assert shell.json("explain", "traffic") == one, "in the folder of the project, a view is enough"
    assert shell.json("explain", ".") == shell.json("explain")
    code, _, err = shell.ends("check", published, "-p", "elsewhere")
    assert code == 2
    assert "two project folders" in err
    code, _, err = shell.ends("drop", published, "traffic", "errors")
    assert code == 2
    assert "expected a view" in err


def test_views_are_submitted_and_dropped_with_the_folder_in_either_place(shell: Shell, published: Path) -> None:
    file = published / "extra.sql"
    view = (
        "CREATE MATERIALIZED VIEW {} AS SELECT window.start, count(*) AS n FROM requests GROUP BY window(ts, '1 hour');"
    )
    file.write_text(view.format("one"))
    assert [q["query"] for q in shell.json("submit", file, "-p", published)["queries"]] == ["one"]
    file.write_text(view.format("two"))
    assert [q["query"] for q in shell.json("submit", published, file)["queries"]] == ["two"]
    assert shell.json("drop", "one", "-p", published)["dropped"] == "one"
    assert shell.json("drop", published, "two")["dropped"] == "two"


def test_a_project_that_could_run_passes_the_check(shell: Shell, published: Path) -> None:
    for site in ("us", "eu"):
        (published / "data" / site).mkdir(parents=True, exist_ok=True)
    answer = shell.json("check", published)
    assert answer["ok"], answer
    assert [c["check"] for c in answer["checks"]] == ["catchment.toml", "statements", "plans", "data", "keys", "Java"]
    assert "ok     plans: 3 views" in shell("check", published)


def test_a_project_that_could_not_run_fails_the_check_with_the_place(shell: Shell, tmp_path: Path) -> None:
    shell("init", tmp_path / "p")
    (tmp_path / "p" / "queries" / "bad.sql").write_text("CREATE MATERIALIZED VIEW v AS SELECT nothing FROM nowhere;")
    code, out, _ = shell.ends("check", tmp_path / "p", "--json")
    assert code == 1
    *fine, wrong = json.loads(out)["checks"]
    assert [c["check"] for c in fine] == ["catchment.toml"]
    assert wrong["check"] == "statements"
    assert "bad.sql:1" in wrong["where"]
    code, out, _ = shell.ends("check", tmp_path / "p")
    assert code == 1
    assert "wrong  statements:" in out


def test_a_site_is_checked_with_the_far_end_of_its_link(shell: Shell, tmp_path: Path) -> None:
    shell("init", tmp_path / "p")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    toml = (
        f'[project]\nname = "p"\ncenter = "center"\n[sites.edge]\n[sites.center]\nlisten = "127.0.0.1:{port}"\n'
        '[[links]]\nfrom = "edge"\nto = "center"\n'
    )
    (tmp_path / "p" / "catchment.toml").write_text(toml)
    code, out, _ = shell.ends("check", tmp_path / "p", "--site", "edge", "--json")
    last = json.loads(out)["checks"][-1]
    assert code == 1
    assert last["check"] == "link of edge"
    assert "nothing answers" in last["error"]
    with socket.create_server(("127.0.0.1", port)):
        assert shell.json("check", tmp_path / "p", "--site", "edge")["ok"]
    code, _, err = shell.ends("check", tmp_path / "p", "--site", "mars")
    assert code == 2
    assert "no site 'mars'" in err


def test_an_error_in_a_file_shows_the_line_and_points_at_it(shell: Shell, tmp_path: Path) -> None:
    shell("init", tmp_path / "p")
    (tmp_path / "p" / "queries" / "bad.sql").write_text("-- a view\nCREATE MATERIALISED VIEW v AS SELECT 1;")
    _, _, err = shell.ends("explain", tmp_path / "p")
    lines = err.splitlines()
    (line,) = [n for n, text in enumerate(lines) if "CREATE MATERIALISED VIEW" in text and "|" in text]
    assert lines[line].index("MATERIALISED") == lines[line + 1].index("^")


def test_explain_shows_the_plan_as_it_is(shell: Shell, published: Path) -> None:
    text = shell("explain", published, "traffic", "--verbose")
    assert "Scan requests [ts, country, code, bytes] at us, eu" in text, "brackets are not markup"
    views = shell.json("explain", published)["views"]
    assert [v["view"] for v in views] == ["traffic", "audience", "quiet"]
    assert views[0]["plan"] in text
    assert f"evaluated at its sites: {views[0]['sharing']['evaluation']}" in text
    short = shell("explain", published, "traffic")
    assert len(short.splitlines()) < 24
    assert short.strip() in text


def test_explain_draws_what_it_says(shell: Shell, published: Path, tmp_path: Path) -> None:
    _, out, err = shell.ends("explain", published, "--svg", tmp_path / "p.svg", "--html", tmp_path / "p.html", "--json")
    assert json.loads(out)["views"]
    assert "wrote" in err
    svg = (tmp_path / "p.svg").read_text()
    assert svg.startswith("<svg")
    assert svg in (tmp_path / "p.html").read_text()


def test_explain_analyze_says_what_was_measured(shell: Shell, published: Path) -> None:
    (traffic,) = shell.json("explain", published, "traffic", "--analyze")["views"]
    assert traffic["measured"]["windows"] == 3
    assert "measured" in shell("explain", published, "traffic", "--analyze")


def test_whatif_compares_without_deploying(shell: Shell, published: Path) -> None:
    before = sorted(published.rglob("*"))
    answer = shell.json("whatif", published, "--rate", "requests=x0.001")
    assert set(answer) == {"wan_bytes_per_s", "links", "views", "fragments"}
    assert answer["wan_bytes_per_s"]["then"] < answer["wan_bytes_per_s"]["now"]
    text = shell("whatif", published, "--rate", "requests=x2")
    assert "over the WAN now" in text
    assert sorted(published.rglob("*")) == before
    code, _, err = shell.ends("whatif", published)
    assert code == 2
    assert "nothing is changed" in err
