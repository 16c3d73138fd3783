"""Spark's `xxhash64` of one 64 bit word, vectorised: the hash of a double's or a decimal's bits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def hash_words(words: NDArray[np.int64]) -> pa.Array:
    """XXH64, with Spark's seed, of each 8 byte word."""
    bits = words.view(np.uint64)
    with np.errstate(over="ignore"):
        state = (np.uint64(_SEED) + _P5 + np.uint64(8)) ^ (_rotate(bits * _P2, 31) * _P1)
        state = _rotate(state, 27) * _P1 + _P4
        state = (state ^ (state >> np.uint64(33))) * _P2
        state = (state ^ (state >> np.uint64(29))) * _P3
    return pa.array((state ^ (state >> np.uint64(32))).view(np.int64))


def _rotate(words: NDArray[np.uint64], by: int) -> NDArray[np.uint64]:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))
