"""Whether what a segment holds can be merged: slices, counts, instants and states that mean something.

What could not be merged must be found before it reaches a core: an inbox asks before it acknowledges
(`catchment.progress.admission`), and a consumer asks again of segments that were not asked about when they landed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials
from catchment.arrays import Ints
from catchment.errors import WireError
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.timeline import EARLIEST_DATE_US, END_OF_TIME_US, LATEST_DATE_US, START_OF_TIME_US
from catchment.wire.messages import (
    Backfilled,
    Backfilling,
    Counted,
    Deferred,
    Fact,
    LookedUp,
    Progress,
    QueryMark,
    Records,
    Relayed,
    Segment,
    Shed,
    Skipped,
    Standing,
    Updates,
)


def check_soundness(segment: Segment, fragments: Mapping[str, Fragment]) -> None:
    """Refuse a segment that holds something that could not be merged; fragments that are not known are passed over."""
    for message in segment.messages:
        fragment = fragments.get(message.fragment)
        if fragment is None or isinstance(message, Records):
            continue
        if isinstance(message, Updates):
            _check_updates(segment.origin, message, fragment)
        else:
            _check_fact(segment.origin, message.fact if isinstance(message, Relayed) else message, fragment)


def _check_updates(sender: str, updates: Updates, fragment: Fragment) -> None:
    if updates.table.schema.remove_metadata() != fragment.schema.remove_metadata():
        raise WireError(
            f"{sender!r} sends fragment {fragment.name!r} with columns {updates.table.schema.to_string()!r}, "
            f"expected are {fragment.schema.to_string()!r}",
            hint="the view differs between the site and the center",
        )
    _check_slices(sender, _slices(sender, updates.table, fragment), fragment)
    _check_counts(sender, updates.records, fragment)
    if updates.rows:
        _check_states(sender, updates.table, fragment)


def _slices(sender: str, table: pa.Table, fragment: Fragment) -> Ints:
    column = table[SLICE_COLUMN]
    if column.null_count:
        raise WireError(f"{sender!r} sends partials of {fragment.name!r} without a slice")
    return np.asarray(np.unique(column.to_numpy()), dtype=np.int64)


def _check_slices(sender: str, starts: Ints, fragment: Fragment) -> None:
    far = starts[(starts < EARLIEST_DATE_US) | (starts > LATEST_DATE_US)]
    if far.size:
        raise WireError(
            f"{sender!r} sends fragment {fragment.name!r} with the slice {far[0]}, which is no date of a calendar"
        )
    crooked = starts[fragment.slicing.starts_of(starts) != starts]
    if crooked.size:
        raise WireError(
            f"{sender!r} sends fragment {fragment.name!r} with a slice that starts at {crooked[0]}; its windows have "
            f"no slice that starts there",
            hint="the windows of the view differ between the site and the center",
        )


def _check_counts(sender: str, records: tuple[tuple[int, int], ...], fragment: Fragment) -> None:
    negative = [slice_us for slice_us, count in records if count < 0]
    if negative:
        raise WireError(
            f"{sender!r} counts a negative number of records of {fragment.name!r} in the slice {negative[0]}"
        )
    _check_slices(sender, np.array([slice_us for slice_us, _ in records], dtype=np.int64), fragment)


def _check_states(sender: str, table: pa.Table, fragment: Fragment) -> None:
    """Refuse states that have no value: what can be lowered can be merged and published."""
    try:
        partials.lower(table, fragment.key_names, fragment.aggregates)
    except Exception as error:
        raise WireError(
            f"{sender!r} sends partials of {fragment.name!r} that cannot be read: {error}",
            hint="run the same version of catchment at both ends",
        ) from error


def _check_fact(sender: str, fact: Fact, fragment: Fragment) -> None:
    match fact:
        case Progress(low_mark_us=mark_us) | QueryMark(low_mark_us=mark_us):
            _check_instant(sender, mark_us, fragment)
        case Counted(records=records) | Shed(lacking=records) | Skipped(lacking=records):
            _check_counts(sender, records, fragment)
        case LookedUp(slices=slices):
            _check_slices(sender, np.array(slices, dtype=np.int64), fragment)
        case Deferred(keys=keys, lacking=records):
            _check_counts(sender, records, fragment)
            if not set(keys) <= set(fragment.key_names):
                raise WireError(
                    f"{sender!r} defers partials of {fragment.name!r} by {keys}; its keys are {fragment.key_names}",
                    hint="the view differs between the relay and the center",
                )
        case Backfilling(from_us=low_us, until_us=high_us):
            _check_span(sender, (low_us, high_us), fragment)
        case Backfilled(lost=lost):
            for span in lost:
                _check_span(sender, span, fragment)
        case Standing():
            for instant_us in (fact.complete_until_us, *(closing.end_us for closing in fact.closings)):
                _check_instant(sender, instant_us, fragment)


def _check_span(sender: str, span: tuple[int, int], fragment: Fragment) -> None:
    for instant_us in span:
        _check_instant(sender, instant_us, fragment)


def _check_instant(sender: str, instant_us: int, fragment: Fragment) -> None:
    if not START_OF_TIME_US <= instant_us <= END_OF_TIME_US:
        raise WireError(
            f"{sender!r} states something of {fragment.name!r} up to {instant_us}, before the start of time or after "
            f"its end"
        )
