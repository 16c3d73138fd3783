"""Feed projects: a folder becomes a program, reference data and records; every mistake is named with its place."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from catchment.errors import CatchmentError, FeedError
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.project import open_project, table_files
from catchment.feeds.runs.traffic import message_sizes
from catchment.feeds.runs.workload import WorldChoice, open_recording, open_workload
from catchment.sim.nearby_world import NearbyWorld, make_nearby_world, make_world, open_world

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "nearby_friends"
PROGRAM = """CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT);
CREATE FEED VIEW nearby WITH (lifetime = '2 seconds') AS SELECT a.user, b.user AS friend
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE distance(a.lat, a.lon, b.lat, b.lon) < 100;
"""
LOCATION = "at_s,user,lat,lon\n0,1,48.0,2.0\n0.5,2,48.0,2.0\n1,1,48.0,2.1\n4,3,,2.0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "feeds.sql").write_text(PROGRAM)
    (tmp_path / "friends.csv").write_text("user,friend\n1,2\n2,1\n")
    (tmp_path / "location.csv").write_text(LOCATION)
    return tmp_path


def graph_in(folder: Path) -> ViewGraph:
    world = open_world(folder)
    return generate_views(world.program, world.read_reference())


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATCHMENT_DATA", raising=False)


def test_a_recording_is_read_by_its_declared_types_and_repeated(folder: Path) -> None:
    world = open_world(folder)
    assert world.rates == {"1": 0.5, "2": 0.25, "3": 0.25}
    assert world.feed_rates["location@1"] == 0.5
    first = list(islice(world.records(10_000_000), 5))
    assert [(r.at_us, r.device) for r in first] == [
        (10_000_000, "1"),
        (10_500_000, "2"),
        (11_000_000, "1"),
        (14_000_000, "3"),
        (15_000_000, "1"),
    ]
    assert first[3].row == (3, None, 2.0)
    assert {r.device for r in islice(world.records(0, {"2"}), 3)} == {"2"}
    assert list(generate_views(world.program, world.read_reference()).views) == ["nearby(location@1,location@2)"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("friends.csv", "user,friend\n1,x\n", r"friends.csv, line 2: found 'x'; expected BIGINT"),
        ("friends.csv", "user,friend\n1\n", r"friends.csv, line 2: found 1 cells; expected 2"),
        ("friends.csv", "user,other\n1,2\n", r"found the header user,other; expected user,friend"),
        ("friends.csv", "user,friend\n1,9\n", r"unknown device 9"),
        ("friends.csv", "user,friend\n1,1\n", r"a self edge"),
        ("location.csv", "at_s,user,lat,lon\n-1,1,48,2\n", r"location.csv, line 2: a record needs a device and a time"),
        ("location.csv", "at_s,user,lat,lon\n0,,48,2\n", r"needs a device"),
        ("location.csv", "at_s,user,lat,lon\n", r"no stream of the project has a record"),
        (
            "feeds.sql",
            PROGRAM.replace("FROM location", "FROM places"),
            r"feeds.sql:4:6, view 'nearby'",
        ),
        ("feeds.toml", "[costs]\nupload = -1\n", r"feeds.toml:2: .*upload = -1 cannot be used"),
        ("feeds.toml", "[costs]\nuplaod = 1\n", r"feeds.toml:2: .*did you mean 'upload'"),
        ("feeds.toml", '[costs]\nper_device = "c.csv"\n', r"there is no c.csv"),
        ("feeds.toml", "upload = 1\n", r"feeds.toml.*found 'upload'; possible"),
        ("feeds.toml", "[world]\nkind = 'moon'\n", r"feeds.toml:2: .*'moon' cannot be used"),
        ("feeds.toml", "[world]\nkind = 'nearby'\n", r"this world makes location"),
    ],
)
def test_a_mistake_in_a_project_is_named_with_its_place(folder: Path, name: str, text: str, says: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(CatchmentError, match=re.compile(says, re.DOTALL)):
        graph_in(folder)


FUNCTIONS = """from catchment.feeds.language.functions import FeedFunction
FUNCTIONS = (FeedFunction("taxi", 4, lambda a, b, c, d: abs(a - c) + abs(b - d)),)
"""


def test_a_project_brings_its_own_functions(folder: Path) -> None:
    (folder / "feeds.sql").write_text(PROGRAM.replace("distance(", "taxi("))
    with pytest.raises(FeedError, match="taxi"):
        open_world(folder)
    (folder / "functions.py").write_text(FUNCTIONS)
    assert open_world(folder).program.functions["taxi"].python(1, 2, 3, 5) == 5


@pytest.mark.parametrize("text", ["x = 1", "FUNCTIONS = (", "FUNCTIONS = 3", "import nowhere_at_all"])
def test_functions_that_cannot_be_read_are_named(folder: Path, text: str) -> None:
    (folder / "functions.py").write_text(text)
    with pytest.raises(FeedError, match=r"functions.py: cannot be read"):
        open_world(folder)


@pytest.mark.parametrize("name", ["feeds.sql", "friends.csv", "location.csv"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FeedError, match=f"there is no {name}"):
        open_world(folder).read_reference()


def test_a_recording_has_the_users_and_rates_that_it_has(folder: Path) -> None:
    with pytest.raises(FeedError, match="recorded"):
        open_world(folder, WorldChoice(users=5))
    with pytest.raises(FeedError, match="has the rates that it has"):
        open_recording(open_project(folder)).change_rates()


def test_a_changed_table_is_read_again(folder: Path) -> None:
    world = open_recording(open_project(folder))
    assert set(table_files(folder, world.program)) == {folder / "friends.csv"}
    (folder / "friends.csv").write_text("user,friend\n2,3\n")
    views = generate_views(world.program, world.read_reference()).views
    assert list(views) == ["nearby(location@2,location@3)"]


@pytest.mark.usefixtures("made_up")
def test_the_example_runs_without_any_data_and_is_the_same_in_every_process() -> None:
    choice = WorldChoice(users=30)
    world, again = open_world(EXAMPLE, choice), open_world(EXAMPLE, choice)
    assert isinstance(world, NearbyWorld)
    assert world.source.startswith("made up")
    assert world.friends == again.friends
    assert world.rates == again.rates
    whole = [r for r in islice(world.records(0), 400) if r.device in ("3", "17")]
    part = list(islice(again.records(0, {"3", "17"}), len(whole)))
    assert part == whole
    world.change_rates()
    again.change_rates()
    assert world.rates == again.rates
    assert world.rates != open_world(EXAMPLE, choice).rates


@pytest.mark.usefixtures("made_up")
def test_sizes_of_messages_are_known_for_every_feed() -> None:
    world = open_world(EXAMPLE, WorldChoice(users=20))
    graph = generate_views(world.program, world.read_reference())
    sizes = message_sizes(graph, world, 1_700_000_000_000_000, 10**11)
    assert set(sizes) == set(graph.feeds)
    assert all(70 < size < 110 for size in sizes.values())


def test_a_cloud_needs_no_records_where_its_devices_have_them(folder: Path) -> None:
    (folder / "location.csv").unlink()
    project = open_project(folder)
    with pytest.raises(FeedError, match=r"there is no location.csv"):
        open_workload(project, make_nearby_world)
    workload = open_workload(project, make_nearby_world, needs_records=False)
    assert workload.rates == {}
    assert list(generate_views(workload.program, workload.read_reference()).views) == ["nearby(location@1,location@2)"]


def test_a_real_world_without_its_data_says_where_it_would_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = open_project(EXAMPLE).program
    for named in (None, str(tmp_path)):
        if named is None:
            monkeypatch.delenv("CATCHMENT_DATA", raising=False)
        else:
            monkeypatch.setenv("CATCHMENT_DATA", named)
        with pytest.raises(CatchmentError, match=r"facebook_combined(.|\n)*CATCHMENT_DATA"):
            make_world(program, 20, real=True)
        assert make_world(program, 20).source.startswith("made up")


def test_a_recorded_project_does_not_import_the_simulator(folder: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from catchment.cli.main import app; "
        f"done = CliRunner().invoke(app, ['feeds', 'explain', {str(folder)!r}, '--json']); "
        "assert done.exit_code == 0, done.output; "
        "print(*(m for m in sys.modules if m.startswith('catchment.sim')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_devices_that_pay_otherwise_are_named_in_a_file(folder: Path) -> None:
    (folder / "feeds.toml").write_text('[costs]\nupload = 2\nper_device = "plans.csv"\n')
    (folder / "plans.csv").write_text("device,upload,download\n1,5,0.5\n")
    costs = open_project(folder).costs
    assert (costs.upload_of("1"), costs.download_of("1"), costs.upload_of("2"), costs.download_of("2")) == (
        5,
        0.5,
        2,
        1,
    )
    (folder / "plans.csv").write_text("device,upload,download\n1,-5,0.5\n")
    with pytest.raises(FeedError, match=r"plans.csv, line 2: found 1, -5.0, 0.5"):
        open_project(folder)
