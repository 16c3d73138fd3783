"""Sampling ranks, messages as bytes, numbered links, and the device core on its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import FeedError, WireError
from catchment.feeds.device.device import (
    Device,
    DeviceConfig,
    LinkDown,
    LinkUp,
    Notify,
    Produced,
    Received,
    SendUp,
    Tick,
)
from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.publisher import RecentlySeen
from catchment.feeds.device.retained import FeedBuffer
from catchment.feeds.device.view_host import ViewHost
from catchment.feeds.language.functions import BUILT_IN
from catchment.feeds.language.program_form import compile_program, form_of
from catchment.feeds.protocol.channel import ChannelSender, at_cloud, at_device
from catchment.feeds.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from catchment.feeds.protocol.messages import (
    Admitted,
    Confirmed,
    FeedEvent,
    Hello,
    Install,
    Instruction,
    Instructions,
    Mark,
    Message,
    Notice,
    Program,
    RateReport,
    Refused,
    RelayedMessage,
    Reset,
    SetRoute,
    SetUpload,
    Uninstall,
)
from catchment.feeds.protocol.sampling import rank_of
from tests.worlds.feeds_world import DECLARED, LAYERED, NEARBY, SECOND, graph_of
from tests.worlds.tiers import examples

TEXT = DECLARED + NEARBY
GRAPH = graph_of(TEXT, [(0, 1, 1.0, 0.5, 1e9)])
(VIEW,) = GRAPH.views.values()
LAYERS = graph_of(DECLARED + LAYERED, [(0, 1, 1.0, 0.5, 1e9), (1, 0, 0.25, 0.5, 2.0)])


@given(st.integers(0, 2**40), st.integers(1, 400), st.sampled_from([0.01, 0.1, 1 / 3, 0.5, 0.9, 1.0]))
@settings(max_examples=examples(60))
def test_any_run_of_events_keeps_its_share_of_them(first: int, length: int, share: float) -> None:
    kept = sum(rank_of("f", (n,)) < share for n in range(first, first + length))
    assert abs(kept - share * length) < 9  # van der Corput: the excess grows with the logarithm of the run


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=4).map(tuple))
def test_a_rank_is_in_the_unit_interval(key: tuple[int, ...]) -> None:
    assert 0 <= rank_of("f", key) < 1


def test_a_rank_depends_on_feed_and_key_alone_in_every_process() -> None:
    """Both ends of a link compute ranks: these are of another process, whose hashes were seeded otherwise."""
    keys = [("location@1", (n,)) for n in (0, 1, 2, 2**31)] + [("location@2", (1,)), ("v", (1, 2)), ("v", (2, 1))]
    code = f"from catchment.feeds.protocol.sampling import rank_of; print([rank_of(*key) for key in {keys!r}])"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    ranks = [rank_of(*key) for key in keys]
    assert ranks == json.loads(elsewhere.stdout)
    assert len(set(ranks)) == len(keys)


def test_ranks_of_matches_are_spread_evenly() -> None:
    kept = sum(rank_of("f", (a, b)) < 0.25 for a in range(100) for b in range(100))
    assert abs(kept - 2500) < 200


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
keys = st.lists(st.integers(0, 2**40), min_size=1, max_size=3).map(tuple)
names = st.text(min_size=1, max_size=8)
items = st.one_of(
    st.just(Program(form_of(LAYERS.program))),
    st.builds(SetUpload, names, st.floats(0, 1), st.integers(0)),
    st.builds(Install, st.sampled_from(list(LAYERS.views.values())), st.integers(0)),
    st.builds(Uninstall, names, st.integers(0)),
    st.builds(Mark, st.integers(0), st.integers(0)),
    st.builds(SetRoute, names, names, st.floats(0, 1), st.integers(0)),
)
plain_messages = st.one_of(
    st.builds(FeedEvent, names, keys, st.integers(0, 2**60), st.lists(scalars, max_size=3).map(tuple)),
    st.builds(Notice, names, names, keys, st.integers(0, 2**60), st.lists(scalars, max_size=3).map(tuple)),
    st.builds(Hello, st.integers(0, 2**50), st.none() | names, st.lists(names).map(tuple)),
    st.builds(Admitted, st.integers(0, 2**50)),
    st.builds(Refused, st.integers(0, 2**50), names),
    st.builds(RateReport, st.lists(st.tuples(names, st.integers(0, 99)), max_size=3).map(tuple), st.integers(1, 2**40)),
    st.builds(Confirmed, keys, st.integers(0)),
    st.builds(Reset),
    st.builds(Instructions, st.lists(items, max_size=4).map(tuple)),
)
messages = plain_messages | st.builds(RelayedMessage, names, plain_messages)


@given(st.integers(0), messages)
@settings(max_examples=examples(150))
def test_a_message_survives_the_wire(number: int, message: Message) -> None:
    assert decode(encode(number, message)) == (number, message)


def test_a_hello_without_a_token_is_read_and_a_token_is_never_shown() -> None:
    assert decode(b'[7,"h",5]') == (7, Hello(5, version=1))
    assert decode(b'[7,"h",5,"secret"]') == (7, Hello(5, "secret", version=1))
    assert "secret" not in repr(Hello(5, "secret"))
    with pytest.raises(WireError, match="token of 5000 characters"):
        decode(encode(0, Hello(1, "x" * 5000)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b'[1,"q",2]',
        b'["1","h",2]',
        b'[1,"h"]',
        b'[1,"h",2,3]',
        b'[1,"h",true]',
        b'[1,"e","f",[],5,[]]',
        b'[1,"e","f",["1"],5,[]]',
        b'[1,"e","f",[1],5,[[1]]]',
        b'[1,"b",["u","f",1.5,0]]',
        b'[1,"b",["t","f","d",1.5,0]]',
        b'[1,"v","d",["v","d",["z"]]]',
        b'[1,"v","d",["q"]]',
        b'[1,"v",7,["z"]]',
        b'[1,"b",["i","t",["a"],[[0,[1],[1,2],[],"x"]],0]]',
        b"\xff\xfe",
        b"[" * 5000,
        b" " * (MAX_MESSAGE_BYTES + 1),
    ],
)
def test_bytes_that_are_no_message_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(WireError, match="refused"):
        decode(data)
    receiver = at_cloud()
    assert receiver.accept(data) is None
    assert receiver.refused == 1


@given(st.binary(max_size=60))
def test_no_bytes_make_a_receiver_fail(data: bytes) -> None:
    receiver = at_device()
    taken = receiver.accept(data)
    assert (taken is None) == (receiver.refused == 1), "bytes are a message, or are counted as refused"


def test_a_message_of_the_wrong_direction_is_refused() -> None:
    assert at_cloud().accept(encode(0, Reset())) is None
    assert at_device().accept(encode(0, Hello(0))) is None


@given(st.integers(1, 30), st.integers(0, 1000))
def test_messages_that_are_sent_again_are_accepted_once_and_in_order(count: int, seed: int) -> None:
    """At QoS 1 a reconnecting client repeats what was not yet acknowledged: some tail of what it had sent."""
    rng, sender, receiver = random.Random(seed), ChannelSender(), at_cloud()
    sent = [sender.wrap(Confirmed((n,), 0)) for n in range(count)]
    wire: list[bytes] = []
    for n, data in enumerate(sent):
        wire.append(data)
        if rng.random() < 0.3:
            wire += sent[rng.randrange(n + 1) : n + 1]
    accepted = [m for data in wire if (m := receiver.accept(data)) is not None]
    assert [m.tokens for m in accepted if isinstance(m, Confirmed)] == [(n,) for n in range(count)]
    assert receiver.duplicates == len(wire) - count
    assert receiver.missing == 0


def test_a_gap_is_counted_and_a_new_life_is_not_a_gap() -> None:
    receiver = at_cloud()
    for number, message in [(0, Hello(1)), (1, Confirmed((1,), 1)), (4, Confirmed((2,), 1)), (1000, Hello(2))]:
        receiver.accept(encode(number, message))
    assert receiver.missing == 2


# ---- the device core, without a bus


def device(**config: Any) -> Device:
    made = Device(DeviceConfig("0", **config))
    made.handle(LinkUp(), 0)
    made.handle(told(Program(form_of(GRAPH.program))), 0)
    return made


def told(*items: Instruction) -> Received:
    return Received(Instructions(items))


def produce(made: Device, at_us: int) -> list[Any]:
    return made.handle(Produced("location", (0, 48.0, 2.0, 1.0)), at_us)


def sent(actions: list[Any]) -> list[Message]:
    return [a.message for a in actions if isinstance(a, SendUp)]


def test_a_device_uploads_nothing_until_it_is_told_to() -> None:
    made = device()
    assert produce(made, 1) == []
    assert sent(made.handle(told(SetUpload("location@0", 1.0, 7)), 5)) == [Confirmed((7,), 5)]
    assert sent(produce(made, 6)) == [FeedEvent("location@0", (1,), 6, (48.0, 2.0))]


def test_one_answer_confirms_all_instructions_of_a_message() -> None:
    made = device()
    order = told(SetUpload("location@0", 0.5, 3), Install(VIEW, 4), SetUpload("location@0", 0.2), Uninstall("other", 5))
    assert sent(made.handle(order, 8)) == [Confirmed((3, 4, 5), 8)]
    assert made.uploads == {"location@0": 0.2}


def test_a_device_uploads_the_share_that_it_was_told() -> None:
    made = device()
    made.handle(told(SetUpload("location@0", 0.25)), 0)
    kept = [m for n in range(100) for m in sent(produce(made, n))]
    assert len(kept) == 25


def test_a_device_without_a_program_records_nothing_and_counts_what_it_ignores() -> None:
    made = Device(DeviceConfig("0"))
    assert made.handle(Produced("location", (0, 48.0, 2.0, 1.0)), 0) == []
    assert made.handle(told(SetUpload("location@0", 1.0, 5)), 0) == []
    assert made.ignored == 1


def test_a_record_of_an_unknown_stream_or_width_is_refused() -> None:
    made = device()
    with pytest.raises(FeedError, match="possible: location, status"):
        made.handle(Produced("places", ()), 0)
    with pytest.raises(FeedError, match="has 1 values, expected 4"):
        made.handle(Produced("location", (0,)), 0)


def test_a_device_computes_its_view_over_its_own_feed_and_a_downloaded_one() -> None:
    made = device()
    made.handle(told(Install(VIEW, 3)), 0)
    produce(made, SECOND)
    actions = made.handle(Received(FeedEvent("location@1", (0,), 2 * SECOND, (48.0, 2.0))), 2 * SECOND)
    assert [a.notice.identity for a in actions if isinstance(a, Notify)] == [(VIEW.name, "0", (0, 0, 0))]
    again = made.handle(Received(FeedEvent("location@1", (0,), 2 * SECOND, (48.0, 2.0))), 2 * SECOND)
    assert again == []


def test_a_device_forgets_what_an_earlier_cloud_told_it() -> None:
    made = device()
    made.handle(told(SetUpload("location@0", 1.0)), 0)
    assert sent(made.handle(Received(Reset()), 1)) == [Hello(0)]
    assert produce(made, 2) == []
    made.handle(told(Program(form_of(GRAPH.program))), 3)
    assert produce(made, 4) == []


def test_a_mark_is_confirmed_when_the_clock_is_past_it() -> None:
    made = device()
    assert sent(made.handle(told(Mark(10, 4)), 10)) == []
    assert sent(made.handle(Tick(), 11)) == [Confirmed((4,), 11)]
    assert sent(made.handle(Tick(), 12)) == []


def test_what_happens_while_the_link_is_down_is_sent_in_order_when_it_is_back() -> None:
    made = device()
    made.handle(told(SetUpload("location@0", 1.0)), 0)
    made.handle(LinkDown(), 1)
    assert produce(made, 2) == produce(made, 3) == []
    back = sent(made.handle(LinkUp(), 4))
    assert [type(m) for m in back] == [Hello, FeedEvent, FeedEvent]
    assert [m.at_us for m in back if isinstance(m, FeedEvent)] == [2, 3]


def test_a_clock_that_steps_back_does_not_reorder_the_feed() -> None:
    made = device()
    made.handle(told(SetUpload("location@0", 1.0)), 0)
    times = [m.at_us for at in (5, 9, 3, 7, 12) for m in sent(produce(made, at)) if isinstance(m, FeedEvent)]
    assert times == [5, 9, 9, 9, 12]


def test_a_device_reports_what_it_produced_once_a_period() -> None:
    made = device(report_every_us=10)
    produce(made, 3)
    produce(made, 4)
    (report,) = sent(made.handle(Tick(), 10))
    assert report == RateReport((("location@0", 2),), 10)
    assert json.loads(encode(0, report)) == [0, "r", [["location@0", 2]], 10]


# ---- the view host


def test_an_event_is_let_go_when_nothing_can_meet_it_any_more() -> None:
    host = ViewHost(compile_program(TEXT, BUILT_IN))
    host.install(VIEW)
    for n in range(200):
        for feed in ("location@0", "location@1"):
            list(host.absorb(FeedEvent(feed, (n,), n * SECOND, (48.0, 2.0))))
    assert all(len(b.events) < 80 for b in host.retained.feeds.values())
    assert host.forgotten == 0


def test_events_that_wait_for_a_silent_input_are_bounded_and_counted() -> None:
    host = ViewHost(compile_program(TEXT, BUILT_IN), HostLimits(away_us=10**12, memory_events=50))
    host.install(VIEW)
    for n in range(400):
        list(host.absorb(FeedEvent("location@0", (n,), n * SECOND, (48.0, 2.0))))
    assert len(host.retained.feeds["location@0"].events) <= 50
    assert host.forgotten > 300


def test_a_buffer_keeps_order_of_time_and_takes_a_key_once() -> None:
    buffer = FeedBuffer()
    events = [FeedEvent("f", (n, 0), at, ()) for n, at in enumerate((5, 3, 9, 3, 7))]
    assert all(buffer.add(e) for e in events)
    assert not any(buffer.add(e) for e in events)
    assert [e.at_us for e in buffer.events] == [3, 3, 5, 7, 9]
    assert [e.at_us for e in buffer.between(3, 7)] == [3, 3, 5, 7]
    assert not buffer.ordered


def test_what_was_seen_is_forgotten_at_the_bound_oldest_first() -> None:
    seen = RecentlySeen(capacity=2)
    assert [seen.first_time(n) for n in (1, 2, 1, 3, 2, 1)] == [True, True, False, True, False, True]


def test_a_view_of_an_unknown_template_is_refused() -> None:
    host = ViewHost(compile_program(TEXT, BUILT_IN))
    other = graph_of(TEXT.replace("nearby", "close_by"), [(0, 1, 1.0, 1.0, 1.0)])
    with pytest.raises(FeedError, match="possible: nearby"):
        host.install(next(iter(other.views.values())))
