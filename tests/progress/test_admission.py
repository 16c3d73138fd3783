"""What an inbox takes: only what its sender may send, and nothing that could not be merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from catchment.aggregates import make_aggregate
from catchment.errors import WireError
from catchment.progress.admission import Admission
from catchment.project.routes import Routes
from catchment.project.routings import Routings
from catchment.timeline import END_OF_TIME_US, WindowSpec
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import (
    Closing,
    Counted,
    Message,
    Progress,
    Relayed,
    Repaired,
    Resumed,
    Segment,
    Shed,
    Skipped,
    Standing,
    Suspended,
    Updates,
)
from catchment.wire.receiving.inbox import Inbox
from tests.worlds.world import make_fragment

FRAGMENT = make_fragment(WindowSpec.tumbling(10))
# a and b send through the hub; c and d directly. The stream is born at a and c alone.
ROUTES = Routes("center", {"a": "hub", "b": "hub", "hub": "center", "c": "center", "d": "center"})
ADMISSION = Admission({"q": FRAGMENT}, Routings.only(ROUTES), {FRAGMENT.stream: ("a", "c")})


def partials(*slices: int, records: tuple[tuple[int, int], ...] = ()) -> Updates:
    columns = {f.name: pa.nulls(len(slices), f.type) for f in FRAGMENT.schema}
    columns["slice_us"] = pa.array(slices, pa.int64())
    return Updates("q", pa.table(columns, schema=FRAGMENT.schema), records)


OWN_FACTS: list[Message] = [
    partials(0),
    Progress("q", 5, 0),
    Shed("q", 1, 0.5, ((0, 3),)),
    Repaired("q", 1),
    Standing("q", "view", 10),
    Suspended("q", 1, 0, "not a number"),
    Skipped("q", 1, ((0, 3),)),
    Resumed("q"),
]


def refuse(origin: str, *messages: Message) -> str:
    with pytest.raises(WireError) as error:
        ADMISSION.check(Segment(origin, "life", 0, messages))
    return str(error.value)


@pytest.mark.parametrize("message", OWN_FACTS, ids=lambda m: type(m).__name__)
def test_a_site_sends_what_is_born_there_and_nobody_else_does(message: Message) -> None:
    for origin in ("a", "c"):
        ADMISSION.check(Segment(origin, "life", 0, (message,)))
    for origin in ("b", "d"):
        assert "born" in refuse(origin, message)
    assert "is not a site of this project" in refuse("mallory", message)


def test_a_relay_sends_for_the_sites_behind_it_alone() -> None:
    ADMISSION.check(Segment("hub", "life", 0, (partials(0), Relayed("a", Progress("q", 5, 0)))))
    assert "whose route to the center is not through it" in refuse("hub", Relayed("c", Progress("q", 5, 0)))
    assert "whose route to the center is not through it" in refuse("d", Relayed("a", Progress("q", 5, 0)))
    assert "is not born" in refuse("hub", Relayed("b", Progress("q", 5, 0)))
    assert "is not born" in refuse("hub", Progress("q", 5, 0))


def test_counts_of_records_are_not_negative() -> None:
    assert "a negative number of records" in refuse("a", partials(0, records=((0, -1),)))
    assert "a negative number of records" in refuse("hub", Relayed("a", Counted("q", ((0, -1),))))


def test_slices_are_dates_of_a_calendar_at_the_boundaries_of_the_windows() -> None:
    ADMISSION.check(Segment("a", "life", 0, (partials(-20, 0, 10, records=((10, 3),)),)))
    for far in (2**61, -(2**61), 2**63 - 1):
        assert "no date of a calendar" in refuse("a", partials(0, far))
        assert "no date of a calendar" in refuse("a", partials(0, records=((far, 1),)))
        assert "no date of a calendar" in refuse("a", Shed("q", 1, 0.5, ((far, 1),)))
    assert "no slice that starts there" in refuse("a", partials(0, 3))
    assert "no slice that starts there" in refuse("a", partials(0, records=((3, 1),)))
    nowhere = partials(0, 0)
    column = pa.array([0, None], pa.int64())
    without = replace(nowhere, table=nowhere.table.set_column(0, FRAGMENT.schema.field(0), column))
    assert "without a slice" in refuse("a", without)


def test_instants_are_within_time() -> None:
    ADMISSION.check(Segment("a", "life", 0, (Progress("q", END_OF_TIME_US, 0),)))
    for instant in (END_OF_TIME_US + 1, -(2**63)):
        assert "the start of time" in refuse("a", Progress("q", instant, 0))
        assert "the start of time" in refuse("hub", Relayed("a", Standing("q", "view", instant)))
        assert "the start of time" in refuse("a", Standing("q", "view", 0, (Closing(instant, "slack", ()),)))


@pytest.mark.parametrize(
    ("function", "parameters"), [("approx_count_distinct", ()), ("percentile_approx", (0.5,)), ("approx_top_k", ("3",))]
)
def test_states_that_are_no_sketches_are_refused_before_they_are_acknowledged(
    function: str, parameters: tuple[object, ...]
) -> None:
    aggregate = make_aggregate(function, "v", pa.int64(), parameters, name="x")
    fragment = replace(FRAGMENT, aggregates=(aggregate,))
    admission = Admission({"q": fragment}, Routings.only(ROUTES), {FRAGMENT.stream: ("a", "c")})
    (whole,) = aggregate.lift(pa.array([1, 2, 2], pa.int64()), np.array([0, 0, 1]), 2)

    def check(*states: bytes | None) -> None:
        columns = [
            pa.array([0] * len(states), pa.int64()),
            pa.array(["k"] * len(states)),
            pa.array(states, pa.binary()),
        ]
        updates = Updates("q", pa.table(columns, schema=fragment.schema))
        admission.check(Segment("a", "life", 0, (updates,)))

    check(*whole.to_pylist(), None)
    for damaged in (b"", b"x", b"\xff" * 64, whole[0].as_py()[:-3], bytes(len(whole[0].as_py()))):
        with pytest.raises(WireError, match="cannot be read"):
            check(whole[0].as_py(), damaged)


def test_what_is_refused_is_counted_not_stored_and_harms_nobody_else(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, admit=ADMISSION.check)
    with pytest.raises(WireError, match="neither born"):
        inbox.accept(encode_segment(Segment("d", "life", 0, (partials(0),))).data)
    with pytest.raises(WireError, match="is not a site of this project"):
        inbox.accept(encode_segment(Segment("mallory", "life", 0, (Progress("q", 5, 0),))).data)
    assert sum(inbox.refused.values()) == 2
    assert inbox.accept(encode_segment(Segment("c", "life", 0, (partials(0),))).data) == 0


def test_a_site_with_other_queries_than_the_center_is_refused_and_hears_why(tmp_path: Path) -> None:
    mine, theirs = make_fragment(WindowSpec.tumbling(10)), make_fragment(WindowSpec.tumbling(10))
    other = replace(theirs, aggregates=theirs.aggregates[:1])
    star = Routings.only(Routes("center", {"a": "center"}))
    inbox = Inbox(tmp_path, admit=Admission({"q": mine}, star, {mine.stream: ("a",)}).check)
    good = Segment("a", "e", 0, (Updates("q", mine.schema.empty_table()),))
    assert inbox.accept(encode_segment(good).data) == 0
    for message, why in (
        (Updates("q", other.schema.empty_table()), "differs between the site and the center"),
        (Progress("r", 5, 0), "same queries"),
    ):
        with pytest.raises(WireError, match=why):
            inbox.accept(encode_segment(Segment("a", "e", 1, (message,))).data)
    assert inbox.refused == {"unfit": 2}
