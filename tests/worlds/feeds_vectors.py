"""Golden vectors of the feeds protocol: what every implementation of a device must give, in whatever language.

`tests/golden/feeds_vectors.json` is made by `make_vectors`, from seeds, by the Python implementation, and read by the
tests of Python and of JavaScript. To write it anew after a change of the protocol, run tests/feeds/test_vectors.py with
CATCHMENT_GOLDEN=write.
"""

from __future__ import annotations

import json
import math
import random
from functools import partial
from pathlib import Path
from typing import Any, cast

from catchment.errors import WireError
from catchment.feeds.device.device import (
    Device,
    DeviceAction,
    DeviceConfig,
    DeviceEvent,
    LinkDown,
    LinkUp,
    Produced,
    Received,
    SendUp,
    Tick,
)
from catchment.feeds.forms.expression import compile_tree, tree_of
from catchment.feeds.forms.program import VERSION
from catchment.feeds.language.functions import BUILT_IN
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.protocol.codec import decode, encode
from catchment.feeds.protocol.messages import DOWNWARD, Downward, Message
from catchment.feeds.protocol.sampling import rank_of
from catchment.feeds.runs.local_run import LocalRun
from tests.worlds.feeds_world import (
    DECLARED,
    FILTERED,
    HOURLY,
    LAYERED,
    NEARBY,
    SECOND,
    TOGETHER,
    TRIO,
    Friend,
    Walkers,
    carry_at_random,
    finish,
    graph_of,
    random_friends,
    random_hosts,
    start,
)

PATH = Path(__file__).parents[1] / "golden" / "feeds_vectors.json"
MALFORMED = (
    "",
    "{}",
    "[]",
    "[1]",
    '[1,"q",2]',
    '["1","a",2]',
    '[1,"a"]',
    '[1,"a",true]',
    '[1,"a",1,2]',
    '[1,"d",1,2]',
    '[1,"e","f",[],5,[]]',
    '[1,"e","f",["1"],5,[]]',
    '[1,"e","f",[1],5,[[1]]]',
    '[1,"e","f",[1],"5",[]]',
    '[1,"n","v","d",[1],5]',
    '[1,"b",["u","f",1.5,0]]',
    '[1,"b",["q","f",1.5,0]]',
    '[1,"b",["x","f"]]',
    '[1,"b",["i","t",["a"],[[0,[1],[1,2],[],"x"]],0]]',
    '[1,"b",["p",{"version":1,"streams":[],"feeds":[],"views":[]}]]',
    '[1,"b",["p",{"version":2,"streams":[],"feeds":[]}]]',
    '[1,"b",["p",{"version":2,"streams":[],"feeds":[{"kind":"k","stream":"s","keep":true,"columns":[]}],"views":[]}]]',
)
ONE_SIDED = NEARBY.replace("'3 seconds'", "'a: 3 seconds, b: 1 second'")
VIEWS = (HOURLY, FILTERED, LAYERED, ONE_SIDED, TRIO)
_TEXTS = ("", "a", "ab", "b", "\u00e9", "\U0001f600", "\uffee", "Z")
_LAYOUT = {"number": [0, 1, 2], "text": [3, 4], "boolean": [5, 6]}  # positions of slot 0 by type


def make_vectors() -> dict[str, Any]:
    """Return all vectors; equal seeds give equal vectors."""
    return {
        "version": VERSION,
        "ranks": _ranks(random.Random(1)),
        "expressions": [_expression(random.Random(seed)) for seed in range(400)],
        "refused": list(MALFORMED),
        "devices": [
            *(script for seed, view in enumerate(VIEWS) for script in _scripts(seed, view)),
            *_scripts(len(VIEWS), NEARBY, NEARBY + TOGETHER),
        ],
    }


