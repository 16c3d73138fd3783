"""A device says hello until it is answered, and says what it speaks and which functions it has."""

from __future__ import annotations

from collections.abc import Iterable

from catchment.feeds.cloud.cloud import Cloud
from catchment.feeds.cloud.router import Deliver, Router
from catchment.feeds.cloud.routes import CLOUD
from catchment.feeds.device.device import (
    LAST_HELLO_PAUSE_US,
    Device,
    DeviceAction,
    DeviceConfig,
    LinkUp,
    Produced,
    Received,
    SendUp,
    Tick,
)
from catchment.feeds.language.functions import FeedFunction, with_functions
from catchment.feeds.language.program_form import compile_feeds, form_of
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import generate_views
from catchment.feeds.protocol.codec import decode
from catchment.feeds.protocol.messages import (
    Admitted,
    Downward,
    FeedEvent,
    Hello,
    Instructions,
    Message,
    Program,
    Refused,
    SetUpload,
)
from tests.worlds.feeds_world import DECLARED, NEARBY, SECOND, graph_of

GRAPH = graph_of(DECLARED + NEARBY, [(0, 1, 1.0, 0.5, 1e9)])
FUNCTIONS = with_functions(FeedFunction("shout", 1, lambda text: text + "!", returns="string"))
SHOUTING = """
CREATE STREAM words (user STRING, word STRING) WITH (device = 'user');
CREATE TABLE friends (user STRING, friend STRING);
CREATE FEED VIEW same AS SELECT a.user FROM words a JOIN friends f ON a.user = f.user JOIN words b ON b.user = f.friend
WHERE shout(a.word) = shout(b.word);
"""


def sent(actions: Iterable[DeviceAction]) -> list[Message]:
    return [a.message for a in actions if isinstance(a, SendUp)]


def told(*messages: Downward) -> list[Received]:
    return [Received(message) for message in messages]


def test_a_hello_is_repeated_with_growing_pauses_until_it_is_answered() -> None:
    device = Device(DeviceConfig("0", boot=7))
    assert sent(device.handle(LinkUp(), 0)) == [Hello(7)]
    said = [s for s in range(1, 120) if Hello(7) in sent(device.handle(Tick(), s * SECOND))]
    assert said == [5, 15, 35, 75]
    device.handle(Received(Admitted(6)), 120 * SECOND)
    assert device.hello_again_us is not None, "an answer to an earlier life is none"
    device.handle(Received(Admitted(7)), 120 * SECOND)
    assert not any(Hello(7) in sent(device.handle(Tick(), s * SECOND)) for s in range(120, 2000))


def test_a_refused_device_keeps_its_messages_and_asks_again_rarely() -> None:
    device = Device(DeviceConfig("0"))
    device.handle(LinkUp(), 0)
    program = Instructions((Program(form_of(GRAPH.program)), SetUpload("location@0", 1.0)))
    for event in told(Admitted(0), program, Refused(0, "unknown device")):
        device.handle(event, 0)
    assert device.refusal == "unknown device"
    assert sent(device.handle(Produced("location", (0, 1.0, 2.0, 3.0)), SECOND)) == []
    assert sent(device.handle(Tick(), LAST_HELLO_PAUSE_US)) == [Hello(0)]
    late, *_ = sent(device.handle(Received(Admitted(0)), LAST_HELLO_PAUSE_US + 1))
    assert isinstance(late, FeedEvent)
    assert late.at_us == SECOND


def test_a_device_of_another_version_is_refused_by_name_and_told_nothing_else() -> None:
    cloud = Cloud(GRAPH, Router(compile_feeds(GRAPH.program)))
    _, old = decode(b'[0,"h",3]')
    assert isinstance(old, Hello)
    (answer,) = cloud.receive("0", old)
    reason = "the device speaks version 1 of the protocol, this cloud version 2"
    assert answer == Deliver("0", Refused(3, reason))
    assert not cloud.controller.registered


def test_a_view_with_a_function_of_the_project_runs_only_where_that_function_is() -> None:
    program = read_program(SHOUTING, FUNCTIONS)
    graph = generate_views(program, ReferenceData({"friends": [("ann", "bob"), ("cy", "dee")]}))
    cloud = Cloud(graph, Router(compile_feeds(program)))
    able, plain = Device(DeviceConfig("ann"), FUNCTIONS), Device(DeviceConfig("cy"))
    for device in (able, plain):
        for message in sent(device.handle(LinkUp(), 0)):
            assert isinstance(message, Hello)
            for answer in cloud.receive(device.config.name, message):
                device.handle(Received(answer.message), 0)
    first, second = graph.views
    cloud.deploy({first: "ann", second: "cy"})
    assert cloud.controller.current_hosts() == {first: "ann", second: CLOUD}
    assert plain.publisher is not None
    assert "the function 'shout' is not known here" in str(plain.publisher.program.lacking["same"])
