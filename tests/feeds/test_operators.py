"""Operators with state in feed views: what may be written, their laws, and that moves and kills change nothing.

The operator of these tests gives as many rows of an event as its state says, so that a wrong state is a wrong set of
notices; runs are compared with the naive oracle, which folds every period from scratch.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.batch_cloud import check_for_batches
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.retention import events_to_keep
from catchment.feeds.cloud.router import Router
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device import operator_runs
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.device_log import DeviceLog
from catchment.feeds.device.durable_device import DurableDevice
from catchment.feeds.language.functions import BUILT_IN, with_functions
from catchment.feeds.language.operators import Columns, FeedOperator, as_function
from catchment.feeds.language.program_form import compile_feeds, form_of
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.project import open_project
from catchment.feeds.protocol.messages import Install, Instructions, Program
from catchment.feeds.runs import cloud_host
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.reference_tables import MadeReference
from catchment.feeds.runs.registrar import Registrar
from catchment.storage.disk import use_disk
from catchment.testing import LawBrokenError, check_operator
from tests.feeds.test_durable_cloud import DEVICES, KilledWorld, NoSync
from tests.worlds.feeds_world import SECOND, Walkers
from tests.worlds.tiers import examples


class Laps(FeedOperator):
    """Counts events apart by whether they are fast; the n-th gives n modulo 3 rows with what was added up."""

    name = "laps"
    inputs = (("fast", "BOOLEAN"), ("lat", "DOUBLE"))
    outputs: Columns = (("events", "BIGINT"), ("total", "DOUBLE"))
    key = ("fast",)
    max_state_bytes = 200

    def start(self) -> Any:
        return (0, 0.0)

    def update(self, state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        events, total = state
        made: dict[str, list[Any]] = {"events": [], "total": []}
        for lat in batch.column("lat").to_pylist():
            events, total = events + 1, round(total + lat, 6)
            made["events"] += [events] * (events % 3)
            made["total"] += [total] * (events % 3)
        columns = [pa.array(made["events"], pa.int64()), pa.array(made["total"], pa.float64())]
        return (events, total), pa.RecordBatch.from_arrays(columns, names=["events", "total"])


FUNCTIONS = with_functions(as_function(Laps))
DECLARED = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE, speed DOUBLE) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT);
"""
LAPS = "CREATE FEED VIEW counted WITH (lifetime = '2 seconds') AS SELECT laps(a.speed > 2, a.lat) FROM location a;"
PER_FRIEND = LAPS.replace("location a;", "location a JOIN friends f ON a.user = f.user WHERE a.speed < 4;")


def graph_of(text: str) -> ViewGraph:
    data = ReferenceData({"friends": [(0, 1), (0, 2), (1, 0)]}, tuple(range(DEVICES)))
    return generate_views(read_program(DECLARED + text, FUNCTIONS), data)


# ---- the language


def test_a_view_with_an_operator_has_its_columns_and_names_it_to_devices() -> None:
    graph = graph_of(LAPS)
    template = graph.program.templates["counted"]
    assert template.output_names == ("events", "total")
    (view,) = form_of(graph.program).views
    assert view.functions == {"laps"}
    assert {v.inputs for v in graph.views.values()} == {(f"location@{d}",) for d in range(DEVICES)}
    kept = events_to_keep(graph, graph.views.values(), CLOUD, {"location@0": 10.0}, 0)
    assert kept["location@0"] == pytest.approx(20.0)


CALL = "laps(a.speed > 2, a.lat)"
JOINED = "location a JOIN friends f ON a.user = f.user JOIN location b ON b.user = f.friend"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (CALL, f"{CALL}, a.user", "an operator is the whole of a SELECT list"),
        (CALL, f"{CALL} + 1 AS n", "an operator is the whole of a SELECT list"),
        (CALL, "laps(a.lat)", "laps takes 2 arguments"),
        (f"{CALL} FROM location a", f"a.lat FROM location a WHERE {CALL}", "an operator stands in a condition"),
        ("location a", JOINED, "something else than one stream of devices"),
        ("'2 seconds'", "'2 seconds', window = '1 hour'", "a view with a window needs an aggregate"),
        ("a;", "a; CREATE FEED VIEW u AS SELECT c.events FROM counted c;", "which has an operator"),
    ],
)
def test_a_call_that_has_no_meaning_is_refused_with_its_place(old: str, new: str, says: str) -> None:
    with pytest.raises(FeedError, match=says) as caught:
        read_program(DECLARED + LAPS.replace(old, new), FUNCTIONS)
    assert "<program>:" in str(caught.value)


