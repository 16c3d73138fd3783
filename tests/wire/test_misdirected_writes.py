"""A disk that writes one segment over another, and reports success: noticed before anything is sent or merged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from catchment.errors import WireError
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import Segment
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.segment_folder import SEGMENT_SUFFIX
from catchment.wire.sending.outbox import Outbox
from tests.worlds.wire_messages import some_messages


def frame(sequence: int, origin: str = "eu") -> bytes:
    return encode_segment(Segment(origin, "life", sequence, tuple(some_messages(sequence)))).data


def test_a_segment_that_was_written_over_while_the_process_runs_is_not_sent(tmp_path: Path) -> None:
    """A relay that sent what was in the file would send another site's partials a second time."""
    outbox = Outbox(tmp_path / "out", "hub", "center", 10**9)
    for number in range(2):
        outbox.append(number, some_messages(number))
    (segment,) = [p for p in outbox.pending() if p.sequence == 1]
    segment.path.write_bytes(frame(8))
    with pytest.raises(WireError, match="it holds segment 8 of 'eu'"):
        outbox.read(1)
    assert outbox.missing() == [1], "the journal stores it anew"


def put_over(folder: Path, source: int, destination: int) -> None:
    shutil.copyfile(*(folder / f"{number:020d}{SEGMENT_SUFFIX}" for number in (source, destination)))


def test_a_landed_segment_that_was_written_over_is_merged_neither_twice_nor_not_at_all(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for number in range(3):
        inbox.accept(frame(number))
    inbox._decoded.remove(1)  # as when there is no room for it in memory
    put_over(tmp_path, 2, 1)
    with pytest.raises(WireError, match="it holds segment 2 of 'eu', which did not come there"):
        inbox.read_segments(1, 2)
    del inbox
    with pytest.raises(WireError, match="it holds segment 2 of 'eu', which did not come there"):
        Inbox(tmp_path)
