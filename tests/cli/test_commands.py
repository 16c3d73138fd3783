"""The command line as people and programs meet it: answers and help. Nothing here starts Spark.

Catches: JSON that is not JSON or lacks a documented key, text eaten as markup, tables too wide to read.
Cannot catch: what a run does; `test_pipelines.py` and `test_kill.py` run those.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import catchment
from benchmarks import BENCHMARKS
from catchment.cli.commands import bench
from catchment.cli.main import app
from catchment.cli.output import emit
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.planning.build import plan_views
from tests.worlds.shell import WIDTH, Shell

ROOT = Path(catchment.__file__).parent.parent
pytestmark = pytest.mark.usefixtures("narrow")


# --- answers ----------------------------------------------------------------------------------------------------


def documented() -> dict[str, set[str]]:
    """The keys that docs/reference/commands.md promises, by command."""
    rows = re.findall(
        r"^\| `catchment (.+?)` \| .+? \| (.+?) \|$", (ROOT / "docs" / "reference" / "commands.md").read_text(), re.M
    )
    return {command: set(re.findall(r"`(\w+)`", keys)) for command, keys in rows}


WRITES_FILES = ("bench report", "bench plot")
LOOKING = [
    c for c in documented() if c.split()[0] in ("explain", "show", "sql", "bench") and not c.startswith(WRITES_FILES)
]


@pytest.mark.parametrize("command", LOOKING)
def test_the_json_of_a_command_has_the_documented_keys_and_people_get_a_table(
    command: str, shell: Shell, published: Path
) -> None:
    words = [w.strip('"') for w in re.findall(r'"[^"]+"|\S+', command)]
    words = [str(published) if w == "my-project" else w for w in words]
    assert set(shell.json(*words)) == documented()[command]
    table = shell(*words)
    assert table.strip()
    assert not table.lstrip().startswith("{")


def test_a_kept_result_is_drawn_again(shell: Shell, tmp_path: Path) -> None:
    kept = ROOT / "benchmarks" / "results" / "sharing-arrivals-widened.json"
    drawn = tmp_path / "arrivals.png"
    assert shell.json("bench", "plot", kept, "--plot", drawn) == {"plot": str(drawn)}
    assert drawn.read_bytes().startswith(b"\x89PNG")
    code, _, said = shell.ends("bench", "plot", next(kept.parent.glob("throughput-*.json")), "--plot", drawn)
    assert code == 2
    assert "cannot be drawn" in said


def test_results_in_json_are_complete(shell: Shell, published: Path) -> None:
    rows = shell.json("show", "results", "traffic", "-p", published)["rows"]
    newest, *_ = rows
    assert newest == {
        "window_start": "2017-01-01T02:20:00+00:00",
        "window_end": "2017-01-01T02:30:00+00:00",
        "start": "2017-01-01T02:20:00+00:00",
        "country": "us",
        "code": 200,
        "requests": 1,
        "bytes": 50,
        "coverage": 0.625,
        "bound": {"requests": None, "bytes": None},
        "bound_kind": {"requests": "unknown", "bytes": "unknown"},
        "status": "on_time",
        "revision": 1,
        "published_at": "2026-11-15T22:01:02.345678+00:00",
        "missing_sites": ["eu"],
        "missing_sources": [],
    }
    assert [r["window_start"][11:16] for r in rows] == ["02:20", "02:10", "02:00", "02:00"]
    described = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "reference" / "commands.md").read_text()))
    assert set(newest) - {"start", "country", "code", "requests", "bytes"} <= described
    assert len(shell.json("show", "results", "traffic", "-p", published, "-n", "1")["rows"]) == 1


def test_results_for_people_say_errors_and_missing_sites_in_80_columns(shell: Shell, published: Path) -> None:
    lines = shell("show", "results", "audience", "-p", published).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert [re.sub(r"  +", "|", line.strip()) for line in lines if line.strip() and "─" not in line] == [
        "audience by window, newest first (10 min each, UTC)",
        "window|clients|countries|median_bytes",
        "2017-01-01|estimate|share|estimate rank|status",
        "02:20|1 ±unknown|us:1 ±unknown|50 ±unknown|on_time 62%, no",
        "eu",
        "02:10|1 ±3.2%|nl:1 ±0.021%|1,234,567 ±1.1%|exact",
        "02:00|2 ±3.2%|nl:2 [de]:1|100 ±1.1%|final",
        "±0.021%",
    ]


def test_revisions_say_why_and_take_the_time_as_json_prints_it(shell: Shell, published: Path) -> None:
    start = shell.json("show", "windows", "traffic", "-p", published)["windows"][-1]["window_start"]
    for text in (start, "2017-01-01 02:00", "2017-01-01T02:00:00Z", "2017-01-01T03:00:00+01:00"):
        found = shell.json("show", "revisions", "traffic", text, "-p", published)["revisions"]
        assert [(r["revision"], r["status"], r["reason"]) for r in found] == [
            (1, "exact", "closed: every site has passed its end"),
            (2, "exact", "late: 1 row changed"),
            (2, "final", "the repair horizon has passed"),
        ]
    assert "late: 1 row changed" in shell("show", "revisions", "traffic", "-p", published)


def test_status_after_a_run_has_no_rates_and_tells_why_a_link_is_down(shell: Shell, published: Path) -> None:
    table = shell("show", "status", "-p", published)
    assert "rows/s" not in table
    assert "[::1]:9410" in table, "no part of the message is taken for markup"
    assert all(len(line) <= WIDTH for line in table.splitlines())
    assert shell.json("show", "status", "-p", published)["sites"]["eu"]["connected"] is False


def test_quarantine_shows_records_word_for_word_even_if_none_has_an_event_time(shell: Shell, published: Path) -> None:
    answer = shell.json("show", "quarantine", "-p", published)
    assert answer["counts"] == {"not readable as json": 1, "no event time (ts)": 1}
    assert answer["records"][0] == {
        "site": "us",
        "stream": "requests",
        "reason": "not readable as json",
        "record": "[bold]oh no[/bold]",
    }
    assert "[bold]oh no[/bold]" in shell("show", "quarantine", "-p", published)


def test_sql_answers_from_the_latest_revisions(shell: Shell, published: Path) -> None:
    query = "SELECT country, sum(bytes) AS bytes FROM traffic GROUP BY country ORDER BY bytes"
    assert shell.json("sql", query, "-p", published)["rows"] == [
        {"country": "[de]", "bytes": 7},
        {"country": "us", "bytes": 50},
        {"country": "nl", "bytes": 1234967},
    ]
    assert "1,234,967" in shell("sql", query, "-p", published)
    assert "nothing" in shell("sql", "SELECT 1 AS one WHERE false", "-p", published)


def test_select_star_is_readable_in_80_columns_and_hides_what_the_engine_adds(shell: Shell, published: Path) -> None:
    table = shell("sql", "SELECT * FROM traffic", "-p", published)
    assert all(len(line) <= WIDTH for line in table.splitlines())
    assert "--all adds coverage" in table
    assert "published_at" not in table
    whole = shell("sql", "SELECT * FROM traffic", "--all", "-p", published)
    assert all(len(line) <= WIDTH for line in whole.splitlines())
    assert "published_at" in whole, "every column has a line of its own where they do not fit beside each other"
    assert whole.count("row ") == 4


def test_a_name_that_is_not_there_is_answered_with_those_that_are(shell: Shell, published: Path) -> None:
    code, _, err = shell.ends("sql", "SELECT * FROM trafic", "-p", published)
    assert code == 2
    assert "no view 'trafic' has published" in err
    assert "did you mean 'traffic'?" in err
    code, _, err = shell.ends("sql", "SELECT nonsense(1)", "-p", published)
    assert code == 2
    assert "nonsense does not exist" in err


def test_rows_of_a_window_are_sorted_by_the_columns_of_the_view(shell: Shell, published: Path) -> None:
    rows = shell.json("show", "results", "traffic", "-p", published)["rows"]
    first_window = [r["country"] for r in rows if r["window_start"][11:16] == "02:00"]
    assert first_window == sorted(first_window)


def test_init_makes_a_project_that_loads_and_plans(shell: Shell, tmp_path: Path) -> None:
    made = shell.json("init", tmp_path / "new")["made"]
    assert all(Path(path).is_file() for path in made)
    catalog = load_catalog(Project.load(tmp_path / "new"))
    assert set(plan_views(catalog)) == {"totals"}
    assert "catchment run" in shell("init", tmp_path / "other")


def test_bench_refuses_a_part_that_is_not_there_and_names_those_that_are(shell: Shell) -> None:
    code, out, err = shell.ends("bench", "edge_policies", "--part", "edgar-clients")
    assert code != 0
    assert "edgar-clients" in out + err
    assert "edgar-company" in out + err
    code, out, err = shell.ends("bench", "backfill", "--part", "half")
    assert code != 0
    assert "without --part" in out + err
    code, out, err = shell.ends("bench", "throughput", "--plot", "no.png")
    assert code != 0
    assert "without --plot" in out + err


def test_bench_lists_what_can_be_measured(shell: Shell) -> None:
    listed = shell.json("bench")["benchmarks"]
    assert {"throughput"} <= {b["name"] for b in listed}
    assert all(b["description"] for b in listed)


def test_bench_edge_judges_runs_that_were_cut_while_updates_waited_by_their_bytes_alone() -> None:
    def cell(factor: float, policy: str, sent: int, stale_s: float, waiting: int) -> dict[str, object]:
        place = {"query": "large", "sites": 1, "window_s": 30.0, "factor": factor, "policy": policy}
        return place | {"bytes": sent, "staleness_mean_s": stale_s, "waiting": waiting}

    ours = [cell(0.2, "spillway", 9, 1.0, 5), cell(0.5, "spillway", 9, 9.0, 0), cell(1.0, "spillway", 1, 1.0, 0)]
    theirs = [cell(f, "hybrid:0.25", 5, 2.0, waiting) for f, waiting in ((0.2, 0), (0.5, 3), (1.0, 0))]
    judged = bench._load("edge").claims([*ours, *theirs])
    at = {f: f"large, 1 site(s), link x{f:g}, windows of 30 s" for f in (0.2, 0.5, 1.0)}
    assert judged == {
        "more bytes than hybrid:0.25": [at[0.2], at[0.5]],
        "staler than hybrid:0.25": [],
        "better on both": [at[1.0]],
        "cut while updates waited": [at[0.2], at[0.5]],
        "more waiting than hybrid:0.25": [at[0.2]],
    }


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_each_benchmark_can_be_begun_by_itself(name: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded as in a new process: without the checkout on the path, nor a module that another benchmark brought."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != bench.FOLDER.parent])
    for module in [m for m in sys.modules if m.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, module)
    code, out, err = shell.ends("bench", name, "--part", "of nothing")
    assert code != 0
    assert f"the benchmark '{name}' has no part 'of nothing'" in out + err


def test_json_is_json_whatever_is_in_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    from datetime import UTC, date, datetime
    from decimal import Decimal

    answer = {
        "nan": float("nan"),
        "inf": [float("inf")],
        "bytes": b"\xff",
        "day": date(2024, 3, 1),
        7: (1, True),
        "at": datetime(2024, 3, 1, tzinfo=UTC),
        "money": Decimal("1.10"),
        "none": None,
    }
    emit(answer, True, str)  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out) == {
        "nan": None,
        "inf": [None],
        "bytes": "ff",
        "day": "2024-03-01",
        "7": [1, True],
        "at": "2024-03-01T00:00:00+00:00",
        "money": "1.10",
        "none": None,
    }


# --- help -------------------------------------------------------------------------------------------------------


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path), command
    else:
        for name, child in children.items():
            yield from commands(child, (*path, name))


def leaves() -> dict[str, Any]:
    from typer.main import get_command

    return dict(commands(get_command(app)))


@pytest.mark.parametrize("name", sorted(leaves()))
def test_the_help_of_every_command_has_an_example_and_a_json_form(name: str, shell: Shell) -> None:
    text = shell(*name.split(), "--help")
    assert re.search(r"Examples?:", text), text
    assert f"catchment {name}" in re.sub(r"\s+", " ", text)
    assert "--json" in text
    undocumented = [p.name for p in leaves()[name].params if not getattr(p, "help", None)]
    assert undocumented == []
    command = leaves()[name]
    told = [command.help or "", command.epilog or "", *(getattr(p, "help", None) or "" for p in command.params)]
    markup = [word for part in told for word in re.findall(r"\[[a-z_]+\]", part)]
    assert markup == [], "words in brackets are taken for colours, and not shown"


def test_the_version_is_that_of_the_package(shell: Shell) -> None:
    assert shell("--version") == f"catchment {catchment.__version__}\n"


def test_the_command_line_is_up_without_spark_and_a_mistake_has_no_traceback(tmp_path: Path) -> None:
    check = "import sys, catchment.cli.main as m; print([n for n in %r if n in sys.modules]); m.main()"
    heavy = ("pyspark", "py4j", "pandas", "scipy", "matplotlib", "duckdb", "deltalake")
    done = subprocess.run(
        [sys.executable, "-c", check % (heavy,), "explain", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n"
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no catchment.toml in")
