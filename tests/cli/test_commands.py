"""The command line as people and programs meet it: answers, mistakes, help. Nothing here starts Spark.

Catches: JSON that is not JSON or lacks a documented key, text eaten as markup, tables too wide to read, mistakes that
end in a traceback. Cannot catch: what a run does; `test_pipelines.py` and `test_kill.py` run those.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import catchment
from benchmarks import BENCHMARKS
from catchment.cli import output
from catchment.cli.commands import bench
from catchment.cli.main import app, main
from catchment.cli.output import emit
from catchment.cli.tables import cell, plain_table, result_table
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.query.planning.build import plan_views
from tests.worlds.published import publish_project

ROOT = Path(catchment.__file__).parent.parent
WIDTH = 80


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_project(tmp_path_factory.mktemp("cli") / "p")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (output.console, output.notes):
        monkeypatch.setattr(console, "width", WIDTH)


class Shell:
    """Runs the command line in this process, as `catchment ...` would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> str:
        code, out, err = self.ends(*words)
        assert code == 0, err
        return out

    def json(self, *words: object) -> Any:
        return json.loads(self(*words, "--json"))

    def ends(self, *words: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["catchment", *(str(w) for w in words)])
        code = self._run()
        said = self.capsys.readouterr()
        return code, said.out, said.err

    @staticmethod
    def _run() -> int:
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


# --- answers ----------------------------------------------------------------------------------------------------


def documented() -> dict[str, set[str]]:
    """The keys that docs/commands.md promises, by command."""
    rows = re.findall(r"^\| `catchment (.+?)` \| .+? \| (.+?) \|$", (ROOT / "docs" / "commands.md").read_text(), re.M)
    return {command: set(re.findall(r"`(\w+)`", keys)) for command, keys in rows}


WRITES_PAGES = "bench report"
LOOKING = [c for c in documented() if c.split()[0] in ("explain", "show", "sql", "bench") and c != WRITES_PAGES]


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
    described = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "commands.md").read_text()))
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


def test_explain_shows_the_plan_as_it_is(shell: Shell, published: Path) -> None:
    text = shell("explain", published, "traffic")
    assert "Scan requests [ts, country, code, bytes] at us, eu" in text, "brackets are not markup"
    views = shell.json("explain", published)["views"]
    assert [v["view"] for v in views] == ["traffic", "audience", "quiet"]
    assert views[0]["plan"] in text
    assert f"evaluated at its sites: {views[0]['sharing']['evaluation']}" in text


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
    code, out, err = shell.ends("bench", "throughput", "--part", "half")
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


# --- tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (123456.7, "123,457"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ("[red]x", "[red]x"),
        (b"\x01\xff", "01ff"),
        ([{"item": "a", "count": 1200}, {"item": None, "count": 1}], "a:1,200 -:1"),
        ({"item": 9876, "count": 5}, "9876:5"),
        ([1.5, 2], "1.5 2"),
        ({"lat": 1, "lon": 2.5}, "lat 1, lon 2.5"),
    ],
)
def test_cells_are_written_as_people_read_them(value: Any, shown: str) -> None:
    assert cell(value) == shown


def rendered(table: Any) -> str:
    with output.console.capture() as captured:
        output.console.print(table)
    return captured.get()


def test_times_are_no_finer_than_they_need_to_be_and_a_common_date_stands_above_them() -> None:
    from datetime import UTC, datetime

    first, later = datetime(2024, 3, 1, 2, 0, tzinfo=UTC), datetime(2024, 3, 2, 2, 0, 30, tzinfo=UTC)
    one_day = rendered(plain_table([{"at": first}, {"at": None}], "t"))
    assert re.search(r"at\s+2024-03-01\s+─+\s+02:00\s+-\s", one_day)
    two_days = rendered(plain_table([{"at": first}, {"at": later}], "t"))
    assert "2024-03-01 02:00:00" in two_days
    assert "2024-03-02 02:00:30" in two_days


def test_a_column_that_happens_to_equal_the_window_in_one_row_is_still_shown() -> None:
    from datetime import UTC, datetime, timedelta

    start = datetime(2024, 3, 1, tzinfo=UTC)
    meta = {
        "window_end": start + timedelta(minutes=1),
        "bound": {},
        "published_at": start,
        "missing_sites": [],
        "revision": 1,
        "coverage": 1.0,
        "status": "exact",
    }
    rows = [
        {"window_start": start, "start": start, "first": start, **meta},
        {"window_start": start, "start": start, "first": start + timedelta(seconds=5), **meta},
    ]
    shown = rendered(result_table(rows, "t"))
    assert "00:00:05" in shown
    assert "first" in shown
    assert not re.search(r"\bstart\b", shown)


def test_the_demo_ends_with_answers_costs_and_commands_that_can_be_copied(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from catchment.center.results.read import read_results
    from catchment.cli.commands.project import _render_demo

    state = published / "state"
    answer = {
        "rows": 6,
        "bytes_sent": {"us": 1_500, "eu": 500},
        "shipping_every_record": {"raw_bytes": 40_000, "zstd_bytes": 9_000},
        "windows": {"traffic": 3},
        "answers": {"traffic": read_results(state, "traffic").to_pylist()},
        "folder": "a-folder-with-a-name-so-long-that-the-command-does-not-fit-into-one-line-of-80",
    }
    emit(answer, False, _render_demo)
    lines = capsys.readouterr().out.splitlines()
    assert any(re.search(r"catchment: partial aggregates.* 2\.0 KB.* 5\.0%", line) for line in lines)
    look = next(line.strip() for line in lines if line.strip().startswith("catchment sql"))
    assert look.endswith(f"-p {answer['folder']}"), "a command is never broken into lines"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (2.5e9, "2.5 GB"), (3e15, "3000.0 TB")],
)
def test_sizes_are_written_as_people_read_them(count: float | None, shown: str) -> None:
    from catchment.cli.progress import size

    assert size(count) == shown


def test_without_a_terminal_a_run_says_a_line_now_and_then(
    published: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.cli import progress as live

    monkeypatch.setattr(live, "LINE_EVERY_S", 0.0)
    status = {
        "sites": {"us": json.loads((published / "state" / "sites" / "us" / "status.json").read_text())},
        "center": json.loads((published / "state" / "center" / "status.json").read_text()),
    }
    with live.watching(quiet=False) as report:
        report(status)
    assert capsys.readouterr().err == (
        "us 12,345 rows (0/s), 45.7 KB sent | traffic closed up to 2017-01-01 02:25:00\n"
    )
    with live.watching(quiet=True) as report:
        report(status)
    assert capsys.readouterr().err == ""


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, published: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "p"))


def mistakes() -> Iterator[Any]:
    def case(name: str, words: str, message: str, place: str, hint: str) -> Any:
        return pytest.param(words, message, place, hint, id=name)

    yield case("no project", "explain {p}/nowhere", "there is no catchment.toml in", "", "catchment init FOLDER")
    yield case("unknown view", "explain {p} trafic", "there is no view 'trafic'", "", "traffic")
    yield case("unknown results", "show results nope -p {p}", "query 'nope' has not published", "state", "traffic")
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
        "import sys; from pathlib import Path; from catchment.wire.outbox import Outbox\n"
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