def test_a_cloud_that_works_in_batches_refuses_operators() -> None:
    with pytest.raises(FeedError, match="a cloud on Spark computes none"):
        check_for_batches(graph_of(LAPS).program)


def test_a_project_brings_its_operators_and_says_what_is_wrong_with_them(tmp_path: Path) -> None:
    (tmp_path / "feeds.sql").write_text(DECLARED + LAPS)
    code = "from tests.feeds.test_operators import Laps\n"
    (tmp_path / "functions.py").write_text(code + "OPERATORS = (Laps,)\n")
    assert "counted" in open_project(tmp_path).program.templates
    (tmp_path / "functions.py").write_text(code + "class Odd(Laps):\n    key = ('slow',)\nOPERATORS = (Odd,)\n")
    with pytest.raises(FeedError, match="operator Odd has a key that is no input"):
        open_project(tmp_path)
    (tmp_path / "functions.py").write_text(
        code + "class Odd(Laps):\n    outputs = (('n', 'DATE'),)\nOPERATORS = (Odd,)\n"
    )
    with pytest.raises(FeedError, match="operator Odd has the outputs"):
        open_project(tmp_path)


# ---- the laws


class _InParts(Laps):
    def update(self, state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        (_, total), made = super().update(state, batch)
        return (state[0] + 1, total), made  # counts batches, not events


class _Changing(Laps):
    def start(self) -> Any:
        return [0]

    def update(self, state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        state[0] += batch.num_rows
        return state, super().update((0, 0.0), batch.slice(0, 0))[1]


class _Counting(Laps):
    started = 0

    def start(self) -> Any:
        type(self).started += 1
        return (self.started, 0.0)


class _Growing(Laps):
    def update(self, state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        _, made = super().update((0, 0.0), batch.slice(0, 0))
        return (*state, *batch.column("lat").to_pylist(), "x" * 300), made


class _Undeclared(Laps):
    outputs = (("events", "BIGINT"),)


def test_an_operator_that_keeps_the_laws_passes() -> None:
    check_operator(Laps, [[True, False], [1.5, 2.0, -7.25]])


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (_InParts, "in parts of"),
        (_Changing, "changes the state in place"),
        (_Counting, "other rows the second time"),
        (_Growing, "bytes, declared were 200"),
        (_Undeclared, "rows that it did not declare"),
    ],
)
def test_a_broken_law_is_named(made: type[FeedOperator], says: str) -> None:
    with pytest.raises(LawBrokenError, match=says):
        check_operator(made, [[True, False], [1.5, 2.0, -7.25]])


# ---- one host


def test_a_device_that_is_killed_goes_on_with_the_state_of_the_period(tmp_path: Path) -> None:
    graph = graph_of(LAPS)
    begin_us = 1_700_000_000 * SECOND
    functions = FUNCTIONS

    def opened(now_us: int) -> DurableDevice:
        return DurableDevice(DeviceLog(tmp_path), DeviceConfig("0"), now_us, functions=functions)

    device = opened(begin_us + 100_000)
    device.link_changed(True, begin_us + 100_000)
    told = (Program(form_of(graph.program)), Install(graph.views["counted(location@0)"], 6))
    device.receive(40, Instructions(told), begin_us + 100_000)
    given: list[tuple[int, tuple[Any, ...]]] = []
    expected: list[tuple[int, tuple[Any, ...]]] = []
    count, period = 0, begin_us // (2 * SECOND)
    for step in range(1, 60):
        now_us = begin_us + 100_000 + step * 150_000
        device.record([("location", (0, 0.5, 2.0, 3.0))], now_us)
        if now_us // (2 * SECOND) != period:
            count, period = 0, now_us // (2 * SECOND)
        count += 1
        if period > begin_us // (2 * SECOND):  # the first whole one
            expected += [(now_us, (count, count * 0.5))] * (count % 3)
        if step % 7 == 0:
            device.log.rewrite(device._snapshot())
        if step % 3 == 0:
            device.close()
            device = opened(now_us)
        for notice in list(device.unhandled):
            given.append((notice.notice.at_us, notice.notice.values))
            device.handled(notice.number)
    assert given == expected != []


def test_an_operator_that_fails_and_keys_without_end_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Laps):
        def update(self, state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
            if batch.column("lat")[0].as_py() < 0:
                raise ValueError("below zero")
            return super().update(state, batch)

    runs = operator_runs.OperatorRuns()
    runs.replay(("v", 0), 1, Failing(), [])
    assert runs.step(("v", 0), Failing(), (True, 1.0)) == [(1, 1.0)]
    assert runs.step(("v", 0), Failing(), (True, -1.0)) == []
    assert runs.step(("v", 0), Failing(), (True, 2.0)) == [(2, 3.0)] * 2, "as if the event had not been"
    monkeypatch.setattr(operator_runs, "MAX_KEYS", 1)
    assert runs.step(("v", 0), Failing(), (False, 1.0)) == []
    assert runs.refused == {"v": 2}


# ---- runs


class OperatedWorld(KilledWorld):
    """A cloud that is killed around every write while views with operators move between it and devices."""

    def each_second(self, run: LocalRun) -> None:
        super().each_second(run)
        placed = len(self.cloud.graph.views) == len(self.cloud.controller.current_hosts()) > 0
        if self.kill and placed and run.now_us // SECOND % 4 == 0:
            opposite = {v: CLOUD if h != CLOUD else v[v.index("@") + 1 : -1] for v, h in self.current().items()}
            chosen = {view: host for view, host in opposite.items() if self.rng.random() < 0.7}
            self.may_be_killed(lambda: self.cloud.deploy(chosen))

    def current(self) -> dict[str, str]:
        return dict(self.cloud.controller.current_hosts())

    def begin(self) -> None:
        self.program = read_program(self.program.text, FUNCTIONS)
        self.data = ReferenceData({"friends": [(0, 1), (0, 2), (1, 0)]})
        for device in self.fleet.devices.values():
            device.functions = FUNCTIONS if device.config.name != "3" else BUILT_IN
        router = Router(compile_feeds(self.program))
        cloud = Cloud(ViewGraph(self.program, {}, {}), router, rule=ReoptimizeRule(patience=0.05))
        self.cloud = DurableCloud(cloud, router, self.folder, self.clock)
        gate = DeviceGate(self.program, AdmissionRule())
        self.registrar = Registrar(self.cloud, gate, MadeReference(self.data), self.folder)
        self.taken_before = self.cloud.core.outbox[0].number if self.cloud.core.outbox else self.cloud.core.next_number


@settings(max_examples=examples(4), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([LAPS, PER_FRIEND]))
def test_views_with_operators_move_while_the_cloud_is_killed_and_nothing_is_lost_doubled_or_invented(
    seed: int, text: str
) -> None:
    with pytest.MonkeyPatch.context() as patch, use_disk(NoSync()), TemporaryDirectory() as name:
        patch.setattr(cloud_host, "MIN_JOURNAL_BYTES", 20_000)
        patch.setattr("tests.feeds.test_durable_cloud.BEGIN_US", 0)
        patch.setattr("tests.feeds.test_durable_cloud.read_program", lambda text: read_program(text, FUNCTIONS))
        rng = random.Random(seed)
        world = OperatedWorld(Path(name), DECLARED + text, [], rng, kill=0.02)
        for device in world.fleet.devices:
            world.fleet.connect(device, 0)
        walkers = Walkers(rng, DEVICES, rate=dict.fromkeys(range(DEVICES), 4.0))
        world.run.run(walkers.records(), 25 * SECOND)
        hosts = world.cloud.controller.current_hosts()
        world.finish()
        found = Counter(n.identity for n in world.fleet.notices)
        produced = world.run.produced or []
        due = naive_notices(world.cloud.graph, produced, world.cloud.controller.active_since_us)
        assert len(due) > 20
        assert set(found) >= due, "lost"
        assert set(found) <= naive_notices(world.cloud.graph, produced), "invented"
        assert set(found.values()) <= {1}, "doubled"
        assert all(host == CLOUD for view, host in hosts.items() if view.endswith("@3)")), "it lacks the operator"
        assert world.kills > 0
        assert world.cloud.controller.moves.done > len(hosts), "some views moved"
