"""The state of a cloud between two entries of its journal, and how it is taken from a cloud and put into one.

Views and instructions are kept as the bytes that devices are sent (`protocol/codec.py`), events as JSON by feed. What
can be computed from the rest is not kept: which views read a feed, and what is installed where.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.cloud.controller import FeedController
from catchment.feeds.cloud.instructions import PendingInstruction
from catchment.feeds.cloud.moves import Move
from catchment.feeds.cloud.route_table import Upload
from catchment.feeds.cloud.router import Router
from catchment.feeds.device.retained import FeedBuffer, RetainedEvents
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.view_graph import SourceFeed, ViewGraph
from catchment.feeds.protocol.codec import decode, encode
from catchment.feeds.protocol.messages import (
    FeedEvent,
    Install,
    Instruction,
    Instructions,
    Mark,
    SetRoute,
    SetUpload,
    Uninstall,
)
from catchment.storage.codec import stored

_BEGIN_US = -(2**62)
_END_US = 2**62


@stored()
@dataclass(frozen=True)
class MoveState:
    """A move that is under way; see `Move`."""

    view: bytes
    old: str | None
    new: str
    waiting: list[int]
    since_us: int
    waves: list[list[str]] | None
    wave: int
    frees: bool


@stored(version=3, migrations={1: dict, 2: dict})  # version 2 has revision and told, 3 has edge_of and handed_on
@dataclass(frozen=True)
class ControlState:
    """What the control plane knows: devices, where views are, what devices were asked and have confirmed."""

    feeds: list[tuple[str, str, str]]  # name, kind and device
    views: list[bytes]
    boots: dict[str, int]
    functions: dict[str, list[str]]
    rates: dict[str, float]
    pending: list[tuple[str, bytes, list[str]]]  # device, instruction, and the views that wait for it
    next_token: int
    sent: int
    refused: int
    hosts: dict[str, list[str]]
    located: list[bytes]  # the views that have hosts, in the order in which they got them
    retired: dict[str, list[str]]
    uploads: dict[str, dict[str, Upload]]
    downloads: dict[str, dict[str, float]]
    moves: list[MoveState]
    wanted: dict[str, str]
    active_since_us: dict[str, int]
    marks: list[tuple[str, int, int]]  # device, drain time and token
    begun: int
    done: int
    revision: int = 0  # of the program
    told: dict[str, int] | None = None  # the revision that each device knows; None: all know this one
    edge_of: dict[str, str] = field(default_factory=dict)  # device -> the edge cloud that it is attached to
    handed_on: dict[str, dict[str, Upload]] = field(default_factory=dict)  # by edge clouds, to their devices


@stored()
@dataclass(frozen=True)
class BufferState:
    """The events of a feed that are kept for views at the cloud; those on disk too."""

    newest_us: int | None
    absorbed: int
    ordered: bool
    events: bytes


@stored(version=2, migrations={1: dict})  # version 2 has since_us
@dataclass(frozen=True)
class RouterState:
    """What the data plane knows: routes, views at the cloud, their events, and the periods that were notified."""

    routes: dict[str, dict[str, float]]
    newest: dict[str, int]
    last_key: dict[str, int]
    installed: list[bytes]
    buffers: dict[str, BufferState]
    periods: list[tuple[str, str, tuple[int, ...]]]
    reached_us: int | None  # the event time up to which windows of matches are closed
    since_us: dict[str, int] = field(default_factory=dict)  # from when on every event of a view comes to the cloud


def pack_view(view: PhysicalView) -> bytes:
    """Return a view as bytes."""
    return pack_instruction(Install(view))


def unpack_view(data: bytes) -> PhysicalView:
    """Return the view of bytes."""
    (item,) = unpack_instructions(data)
    assert isinstance(item, Install)
    return item.view


def pack_instruction(item: Instruction) -> bytes:
    return encode(0, Instructions((item,)))


def unpack_instructions(data: bytes) -> tuple[Instruction, ...]:
    _, message = decode(data)
    assert isinstance(message, Instructions)
    return message.items


# ---- the control plane


def take_control(controller: FeedController) -> ControlState:
    """Return the state of a control plane, between two calls."""
    graph = controller.graph
    instructions = controller.instructions
    locations = controller.locations
    moves = controller.moves
    assert not instructions.queued
    assert not controller.forwarded
    assert not moves.freed
    return ControlState(
        feeds=[(f.name, f.kind, f.device) for f in graph.feeds.values()],
        views=[pack_view(v) for v in graph.views.values()],
        boots=dict(instructions.boots),
        functions={device: sorted(names) for device, names in controller.functions_of.items()},
        rates=dict(controller.rates),
        pending=[(p.device, pack_instruction(p.message), sorted(p.views)) for p in instructions.pending.values()],
        next_token=instructions.next_token,
        sent=instructions.sent,
        refused=controller.refused,
        hosts={name: list(hosts) for name, hosts in locations.hosts.items()},
        located=[pack_view(view) for view in locations.views.values()],
        retired={name: list(devices) for name, devices in locations.retired.items()},
        uploads=moves.table.uploads,
        downloads=moves.table.downloads,
        moves=[_take_move(move) for move in moves.under_way.values()],
        wanted=dict(moves.wanted),
        active_since_us=dict(moves.active_since_us),
        marks=[(device, after_us, token) for (device, after_us), token in moves.marks.items()],
        begun=moves.begun,
        done=moves.done,
        revision=instructions.revision,
        told=dict(instructions.told),
        edge_of=dict(controller.tree.edge_of),
        handed_on=moves.table.handed_on,
    )


def put_control(controller: FeedController, state: ControlState) -> None:
    """Give a new control plane a state."""
    feeds = {name: SourceFeed(name, kind, device) for name, kind, device in state.feeds}
    views = {view.name: view for view in map(unpack_view, state.views)}
    controller.show_graph(ViewGraph(controller.graph.program, feeds, views))
    controller.functions_of.update((device, frozenset(names)) for device, names in state.functions.items())
    controller.rates.update(state.rates)
    controller.refused = state.refused
    _refuse_lost_edges(controller, state)
    controller.tree.edge_of.update(state.edge_of)
    _put_instructions(controller, state)
    for view in map(unpack_view, state.located):
        for host in state.hosts[view.name]:
            controller.locations.add(view, host)
    controller.locations.retired.update(state.retired)
    _put_moves(controller, state)


def _refuse_lost_edges(controller: FeedController, state: ControlState) -> None:
    """Refuse a state with devices of edge clouds that are declared no more: nobody could reach them."""
    lost = sorted(set(state.edge_of.values()) - controller.tree.clouds)
    if lost:
        raise FeedError(
            f"devices are attached to the edge cloud {lost[0]!r}, which [edges] in feeds.toml does not name",
            hint="name it again and retire its devices first, or begin anew with another --state",
        )


def _put_instructions(controller: FeedController, state: ControlState) -> None:
    instructions = controller.instructions
    instructions.boots.update(state.boots)
    instructions.next_token = state.next_token
    instructions.sent = state.sent
    instructions.revision = state.revision
    instructions.told = dict.fromkeys(state.boots, state.revision) if state.told is None else dict(state.told)
    for device, data, views in state.pending:
        (message,) = unpack_instructions(data)
        assert isinstance(message, SetUpload | Install | Uninstall | Mark | SetRoute)
        instructions.pending[message.token] = PendingInstruction(device, message, set(views))


def _put_moves(controller: FeedController, state: ControlState) -> None:
    moves = controller.moves
    moves.table.uploads.update(state.uploads)
    moves.table.downloads.update(state.downloads)
    moves.table.handed_on.update(state.handed_on)
    moves.under_way.update((move.view.name, move) for move in map(_put_move, state.moves))
    moves.wanted.update(state.wanted)
    moves.active_since_us.update(state.active_since_us)
    moves.marks.update(((device, after_us), token) for device, after_us, token in state.marks)
    moves.begun = state.begun
    moves.done = state.done


def _take_move(move: Move) -> MoveState:
    waves = None if move.waves is None else [sorted(wave) for wave in move.waves]
    return MoveState(
        pack_view(move.view), move.old, move.new, sorted(move.waiting), move.since_us, waves, move.wave, move.frees
    )


def _put_move(state: MoveState) -> Move:
    waves = None if state.waves is None else [set(wave) for wave in state.waves]
    view = unpack_view(state.view)
    return Move(view, state.old, state.new, set(state.waiting), state.since_us, waves, state.wave, state.frees)


# ---- the data plane


def take_router(router: Router) -> RouterState:
    """Return the state of a data plane."""
    host = router.publisher.host
    return RouterState(
        routes={feed: dict(routes) for feed, routes in router.routes.items() if routes},
        newest=dict(router.newest),
        last_key={feed: key[0] for feed, key in router.last_key.items()},
        installed=[pack_view(installed.view) for installed in host.installed.values()],
        buffers={feed: _take_buffer(host.retained, feed) for feed in host.retained.feeds},
        periods=list(router.publisher.periods.identities()),
        reached_us=router.publisher.windows.reached_us,
        since_us=dict(host.operators.since_us),
    )


def _take_buffer(retained: RetainedEvents, feed: str) -> BufferState:
    buffer = retained.feeds[feed]
    events = _pack_events(retained.between(feed, _BEGIN_US, _END_US))
    return BufferState(buffer.newest_us, buffer.absorbed, buffer.ordered, events)


def put_router(router: Router, state: RouterState) -> None:
    """Give a new data plane a state; events beyond the bound of memory go to disk again."""
    host = router.publisher.host
    router.routes.update(state.routes)
    router.newest.update(state.newest)
    router.last_key.update((feed, (number,)) for feed, number in state.last_key.items())
    for view in map(unpack_view, state.installed):
        host.install(view)
    host.operators.since_us.update(state.since_us)
    for feed, kept in state.buffers.items():
        buffer = host.retained.feeds.setdefault(feed, FeedBuffer())
        for event in _unpack_events(feed, kept.events):
            host.retained.add(event)
            while host.retained.memory_is_full:
                host.retained.make_room_in_memory()
        buffer.newest_us = kept.newest_us
        buffer.absorbed = kept.absorbed
        buffer.ordered = kept.ordered
    router.publisher.windows.reached_us = state.reached_us
    for identity in state.periods:
        router.publisher.periods.first_time(identity)


def _pack_events(events: Iterable[FeedEvent]) -> bytes:
    return json.dumps([(e.key, e.at_us, e.values) for e in events], separators=(",", ":")).encode()


def _unpack_events(feed: str, data: bytes) -> Iterator[FeedEvent]:
    for key, at_us, values in json.loads(data):
        yield FeedEvent(feed, tuple(key), at_us, tuple(values))
