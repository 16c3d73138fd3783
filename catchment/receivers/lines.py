"""Messages as lines of text: one line per record, whatever the message looks like."""

from __future__ import annotations

import json
from collections.abc import Mapping

_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def one_line(payload: bytes) -> bytes:
    """Return a message as one line. In JSON, breaks stand only between values: a space means the same."""
    return payload.translate(_BREAKS) + b"\n"


def with_fields(payload: bytes, fields: Mapping[str, str]) -> bytes:
    """Return a JSON object with some more fields, after its own, so that they count where it has them too.

    What is not an object is returned as it is: whoever parses it finds what is wrong.
    """
    text = payload.strip()
    if not fields or not (text.startswith(b"{") and text.endswith(b"}")):
        return payload
    inner = text[1:-1].strip()
    added = json.dumps(dict(fields), ensure_ascii=False).encode()[1:-1]
    return b"{" + inner + (b", " if inner else b"") + added + b"}"


def complete_lines(body: bytes) -> tuple[bytes, int]:
    """Return the lines of a text that are not blank, each with its end, and how many they are."""
    lines = [line for line in body.replace(b"\r\n", b"\n").split(b"\n") if line.strip()]
    return b"".join(line + b"\n" for line in lines), len(lines)
