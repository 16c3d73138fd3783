"""Every record of a light site arrives once, in order, wherever a process is killed and whatever answers are lost."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import ConfigError, WireError
from catchment.files.watch import FileChangedError
from catchment.light.packing import nothing_new, pack_lines, read_chunk, unpack_lines
from catchment.light.stream_files import QUIET_EVERY_US
from catchment.light.streams import LightStream
from catchment.project.config import Project
from catchment.query.sql.connectors import FilesConnector
from catchment.storage.disk import use_disk
from catchment.testing.simulated.disk import DiskFault, Killed, SimulatedDisk
from catchment.wire.messages import Message, Progress, Records, Segment
from tests.worlds.light_world import LightWorld, deliver

RECORDS = 14
CALLS_OF_ONE_RUN = 400  # of the disk; a test sees that the story makes no more
GROWING = LightStream("events", FilesConnector("data/{site}", growing=True))


def _run(world: LightWorld, chance: random.Random) -> None:
    """Read, send and land everything, from whatever state; some answers are lost until the last round."""
    source, arrivals = world.open_source(), world.open_arrivals()
    for round_ in range(3):
        source.step()
        deliver(source, arrivals, chance, loss=0.5 if round_ < 2 else 0.0)
        while arrivals.take():
            pass
    assert source.outbox.is_empty
    assert arrivals.is_drained
    source.stop()


@pytest.mark.parametrize("cuts_power", [False, True])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_kill_at_any_call_of_either_disk_loses_and_doubles_nothing(
    tmp_path: Path, cuts_power: bool, stride: int
) -> None:
    calls = 0
    for calls in range(0, CALLS_OF_ONE_RUN, stride):
        folder = tmp_path / str(calls)
        world = LightWorld(folder)
        world.write("a.json", range(10))
        world.write("b.json", range(10, RECORDS), end="")
        disk = SimulatedDisk(random.Random(calls))
        chance = random.Random(calls)
        with use_disk(disk):
            disk.plan_fault(folder, calls, DiskFault.KILL)
            was_killed = False
            try:
                _run(world, chance)
            except Killed:
                was_killed = True
            disk.heal(folder)
            disk.close_files(folder)
            if cuts_power:
                disk.cut_power(folder)
            _run(world, chance)
        assert world.arrived() == Counter(range(RECORDS)), f"killed at call {calls}"
        if not was_killed:
            break
    assert calls < CALLS_OF_ONE_RUN - stride, "the story has more calls than this test looks at"
    assert calls > 60


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 6), growing=st.booleans(), chunk=st.integers(8, 200))
def test_records_arrive_in_the_order_in_which_they_were_read(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rounds: int, growing: bool, chunk: int
) -> None:
    chance = random.Random(seed)
    world = LightWorld(
        tmp_path_factory.mktemp("light"), chunk_bytes=chunk, stream=GROWING if growing else LightWorld.stream
    )
    source, arrivals = world.open_source(), world.open_arrivals()
    written = 0
    for number in range(rounds):
        more = chance.randrange(6)
        world.write(
            "grows.json" if growing else f"{number}.json", range(written, written + more), end="\n" * bool(more)
        )
        written += more
        if chance.random() < 0.3:
            source.stop()
            source = world.open_source()
        if chance.random() < 0.3:
            arrivals = world.open_arrivals()
        source.step()
        if chance.random() < 0.7:
            deliver(source, arrivals, chance)
        arrivals.take()
    deliver(source, arrivals, chance, loss=0.0)
    while arrivals.take():
        pass
    assert world.arrived_in_order() == list(range(written))


def test_a_segment_waits_for_those_before_it(tmp_path: Path) -> None:
    world = LightWorld(tmp_path)
    world.write("a.json", range(8))
    source, arrivals = world.open_source(), world.open_arrivals()
    source.step()
    frames = [source.outbox.read(pending.sequence) for pending in source.outbox.pending()]
    assert len(frames) > 1
    for frame in reversed(frames):
        assert world.arrived_in_order() == []
        assert frame is not None
        arrivals.inbox.accept(frame, peer="edge")
        arrivals.take()
    while arrivals.take():
        pass
    assert world.arrived_in_order() == list(range(8))
    assert arrivals.is_drained


def test_a_full_outbox_stops_the_reading_in_the_middle_of_a_file_and_a_restart_goes_on_from_there(
    tmp_path: Path,
) -> None:
    world = LightWorld(tmp_path)
    world.write("a.json", range(50))
    source, arrivals = world.open_source(), world.open_arrivals()
    source.outbox.max_bytes = 1
    source.step()
    assert 0 < source.core.rows["events"] < 50
    assert source.core.parts["events"].name == "a.json"
    chance = random.Random(0)
    while world.arrived().total() < 50:
        source.stop()
        source = world.open_source()
        source.outbox.max_bytes = 1
        source.step()
        deliver(source, arrivals, chance, loss=0.0)
        arrivals.take()
    assert world.arrived() == Counter(range(50))
    assert not source.core.parts


def test_a_file_that_is_changed_while_it_is_sent_stops_its_stream_until_it_is_removed(tmp_path: Path) -> None:
    world = LightWorld(tmp_path)
    world.write("a.json", range(50))
    source = world.open_source()
    source.outbox.max_bytes = 1
    source.step()
    world.write("a.json", range(50, 60))
    source.outbox.max_bytes = 10**9
    source.step()
    assert "was changed after" in source.status()["problems"]["events"]
    (tmp_path / "data" / "edge" / "a.json").unlink()
    world.write("b.json", range(60, 62))
    source.step()
    assert source.status()["problems"] == {}
    assert not source.core.parts


def test_what_is_full_at_the_far_side_waits_at_the_light_site(tmp_path: Path) -> None:
    world = LightWorld(tmp_path)
    world.write("a.json", range(6))
    source, arrivals = world.open_source(), world.open_arrivals()
    source.step()
    deliver(source, arrivals, random.Random(0), loss=0.0)
    arrivals._landing["events"].max_bytes = 0
    assert not arrivals.take()
    assert not arrivals.is_drained
    assert world.arrived().total() == 0


def test_a_quiet_site_says_so_and_an_inbox_keeps_nothing_of_it(tmp_path: Path) -> None:
    world = LightWorld(tmp_path)
    source, arrivals = world.open_source(), world.open_arrivals()
    heard = []
    for _ in range(3):
        source.step()
        source.step()
        deliver(source, arrivals, random.Random(0), loss=0.0)
        arrivals.take()
        heard.append(arrivals.heard_us)
        assert arrivals.is_drained
        world.clock.advance(QUIET_EVERY_US)
    assert heard == sorted(set(heard))
    assert source.outbox.next_sequence == 3


def test_an_inbox_of_records_takes_nothing_else(tmp_path: Path) -> None:
    arrivals = LightWorld(tmp_path).open_arrivals()
    good = pack_lines("events", b'{"n": 1}\n', begins_file=True)
    arrivals._admit(Segment("edge", "e", 0, (good,)))
    bad: list[Message] = [
        Progress("events", 0, 0),
        Records("unknown", good.rows, good.raw_bytes, good.block),
        Records("events", good.rows + 1, good.raw_bytes, good.block),
        Records("events", good.rows, good.raw_bytes, b"no zstd"),
        Records("events", good.rows, 10**12, good.block),
        Records("events", 1, 0, b""),
    ]
    for message in bad:
        with pytest.raises(WireError):
            arrivals._admit(Segment("edge", "e", 0, (message,)))


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b" ")), min_size=1), chunk=st.integers(1, 40)
)
def test_the_chunks_of_a_file_are_its_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], chunk: int
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "lines"
    data = b"\n".join(lines)
    path.write_bytes(data)
    at, found = 0, b""
    while at < len(data):
        piece = read_chunk(path, at, len(data), chunk)
        assert piece.endswith(b"\n") or at + len(piece) == len(data)
        assert len(piece) <= chunk or piece.count(b"\n") <= 1 or b"\n" not in piece[:chunk]
        at += len(piece)
        found += unpack_lines(pack_lines("s", piece, begins_file=False))
    assert found == (data if not data or data.endswith(b"\n") else data + b"\n")


def test_a_byte_order_mark_is_no_part_of_the_first_record() -> None:
    assert unpack_lines(pack_lines("s", b"\xef\xbb\xbf{}", begins_file=True)) == b"{}\n"
    assert pack_lines("s", b"\xef\xbb\xbf", begins_file=True) == nothing_new("s")


def test_a_compressed_file_is_refused_by_name(tmp_path: Path) -> None:
    world = LightWorld(tmp_path)
    world.write("a.json.gz", range(3))
    source = world.open_source()
    source.step()
    assert "a.json.gz is compressed" in source.status()["problems"]["events"]


def test_a_file_that_changes_during_its_only_chunk_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = LightWorld(tmp_path, chunk_bytes=10**6)
    world.write("a.json", range(3))
    source, arrivals = world.open_source(), world.open_arrivals()
    reader = source._reader_of(world.stream)
    settle = reader.watch.settle
    monkeypatch.setattr(reader.watch, "settle", _raise_changed)
    source.step()
    assert source.outbox.next_sequence == 0
    monkeypatch.setattr(reader.watch, "settle", settle)
    source.step()
    deliver(source, arrivals, random.Random(0), loss=0.0)
    arrivals.take()
    assert world.arrived() == Counter(range(3))


def _raise_changed(pieces: object) -> None:
    raise FileChangedError("it was changed")


def test_a_light_site_that_has_run_is_told_to_keep_its_place_and_goes_on_there(tmp_path: Path) -> None:
    """What it has sent lies where it was evaluated; the way out that is named must be one."""
    world = LightWorld(tmp_path)
    world.write("a.json", range(5))
    world.open_source().stop()
    config = tmp_path / "catchment.toml"
    before = config.read_text()
    hub = '[sites.hub]\nlisten = "127.0.0.1:9411"\n'
    hub += "".join(f'[[links]]\nfrom = "{a}"\nto = "{b}"\n' for a, b in (("edge", "hub"), ("hub", "center")))
    config.write_text(before.replace("compute = false", 'compute = false\nevaluate_at = "hub"') + hub)
    world.project = Project.load(tmp_path)
    with pytest.raises(ConfigError, match="were evaluated at 'center'") as refused:
        world.open_source()
    assert 'evaluate_at = "center"' in str(refused.value.hint)
    config.write_text(config.read_text().replace('evaluate_at = "hub"', 'evaluate_at = "center"'))
    world.project = Project.load(tmp_path)
    world.open_source().stop()
