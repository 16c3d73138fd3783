"""Names for the numpy arrays that functions take and return, one per type of element."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]  # counts, instants in microseconds, codes
Ids = NDArray[np.int32]  # dense numbers of things, where four bytes are enough
Index = NDArray[np.intp]  # positions in another array
Mask = NDArray[np.bool_]
Words = NDArray[np.uint64]  # bits, such as hashes