def write_vectors(path: Path = PATH) -> None:
    """Write the vectors, one per line, so that a change is readable."""
    parts = []
    for name, value in make_vectors().items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
            parts.append(f'"{name}":[\n{lines}\n]')
        else:
            parts.append(f'"{name}":{json.dumps(value)}')
    path.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def _ranks(rng: random.Random) -> list[list[Any]]:
    feeds = ["location@1", "location@2", "status[free]@\u00e9", "x" * 70]
    singles = [(rng.choice(feeds), (rng.choice((n, rng.randrange(2**45))),)) for n in range(30)]
    matches = [(rng.choice(feeds), tuple(rng.randrange(2**40) for _ in range(rng.randint(2, 7)))) for _ in range(30)]
    return [[feed, list(key), rank_of(feed, key)] for feed, key in singles + matches]


# ---- expressions


def _expression(rng: random.Random) -> list[Any]:
    values = [_value(rng, kind) for kind in ("number", "number", "number", "text", "text", "boolean", "boolean")]
    tree = _tree(rng, rng.choice(("number", "boolean", "boolean", "text")), 4)
    result = compile_tree(tree_of(tree), BUILT_IN)((tuple(values), ()))
    return [tree, [values, []], result]


def _value(rng: random.Random, kind: str) -> Any:
    if rng.random() < 0.15:
        return None
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "text":
        return rng.choice(_TEXTS)
    return rng.choice((rng.randint(-5, 5), rng.randint(-(10**6), 10**6), round(rng.uniform(-90, 90), 3), 0, 0.5))


def _tree(rng: random.Random, kind: str, depth: int) -> Any:
    """Return a random expression of a type, with operands of the types that its operators take."""
    if depth == 0 or rng.random() < 0.2:
        return ["at", 0, rng.choice(_LAYOUT[kind])] if rng.random() < 0.8 else _value(rng, kind)
    if rng.random() < 0.2:
        return _choice(rng, kind, depth)

    def part(of: str) -> Any:
        return _tree(rng, of, depth - 1)

    if kind == "number":
        name = rng.choice(("+", "-", "*", "/", "%", "neg", "abs", "call"))
        if name == "call":
            return ["call", "distance", *(part("number") for _ in range(4))]
        return [name, *(part("number") for _ in range(1 if name in ("neg", "abs") else 2))]
    if kind == "text":
        return ["coalesce", part("text"), part("text")]
    name = rng.choice(("=", "!=", "<", "<=", ">", ">=", "not", "and", "or", "in", "is"))
    if name == "not":
        return [name, part("boolean")]
    if name in ("and", "or"):
        return [name, *(part("boolean") for _ in range(rng.randint(1, 3)))]
    if name == "is":
        return [name, part("boolean"), rng.choice((None, True, False))]
    of = rng.choice(("number", "text"))
    return [name, *(part(of) for _ in range(rng.randint(2, 4) if name == "in" else 2))]


def _choice(rng: random.Random, kind: str, depth: int) -> Any:
    """Return an expression of a type that chooses among operands of that type."""
    name = rng.choice(("coalesce", "least", "greatest", "case"))
    parts = [_tree(rng, kind, depth - 1) for _ in range(rng.randint(1, 3))]
    if name != "case":
        return [name, *parts]
    arms = [piece for value in parts for piece in (_tree(rng, "boolean", depth - 1), value)]
    return [name, *arms, _tree(rng, kind, depth - 1)]


# ---- whole devices


