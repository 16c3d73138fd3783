"""The demo: its scenes wait for states and never for the clock, and what it shows is what happened.

The run on Spark is compared with a recomputation in plain Python from every file that arrived.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from catchment.center.results.read import read_results, read_windows
from catchment.cli.commands.demo import answer, lay_out, render
from catchment.cli.demo.director import Director, Scene, Wait
from catchment.cli.demo.outside import ARRIVING, WINDOW_S, CutLinks, Outside
from catchment.cli.demo.play import Play
from catchment.cli.demo.scenes import Length
from catchment.cli.demo.screen import Screen
from catchment.cli.demo.stage import Stage
from catchment.project.config import Project
from catchment.shedding.monitor import Arrivals, Decision, LoadMonitor
from catchment.shedding.sampler import Sampler
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError
from tests.test_docs import check_command
from tests.worlds.published import publish_project
from tests.worlds.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---- the director


def test_a_scene_goes_on_as_soon_as_what_it_waits_for_holds() -> None:
    reached: list[str] = []
    state = {"a": False, "b": False}

    def scene(name: str) -> Scene:
        assert (yield Wait(lambda: state[name], name))
        reached.append(name)

    director = Director([scene("a"), scene("b")], reached.append, now_s=lambda: 0.0)
    director.step()
    assert reached == []
    state["b"] = True
    director.step()
    assert reached == [], "scenes are played in order"
    state["a"] = True
    director.step()
    assert reached == ["a", "b"]
    assert director.finished
    assert director.skipped == []


def test_what_takes_too_long_is_said_to_be_skipped_and_the_demo_goes_on() -> None:
    said: list[str] = []
    now_s = [0.0]

    def scene() -> Scene:
        reached = yield Wait(lambda: False, "the impossible")
        said.append(f"reached: {reached}")

    director = Director([scene()], said.append, 60.0, lambda: now_s[0])
    director.step()
    now_s[0] = 60.0
    director.step()
    assert said == []
    now_s[0] = 60.1
    director.step()
    assert said == ["skipped: the impossible took more than 60 s; the demo goes on", "reached: False"]
    assert director.finished
    assert director.skipped == ["the impossible"]


# ---- the world outside


def arrived(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(f"{ARRIVING}/*/*.json")) for line in path.open()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("demo") / "demo"
    lay_out(made)
    return made


def test_what_is_held_back_at_a_site_arrives_once_and_later(folder: Path) -> None:
    outside = Outside.read(folder)
    start_s = outside.windows[3]
    everything = sorted(line for log in outside.logs.values() for line in log[start_s])
    held = outside.feed(start_s, hold_at="asia")
    assert len(arrived(folder)) == len(everything) - held
    assert outside.deliver_held("asia") == held > 0
    assert outside.deliver_held("asia") == 0
    lines = sorted(line.strip() for path in folder.glob(f"{ARRIVING}/*/*.json") for line in path.open())
    assert lines == everything
    assert outside.shipped.rows == len(everything) == sum(outside.fed_rows.values())
    assert 0 < outside.shipped.zstd_bytes < outside.shipped.raw_bytes


def test_a_flood_is_of_records_of_the_site_within_one_window(folder: Path) -> None:
    lay_out(folder)
    outside = Outside.read(folder)
    start_s = outside.windows[5]
    outside.flood("eu", start_s, 20_000)
    records = arrived(folder)
    assert len(records) == 20_000
    times = {int(datetime.fromisoformat(r["ts"]).timestamp()) for r in records}
    assert start_s == min(times)
    assert max(times) == start_s + WINDOW_S - 1
    known = {line.split(",", 1)[1] for log in outside.logs["eu"].values() for line in log}
    assert {json.dumps(r, separators=(",", ":")).split(",", 1)[1] for r in records} <= known


class OpenUplink:
    def connect(self, introduction: Introduction) -> Greeting:
        return Greeting(0)

    def send(self, data: bytes) -> int:
        return 7

    def close(self) -> None: ...


def test_nothing_passes_a_link_that_is_cut_and_other_links_are_not_disturbed() -> None:
    links = CutLinks()
    ours, other = links.wrap(OpenUplink()), links.wrap(OpenUplink())
    ours.connect(Introduction("eu", "1"))
    other.connect(Introduction("us", "1"))
    links.sites.add("eu")
    with pytest.raises(LinkError):
        ours.send(b"")
    with pytest.raises(LinkError):
        ours.connect(Introduction("eu", "1"))
    assert other.send(b"") == 7
    links.sites.discard("eu")
    assert ours.send(b"") == 7


def test_a_light_site_of_the_demo_is_counted_by_the_records_that_it_sent(tmp_path: Path) -> None:
    lay_out(tmp_path / "demo", light=True)
    project = Project.load(tmp_path / "demo")
    assert [site for site in project.sites if project.is_light(site)] == ["asia"]
    status = {"sites": {"us": {"bytes_sent": 5}, "asia": {"bytes_sent": 7}}, "sources": {"asia": {"sent_bytes": 90}}}
    stage = Stage(project, Outside(tmp_path, {}), CutLinks(), lambda event: None, status=status)
    assert stage.bytes_sent == 95


# ---- the screen


def test_the_commands_to_try_next_exist() -> None:
    check = {"rows": 1, "windows": 1, "different_rows": 0, "quarantined": 0}
    console = Console(width=80, file=StringIO(), legacy_windows=False)
    console.print(render({"folder": "demo", "shown": [], "costs": [], "check": check}), crop=False)
    assert isinstance(console.file, StringIO)
    commands = [line for line in console.file.getvalue().splitlines() if line.startswith("  catchment")]
    assert len(commands) == 3
    for command in commands:
        check_command(command.strip())


def test_the_screen_fits_80_columns_and_tells_a_site_that_is_cut_off(tmp_path: Path) -> None:
    folder = publish_project(tmp_path / "p")
    stage = Stage(Project.load(folder), Outside(folder, {}), CutLinks({"eu"}), lambda event: None)
    told = {s: json.loads((folder / "state" / "sites" / s / "status.json").read_text()) for s in ("us", "eu")}
    stage.status = {"sites": told}
    stage.outside.shipped.add(["x" * 100] * 1000)
    console = Console(width=80, file=StringIO())
    console.print(Screen().render(stage))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) < 20
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "cut off, 0 B wait" in text
    assert "exact > final" in text, "the way of a window from one status to the next"
    assert "of every record (101.0 KB" in text


def test_without_a_terminal_an_event_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    with screen.open():
        screen.say("LATE BURST  " + "a long event that does not fit into a line of eighty columns " * 3)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert len(screen.events) == 1


# ---- a whole run


FLOODED_ROWS = 5_000  # more than any window of the log has at one site


class MonitorThatFindsFloodsTooMuch(LoadMonitor):
    """Sheds batches of many rows and no others, and lets repairs wait until the answer from the sample is published.

    What a site can take, and whether it repairs a window before others let it close, depends on the machine.
    """

    may_repair = False

    def decide(self, arrivals: Arrivals) -> Decision:
        self.shedding = arrivals.rows >= FLOODED_ROWS
        self.load = 2.0 if self.shedding else 0.1
        samplers = {f.name: Sampler(0.3) for f in self.fragments if not f.fixed} if self.shedding else {}
        self.last = Decision(samplers, self.load, {}, "a flood")
        return self.last

    @property
    def has_room(self) -> bool:
        return self.may_repair and not self.shedding


def recomputed(folder: Path) -> dict[tuple[Any, ...], list[int]]:
    totals: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for record in arrived(folder):
        if record["company"] >= 2**63:
            continue  # no BIGINT: in quarantine
        start_s = int(datetime.fromisoformat(record["ts"]).timestamp()) // WINDOW_S * WINDOW_S
        group = totals[datetime.fromtimestamp(start_s, UTC), record["country"], record["code"]]
        group[0] += 1
        group[1] += record["bytes"]
    return totals


@pytest.mark.spark
def test_the_demo_shows_every_event_and_ends_with_the_answers_of_a_recomputation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.spark.pipelines import shedding
    from catchment.spark.pipelines.runner import Runner

    monkeypatch.setattr(shedding, "IDLE_S", float("inf"))  # an idle stream would be repaired at once
    monkeypatch.setattr(MonitorThatFindsFloodsTooMuch, "may_repair", False)

    folder = tmp_path / "demo"
    lay_out(folder)
    length = Length(between=0, after=1, flood_rows=2 * FLOODED_ROWS)
    play = Play.prepare(folder, quiet=True, pace_s=0.0, length=length, limit_s=PATIENCE_S)
    sites = play.deployment.sites
    runner = Runner(
        play.deployment, spark, sites, True, wrap_uplink=play.links.wrap, make_monitor=MonitorThatFindsFloodsTooMuch
    )

    def report(status: Any) -> None:
        play.step(status)
        if "of its records" in play.screen.events[-1]:
            monkeypatch.setattr(MonitorThatFindsFloodsTooMuch, "may_repair", True)
        if play.finished:
            runner.stop()

    try:
        runner.start()
        runner.run(report)
    finally:
        runner.close()
    assert play.finished
    assert play.director.skipped == [], play.screen.events
    check_events(play)
    check_answers(folder)
    said = answer(play, folder)
    assert said["check"]["different_rows"] == 0
    assert said["check"]["windows"] > 8
    check_text(said)


def check_events(play: Play) -> None:
    events = "\n".join(play.screen.events)
    for name in ("first answer", "LATE BURST", "is revised", "CUT OFF", "on_time, without eu", "SUBMIT", "errors has"):
        assert name in events
    assert [shown.event for shown in play.stage.shown][:3] == [
        play.stage.shown[0].event,
        "eu was cut off",
        "a view was submitted",
    ]
    assert "no byte more" in events
    assert "OVERLOAD" in events
    assert len(play.stage.shown) == 4
    reasons = [entry["reason"] for window in play.stage.windows().values() for entry in window["history"]]
    assert any("load was shed at us" in reason for reason in reasons)


def check_answers(folder: Path) -> None:
    truth = recomputed(folder)
    state = folder / "state"
    answers = {(r["window_start"], r["country"], r["code"]): r for r in read_results(state, "traffic").to_pylist()}
    windows = {start for start, _, _ in answers}
    assert answers.keys() == {key for key in truth if key[0] in windows}
    assert all([row["requests"], row["bytes"]] == truth[key] for key, row in answers.items())
    history: dict[Any, list[str]] = defaultdict(list)
    for row in read_windows(state, "traffic").to_pylist():
        history[row["window_start"]].append(row["status"])
    assert all(statuses[-1] in ("exact", "final") for statuses in history.values())
    assert sum(statuses[0] == "on_time" for statuses in history.values()) >= 2, "without eu, and from a sample"


def check_text(said: dict[str, Any]) -> None:
    console = Console(width=80, file=StringIO(), legacy_windows=False)
    console.print(render(said))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "What it showed" in text
    assert "equal a recomputation" in text
    commands = [line.strip() for line in text.splitlines() if line.startswith("  catchment")]
    assert len(commands) == 3
