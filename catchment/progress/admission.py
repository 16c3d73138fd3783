"""What a center or a relay takes: updates of the fragments it knows, with their columns, over times that can be; and
facts of sites that the sender may speak for."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc

from catchment.errors import WireError
from catchment.project.routes import Routes
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US
from catchment.wire.messages import Relayed, Segment, Updates


def check_segment(segment: Segment, fragments: Mapping[str, Fragment], routes: Routes | None = None) -> None:
    """Refuse a segment that could not be merged: nothing of it is stored, and its site hears why. Without routes nobody
    speaks for another."""
    for message in segment.messages:
        if message.fragment not in fragments:
            raise WireError(
                f"{segment.origin!r} sends fragment {message.fragment!r}; known here are {sorted(fragments)}",
                hint="run the site and the center from the same queries",
            )
        if isinstance(message, Relayed) and not (routes and routes.may_speak_for(segment.origin, message.origin)):
            raise WireError(
                f"{segment.origin!r} states facts of {message.origin!r}, whose way to the center is not over it",
                hint="run every site from the same links",
            )
        if isinstance(message, Updates):
            _check_updates(segment.origin, message, fragments[message.fragment])


def _check_updates(origin: str, updates: Updates, fragment: Fragment) -> None:
    if updates.table.schema.remove_metadata() != fragment.schema.remove_metadata():
        raise WireError(
            f"{origin!r} sends fragment {fragment.name!r} with columns {updates.table.schema.to_string()!r}, "
            f"expected are {fragment.schema.to_string()!r}",
            hint="the view differs between the site and the center",
        )
    span = pc.min_max(updates.table[SLICE_COLUMN])
    low, high = span["min"].as_py(), span["max"].as_py()
    if updates.rows and (low is None or low <= START_OF_TIME_US or high >= END_OF_TIME_US):
        raise WireError(f"{origin!r} sends fragment {fragment.name!r} with slices outside of time")
