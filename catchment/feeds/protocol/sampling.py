"""Nested sampling of a feed: every event has a rank in [0, 1), and a share keeps the events below it.

Law: for shares p <= q the events kept at p are a subset of those kept at q, so a lower rate is sampled from
a higher one that was already sent (the sampling filters of Chandramouli et al., VLDB'13, section 3.5.2).
The rank of the n-th event of a feed is the n-th number of van der Corput's sequence, moved along by a hash
of the feed: any run of m events keeps p * m of them, up to a few, and feeds do not all begin alike. The rank
of a match, which has no number of its own, is a hash of the keys that met.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5

# The same for a match's key in Spark SQL, given the text "[1,2,3]" of the key.
MATCH_RANK_SQL = "conv(substr(md5(substr({0}, 2, length({0}) - 2)), 1, 8), 16, 10) / 4294967296D"

Key = tuple[int, ...]  # the number of an event in its feed; of a match, the numbers of both events

_BITS = 32
_SCALE = float(1 << _BITS)
_REVERSED = tuple(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def rank_of(feed: str, key: Key) -> float:
    """Return where the event stands in [0, 1): a share p keeps it when its rank is below p."""
    if len(key) > 1:
        return _hash(",".join(map(str, key))) / _SCALE
    return ((_reverse_bits(key[0]) + _offset(feed)) & 0xFFFFFFFF) / _SCALE


@lru_cache(maxsize=100_000)
def _offset(feed: str) -> int:
    return _hash(feed)


def _reverse_bits(number: int) -> int:
    low, second, third, high = (number & 0xFFFFFFFF).to_bytes(4, "little")
    return _REVERSED[low] << 24 | _REVERSED[second] << 16 | _REVERSED[third] << 8 | _REVERSED[high]


def _hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
