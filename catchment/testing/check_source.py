"""A check of a source that somebody has written: does it give every record once, wherever it is interrupted?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import pyarrow as pa

from catchment.records.own_source import Place, RecordSource, fit_records

MAX_LOOKS = 1_000


class SourceError(AssertionError):
    """A source loses records, gives some twice, or gives others when it is asked again."""


def check_source(make_source: Callable[[], RecordSource], schema: pa.Schema, *, looks: int = 5) -> pa.Table:
    """Read what a source has now, in pieces and as a whole, from sources that `make_source` makes; return it.

    `schema` is that of the declared columns. Between looks the source may get more records; `looks` of them are made,
    or as many as it takes to find some.
    """
    places = _find_places(make_source(), looks)
    if len(places) < 2:
        raise SourceError(f"the source had no record at {places[0]!r}; give it some before the check")
    whole = _read(make_source(), places[0], places[-1], schema)
    again = _read(make_source(), places[0], places[-1], schema)
    if not whole.equals(again):
        raise SourceError(f"read({places[0]!r}, {places[-1]!r}) gives other records when it is asked again")
    source = make_source()
    pieces = [_read(source, start, end, schema) for start, end in pairwise(places)]
    if not whole.equals(pa.concat_tables(pieces).combine_chunks()):
        raise SourceError(f"the records between {places} are not those between the first and the last of them")
    end = places[-1]
    if _read(make_source(), end, end, schema).num_rows:
        raise SourceError(f"read({end!r}, {end!r}) gives records, and there is nothing between a place and itself")
    return whole


def _find_places(source: RecordSource, looks: int) -> Sequence[Place]:
    places = [_keep(source.begin())]
    for look in range(MAX_LOOKS):
        if look >= looks and len(places) > 1:
            break
        place = _keep(source.end(places[-1]))
        if place != places[-1]:
            places.append(place)
    return places


def _keep(place: Place) -> Place:
    """Return a place as it comes back from a checkpoint."""
    try:
        kept = json.loads(json.dumps(place))
    except (TypeError, ValueError) as error:
        raise SourceError(f"the place {place!r} cannot be kept as JSON: {error}") from error
    if kept != place:
        raise SourceError(f"the place {place!r} comes back from JSON as {kept!r}")
    return kept


def _read(source: RecordSource, start: Place, end: Place, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(fit_records(source.read(start, end), schema), schema).combine_chunks()
