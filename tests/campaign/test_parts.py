"""The parts of the campaign: what it draws, feeds, carries and judges is what it says, so that its verdicts count."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from concurrent import futures
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.campaign.byte_proxy import ByteHarm, ByteProxy
from tests.campaign.campaign import HELD, Result, append_results, read_results
from tests.campaign.feed import FIRST_S, WINDOW_S, Feed
from tests.campaign.living import Lack, Living
from tests.campaign.message_proxy import MessageHarm, MessageProxy
from tests.campaign.report import render
from tests.campaign.schedule import KINDS, draw_round, draw_rounds
from tests.campaign.soak_report import Sample, find_growth, plot
from tests.campaign.soak_report import render as render_soak
from tests.campaign.verdict import TOTALS, Answer, judge

Echoed = list[bytes]


def make_feed(folder: Path) -> Feed:
    return Feed(folder / "data", folder / "fed.jsonl", random.Random(1))


def test_a_schedule_is_drawn_from_its_seed_alone_and_brings_every_kind_before_any_comes_often() -> None:
    rounds = list(islice(draw_rounds(1), 40))
    assert rounds[7] == draw_round(1, 7)
    assert rounds != list(islice(draw_rounds(2), 40))
    counts = Counter(d.kind for drawn in rounds for d in drawn)
    assert set(counts) == set(KINDS)


def test_faults_of_one_round_touch_different_parts() -> None:
    for drawn in islice(draw_rounds(3), 300):
        parts = Counter(part for d in drawn for part in KINDS[d.kind].parts(d.target))
        assert set(parts.values()) == {1}


def test_a_feed_remembers_its_records_over_a_restart(tmp_path: Path) -> None:
    feed = make_feed(tmp_path)
    feed.write_windows(["a", "b"], 3)
    feed.write("a", [feed.draw(FIRST_S * 1000)], ["nonsense"], is_late=True)
    until_s = feed.close_windows(["a", "b"])
    again = make_feed(tmp_path)
    again.load()
    assert until_s == FIRST_S + 3 * WINDOW_S
    assert again.files == feed.files
    assert again.next_s == feed.next_s
    assert again.windows(until_s) == [FIRST_S, FIRST_S + WINDOW_S, FIRST_S + 2 * WINDOW_S]
    assert again.totals("a", FIRST_S) == feed.totals("a", FIRST_S)
    assert again.bad_records("a") == 1
    assert again.late_windows() == {FIRST_S}
    assert again.good_records("a") == sum(len(p.read_text().splitlines()) for p in (tmp_path / "data/a").iterdir()) - 1


@pytest.fixture
def living(tmp_path: Path) -> Living:
    living = Living(tmp_path, 1)
    living.feed.write_windows(living.sites, 1)
    return living


def added_up(living: Living, *sites: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for site in sites:
        for key, (n, total) in living.feed.totals(site, FIRST_S).items():
            before = found.get(key, (0, 0))
            found[key] = (before[0] + n, before[1] + total)
    return found


def verdict(living: Living, status: str, rows: dict[str, tuple[int, int]], *missing: str) -> str:
    return judge(living, TOTALS, FIRST_S, Answer(status, frozenset(missing), 0.5 if missing else 1.0, rows))


def test_a_verdict_finds_what_is_lost_doubled_or_claimed_wrongly(living: Living) -> None:
    whole = added_up(living, "a", "b", "c")
    without = added_up(living, "a", "b")
    assert verdict(living, "exact", whole) == ""
    assert "wrong" in verdict(living, "exact", without)
    assert "wrong" in verdict(living, "final", {k: (2 * n, 2 * t) for k, (n, t) in whole.items()})
    assert "not exact" in verdict(living, "on_time", whole)
    assert "lacks ['c']" in verdict(living, "on_time", without, "c")


def test_a_verdict_accepts_a_window_that_names_who_is_missing_where_that_may_be(living: Living) -> None:
    living.lacks.append(Lack(TOTALS, "c", FIRST_S, FIRST_S + WINDOW_S))
    without = added_up(living, "a", "b")
    assert verdict(living, "final", without, "c") == ""
    assert "says exact" in verdict(living, "exact", without, "c")
    assert "expected" in verdict(living, "final", added_up(living, "a"), "c"), "records of b may not be missing"
    assert "wrong" in verdict(living, "final", without), "it must name c"


@pytest.fixture
def echo() -> Any:
    """A server that sends back what it gets, and its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                while data := caller.recv(4096):
                    caller.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def ask(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
        caller.sendall(data)
        return caller.recv(4096)


def test_a_byte_proxy_harms_as_it_is_told_and_heals(echo: int) -> None:
    proxy = ByteProxy(echo, seed=1)
    proxy.start()
    try:
        assert ask(proxy.port, b"hello") == b"hello"
        proxy.harm = ByteHarm(corrupted_share=1.0)
        altered = ask(proxy.port, b"hello")
        assert len(altered) == 5
        assert sum((x ^ y).bit_count() for x, y in zip(altered, b"hello", strict=True)) == 1
        proxy.harm = ByteHarm(doubled_share=1.0)
        assert ask(proxy.port, b"hello") == b"hellohello"
        proxy.harm = ByteHarm(swapped_share=1.0)
        assert ask(proxy.port, b"hello") == b"llohe"
        proxy.cut()
        assert try_to_ask(proxy.port) in (None, b""), "nothing passes"
        proxy.heal()
        assert ask(proxy.port, b"hello") == b"hello"
        assert proxy.harmed_chunks == 3
    finally:
        proxy.close()


def try_to_ask(port: int) -> bytes | None:
    try:
        return ask(port, b"hello")
    except OSError:
        return None


class EchoCalls(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """Answers every call with its content, and keeps it."""

    def __init__(self) -> None:
        self.calls: Echoed = []

    def service(self, details: Any) -> Any:
        def handle(data: bytes, context: Any) -> bytes:
            self.calls.append(data)
            return data

        return grpc.unary_unary_rpc_method_handler(handle)


def test_a_message_proxy_harms_as_it_is_told_and_heals() -> None:
    echo = EchoCalls()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(echo,))
    proxy = MessageProxy(server.add_insecure_port("127.0.0.1:0"), seed=1)
    server.start()
    proxy.start()
    with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
        call = channel.unary_unary("/x/Y")
        assert call(b"one", timeout=20) == b"one"
        proxy.harm = MessageHarm(doubled_share=1.0)
        assert call(b"two", timeout=20) == b"two"
        proxy.harm = MessageHarm(replayed_share=1.0)
        assert call(b"three", timeout=20) == b"three"
        assert echo.calls[:3] == [b"one", b"two", b"two"]
        assert echo.calls[3] in (b"one", b"two")
        proxy.harm = MessageHarm(unanswered_share=1.0)
        with pytest.raises(grpc.RpcError, match="the answer is lost"):
            call(b"four", timeout=20)
        proxy.harm = MessageHarm(lost_share=1.0)
        with pytest.raises(grpc.RpcError, match="lost on the way"):
            call(b"five", timeout=20)
        proxy.harm = MessageHarm(altered_share=1.0)
        assert call(b"six", timeout=20) != b"six"
        proxy.heal()
        assert call(b"seven", timeout=20) == b"seven"
    assert b"four" in echo.calls
    assert b"five" not in echo.calls
    proxy.close()
    server.stop(0).wait()


def test_results_survive_a_torn_line_and_make_a_table(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    result = Result(1, 0, "kill -9", "a", HELD, "exit code 0", "", 3.2, 12.0, "abc1234")
    append_results(path, [result, result])
    with path.open("a") as file:
        file.write('{"seed": 1, "rou')
    assert read_results(path) == [result, result]
    table = render(read_results(path))
    assert "2 faults in 1 rounds" in table
    assert "| kill -9 | 2 | 2 | 3 s (3 s) | exit code 0 |" in table


def soak_of(*values: float, name: str = "a / python MB") -> list[Sample]:
    return [Sample(minute, {name: value}) for minute, value in enumerate(values, 1)]


def test_a_soak_tells_what_grows_from_what_varies() -> None:
    warm_up, steady = [10.0, 50.0], [200.0, 204.0, 199.0, 203.0, 201.0, 205.0]
    assert not find_growth(soak_of(*warm_up, *steady))
    leaking = soak_of(*warm_up, 200, 220, 240, 260, 280, 300)
    assert [trend.name for trend in find_growth(leaking)] == ["a / python MB"]
    assert "a / python MB: 210 -> 290" in render_soak(leaking)
    answers = soak_of(1, 2, 3, 4, 5, 6, 7, 8, name="center / MB in results")
    assert not find_growth(answers), "answers are kept for good"
    assert find_growth(soak_of(0, 0, 0, 0, 0, 0, 90, 90, name="c / files in history"))


def test_the_samples_of_a_soak_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(soak_of(1, 2, 3, 4), tmp_path / "soak.svg")
    assert "<svg" in (tmp_path / "soak.svg").read_text()
