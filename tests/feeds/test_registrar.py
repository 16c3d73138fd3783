"""Devices that register themselves, without a recording: who is admitted, which views begin, and what is freed.

Runs are compared with the naive recomputation over all records since each view was active.
"""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import FeedError
from catchment.feeds.cloud.admission import AdmissionRule, DeviceGate
from catchment.feeds.cloud.choose_hosts import PRIOR_PER_S, expected_rates, least_traffic
from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Router
from catchment.feeds.cloud.routes import predict
from catchment.feeds.device.device import DeviceConfig
from catchment.feeds.device.fleet import Fleet
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.project import read_device_settings
from catchment.feeds.protocol.bus import Bus
from catchment.feeds.protocol.messages import Admitted, Hello, RateReport, Refused, Reset
from catchment.feeds.runs.board import Board
from catchment.feeds.runs.local_run import LocalRun
from catchment.feeds.runs.open_cloud import tokens_in
from catchment.feeds.runs.oracle import naive_notices
from catchment.feeds.runs.reference_tables import MAX_REJECTED, ReferenceTables, RejectedRows
from catchment.feeds.runs.registrar import QUARANTINE_FILE, Registrar, ask_to_retire
from catchment.feeds.runs.traffic import relative_gap
from catchment.serve.feed_workload import load_workload
from catchment.serve.open_feeds import explain_workload
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, Walkers, identities

HEADER = "user,friend,share,friend_share,radius"
PROGRAM = read_program(DECLARED + NEARBY)
ON_EVERY_DEVICE = """
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE, speed DOUBLE) WITH (device = 'user');
CREATE FEED VIEW fast AS SELECT a.user, a.speed FROM location a WHERE a.speed > 4;
"""


def write_friends(folder: Path, *lines: str) -> None:
    """Write the table as an editor does: the file has another time each time."""
    (folder / "new.csv").write_text("\n".join([HEADER, *lines, ""]))
    (folder / "new.csv").rename(folder / "friends.csv")


class OpenFleet:
    """A run whose cloud knows no device until it registers."""

    def __init__(self, folder: Path, program: str = DECLARED + NEARBY, rule: AdmissionRule | None = None) -> None:
        self.program = read_program(program)
        self.cloud = Cloud(ViewGraph(self.program, {}, {}), Router(compile_feeds(self.program)))
        self.said: list[str] = []
        gate = DeviceGate(self.program, rule or AdmissionRule())
        tables = ReferenceTables(folder, self.program)
        self.registrar = Registrar(self.cloud, gate, tables, folder / "state", self.said.append)
        self.bus = Bus(max_queued=1_000_000)
        self.fleet = Fleet([DeviceConfig(str(n), report_every_us=2 * SECOND) for n in range(10)], self.bus)
        self.run = LocalRun(self.cloud, self.fleet, self.bus)
        self.run.produced = []
        self.run.answer = self.answer
        self.run.every(SECOND, lambda run: run.send(self.registrar.follow(run.now_us)))

    def answer(self, device: str, message: Any) -> Any:
        told = self.registrar.refuse(device, message, self.run.now_us)
        return self.cloud.receive(device, message) if told is None else told

    def join(self, *names: str) -> None:
        for name in names:
            self.fleet.connect(name, self.run.now_us)
        self.run.carry(self.run)

    @property
    def views(self) -> set[str]:
        return set(self.cloud.graph.views)


