"""A cloud that works in batches and is killed at any point goes on where it was: it loses, doubles and invents nothing.

Batches are joined by brute force here, so that thousands of kills take seconds; `tests/spark/test_feeds_cloud.py` joins
them on Spark. The oracle is the naive recomputation over all records since each view was active.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError, StorageError
from catchment.feeds.cloud import batch_plane
from catchment.feeds.cloud.batch_cloud import BatchCloud, FoundRow, check_for_batches
from catchment.feeds.cloud.batch_plane import BatchJob, BatchPlane, MergeFiles, RemoveFiles
from catchment.feeds.cloud.event_files import EVENTS_FOLDER, EventFiles
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.retention import Retention
from catchment.feeds.device.limits import CLOUD_LIMITS, HostLimits
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.project import open_project
from catchment.feeds.protocol.messages import FeedEvent
from catchment.feeds.runs import cloud_host
from catchment.feeds.runs.batch_runner import BatchRunner
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.submissions import Submissions
from catchment.storage.codec import decode, encode
from catchment.storage.disk import use_disk
from catchment.testing.simulated.disk import DiskFault, SimulatedDisk
from catchment.testing.simulated.disk import Killed as KilledAtDisk
from tests.feeds.test_durable_cloud import DEVICES, KilledWorld, NoSync
from tests.worlds.feeds_batches import join_by_hand
from tests.worlds.feeds_world import (
    DECLARED,
    HOURLY,
    LAYERED,
    NEARBY,
    SECOND,
    TRIO,
    Friend,
    Walkers,
    graph_of,
    random_friends,
    random_hosts,
)
from tests.worlds.tiers import examples


class BatchWorld(KilledWorld):
    """The world of killed clouds, with one that works in batches; decisions may be made while one is under way."""

    joined = 0
    batch_share = 0.5  # how often a batch begins when the cloud has taken messages

    def open_cloud(self) -> DurableCloud:
        retention = Retention(HostLimits(away_us=30 * SECOND, memory_events=CLOUD_LIMITS.memory_events))
        rule = ReoptimizeRule(patience=0.05, retention=retention)
        cloud = BatchCloud(ViewGraph(self.program, {}, {}), rule=rule)
        return DurableCloud(cloud, cloud.plane, self.folder, self.clock)

    @property
    def plane(self) -> BatchPlane:
        assert isinstance(self.cloud.cloud, BatchCloud)
        return self.cloud.cloud.plane

    def serve(self) -> None:
        super().serve()
        if self.rng.random() < self.batch_share:
            self.cloud.begin_batch()
            self.may_end()
        job = self.plane.job()
        if job is None:
            return
        found = self.join(job)
        self.may_end()
        if self.rng.random() < 0.3:
            self.decide()
        if job.program is self.plane.program and self.plane.fresh is not None and self.plane.fresh.name == job.fresh:
            self.cloud.end_batch(job.fresh, self.rng.sample(found, len(found)))
            self.joined += 1

    def join(self, job: BatchJob) -> list[FoundRow]:
        assert self.cloud.files is not None
        return join_by_hand(self.cloud.files, job)

    def decide(self) -> None:
        """Let views come and move while a batch is under way."""
        self.registrar.follow(self.clock.now_us())
        if self.kill and len(self.cloud.graph.views) == len(self.cloud.controller.current_hosts()):
            self.cloud.deploy(random_hosts(self.rng, self.cloud.graph))

    def finish(self) -> None:
        super().finish()
        while self.plane.job() or self.plane.rows or self.bus.busy_up or self.bus.busy_down:
            self.carry(self.run)

    def check_notices(self) -> None:
        """Compare with the naive recomputation."""
        controller = self.cloud.controller
        found = Counter(n.identity for n in self.fleet.notices)
        produced = self.run.produced or []
        due = naive_notices(self.cloud.graph, produced, controller.active_since_us)
        assert due
        assert set(found) >= due, "a notice was lost"
        assert set(found) <= naive_notices(self.cloud.graph, produced), "a notice was invented"
        assert set(found.values()) <= {1}, "a notice was doubled"
        assert not controller.moving
        assert self.resets == 0, "a restart tells devices nothing anew"
        assert all(s.device_receives.missing == 0 for s in self.bus.sessions.values())
        assert {path.stem for path in (self.folder / "events").iterdir()} == {f.name for f in self.plane.files}


@settings(max_examples=examples(4))
@given(st.integers(0, 10_000), st.sampled_from([NEARBY, HOURLY, LAYERED, TRIO]))
def test_a_cloud_in_batches_that_is_killed_at_any_write_loses_doubles_and_invents_nothing(seed: int, view: str) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)  # so that snapshots are written too
        patch.setattr(batch_plane, "MERGE_FILES", 3)
        patch.setattr(batch_plane, "MAX_BATCH_EVENTS", 5)
        rng = random.Random(seed)
        friends: list[Friend] = [(a, b, 1.0, 0.5, 1e9) for a, b, *_ in random_friends(rng, DEVICES, 5)]
        world = BatchWorld(Path(name), DECLARED + view, friends, rng, kill=0.02)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        world.run.run(Walkers(rng, DEVICES).records(("location", "status")), 6 * SECOND)
        world.finish()
        assert world.kills > 3
        assert world.joined > 5
        world.check_notices()


def tell_story(folder: Path, disk: SimulatedDisk, fault_at: int | None, power: bool) -> BatchWorld:
    """Run two devices against a cloud whose disk ends the process at one of its calls; what was not synced is lost."""
    rng = random.Random(11)
    world = BatchWorld(folder, DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)], rng, kill=0.0)
    disk.machine(folder).calls = 0
    if fault_at is not None:
        disk.plan_fault(folder, fault_at, DiskFault.KILL if fault_at % 2 else DiskFault.TORN_WRITE)
    attempt = world.may_be_killed

    def attempt_with_disk(act: object) -> None:
        try:
            attempt(act)
        except KilledAtDisk:
            world.kills += 1
            world.cloud.host.journal.close()
            disk.close_files(folder)
            disk.heal(folder)
            if power:
                disk.cut_power(folder)
            world.begin()

    world.may_be_killed = attempt_with_disk  # type: ignore[method-assign]
    for name in ("0", "1"):
        world.fleet.connect(name, 0)
    world.run.run(Walkers(rng, 2, {0: 4.0, 1: 4.0}).records(), 3 * SECOND)
    world.kill = 0.0
    world.finish()
    return world


def survive_faults(folder: Path, monkeypatch: pytest.MonkeyPatch, first: int, step: int) -> None:
    """Tell the story with a fault at every so many-th call of the disk."""
    monkeypatch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 4_000)
    monkeypatch.setattr(batch_plane, "MERGE_FILES", 2)
    disk = SimulatedDisk(random.Random(3))
    with use_disk(disk):
        tell_story(folder / "calm", disk, None, False).check_notices()
        calls = disk.machine(folder / "calm").calls
        assert calls > 100
        for at in range(first, calls, step):
            world = tell_story(folder / str(at), disk, at, power=at % 3 == 0)
            assert world.kills == 1
            world.check_notices()


@pytest.mark.parametrize("first", [1, 8])
def test_a_cloud_in_batches_survives_a_kill_or_a_power_cut_at_many_calls_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    survive_faults(tmp_path, monkeypatch, first, 29)


@pytest.mark.soak
def test_a_cloud_in_batches_survives_a_kill_or_a_power_cut_at_every_call_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survive_faults(tmp_path, monkeypatch, 0, 1)


def test_a_restart_replays_to_the_same_state_and_joins_the_batch_under_way_again(tmp_path: Path) -> None:
    rng = random.Random(5)
    with use_disk(NoSync()):
        world = BatchWorld(tmp_path, DECLARED + LAYERED, [(0, 1, 1.0, 1.0, 1e9), (1, 2, 1.0, 1.0, 1e9)], rng, 0.0)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        world.run.run(Walkers(rng, DEVICES).records(("location", "status")), 6 * SECOND)
        world.cloud.receive_all(
            [("0", world.bus.sessions["0"].up[0])] if world.bus.sessions["0"].up else [], world.registrar, 0
        )
        world.cloud.begin_batch()
        before = encode(world.cloud.core.snapshot())
        assert world.plane.fresh is not None or not world.plane.rows
        world.begin_again()
        assert encode(world.cloud.core.snapshot()) == before, "the journal gives the state again"
        world.cloud.host.checkpoint()
        world.begin_again()
        assert encode(world.cloud.core.snapshot()) == before, "the snapshot gives the state again"
        assert encode(decode(before)) == before
        world.finish()
        world.check_notices()


def test_a_state_of_the_other_kind_of_cloud_is_refused(tmp_path: Path) -> None:
    with use_disk(NoSync()):
        first = BatchWorld(tmp_path / "batches", DECLARED + NEARBY, [], random.Random(1), 0.0)
        first.cloud.close()
        with pytest.raises(StorageError, match="--cloud spark"):
            KilledWorld(tmp_path / "batches", DECLARED + NEARBY, [], random.Random(1), 0.0)
        second = KilledWorld(tmp_path / "local", DECLARED + NEARBY, [], random.Random(1), 0.0)
        second.cloud.close()
        with pytest.raises(StorageError, match="--cloud local"):
            BatchWorld(tmp_path / "local", DECLARED + NEARBY, [], random.Random(1), 0.0)


def test_a_missing_file_of_events_is_named(tmp_path: Path) -> None:
    rng = random.Random(5)
    with use_disk(NoSync()):
        world = BatchWorld(tmp_path, DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)], rng, 0.0)
        for name in world.fleet.devices:
            world.fleet.connect(name, 0)
        world.run.run(Walkers(rng, DEVICES).records(), 4 * SECOND)
        world.cloud.close()
        lost = sorted((tmp_path / "events").iterdir())[0]
        lost.unlink()
        with pytest.raises(StorageError, match=lost.name):
            world.begin()


# ---- what is kept


def plane_of(text: str = NEARBY, **limits: int) -> BatchPlane:
    return BatchPlane(read_program(DECLARED + text), HostLimits(**limits))


def join_one(plane: BatchPlane, number: int, at_us: int) -> list[object]:
    plane.add_event(FeedEvent("location@0", (number,), at_us, (48.0, 2.0)))
    plane.begin()
    return list(plane.end([]))


def test_files_that_nothing_can_meet_any_more_are_let_go() -> None:
    plane = plane_of(away_us=2 * SECOND)
    actions = [join_one(plane, n, n * 4 * SECOND) for n in range(4)]
    assert [len(a) for a in actions] == [0, 0, 1, 1]
    assert all(isinstance(a, RemoveFiles) for found in actions for a in found)
    assert [file.newest_us for file in plane.files] == [8 * SECOND, 12 * SECOND]
    assert plane.forgotten == 0


def test_a_bound_of_events_takes_the_oldest_files_and_counts_their_events() -> None:
    plane = plane_of(memory_events=3)
    for n in range(5):
        join_one(plane, n, n * SECOND)
    assert [file.oldest_us for file in plane.files] == [2 * SECOND, 3 * SECOND, 4 * SECOND]
    assert plane.forgotten == 2


def test_a_long_lifetime_is_held_in_few_files() -> None:
    plane = plane_of(NEARBY.replace("3 seconds", "1 hour"))
    merged = [a for n in range(5_000) for a in join_one(plane, n, n * SECOND) if isinstance(a, MergeFiles)]
    assert len(plane.files) < 60
    assert sum(file.events for file in plane.files) >= 3_600 + 900
    rewritten = sum(action.file.events for action in merged)
    assert rewritten <= 3 * 5_000, "an event is written a few times, however long it lives"


def test_files_are_bounded_where_late_events_make_them_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_plane, "MAX_FILES", 40)
    plane = plane_of(away_us=10**12)
    for n in range(300):
        plane.add_event(FeedEvent("location@1", (n,), 1 + n, (48.0, 2.0)))  # of a device that was away
        join_one(plane, n, 10**9 + n * SECOND)
    assert len(plane.files) <= 41
    assert sum(file.events for file in plane.files) == 600


def test_a_control_message_waits_for_the_events_before_it_and_for_no_other() -> None:
    from catchment.feeds.protocol.messages import RateReport

    plane = plane_of()
    report = RateReport((), 1)
    plane.add_control("0", report)
    assert len(list(plane.ready_controls())) == 1
    plane.add_event(FeedEvent("location@0", (1,), 1, (48.0, 2.0)))
    plane.add_control("0", report)
    plane.begin()
    plane.add_event(FeedEvent("location@0", (2,), 2, (48.0, 2.0)))
    plane.add_control("0", report)
    assert list(plane.ready_controls()) == []
    plane.end([])
    assert [control.arrival for control in plane.ready_controls()] == [3]
    plane.begin()
    plane.end([])
    assert [control.arrival for control in plane.ready_controls()] == [5]


def test_an_event_that_comes_again_waits_once() -> None:
    plane = plane_of()
    for number in (1, 2, 2, 1, 3):
        plane.add_event(FeedEvent("location@0", (number,), number, (48.0, 2.0)))
    assert [row[2] for row in plane.rows] == ["[1]", "[2]", "[3]"]


def test_batches_run_beside_the_thread_that_serves_and_a_failed_one_ends_it(tmp_path: Path) -> None:
    with use_disk(NoSync()):
        world = BatchWorld(tmp_path, DECLARED + NEARBY, [(0, 1, 1.0, 1.0, 1e9)], random.Random(2), 0.0)
        assert world.cloud.files is not None
        files: EventFiles = world.cloud.files
        runner = BatchRunner(world.cloud, lambda job: join_by_hand(files, job), every_s=0.0)
        for number in range(3):
            world.plane.add_event(FeedEvent("location@0", (number,), number, (48.0, 2.0)))
        runner.finish()
        assert len(world.plane.files) == 1
        assert not world.plane.rows

        def fail(job: object) -> list[object]:
            raise RuntimeError("out of memory")

        runner.join = fail  # type: ignore[assignment]
        world.plane.add_event(FeedEvent("location@0", (9,), 9, (48.0, 2.0)))
        with pytest.raises(RuntimeError, match="out of memory"):
            runner.finish()
        assert world.plane.fresh is not None, "it is joined again"
        runner.close()


def test_a_lifetime_that_a_cloud_on_spark_does_not_keep_is_refused_with_the_cloud_that_does(tmp_path: Path) -> None:
    check_for_batches(graph_of(DECLARED + NEARBY.replace("3 seconds", "a: 1 hour, b: 1 second"), []).program)
    with pytest.raises(FeedError, match="view 'nearby'") as caught:
        check_for_batches(graph_of(DECLARED + NEARBY.replace("3 seconds", "7 days"), []).program)
    assert "--cloud local" in str(caught.value)
    (tmp_path / "feeds.sql").write_text(DECLARED)
    (tmp_path / "friends.csv").write_text("user,friend,share,friend_share,radius\n")
    (tmp_path / "state" / EVENTS_FOLDER).mkdir(parents=True)
    submissions = Submissions(tmp_path / "state", open_project(tmp_path))
    with pytest.raises(FeedError, match="--cloud local"):
        submissions.submit(NEARBY.replace("3 seconds", "7 days"), "long.sql")
    submissions.submit(NEARBY, "short.sql")


def test_a_graph_that_could_not_be_kept_is_refused_when_it_is_declared() -> None:
    graph = graph_of(DECLARED + NEARBY.replace("3 seconds", "1 hour"), [(0, 1, 1.0, 1.0, 1e9)])
    rule = ReoptimizeRule(retention=Retention(HostLimits(memory_events=1_000)))
    with pytest.raises(FeedError, match="cloud_disk"):
        BatchCloud(graph, {"location@0": 1.0, "location@1": 1.0}, rule)