def _scripts(seed: int, view: str, later: str | None = None) -> list[dict[str, Any]]:
    """Run devices whose views move while links fail; return what each was given, and what it did.

    With `later`, these views take the place of the first ones for some seconds.
    """
    rng = random.Random(seed)
    friends = random_friends(rng, 3, 4)
    graph = graph_of(DECLARED + view, friends)
    run = start(graph, random_hosts(rng, graph), 3)
    steps: dict[str, list[Any]] = {name: [] for name in run.fleet.devices}
    for name, device in run.fleet.devices.items():
        device.handle = _recorded(device.handle, steps[name])  # type: ignore[method-assign]
        run.fleet.restart(name, 0)  # under a new boot it is told everything again
        steps[name].clear()
        again = run.fleet.devices[name]
        again.handle = _recorded(again.handle, steps[name])  # type: ignore[method-assign]
        again.handle(LinkDown(), 0)
        again.handle(LinkUp(), 0)
    run.carry = carry_at_random(rng)
    if later is not None:
        for at_s, text in ((3, later), (9, view)):
            run.at(at_s * SECOND, partial(_change_program, text=DECLARED + text, friends=friends))
    for _ in range(0 if later else 2):
        run.at(rng.randrange(2, 9) * SECOND, lambda r: r.send(r.cloud.deploy(random_hosts(rng, graph))))
    away = rng.choice(list(steps))
    run.at(4 * SECOND, lambda r: r.fleet.disconnect(away, r.now_us))
    run.at(6 * SECOND, lambda r: r.fleet.connect(away, r.now_us))
    run.run(Walkers(rng, 3).records(("location", "status")), 12 * SECOND)
    finish(run)
    configs = {name: device.config for name, device in run.fleet.devices.items()}
    return [
        {"name": name, "boot": config.boot, "report_every_us": config.report_every_us, "steps": steps[name]}
        for name, config in configs.items()
    ]


def _change_program(run: LocalRun, text: str, friends: list[Friend]) -> None:
    run.send(run.cloud.change_program(read_program(text)))
    run.send(run.cloud.update(run.cloud.views_of(ReferenceData({"friends": friends}))))


def _recorded(handle: Any, steps: list[Any], every_tick: bool = False) -> Any:
    def recorded(event: DeviceEvent, now_us: int) -> list[DeviceAction]:
        actions: list[DeviceAction] = handle(event, now_us)
        if actions or every_tick or not isinstance(event, Tick):
            steps.append([now_us, _event(event), [_action(a) for a in actions]])
        return actions

    return recorded


def _event(event: DeviceEvent) -> list[Any]:
    if isinstance(event, Produced):
        return ["produced", event.stream, list(event.row)]
    if isinstance(event, Received):
        return ["received", *_plain(event.message)]
    return [{LinkUp: "up", LinkDown: "down", Tick: "tick"}[type(event)]]


def _action(action: DeviceAction) -> list[Any]:
    return ["send" if isinstance(action, SendUp) else "notify", *_plain(_message(action))]


def _message(action: DeviceAction) -> Message:
    return action.message if isinstance(action, SendUp) else action.notice


def _plain(message: Message) -> list[Any]:
    """Return a message as on the wire, without its number."""
    plain: list[Any] = json.loads(encode(0, message))[1:]
    return plain


# ---- what this implementation gives for the vectors


def replay(script: dict[str, Any]) -> list[list[Any]]:
    """Give a device what the device of a script was given; return the steps with what it did."""
    device = Device(DeviceConfig(script["name"], script["boot"], script["report_every_us"]))
    steps: list[list[Any]] = []
    handle = _recorded(device.handle, steps, every_tick=True)
    for now_us, event, _ in script["steps"]:
        handle(_read_event(event), now_us)
    return steps


def _read_event(event: list[Any]) -> DeviceEvent:
    kind, *fields = event
    if kind == "produced":
        return Produced(fields[0], tuple(fields[1]))
    if kind == "received":
        _, message = decode(json.dumps([0, *fields]).encode())
        assert isinstance(message, DOWNWARD)
        return Received(cast(Downward, message))
    plain: dict[str, DeviceEvent] = {"up": LinkUp(), "down": LinkDown(), "tick": Tick()}
    return plain[kind]


def same(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal, numbers up to the last digits."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if type(left) in (int, float) and type(right) in (int, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return type(left) is type(right) and bool(left == right)


def refuses(text: str) -> bool:
    """Return whether the codec refuses a message."""
    try:
        decode(text.encode())
    except WireError:
        return True
    return False