def test_a_view_begins_when_both_devices_are_there_and_then_no_notice_is_lost_or_invented(tmp_path: Path) -> None:
    write_friends(tmp_path, *(f"{i},{j},1.0,1.0,1500.0" for i in range(6) for j in range(6) if i < j))
    world = OpenFleet(tmp_path)
    records = Walkers(random.Random(3), 6).records()
    for number in range(6):
        world.run.at(4 * number * SECOND, partial(lambda name, run: world.join(name), str(number)))
    world.run.run(records, 3 * SECOND)
    assert world.views == set()
    assert world.cloud.controller.counters.instructions == 1, "one device was told its program, and nothing else"
    world.run.run(records, 7 * SECOND)
    assert world.views == {"nearby(location@0,location@1)"}
    world.run.run(records, 40 * SECOND)
    world.run.run(iter(()), 60 * SECOND)
    graph, since_us = world.cloud.graph, world.cloud.controller.active_since_us
    assert len(graph.views) == 15 == len(since_us)
    produced = world.run.produced or []
    assert naive_notices(graph, produced, since_us) <= identities(world.run) <= naive_notices(graph, produced)
    assert len(naive_notices(graph, produced, since_us)) > 50


def test_unknown_rates_are_a_prior_until_devices_report_and_the_placement_follows(tmp_path: Path) -> None:
    write_friends(tmp_path, *(f"0,{j},1.0,1.0,1500.0" for j in range(1, 6)))
    world = OpenFleet(tmp_path)
    world.join(*(str(n) for n in range(6)))
    world.run.run(iter(()), SECOND + 1)
    rates = expected_rates(world.cloud.graph, world.cloud.controller.rates)
    assert set(rates.values()) == {PRIOR_PER_S}
    walkers = Walkers(random.Random(4), 6, rate={0: 20.0, **dict.fromkeys(range(1, 6), 0.5)})
    world.run.every(5 * SECOND, lambda run: run.send(world.cloud.review(5.0)))
    world.run.run(walkers.records(), 120 * SECOND)
    graph = world.cloud.graph
    known = {feed.name: walkers.rate[int(feed.device)] for feed in graph.feeds.values()}
    assert world.cloud.controller.rates == pytest.approx(known, rel=0.1)
    best = predict(graph, least_traffic(graph, known, LinkCosts()), known).cost(1, 1)
    assert predict(graph, world.cloud.controller.current_hosts(), known).cost(1, 1) == pytest.approx(best)


def test_the_traffic_of_a_fleet_that_grew_is_what_is_predicted_once_rates_are_known(tmp_path: Path) -> None:
    write_friends(tmp_path, *(f"{i},{j},1.0,0.5,1500.0" for i in range(10) for j in range(i + 1, 10, 3)))
    world = OpenFleet(tmp_path)
    walkers = Walkers(random.Random(8), 10, rate={i: 1.0 + i % 4 for i in range(10)})
    for number in range(10):
        world.run.at(2 * number * SECOND, partial(lambda name, run: world.join(name), str(number)))
    world.run.every(5 * SECOND, lambda run: run.send(world.cloud.review(5.0)))
    records = walkers.records()
    world.run.run(records, 60 * SECOND)
    board = Board("ours", world.cloud.controller, world.bus.traffic, LinkCosts(), {})
    board.sample(world.run.now_us, 0)
    before, redeployed = board.totals[-1], world.cloud.redeployed
    world.run.run(records, 120 * SECOND)
    board.samples = 0
    board.sample(world.run.now_us, 0)
    assert world.cloud.redeployed == redeployed, "the placement has settled"
    measured = board.totals[-1].per_second_since(before)
    assert max(relative_gap(measured, board.predicted["present"]).values()) < 0.05


def test_the_rate_of_a_feed_that_no_device_reported_is_the_mean_of_its_kind() -> None:
    graph = generate_views(PROGRAM, ReferenceData({"friends": [(0, 1, 1.0, 1.0, 1.0), (1, 2, 1.0, 1.0, 1.0)]}))
    found = expected_rates(graph, {"location@0": 4.0, "location@1": 2.0})
    assert found == {"location@0": 4.0, "location@1": 2.0, "location@2": 3.0}


