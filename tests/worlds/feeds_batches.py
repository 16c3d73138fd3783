"""The join of a batch by brute force, for clouds that work in batches without Spark."""

from __future__ import annotations

import itertools
import json

from catchment.feeds.cloud.batch_cloud import DELIVERY, MATCH, NOTICE, FoundRow
from catchment.feeds.cloud.batch_plane import BatchJob, EventRow
from catchment.feeds.cloud.event_files import EventFiles
from catchment.feeds.forms.physical_view import PhysicalView, template_of
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.template import FeedTemplate
from catchment.feeds.protocol.messages import FeedEvent

Arrived = tuple[int, FeedEvent]


def join_by_hand(files: EventFiles, job: BatchJob) -> list[FoundRow]:
    """Return what a batch finds: every pair with a fresh event is tried, view by view."""
    fresh = _read(files, job, job.fresh)
    old = [event for name in job.earlier for event in _read(files, job, name)]
    found: list[FoundRow] = []
    for template in job.program.templates.values():
        matches: list[Arrived] = []
        kind = MATCH if template.name in job.program.consumed else NOTICE
        for view in job.installed.values():
            if view.template == template.name:
                for notified, match in _matches(job, template, view, fresh, old):
                    found.append(_found(kind, notified, match))
                    matches.append(match)
        if kind == MATCH:
            fresh += matches
    for arrival, event in fresh:
        for device, share in job.routes.get(event.feed, {}).items():
            if event.rank < share:
                found.append(_found(DELIVERY, device, (arrival, event)))
    return found


def _matches(
    job: BatchJob, template: FeedTemplate, view: PhysicalView, fresh: list[Arrived], old: list[Arrived]
) -> list[tuple[str, Arrived]]:
    compiled = compile_feeds(job.program).view(template.name)
    news = {id(event) for _, event in fresh}
    by_feed: dict[str, list[Arrived]] = {}
    for arrived in (*fresh, *old):
        by_feed.setdefault(arrived[1].feed, []).append(arrived)
    found: list[tuple[str, Arrived]] = []
    for ordinal, row in enumerate(view.rows):
        choices = [
            [(arrival, e) for arrival, e in by_feed.get(feed, []) if e.rank < share]
            for feed, share in zip(row.inputs, row.shares, strict=True)
        ]
        for met in itertools.product(*choices):
            events = [event for _, event in met]
            if not any(id(event) in news for event in events) or not _lives(template, events):
                continue
            values = compiled.evaluate(row, [e.values for e in events], tuple(e.at_us for e in events))
            if values is not None:
                key = (*(number for e in events for number in e.key), ordinal)
                match = FeedEvent(view.name, key, max(e.at_us for e in events), values)
                found.append((row.notified, (max(arrival for arrival, _ in met), match)))
    return found


def _lives(template: FeedTemplate, events: list[FeedEvent]) -> bool:
    latest_us = max(event.at_us for event in events)
    if not template.is_pair:
        return True
    return all(latest_us - e.at_us <= item.lifetime_us for e, item in zip(events, template.inputs, strict=True))


def _read(files: EventFiles, job: BatchJob, name: str) -> list[Arrived]:
    arrived = [(row[0], _event_of(row)) for row in files.read(name)]
    return [(n, e) for n, e in arrived if n > job.ended.get(template_of(e.feed), 0)]


def _event_of(row: EventRow) -> FeedEvent:
    _, feed, key, at_us, _, values = row
    return FeedEvent(feed, tuple(json.loads(key)), at_us, tuple(json.loads(values)))


def _found(kind: str, device: str, match: Arrived) -> FoundRow:
    arrival, event = match
    return (kind, arrival, device, event.feed, json.dumps(list(event.key)), event.at_us, json.dumps(list(event.values)))
