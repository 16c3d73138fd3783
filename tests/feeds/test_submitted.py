"""Feed views that come and go while the cloud and its devices run, also for some users; nothing else changes by it.

Runs are compared with the naive recomputation over all records since each view was active, while the cloud is killed
around every write. A submitted view reads more columns of a feed that others read, so events of both widths meet here.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from catchment.cli.main import app
from catchment.control.audit import AuditLog
from catchment.control.commands import run_command as run_control
from catchment.errors import FeedError, WireError
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.device.device import Device, DeviceConfig, LinkUp, Notify, Produced, Received, SendUp
from catchment.feeds.device.device_log import DeviceLog
from catchment.feeds.device.durable_device import DurableDevice
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.continued import continue_program, ended_templates, without_templates
from catchment.feeds.language.program_form import form_of
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.project import open_project
from catchment.feeds.protocol.messages import FeedEvent, Install, Instructions, Program, SetUpload
from catchment.feeds.runs import cloud_host, submissions
from catchment.feeds.runs.cloud_role import STATE_FOLDER
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.reference_tables import ReferenceTables
from catchment.feeds.runs.registrar import Registrar
from catchment.feeds.runs.submissions import Submissions
from catchment.keys.tokens import READER, Caller
from catchment.project.config import Project
from catchment.storage.disk import use_disk
from tests.feeds.test_batch_cloud import BatchWorld
from tests.feeds.test_durable_cloud import DEVICES, KilledWorld, NoSync
from tests.worlds.feeds_world import DECLARED, LAYERED, NEARBY, SECOND, TOGETHER, Friend, Walkers, random_friends
from tests.worlds.tiers import examples

SLOW = TOGETHER.strip().rstrip(";").replace("VIEW together", "VIEW slow")
QUICK = """CREATE FEED VIEW quick WITH (lifetime = '2 seconds') AS SELECT a.user, b.user AS friend, a.speed
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user WHERE a.speed > 2"""
FREE_PAIR = """CREATE FEED VIEW pair WITH (lifetime = '2 seconds') AS SELECT a.user, b.user AS friend
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user WHERE a.lat < 90;
CREATE FEED VIEW free_pair WITH (lifetime = '2 seconds') AS SELECT p.user, p.friend
FROM pair p JOIN status s ON s.user = p.friend WHERE s.free"""
ALONE = "CREATE FEED VIEW alone AS SELECT a.user, a.speed FROM location a WHERE a.speed > 1"
HEADER = "user,friend,share,friend_share,radius"


def make_folder(folder: Path, text: str = DECLARED + NEARBY, friends: list[Friend] | None = None) -> Path:
    (folder / "feeds.sql").write_text(text)
    rows = [",".join(map(str, row)) for row in friends or [(0, 1, 1.0, 1.0, 1e9), (1, 0, 1.0, 1.0, 1e9)]]
    (folder / "friends.csv").write_text("\n".join([HEADER, *rows, ""]))
    return folder


def submissions_of(folder: Path) -> Submissions:
    return Submissions(folder / "state", open_project(folder))


class SubmittedWorld(KilledWorld):
    """A cloud that is killed around every write while views are submitted and dropped."""

    def __init__(self, folder: Path, text: str, friends: list[Friend], rng: random.Random, kill: float) -> None:
        self.project = make_folder(folder, text, friends)
        self.seen: dict[str, ViewGraph] = {}  # the newest graph that each view was in
        self.known: list[set[str]] = []  # per record, the kinds of feeds that its device knew
        super().__init__(folder / "state", text, friends, rng, kill)
        self.submissions = submissions_of(folder)
        produce = self.fleet.produce

        def noted(record: DeviceRecord) -> None:
            publisher = self.fleet.devices[record.device].publisher
            if publisher is not None:
                self.known.append({kind for kinds in publisher.program.kinds.values() for kind, *_ in kinds})
            produce(record)

        self.fleet.produce = noted  # type: ignore[method-assign]

    def begin(self) -> None:
        project = open_project(self.project)
        self.program = project.program
        self.cloud = self.open_cloud()
        self.registrar = Registrar(
            self.cloud,
            DeviceGate(self.program, AdmissionRule()),
            ReferenceTables(self.project, self.program),
            self.folder,
            submissions=Submissions(self.folder, project),
        )
        self.taken_before = self.cloud.core.outbox[0].number if self.cloud.core.outbox else self.cloud.core.next_number

    def carry(self, run: LocalRun) -> None:
        super().carry(run)
        while (not self.kill or self.rng.random() < 0.5) and (self.bus.busy_up or self.bus.busy_down):
            super().carry(run)

    def each_second(self, run: LocalRun) -> None:
        super().each_second(run)
        self.seen.update(dict.fromkeys(self.cloud.graph.views, self.cloud.graph))

    def expected(
        self, graph: ViewGraph, since_us: dict[str, int] | None = None
    ) -> set[tuple[str, str, tuple[int, ...]]]:
        kinds = graph.program.pushed_columns
        unknown = [(kind, at) for at, known in enumerate(self.known) for kind in kinds if kind not in known]
        return naive_notices(graph, self.run.produced or [], since_us, unknown)

    def check(self) -> set[str]:
        """Compare all notices with the oracle; return the templates that have due ones."""
        controller = self.cloud.controller
        found = Counter(n.identity for n in self.fleet.notices)
        due = self.expected(self.cloud.graph, dict(controller.active_since_us))
        graphs = {id(graph): graph for graph in [*self.seen.values(), self.cloud.graph]}
        every = set().union(*(self.expected(graph) for graph in graphs.values()))
        assert set(found) >= due, "lost"
        assert set(found) <= every, "invented"
        assert set(found.values()) <= {1}, "doubled"
        assert not controller.moving
        assert sum(d.ignored for d in self.fleet.devices.values()) == 0
        return {view.split("(")[0] for view, *_ in due}


class SubmittedBatchWorld(SubmittedWorld, BatchWorld):
    """The same with a cloud that works in batches."""

    batch_share = 0.05


@pytest.mark.parametrize("kind", [SubmittedWorld, SubmittedBatchWorld])
@settings(max_examples=examples(4))
@given(st.integers(0, 10_000), st.sampled_from([NEARBY, LAYERED]))
def test_views_that_come_and_go_while_the_cloud_is_killed_lose_double_and_invent_nothing(
    kind: type[SubmittedWorld], seed: int, base: str
) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)  # so that snapshots are written too
        rng = random.Random(seed)
        friends: list[Friend] = [(a, b, 1.0, 0.5, 1e9) for a, b, *_ in random_friends(rng, DEVICES, 5)]
        world = kind(Path(name), DECLARED + base, friends, rng, kill=0.02)
        for device in world.fleet.devices:
            world.fleet.connect(device, 0)
        walkers = Walkers(rng, DEVICES, rate=dict.fromkeys(range(DEVICES), 1.0))
        records = walkers.records(("location", "status"))
        submit = world.submissions.submit
        changes: list[Callable[[], object]] = [
            lambda: submit(SLOW, "s"),
            lambda: submit(QUICK, "q", [str(friends[0][0])]),
            lambda: submit(FREE_PAIR, "f"),
            lambda: world.submissions.drop(["slow"]),
            lambda: submit(SLOW.replace("< 6", "< 7"), "s"),
            lambda: submit(QUICK, "q", [str(friends[-1][0])]),
        ]
        for change in changes:
            run_for(world, 2, records)
            change()
        run_for(world, 6, records)
        world.finish()
        assert world.kills > 5
        assert world.resets == 0, "no device is told to forget anything"
        assert world.check() >= {"slow", "free_pair"}
        assert set(world.cloud.graph.program.templates) >= {"slow", "quick", "pair", "free_pair"}


def run_for(world: SubmittedWorld, seconds: int, records: object) -> None:
    world.run.run(records, world.run.now_us + seconds * SECOND)  # type: ignore[arg-type]


def world_in(folder: Path, text: str = DECLARED + NEARBY) -> tuple[SubmittedWorld, object]:
    rng = random.Random(3)
    friends: list[Friend] = [(a, b, 1.0, 1.0, 1e9) for a in range(DEVICES) for b in range(DEVICES) if a != b]
    world = SubmittedWorld(folder, text, friends, rng, kill=0.0)
    for name in world.fleet.devices:
        world.fleet.connect(name, 0)
    records = Walkers(rng, DEVICES, rate=dict.fromkeys(range(DEVICES), 2.0)).records(("location", "status"))
    run_for(world, 5, records)
    return world, records


def test_a_view_for_a_user_tells_that_user_alone_and_reaches_only_devices_that_it_needs(tmp_path: Path) -> None:
    with use_disk(NoSync()):
        world, records = world_in(tmp_path)
        told = dict(world.cloud.controller.instructions.told)
        world.submissions.submit(ALONE, "a", ["2"])
        run_for(world, 6, records)
        assert {n.notified for n in world.fleet.notices if n.view.startswith("alone")} == {"2"}
        after = world.cloud.controller.instructions.told
        assert {name for name in after if after[name] != told[name]} == {"2"}, "no other device was told anything"
        world.submissions.submit(ALONE, "a", ["3"])
        run_for(world, 6, records)
        assert {n.notified for n in world.fleet.notices if n.view.startswith("alone")} == {"2", "3"}
        world.submissions.drop(["alone"], ["2"])
        run_for(world, 3, records)
        count = sum(n.notified == "2" and n.view.startswith("alone") for n in world.fleet.notices)
        run_for(world, 5, records)
        assert count == sum(n.notified == "2" and n.view.startswith("alone") for n in world.fleet.notices)
        world.finish()
        assert world.check() == {"nearby", "alone"}


def test_what_a_submission_does_not_name_goes_on_untouched(tmp_path: Path) -> None:
    with use_disk(NoSync()):
        world, records = world_in(tmp_path)
        before = {name: world.cloud.controller.active_since_us[name] for name in world.cloud.graph.views}
        done = world.cloud.controller.counters.moves_done
        kept = {n: d.publisher.host.retained for n, d in world.fleet.devices.items() if d.publisher}
        world.submissions.submit(SLOW, "s")
        run_for(world, 4, records)
        views = world.cloud.graph.views
        assert sum(view.template == "slow" for view in views.values()) == 6
        assert {name: world.cloud.controller.active_since_us[name] for name in before} == before
        assert world.cloud.controller.counters.moves_done == done + 6, "only the new views were opened"
        assert kept == {n: d.publisher.host.retained for n, d in world.fleet.devices.items() if d.publisher}
        world.submissions.drop(["slow"])
        run_for(world, 4, records)
        assert {name: world.cloud.controller.active_since_us[name] for name in world.cloud.graph.views} == before
        world.finish()
        assert world.check() == {"nearby"}


def test_a_name_that_comes_back_with_another_meaning_waits_for_devices_that_have_the_old_view(tmp_path: Path) -> None:
    with use_disk(NoSync()):
        world, records = world_in(tmp_path)
        world.submissions.submit(SLOW, "s")
        run_for(world, 4, records)
        host = "1"
        world.cloud.deploy({"slow(location@0,location@1)": host})
        run_for(world, 8, records)
        assert world.cloud.controller.hosts_of("slow(location@0,location@1)") == [host]
        world.fleet.disconnect(host, world.run.now_us)
        world.submissions.drop(["slow"])
        run_for(world, 3, records)
        world.submissions.submit(SLOW.replace("a.speed + b.speed AS together", "a.lat AS place"), "s")
        run_for(world, 3, records)
        assert "slow" not in world.cloud.graph.program.templates, "a device may still send matches of the old one"
        world.fleet.connect(host, world.run.now_us)
        run_for(world, 5, records)
        assert "slow" in world.cloud.graph.program.templates
        world.finish()
        assert world.check() == {"nearby", "slow"}


def test_a_changed_program_file_goes_on_with_what_is_the_same_in_it_after_a_restart(tmp_path: Path) -> None:
    with use_disk(NoSync()):
        world, records = world_in(tmp_path)
        world.submissions.submit(ALONE, "a", ["1"])
        run_for(world, 3, records)
        before = dict(world.cloud.controller.active_since_us)
        make_folder(tmp_path, DECLARED + NEARBY + SLOW, [(a, b, 1.0, 1.0, 1e9) for a, b in ((0, 1), (1, 2), (2, 3))])
        world.begin_again()
        assert not world.cloud.is_new
        run_for(world, 4, records)
        assert set(world.cloud.graph.program.templates) == {"nearby", "slow", "alone"}
        kept = {n for n in world.cloud.graph.views if n in before and n.startswith("alone")}
        assert {name: world.cloud.controller.active_since_us[name] for name in kept} == {n: before[n] for n in kept}
        assert world.resets == 0
        world.finish()
        assert world.check() >= {"nearby", "slow", "alone"}


# ---- what is refused


def refused(folder: Path, text: str, *users: str) -> str:
    with pytest.raises(FeedError) as caught:
        submissions_of(folder).submit(text, "s.sql", users)
    return str(caught.value)


def test_a_wrong_submission_is_refused_with_the_place_and_nothing_is_written(tmp_path: Path) -> None:
    make_folder(tmp_path, DECLARED + LAYERED)
    assert "sends notices" in refused(tmp_path, "CREATE FEED VIEW x AS SELECT m.user FROM meet m WHERE m.metres < 5")
    assert "already declared" in refused(tmp_path, NEARBY)
    assert "possible: CREATE FEED VIEW" in refused(tmp_path, "CREATE TABLE t (a BIGINT)")
    assert "s.sql:1" in refused(tmp_path, "CREATE FEED VIEW x AS SELEC 1")
    assert "'a.spede'" in refused(tmp_path, "CREATE FEED VIEW x AS SELECT a.user FROM location a WHERE a.spede > 1")
    assert "is named by a BIGINT" in refused(tmp_path, ALONE, "ann")
    assert "first input is no stream" in refused(
        tmp_path, "CREATE FEED VIEW x AS SELECT n.user FROM nearby n WHERE n.metres < 5", "1"
    )
    assert not (tmp_path / "state" / "submitted.json").exists()


def test_a_lifetime_that_cannot_be_kept_and_a_program_that_is_too_long_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, (DECLARED + NEARBY).replace("(device = 'user')", "(device = 'user', rate = 100)"))
    assert "set cloud_disk" in refused(tmp_path, SLOW.replace("2 seconds", "300 days"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submissions, "MAX_PROGRAM_BYTES", 500)
        assert "at most 500" in refused(tmp_path, SLOW)
        patch.setattr(submissions, "MAX_VIEWS", 0)
        assert "at most 0" in refused(tmp_path, SLOW)


def test_views_that_read_each_other_are_dropped_together(tmp_path: Path) -> None:
    submitted = submissions_of(make_folder(tmp_path))
    submitted.submit(FREE_PAIR, "f")
    with pytest.raises(FeedError, match="would begin to send notices"):
        submitted.drop(["free_pair"])
    with pytest.raises(FeedError, match="'pair'"):
        submitted.drop(["pair"])
    with pytest.raises(FeedError, match="no view 'free_pears' was submitted"):
        submitted.drop(["free_pears"])
    assert submitted.drop(["free_pair", "pair"])["views"] == []


def test_a_submitted_view_that_the_project_no_longer_allows_is_left_out_and_said(tmp_path: Path) -> None:
    submitted = submissions_of(make_folder(tmp_path))
    submitted.submit(SLOW, "s")
    submitted.submit(ALONE, "a")
    make_folder(tmp_path, (DECLARED + NEARBY).replace("friends", "mates"))
    (tmp_path / "friends.csv").rename(tmp_path / "mates.csv")
    said: list[str] = []
    wanted = Submissions(tmp_path / "state", open_project(tmp_path), said.append).read()
    assert set(wanted.program.templates) == {"nearby", "alone"}
    assert [text.split(":")[0] for text in said] == ["submitted view slow is left out"]


def test_a_document_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    submitted = submissions_of(make_folder(tmp_path))
    submitted.submit(ALONE, "a")
    assert json.loads(submitted.path.read_text())["views"][0]["name"] == "alone"
    submitted.path.write_text('{"views": [{"name": 3}]}')
    with pytest.raises(FeedError, match=r"submitted\.json"):
        submitted.views()


# ---- commands


def run_command(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["feeds", *map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_commands_submit_list_and_drop_views_of_a_cloud_of_feeds_alone(tmp_path: Path) -> None:
    file = make_folder(tmp_path) / "alone.sql"
    file.write_text(ALONE)
    assert run_command("submit", file, "-p", tmp_path, "--user", 1)["submitted"] == ["alone"]
    assert run_command("submitted", "-p", tmp_path)["views"][0]["users"] == ["1"]
    run_command("drop", "alone", "-p", tmp_path)
    assert run_command("submitted", "-p", tmp_path)["views"] == []
    assert (tmp_path / "state" / "cloud" / "submitted.json").exists()


def test_in_a_project_they_go_to_its_center_and_into_the_audit_log(tmp_path: Path) -> None:
    folder = tmp_path / "town"
    copytree(Path(__file__).parents[2] / "examples" / "town", folder, ignore=ignore_patterns("state"))
    file = tmp_path / "close.sql"
    file.write_text("CREATE FEED VIEW north AS SELECT a.user, a.lat FROM location a WHERE a.lat > 0")
    assert run_command("submit", file, "-p", folder, "--user", 3)["users"] == ["3"]
    assert [view["name"] for view in run_command("submitted", "-p", folder)["views"]] == ["north"]
    project = Project.load(folder)
    assert [entry.command for entry in AuditLog(project.state_folder).read()] == ["feeds submit"]
    wanted = Submissions(project.state_folder / STATE_FOLDER, open_project(folder)).read()
    assert wanted.users == {"north__users": [(3,)]}
    assert "north" in wanted.program.templates
    assert not wanted.program.templates["north"].collected
    with pytest.raises(WireError, match="needs the role operator"):
        run_control(folder, "feeds drop", {"views": ["north"]}, Caller("ann", READER))


# ---- programs that continue others


def test_columns_keep_their_places_and_a_view_does_not_take_events_without_its_columns() -> None:
    older = read_program(DECLARED + SLOW.replace("b.speed", "b.lon"))
    newer = continue_program(older, read_program(DECLARED + SLOW + ";" + QUICK + ";" + NEARBY))
    assert newer.pushed_columns["location"][: len(older.pushed_columns["location"])] == older.pushed_columns["location"]
    assert set(newer.pushed_columns["location"]) == {"lon", "speed", "lat"}
    assert newer.accepts("location", (1.0, 2.0))
    assert newer.accepts("location", (1.0, 2.0, 3.0))
    assert not newer.accepts("location", (1.0,))
    assert not newer.accepts("location", (1.0, 2.0, 3.0, 4.0))


def test_a_template_ends_where_its_meaning_changes_and_where_it_reads_one_that_does() -> None:
    older = read_program(DECLARED + LAYERED)
    same = read_program("-- moved\n\n" + DECLARED + LAYERED)
    assert ended_templates(older, same) == set()
    other = read_program(DECLARED + LAYERED.replace("lifetime = '3 seconds'", "lifetime = '4 seconds'"))
    assert ended_templates(older, other) == {"nearby", "meet"}
    assert set(without_templates(older, {"nearby"}).templates) == set()


# ---- one device


def programs() -> tuple[Program, Program]:
    older = read_program(DECLARED + NEARBY)
    newer = continue_program(older, read_program(DECLARED + NEARBY + SLOW))
    return Program(form_of(older)), Program(form_of(newer))


def view_of(program: str, name: str) -> Install:
    graph = generate_views(read_program(program), ReferenceData({"friends": [(1, 2, 1.0, 1.0, 1e9)]}))
    return Install(next(view for view in graph.views.values() if view.template == name))


def test_a_device_that_is_told_another_program_keeps_the_events_of_views_that_go_on(tmp_path: Path) -> None:
    older, newer = programs()
    told = Instructions((older, SetUpload("location@1", 1.0), view_of(DECLARED + NEARBY, "nearby")))
    device = DurableDevice(DeviceLog(tmp_path), DeviceConfig("1"), now_us=SECOND)
    device.link_changed(True, SECOND)
    device.receive(1, told, SECOND)
    device.record([("location", (1, 48.0, 2.0, 1.0))], 2 * SECOND)
    more = Instructions((newer, view_of(DECLARED + NEARBY + SLOW, "slow")))
    device.receive(2, more, 3 * SECOND)
    device.close()  # as a kill would leave it: everything is in its log
    device = DurableDevice(DeviceLog(tmp_path), DeviceConfig("1"), now_us=3 * SECOND)
    device.receive(3, FeedEvent("location@2", (7,), 3 * SECOND, (48.0, 2.0, 1.0)), 3 * SECOND)
    met = [n.notice.view.split("(")[0] for n in device.unhandled]
    assert met == ["nearby"], "the event from before has no speed, and slow does not take it"
    device.record([("location", (1, 48.0, 2.0, 1.0))], 4 * SECOND)
    met = [n.notice.view.split("(")[0] for n in device.unhandled]
    assert sorted(met) == ["nearby", "nearby", "slow"]


def test_a_device_forgets_events_of_a_feed_whose_columns_are_others_now() -> None:
    older, _ = programs()
    device = Device(DeviceConfig("1"))
    device.handle(LinkUp(), SECOND)
    device.handle(Received(Instructions((older, view_of(DECLARED + NEARBY, "nearby")))), SECOND)
    device.handle(Produced("location", (1, 48.0, 2.0, 1.0)), SECOND)
    other = read_program((DECLARED + NEARBY).replace("lat DOUBLE, lon DOUBLE", "lon DOUBLE, lat DOUBLE"))
    device.handle(Received(Instructions((Program(form_of(other)),))), SECOND)
    done = device.handle(Received(FeedEvent("location@2", (7,), SECOND, (48.0, 2.0))), SECOND)
    assert not [action for action in done if isinstance(action, Notify | SendUp)]
