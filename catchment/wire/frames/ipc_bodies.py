"""A look into the messages of an Arrow IPC stream, before anything of it is built: are its bodies plain?

The bodies of Arrow messages may themselves be compressed, so that a few kilobytes unfold to gigabytes whatever the size
of the stream. A frame is compressed once, as a whole, with a declared and bounded size; inside it plain bodies are
enough, and nothing else is taken. Arrow says of a message whether its body is compressed only in its FlatBuffers
metadata, which is read here as far as needed: https://arrow.apache.org/docs/format/Columnar.html, Message.fbs.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from catchment.errors import WireError

# Fields of FlatBuffers tables, by their place in the schema.
_MESSAGE_HEADER = 2
_RECORD_BATCH_COMPRESSION = 3
_DICTIONARY_BATCH_DATA = 1


def refuse_compressed_bodies(stream: pa.Buffer) -> None:
    """Raise a WireError if any message of an IPC stream has a compressed body."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    for message in _messages(reader):
        if message.type in ("record batch", "dictionary"):
            _refuse_compressed_body(message)


def _messages(reader: pa.ipc.MessageReader) -> list[pa.ipc.Message]:
    found = []
    while True:
        try:
            found.append(reader.read_next_message())
        except StopIteration:
            return found


def _refuse_compressed_body(message: pa.ipc.Message) -> None:
    metadata = bytes(message.metadata)
    try:
        batch = _subtable(metadata, _root(metadata), _MESSAGE_HEADER)
        if message.type == "dictionary":
            batch = _subtable(metadata, batch, _DICTIONARY_BATCH_DATA)
        is_compressed = _field(metadata, batch, _RECORD_BATCH_COMPRESSION) is not None
    except struct.error as error:
        raise WireError("the metadata of an Arrow message is cut short") from error
    if is_compressed:
        raise WireError("an Arrow message inside the frame is compressed; only whole frames are")


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return where a field of a table is; None where the table does not have it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise struct.error("a table without a vtable")
    size = struct.unpack_from("<H", data, vtable)[0]
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + place)[0] if place + 2 <= size else 0
    return table + offset if offset else None


def _subtable(data: bytes, table: int, number: int) -> int:
    place = _field(data, table, number)
    if place is None:
        raise WireError("an Arrow message has no content")
    return place + int(struct.unpack_from("<I", data, place)[0])