def test_a_device_that_nobody_names_yet_is_admitted_and_its_rate_is_kept(tmp_path: Path) -> None:
    write_friends(tmp_path, "0,1,1.0,1.0,1500.0")
    world = OpenFleet(tmp_path)
    world.join("0", "9")
    world.run.run(Walkers(random.Random(5), 1).records(), 3 * SECOND)
    world.cloud.receive("9", RateReport((("location@9", 30),), 10 * SECOND))
    assert world.cloud.controller.rates["location@9"] == 3.0
    write_friends(tmp_path, "0,1,1.0,1.0,1500.0", "0,9,1.0,1.0,1500.0")
    world.run.run(iter(()), 6 * SECOND)
    assert world.views == {"nearby(location@0,location@9)"}


def test_a_view_on_every_device_is_on_those_that_are_registered(tmp_path: Path) -> None:
    world = OpenFleet(tmp_path, ON_EVERY_DEVICE)
    world.join("1")
    world.run.run(iter(()), 2 * SECOND)
    assert len(world.views) == 1
    world.join("2")
    world.run.run(iter(()), 4 * SECOND)
    assert {world.cloud.graph.origins(v) for v in world.views} == {frozenset({"1"}), frozenset({"2"})}


def test_a_project_without_a_recording_is_explained_at_the_rates_that_are_expected(tmp_path: Path) -> None:
    (tmp_path / "feeds.sql").write_text(DECLARED + NEARBY)
    write_friends(tmp_path, "0,1,1.0,1.0,1500.0", "0,2,1.0,1.0,1500.0")
    explained = explain_workload(load_workload(tmp_path, needs_records=False))
    assert explained["devices"] == 3
    assert explained["strategies"]["cloud"]["messages_up"] == 3 * PRIOR_PER_S
    assert explained["strategies"]["ours"]["cost"] == 3 * PRIOR_PER_S


# ---- who is admitted


def gate(rule: AdmissionRule, **tokens: str) -> DeviceGate:
    made = DeviceGate(PROGRAM, rule, lambda device: tokens.get(f"device{device}"))
    made.follow(ReferenceData({"friends": [(1, 2, 1.0, 1.0, 1.0)]}))
    return made


@pytest.mark.parametrize(
    ("admit", "device", "token", "says"),
    [
        ("allow", "7", None, None),
        ("allow", "7", "whatever", None),
        ("allow", "5", "right", None),
        ("allow", "5", "wrong", "the token is wrong"),
        ("allow", "5", None, "a token is needed"),
        ("allow", "ann", None, "a device of this program is named by a BIGINT"),
        ("allow", "07", None, "a device of this program is named by a BIGINT"),
        ("allow", "a/b", None, "cannot be called"),
        ("deny", "5", "right", None),
        ("deny", "7", None, "only devices that it has a token for"),
        ("friends.user", "1", None, None),
        ("friends.user", "2", None, "friends.user does not name this device"),
    ],
)
def test_a_device_is_admitted_by_rule_and_token(admit: str, device: str, token: str | None, says: str | None) -> None:
    made = gate(AdmissionRule(admit), device5="right")
    reason = made.refusal(device, Hello(1, token), ())
    assert (reason is None) if says is None else (says in str(reason))
    assert made.refused == (says is not None)


def test_no_more_devices_are_taken_than_the_bound_says() -> None:
    made = gate(AdmissionRule(max_devices=2))
    assert made.refusal("3", Hello(1), {"1", "2"}) == "2 devices are registered, and no more are taken"
    assert made.refusal("2", Hello(1), {"1", "2"}) is None


def test_a_rule_that_names_no_column_of_the_program_is_refused() -> None:
    with pytest.raises(FeedError, match=r"possible: 'allow', 'deny', 'friends.user'"):
        DeviceGate(PROGRAM, AdmissionRule("friends.nobody"))


