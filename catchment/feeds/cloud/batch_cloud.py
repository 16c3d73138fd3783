"""A cloud that computes its views in batches, which something outside joins: on Spark, or a test by itself. Pure.

What a batch found is handed in as rows, and is an event of the core like any message: a journal that holds it gives the
same messages again, in whatever order the rows were found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.cloud.batch_plane import BatchPlane, FileAction, event_row
from catchment.feeds.cloud.cloud import CloudControl
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_graph import RejectJoined, ViewGraph, generate_views
from catchment.feeds.protocol.messages import FeedEvent, Notice, Upward
from catchment.units import format_duration

DELIVERY = "delivery"
NOTICE = "notice"
MATCH = "match"
MAX_LIFETIME_US = 3_600_000_000  # a batch reads the files of the longest lifetime

FoundRow = tuple[str, int, str | None, str, str, int, str]  # kind, arrival, device, feed, key, time and values


def check_for_batches(program: FeedProgram) -> None:
    """Refuse a program with lifetimes that a cloud on Spark does not keep, with windows or with operators."""
    for template in program.templates.values():
        if program.has_operator(template):
            raise FeedError(
                "found an operator with state; a cloud on Spark computes none",
                where=f"{template.where}, view {template.name!r}",
                hint="run the cloud with --cloud local",
            )
        if template.window is not None:
            raise FeedError(
                "found a window; a cloud on Spark does not aggregate matches",
                where=f"{template.where}, view {template.name!r}",
                hint="run the cloud with --cloud local",
            )
        if template.is_pair and template.lifetime_us > MAX_LIFETIME_US:
            raise FeedError(
                f"found a lifetime of {format_duration(template.lifetime_us)}; a cloud on Spark keeps events for at "
                f"most {format_duration(MAX_LIFETIME_US)}",
                where=f"{template.where}, view {template.name!r}",
                hint="run the cloud with --cloud local, which keeps events on disk for days",
            )


class BatchCloud(CloudControl):
    """A control plane over a data plane that works in batches."""

    def __init__(
        self,
        graph: ViewGraph,
        rates: Mapping[str, float] | None = None,
        rule: ReoptimizeRule | None = None,
    ) -> None:
        check_for_batches(graph.program)
        rule = rule or ReoptimizeRule()
        self.plane = BatchPlane(graph.program, rule.retention.cloud)
        super().__init__(graph, self.plane, rates, rule)
        self.rule.retention.check(graph, self.controller.rates)

    # ---- messages

    def receive(self, device: str, message: Upward) -> list[Deliver]:
        """Take one message; what follows from an event comes with its batch."""
        if isinstance(message, FeedEvent):
            if self.controller.admits(device, message):
                self.plane.add_event(message)
            return []
        self.plane.add_control(device, message)
        return self._settle()

    def _settle(self) -> list[Deliver]:
        """Handle the control messages whose turn has come."""
        told: list[Deliver] = []
        for control in self.plane.ready_controls():
            told += self.controller.handle(control.device, control.message)
        return told

    def publish(self, stream: str, row: tuple[Any, ...], now_us: int) -> list[Deliver]:
        """Let a record of a stream of the cloud be born; it becomes an event of every feed that a view reads."""
        for feed, values in self.born_events(stream, row):
            self.plane.publish(feed, now_us, values)
        return []

    # ---- batches

    def begin_batch(self) -> list[FileAction]:
        """Take the events that wait into a batch, if none is under way."""
        return self.plane.begin()

    def end_batch(self, found: Iterable[FoundRow]) -> tuple[list[FileAction], list[Deliver]]:
        """Take what a batch found: files to write, and what devices are told.

        Views and routes that ended meanwhile get nothing any more.
        """
        by_arrival = sorted(found, key=lambda row: row[1])
        matches = [row for row in by_arrival if row[0] == MATCH and row[3] in self.plane.installed]
        actions = self.plane.end([event_row(row[1], _event_of(row)) for row in matches])
        told = [
            Deliver(row[2], _event_of(row))
            for row in by_arrival
            if row[0] == DELIVERY and row[2] is not None and row[2] in self.plane.routes.get(row[3], ())
        ]
        told += self._notices(by_arrival)
        return actions, [*told, *self._settle()]

    def _notices(self, by_arrival: Sequence[FoundRow]) -> list[Deliver]:
        told: list[Deliver] = []
        for row in by_arrival:
            view = self.plane.installed.get(row[3])
            if row[0] == NOTICE and row[2] is not None and view is not None:
                every_us = self.graph.program.templates[view.template].notify_every_us
                event = _event_of(row)
                key = event.key if every_us is None else (event.at_us // every_us,)
                notice = Notice(event.feed, row[2], key, event.at_us, event.values)
                if every_us is None or self.plane.periods.first_time(notice.identity):
                    told.append(Deliver(notice.notified, notice))
        return told

    # ---- programs and views

    def next_program(self, wanted: FeedProgram) -> tuple[FeedProgram, ViewGraph] | None:
        check_for_batches(wanted)
        return super().next_program(wanted)

    def follow_program(self, program: FeedProgram) -> None:
        """Take another program, in which every view that there is means what it did."""
        super().follow_program(program)
        self.plane.follow_program(program)

    def views_of(self, data: ReferenceData, reject: RejectJoined | None = None) -> ViewGraph:
        """Generate the views that the program has over other reference data; with `reject`, without wrong rows."""
        return generate_views(self.graph.program, data, reject)


def _event_of(row: FoundRow) -> FeedEvent:
    _, _, _, feed, key, at_us, values = row
    return FeedEvent(feed, tuple(json.loads(key)), at_us, tuple(json.loads(values)))
