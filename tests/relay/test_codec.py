"""Facts that a relay passes on, on the wire: what was sent, or refused."""

from __future__ import annotations

import pytest

from catchment.errors import WireError
from catchment.quality.merge_sites import SiteEstimate
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.frames.segmenting import FACTS_PER_SEGMENT, segments_of
from catchment.wire.messages import (
    Closing,
    Counted,
    Deferred,
    Delivered,
    Fact,
    LookedUp,
    Progress,
    Relayed,
    Repaired,
    Resumed,
    Segment,
    Shed,
    Skipped,
    Standing,
    Suspended,
)
from tests.worlds.wire_support import forged

FACTS: list[Fact] = [
    Progress("q", 5, 7),
    Shed("q", 3, 0.25, ((0, 4), (10, 1))),
    Repaired("q", 3, True),
    Standing("q", "view", 40, (Closing(40, "slack", (SiteEstimate(0.9, 0.1, 5.0, 7.0),), (("phone", 0.5),)),)),
    Counted("q", ((0, 4), (10, 1))),
    Suspended("q", 3, 40, "not a number", "CAST(t AS INT)", "x"),
    Skipped("q", 3, ((40, 2),)),
    Resumed("q"),
    Deferred("q", "hub", 256_002, 0.25, ("page", "user"), ((0, 4), (10, 0)), True),
    Delivered("q", "hub", 256_002),
    LookedUp("q", "tiers", "3f2a", (0, 10)),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_relayed_fact_is_read_as_it_was_written(fact: Fact) -> None:
    segment = Segment("hub", "life", 3, (Relayed("a", fact), Relayed("b", fact)))
    encoded = encode_segment(segment)
    assert decode_segment(encoded.data) == segment
    assert encoded.head.fragment_bytes() == {"q": len(encoded.data)}


@pytest.mark.parametrize(
    "entry",
    [
        ["f", "a", ["p", "", 1, 1]],
        ["f", "a", ["f", "b", ["p", "q", 1, 1]]],
        ["f", "a", ["u", "q", 0, 0, 0, [], []]],
        ["f", "a", ["c", "q", []]],
        ["f", "a", ["c", "q", [[1]]]],
        ["f", "a", ["p", "q", 1, -1]],
        ["f", "a", "p"],
        ["f", "", ["p", "q", 1, 1]],
        ["f", 5, ["p", "q", 1, 1]],
        ["f", "a", ["p", "q", 1, 1], 0],
        ["c", "q", [[1, 1]]],
        ["f", "a", ["d", "q", "hub", 1, 1.0, ["page"], [[0, 4]], True]],
        ["f", "a", ["d", "q", "hub", 1, 0.5, [], [[0, 4]], True]],
        ["f", "a", ["d", "q", "hub", 1, 0.5, ["page"], [[0, -4]], True]],
        ["f", "a", ["e", "q", "", 1]],
        ["e", "q", "hub", 1],
        ["v", "q", "tiers", "", [0]],
        ["v", "q", "tiers", "3f2a", []],
    ],
)
def test_a_forged_fact_is_refused(entry: object) -> None:
    with pytest.raises(WireError):
        decode_segment(forged(["hub", "life", 0, [entry]]))


def test_more_facts_than_a_segment_takes_go_in_several_after_all_updates() -> None:
    facts = [Relayed("a", Progress("q", n, 0)) for n in range(2 * FACTS_PER_SEGMENT + 1)]
    segments = segments_of([], facts)
    assert [len(s) for s in segments] == [FACTS_PER_SEGMENT, FACTS_PER_SEGMENT, 1]
    assert [m for segment in segments for m in segment] == facts
    assert segments_of([], []) == [[]]
