"""Which event times of a site are merged: it may have joined later than its records, or have retired before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow.compute as pc

from catchment.progress.events import LeftOut
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US
from catchment.wire.messages import Message, Segment, Updates

Span = tuple[int, int]  # the slices in [from, until) count
ALL_OF_TIME: Span = (START_OF_TIME_US, END_OF_TIME_US)

FindSpan = Callable[[str, str], Span]  # of a fragment and a site


def count_all(fragment: str, site: str) -> Span:
    """Return that every slice of a site counts."""
    return ALL_OF_TIME


def restrict(segment: Segment, find_span: FindSpan) -> tuple[Segment, list[LeftOut]]:
    """Return a segment without the partials of slices for which its sender does not count, and how many those were."""
    left_out: list[LeftOut] = []
    messages: list[Message] = []
    for message in segment.messages:
        span = find_span(message.fragment, segment.origin) if isinstance(message, Updates) else ALL_OF_TIME
        if span == ALL_OF_TIME or not isinstance(message, Updates):
            messages.append(message)
            continue
        inside = _restrict_updates(message, span)
        messages.append(inside)
        records = sum(n for _, n in message.records) - sum(n for _, n in inside.records)
        if records:
            left_out.append(LeftOut(message.fragment, segment.origin, records))
    return replace(segment, messages=tuple(messages)), left_out


def _restrict_updates(updates: Updates, span: Span) -> Updates:
    low_us, high_us = span
    slices = updates.table[SLICE_COLUMN]
    inside = pc.and_(pc.greater_equal(slices, low_us), pc.less(slices, high_us))
    records = tuple((slice_us, count) for slice_us, count in updates.records if low_us <= slice_us < high_us)
    return replace(updates, table=updates.table.filter(inside), records=records)
