"""Mutations of an input: what a broken disk, a bad network or a hostile hand does to bytes, drawn by Hypothesis.

A mutation is plain data, so that a failing input shrinks to the few changes that matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

EXTREMES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff" * 4, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x7f" + b"\xff" * 7)


@dataclass(frozen=True)
class Mutation:
    """One change at a place, which is a share of the input's length, so that it fits every input."""

    kind: str
    place: float
    length: int
    content: bytes

    def apply(self, data: bytes) -> bytes:
        at = min(int(self.place * (len(data) + 1)), len(data))
        end = min(at + self.length, len(data))
        match self.kind:
            case "cut off":
                return data[:at]
            case "delete":
                return data[:at] + data[end:]
            case "repeat":
                return data[:end] + data[at:end] * 3 + data[end:]
            case "insert":
                return data[:at] + self.content + data[at:]
            case "flip":
                return data[:at] + bytes(b ^ (1 << (self.length % 8)) for b in data[at : at + 1]) + data[at + 1 :]
        return data[:at] + self.content + data[at + len(self.content) :]


KINDS = ("cut off", "delete", "repeat", "insert", "flip", "overwrite")


def mutations(words: Sequence[bytes]) -> st.SearchStrategy[list[Mutation]]:
    """Some mutations; what is inserted is often a word that means something in the format."""
    content = st.one_of(st.sampled_from([*EXTREMES, *words]), st.binary(max_size=12))
    one = st.builds(Mutation, st.sampled_from(KINDS), st.floats(0, 1), st.integers(0, 64), content)
    return st.lists(one, min_size=1, max_size=6)