def test_tokens_are_in_files_that_only_their_owner_may_read(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    path = tmp_path / "tokens" / "5"
    path.write_text("right\n")
    path.chmod(0o600)
    made = DeviceGate(PROGRAM, AdmissionRule(), tokens_in(tmp_path, "tokens/{device}"))
    assert made.refusal("5", Hello(1, "right"), ()) is None
    assert made.refusal("6", Hello(1), ()) is None
    path.chmod(0o644)
    assert "can be read by other users" in str(made.refusal("5", Hello(1, "right"), ()))
    with pytest.raises(FeedError, match=r"in \[devices\]"):
        tokens_in(tmp_path, "tokens")
    with pytest.raises(FeedError, match="cannot be called"):
        tokens_in(tmp_path, "tokens/{device}")("..")


def test_the_settings_of_devices_are_read_and_checked(tmp_path: Path) -> None:
    assert read_device_settings(tmp_path) == {"admit": "allow", "token_file": None, "max": 10_000, "retire_after": None}
    (tmp_path / "feeds.toml").write_text('[devices]\nadmit = "users.user"\nmax = 5\nretire_after = "30 days"\n')
    assert read_device_settings(tmp_path)["retire_after"] == 30 * 86_400 * SECOND
    (tmp_path / "feeds.toml").write_text("[devices]\nmax = 0\n")
    with pytest.raises(FeedError, match="max"):
        read_device_settings(tmp_path)


def test_a_refused_device_is_told_why_and_nothing_else(tmp_path: Path) -> None:
    write_friends(tmp_path, "0,1,1.0,1.0,1500.0")
    world = OpenFleet(tmp_path, rule=AdmissionRule("friends.user"))
    world.run.send(world.registrar.follow(0))
    why = "friends.user does not name this device"
    assert [d.message for d in world.answer("1", Hello(3))] == [Refused(3, why)]
    assert list(world.answer("1", RateReport((), 5))) == []
    assert next(iter(world.answer("0", Hello(3)))).message == Admitted(3)
    assert world.registrar.gate.refused == 1


# ---- rows that are wrong


def test_a_wrong_reference_row_rejects_itself_with_the_reason_and_the_others_are_followed(tmp_path: Path) -> None:
    good = ("0,1,1.0,1.0,1500.0", "1,2,1.0,1.0,1500.0")
    bad = ("2,2,1.0,1.0,9.0", "0,two,1.0,1.0,9.0", "0,2,7.0,1.0,9.0", "1,0", ",1,1.0,1.0,9.0")
    write_friends(tmp_path, good[0], *bad, good[1])
    world = OpenFleet(tmp_path)
    world.join("0", "1", "2")
    world.run.run(iter(()), 2 * SECOND)
    assert world.views == {"nearby(location@0,location@1)", "nearby(location@1,location@2)"}
    quarantine = tmp_path / "state" / QUARANTINE_FILE
    rows = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert {(row["file"], row["line"]) for row in rows} == {("friends.csv", line) for line in range(3, 8)}
    reasons = {row["line"]: row["reason"] for row in rows}
    assert "self edge" in reasons[3]
    assert "found 'two'; expected BIGINT" in reasons[4]
    assert "the share of 'a' is 7.0" in reasons[5]
    assert "found 2 cells" in reasons[6]
    assert "names no device" in reasons[7]
    write_friends(tmp_path, *good, "0,2,1.0,1.0,1500.0")
    world.run.run(iter(()), 5 * SECOND)
    assert len(world.views) == 3
    assert not quarantine.exists()


def test_a_file_that_cannot_be_read_leaves_the_views_as_they_are(tmp_path: Path) -> None:
    write_friends(tmp_path, "0,1,1.0,1.0,1500.0")
    world = OpenFleet(tmp_path)
    world.join("0", "1")
    world.run.run(iter(()), 2 * SECOND)
    (tmp_path / "friends.csv").write_text("who,whom\n")
    world.run.run(iter(()), 5 * SECOND)
    assert len(world.views) == 1
    assert any("is not followed" in said for said in world.said)


def test_the_quarantine_of_reference_rows_is_bounded(tmp_path: Path) -> None:
    rejected = RejectedRows()
    for line in range(MAX_REJECTED + 7):
        rejected.add("friends.csv", line, "why")
    rejected.write(tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) == MAX_REJECTED + 1
    assert json.loads(lines[-1]) == {"more": 7}


# ---- devices that leave


def holds(world: OpenFleet, device: str) -> list[str]:
    """Where the cloud still holds something of a device."""
    controller = world.cloud.controller
    moves = controller.moves
    places = {
        "boots": device in controller.registered,
        "views": any(device in world.cloud.graph.origins(v) for v in world.views),
        "pending": any(p.device == device for p in controller.instructions.pending.values()),
        "marks": any(asked[0] == device for asked in moves.marks),
        "uploads": any(device in by for by in moves.table.uploads.values()),
        "downloads": any(device in by for by in moves.table.downloads.values()),
        "routes": any(device in by for by in world.cloud.plane.routes.values()),  # type: ignore[attr-defined]
        "retired": any(device in by for by in moves.locations.retired.values()),
        "rates": any(feed.endswith(f"@{device}") for feed in controller.rates),
    }
    return [place for place, found in places.items() if found]


@pytest.mark.parametrize("by_request", [True, False])
def test_a_device_that_leaves_for_good_frees_what_it_held_and_the_others_go_on(
    tmp_path: Path, by_request: bool
) -> None:
    write_friends(tmp_path, *(f"{i},{(i + 1) % 5},1.0,1.0,1500.0" for i in range(5)))
    rule = AdmissionRule(retire_after_us=None if by_request else 20 * SECOND)
    world = OpenFleet(tmp_path, rule=rule)
    world.join(*"01234")
    records = (r for r in Walkers(random.Random(6), 5).records() if r.device != "2" or r.at_us < 10 * SECOND)
    world.run.run(records, 10 * SECOND)
    assert {"boots", "views", "rates"} <= set(holds(world, "2"))
    world.fleet.disconnect("2", world.run.now_us)
    if by_request:
        ask_to_retire(tmp_path / "state", "2")
    world.run.run(records, 40 * SECOND)
    assert holds(world, "2") == []
    assert len(world.views) == 3
    assert not world.cloud.controller.moving
    late = {n.view for n in world.fleet.notices if n.at_us > 35 * SECOND}
    assert late
    assert late <= world.views


def test_a_retired_device_that_is_there_after_all_is_asked_for_a_hello_and_taken_again(tmp_path: Path) -> None:
    write_friends(tmp_path, "0,1,1.0,1.0,1500.0")
    world = OpenFleet(tmp_path)
    world.join("0", "1")
    world.run.run(iter(()), 3 * SECOND)
    world.run.send(world.registrar.retire("1"))
    assert world.views == set()
    asked = list(world.answer("1", RateReport((), 5)))
    assert [d.message for d in asked] == [Reset()]
    world.run.send(asked)
    assert list(world.answer("1", RateReport((), 5))) == [], "it is asked once"
    world.run.run(Walkers(random.Random(7), 2).records(), 10 * SECOND)
    assert world.views == {"nearby(location@0,location@1)"}


def test_friendships_and_devices_come_and_go_at_random_and_the_views_are_those_of_both(tmp_path: Path) -> None:
    rng = random.Random(11)
    world = OpenFleet(tmp_path)
    friends: set[tuple[int, int]] = set()
    write_friends(tmp_path)
    for _ in range(40):
        name = str(rng.randrange(6))
        if rng.random() < 0.5:
            friends ^= {tuple(sorted(rng.sample(range(6), 2)))}  # type: ignore[arg-type]
            write_friends(tmp_path, *(f"{a},{b},1.0,1.0,1500.0" for a, b in sorted(friends)))
        elif name not in world.registrar.registered:
            world.join(name)
        else:
            world.fleet.disconnect(name, world.run.now_us)
            world.run.send(world.registrar.retire(name))
        world.run.run(iter(()), world.run.now_us + 2 * SECOND)
        there = {int(name) for name in world.registrar.registered}
        assert world.views == {f"nearby(location@{a},location@{b})" for a, b in friends if {a, b} <= there}
    assert isinstance(world.cloud.rule, ReoptimizeRule)
