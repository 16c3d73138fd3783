"""However much one commit sends, its segments are taken at the far side and add up to the whole.

The oracle is the batch itself: rows, counts and facts are added up from the decoded segments and compared with what
was to be sent. What a receiver would believe is asked of a real frontier, after every prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.progress.events import Landed
from catchment.progress.frontier import Frontier
from catchment.quality.merge_sites import SiteEstimate
from catchment.site.outbox_writer import OutboxWriter
from catchment.timeline import START_OF_TIME_US
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.frames.segmenting import segments_of
from catchment.wire.messages import Closing, Counted, Message, Progress, Relayed, Segment, Shed, Standing, Updates
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox

SMALL = WireLimits(frame_bytes=24_000, raw_bytes=64_000, header_bytes=4_000, rows=200, messages=8, slices=20)
GB = 2**30


def _updates(fragment: str, rows: int, slices: int, text_bytes: Sequence[int] = ()) -> Updates:
    texts = ["x" * (text_bytes[i % len(text_bytes)] if text_bytes else 0) + str(i) for i in range(rows)]
    table = pa.table({"slice_us": pa.array(range(rows), pa.int64()), "k": pa.array(texts, pa.string())})
    return Updates(fragment, table, tuple((i, i + 1) for i in range(slices)))


_UPDATES = st.builds(
    _updates,
    st.sampled_from(["f", "g"]),
    st.sampled_from([0, 1, 3, 150, 700]),
    st.sampled_from([0, 1, 20, 21, 500]),
    st.sampled_from([(), (1, 1, 1, 2000), (50,)]),
)
_LACKING = st.integers(0, 70).map(lambda n: tuple((i, 1) for i in range(n)))
_CLOSINGS = st.integers(0, 60).map(
    lambda n: tuple(Closing(i, "slack", (SiteEstimate(0.5, 0.1, 3.0, 4.0),), (("phone" * 10, 0.5),)) for i in range(n))
)
_SHED = st.builds(Shed, st.just("f"), st.integers(0, 3), st.just(0.5), _LACKING)
_STANDING = st.builds(Standing, st.just("f"), st.just("view"), st.just(77), _CLOSINGS)
_COUNTED = st.integers(1, 90).map(lambda n: Relayed("a", Counted("f", tuple((i, 2) for i in range(n)))))
_FACTS = st.lists(_SHED | _STANDING | _STANDING.map(lambda s: Relayed("a", s)) | _COUNTED, max_size=12)


def _encoded(segments: Sequence[Sequence[Message]], limits: WireLimits) -> list[Segment]:
    made = [Segment("s", "life", number, tuple(messages)) for number, messages in enumerate(segments)]
    return [decode_segment(encode_segment(segment, limits).data, limits) for segment in made]


def _add_up(messages: Sequence[Message]) -> Counter[object]:
    """Everything that messages state, in amounts that add up over pieces."""
    total: Counter[object] = Counter()
    for message in messages:
        origin, fact = (message.origin, message.fact) if isinstance(message, Relayed) else ("s", message)
        match fact:
            case Updates():
                total.update((fact.fragment, *row.values()) for row in fact.table.to_pylist())
                total.update({(fact.fragment, "records", at): n for at, n in fact.records})
            case Counted():
                total.update({(origin, fact.fragment, "counted", at): n for at, n in fact.records})
            case Shed():
                total.update({(origin, fact.batch, fact.rate, at): n for at, n in fact.lacking})
            case Standing():
                total.update((origin, fact.query, closing) for closing in fact.closings)
            case Progress():
                total[(origin, fact)] += 1
    return total


@given(st.lists(_UPDATES, max_size=4), _FACTS)
def test_the_segments_of_any_batch_are_within_the_limits_and_add_up_to_it(
    updates: list[Updates], facts: list[Message]
) -> None:
    rows = sum(u.rows for u in updates if u.fragment == "f")
    facts = [*facts, Progress("f", 50, rows)]
    segments = _encoded(segments_of(updates, facts, SMALL), SMALL)

    assert _add_up([m for s in segments for m in s.messages]) == _add_up([*updates, *facts])

    frontier = Frontier()
    for segment in segments:
        assert frontier.mark("f") == START_OF_TIME_US, "the mark holds before everything is in"
        frontier.add(Landed.of(segment))  # raises where rows do not add up to what the progress states
    assert frontier.mark("f") == 50


@given(_CLOSINGS)
def test_only_the_last_piece_of_a_standing_says_that_its_windows_are_complete(closings: tuple[Closing, ...]) -> None:
    frontier = Frontier()
    for segment in _encoded(segments_of([], [Standing("f", "view", 99, closings)], SMALL), SMALL):
        assert frontier.complete_until_us("view") == START_OF_TIME_US
        frontier.add(Landed.of(segment))
    assert frontier.complete_until_us("view") == 99
    assert len(frontier.closings["view"]) == len(closings)


def test_a_batch_that_touches_more_slices_than_a_message_takes_reaches_the_far_side(tmp_path: Path) -> None:
    slices = 2 * DEFAULT_LIMITS.slices + 1
    updates = Updates(
        "f", pa.table({"slice_us": pa.array(range(slices), pa.int64())}), tuple((i, 1) for i in range(slices))
    )
    outbox = Outbox(tmp_path / "outbox", "s", "center", max_bytes=GB)
    inbox = Inbox(tmp_path / "inbox")
    facts: list[Message] = [Shed("f", 1, 0.5, updates.records), Progress("f", 9, slices)]
    count = OutboxWriter(outbox).append(0, [updates], facts)
    for number in range(count):
        data = outbox.read(number)
        assert data is not None
        assert inbox.accept(data) == number
    landed = [m for s in inbox.read_segments(0, count) for m in s.messages]
    assert sum(m.rows for m in landed if isinstance(m, Updates)) == slices
    assert [r for m in landed if isinstance(m, Updates) for r in m.records] == list(updates.records)
    assert [r for m in landed if isinstance(m, Shed) for r in m.lacking] == list(updates.records)
    assert landed[-1] == facts[-1]


def test_a_batch_within_the_limits_is_one_segment_as_it_is() -> None:
    updates = [_updates("f", 10, 20), _updates("g", 0, 3)]
    facts: list[Message] = [Shed("f", 1, 0.5, ((0, 1),)), Progress("f", 50, 10)]
    assert segments_of(updates, facts, SMALL) == [[*updates, *facts]]


def test_a_single_row_beyond_every_frame_is_refused_where_it_is_made(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, "s", "center", max_bytes=GB, limits=SMALL)
    noise = "".join(chr(33 + (i * i * 31 + i // 7) % 90) for i in range(80_000))
    row = Updates("f", pa.table({"slice_us": pa.array([0], pa.int64()), "k": [noise]}))
    with pytest.raises(WireError, match="would be refused at the far side"):
        OutboxWriter(outbox).append(0, [row], [])
