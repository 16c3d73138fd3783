"""How often a segment is encoded, checked and read on its way from a site's commit to the center's consumer."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catchment.wire.frames import codec
from catchment.wire.receiving import inbox
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending.link_meter import WireSizes
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from tests.worlds.wire_messages import some_messages

SEGMENTS = 10
PATIENCE_S = 60.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()

    def count(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            counted[name] += 1
            return function(*arguments)

        return call

    monkeypatch.setattr(codec, "pack_table", count("tables encoded", codec.pack_table))
    monkeypatch.setattr(codec, "_read_updates", count("tables read", codec._read_updates))
    monkeypatch.setattr(codec, "read_header", count("headers read", codec.read_header))
    monkeypatch.setattr(codec, "zlib", SimpleNamespace(crc32=count("checksums", zlib.crc32)))
    return counted


def test_a_segment_is_encoded_once_and_its_header_is_read_once_on_each_side(
    tmp_path: Path, calls: Counter[str]
) -> None:
    """Before the header was carried along, it was 2 encodings, 4 headers read and 6 checksums per segment."""
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    received = Inbox(tmp_path / "in")
    sizes = WireSizes()
    for number in range(SEGMENTS):
        messages = some_messages(number)
        sizes.note(messages, outbox.append(number, messages))
    sender = Sender(outbox, lambda: LocalUplink(received))
    sender.start()
    assert sender.wait_until_empty(PATIENCE_S)
    sender.stop()
    assert sorted(s.sequence for s in received.read_segments(0, SEGMENTS)) == list(range(SEGMENTS))
    assert calls == {
        "tables encoded": SEGMENTS,
        "headers read": 2 * SEGMENTS,  # where it is made, as a check, and where it arrives
        "checksums": 3 * SEGMENTS,  # written, checked before it is sent, and where it arrives
        "tables read": SEGMENTS,
    }


def test_a_consumer_that_is_far_behind_reads_from_disk_what_is_not_kept_in_memory(
    tmp_path: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = some_messages(0)
    table_bytes = messages[0].table.nbytes  # type: ignore[union-attr]
    monkeypatch.setattr(inbox, "DECODED_BYTES", 3 * table_bytes)
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    received = Inbox(tmp_path / "in")
    for number in range(SEGMENTS):
        outbox.append(number, some_messages(number))
        received.accept(outbox.read(number) or b"")
    calls.clear()
    assert [s.sequence for s in received.read_segments(0, SEGMENTS)] == list(range(SEGMENTS))
    assert calls["headers read"] == SEGMENTS - 3
    received.discard(2)
    for number in range(SEGMENTS, SEGMENTS + 4):
        outbox.append(number, some_messages(number))
        received.accept(outbox.read(number) or b"")
    calls.clear()
    assert [s.sequence for s in received.read_segments(SEGMENTS, SEGMENTS + 4)] == list(range(SEGMENTS, SEGMENTS + 4))
    assert calls["headers read"] == 2
