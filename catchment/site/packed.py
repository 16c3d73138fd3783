"""Columns of numbers as text, for snapshots: exact, and a fraction of what lists of digits take."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any
from zlib import compress, decompress

import numpy as np
import numpy.typing as npt


def pack_floats(values: npt.NDArray[np.float64]) -> str:
    return _packed(values.astype("<f8"))


def unpack_floats(text: str) -> npt.NDArray[np.float64]:
    return np.frombuffer(decompress(b64decode(text)), dtype="<f8").astype(np.float64)


def pack_small(values: npt.NDArray[np.int64]) -> str:
    """Whole numbers below 65,536."""
    return _packed(values.astype("<u2"))


def unpack_small(text: str) -> npt.NDArray[np.int64]:
    return np.frombuffer(decompress(b64decode(text)), dtype="<u2").astype(np.int64)


def _packed(values: npt.NDArray[Any]) -> str:
    return b64encode(compress(values.tobytes(), 1)).decode()
