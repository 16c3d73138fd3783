"""Partials that a receiver does not merge now, because more lands than it can merge: which, and where they wait.

What waits are the partials of whole groups: those whose keys have a place (a hash) beyond a share of all places. So the
groups below the share are complete, and shares nest as the rates of samplers do. Everything else of the segments,
marks and counts and facts, is taken as usual, so that windows close in time; the core knows by `PartialsDeferred` what
they lack until `DeferredMerged`.

    deferred/00000000000000256002-FRAGMENT   the third part of what the entry with the number 256 left out of a fragment

Exactly once: a file is durable before the entry that defers its partials, and is removed after the entry that merges
them; one that the core does not know (a crash came between) is removed when the receiver starts. Bounds: `MAX_BYTES`
and `MAX_FILES`; there nothing more is deferred, so that segments wait in the inbox, and then in the outboxes of their
senders.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials
from catchment.aggregates.hashing import can_hash
from catchment.arrays import Mask
from catchment.errors import StorageError
from catchment.progress.events import PartialsDeferred
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.places import SamplingRule
from catchment.storage import codec
from catchment.storage.codec import stored
from catchment.storage.files import make_folder, remove_file, remove_remnants, write_durably

FOLDER = "deferred"
MAX_BYTES = 2**30
MAX_FILES = 10_000
MAX_PARTS = 1000  # into which what one entry defers of a fragment is divided
_RULE = "groups"  # salts the places of groups

RecordCounts = tuple[tuple[str, int, int], ...]  # (site, slice, raw records)
DeferralKey = tuple[str, int]  # a fragment, and the number of a part of its partials


@stored()
@dataclass(frozen=True)
class DeferredPartials:
    """What waits of one fragment: partials, the raw records behind them, and whose segments they came in."""

    fragment: str
    partials: pa.Table = field(repr=False)
    records: RecordCounts
    senders: tuple[tuple[str, int], ...]


def is_complete(keys: Sequence[pa.Array], share: float) -> Mask:
    """Return which groups are merged at a share; `keys` are the columns that groups are deferred by."""
    rule = SamplingRule(_RULE, tuple(f"key{i}" for i in range(len(keys))))
    return rule.keep(keys, share)


def can_defer_by(types: Iterable[pa.DataType]) -> bool:
    """Return whether groups of these keys have places."""
    return all(can_hash(type_) for type_ in types)


@dataclass(frozen=True)
class SplitPartials:
    """Partials of one fragment, divided into those that are merged and those that wait."""

    merged: pa.Table
    merged_records: RecordCounts
    deferred: pa.Table
    deferred_records: RecordCounts


def split(table: pa.Table, records: RecordCounts, keys: Sequence[str], share: float) -> SplitPartials:
    """Divide partials by their groups, and the raw records of each slice by how many of its rows are in either part.

    What counts of records in no row of theirs is merged.
    """
    is_merged = is_complete([partials.one_array(table[key]) for key in keys], share)
    merged = table.filter(pa.array(is_merged))
    deferred = table.filter(pa.array(~is_merged))
    rows = _rows_per_slice(table)
    waiting = _rows_per_slice(deferred)
    now: list[tuple[str, int, int]] = []
    later: list[tuple[str, int, int]] = []
    for site, slice_us, count in records:
        waits = count * waiting.get(slice_us, 0) // rows.get(slice_us, 1)
        now.append((site, slice_us, count - waits))
        later.append((site, slice_us, waits))
    return SplitPartials(merged, _without_zeros(now), deferred, _without_zeros(later))


def _rows_per_slice(table: pa.Table) -> dict[int, int]:
    starts, counts = np.unique(np.asarray(table[SLICE_COLUMN], dtype=np.int64), return_counts=True)
    return dict(zip(starts.tolist(), counts.tolist(), strict=True))


def _without_zeros(records: Iterable[tuple[str, int, int]]) -> RecordCounts:
    return tuple(record for record in records if record[2])


def divide(
    fragment: str, found: SplitPartials, senders: tuple[tuple[str, int], ...], part_rows: int
) -> Iterator[DeferredPartials]:
    """Yield what is to wait in parts of about so many rows, which can be merged one after another."""
    table = found.deferred
    total = _rows_per_slice(table)
    before = dict.fromkeys(total, 0)
    step = max(part_rows, -(-table.num_rows // MAX_PARTS), 1)
    for start in range(0, table.num_rows, step):
        part = table.slice(start, step)
        after = {slice_us: before[slice_us] + rows for slice_us, rows in _rows_per_slice(part).items()}
        records = (
            (site, slice_us, count * after[slice_us] // total[slice_us] - count * before[slice_us] // total[slice_us])
            for site, slice_us, count in found.deferred_records
            if slice_us in after
        )
        yield DeferredPartials(fragment, part, _without_zeros(records), senders)
        before |= after


def describe(
    fragment: Fragment, number: int, share: float, keys: Sequence[str], part: DeferredPartials
) -> PartialsDeferred:
    """Return what the core hears of deferred partials; records are counted by the fragment itself, if it does."""
    counter = next((a for a in fragment.aggregates if a.function == "count" and a.argument is None), None)
    lacking = dict.fromkeys(_rows_per_slice(part.partials), 0)
    if counter is None:
        for _, slice_us, count in part.records:
            lacking[slice_us] += count
    else:
        totals = part.partials.group_by(SLICE_COLUMN).aggregate([(counter.states[0].name, "sum")])
        counts = totals[f"{counter.states[0].name}_sum"].to_pylist()
        lacking |= dict(zip(totals[SLICE_COLUMN].to_pylist(), map(int, counts), strict=True))
    return PartialsDeferred(
        fragment.name, number, share, tuple(keys), tuple(sorted(lacking.items())), counter is not None
    )


class DeferredFolder:
    """The files of the partials that wait at one receiver."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._sizes: dict[DeferralKey, int] = {}

    @property
    def size_bytes(self) -> int:
        return sum(list(self._sizes.values()))  # a status asks from another thread

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= self.max_bytes or len(self._sizes) >= MAX_FILES

    @property
    def keys(self) -> list[DeferralKey]:
        """What waits, oldest first."""
        return sorted(self._sizes, key=lambda key: (key[1], key[0]))

    def recover(self, known: Collection[DeferralKey]) -> None:
        """Count in what the core knows; remove everything else, which was merged or never committed."""
        if not self.folder.is_dir():
            return
        remove_remnants(self.folder)
        for path in self.folder.iterdir():
            number, _, fragment = path.name.partition("-")
            key = fragment, int(number)
            if key in known:
                self._sizes[key] = path.stat().st_size
            else:
                remove_file(path)

    def write(self, number: int, part: DeferredPartials) -> None:
        """Store partials durably; a file that a crash has left under the same name is replaced."""
        data = codec.encode(part)
        make_folder(self.folder)
        key = part.fragment, number
        write_durably(self._file(key), b"%08x" % zlib.crc32(data) + data)
        self._sizes[key] = len(data)

    def read(self, key: DeferralKey) -> DeferredPartials:
        """Read what waits of a fragment under a number."""
        path = self._file(key)
        hint = (
            "restore the file from a copy of the folder: what it holds was acknowledged, and its site has forgotten it"
        )
        try:
            stored_bytes = path.read_bytes()
        except FileNotFoundError as error:
            raise StorageError("deferred partials are missing", where=str(path), hint=hint) from error
        data = stored_bytes[8:]
        if stored_bytes[:8] != b"%08x" % zlib.crc32(data):
            raise StorageError("deferred partials are damaged", where=str(path), hint=hint)
        part = codec.decode(data)
        assert isinstance(part, DeferredPartials)
        return part

    def remove(self, key: DeferralKey) -> None:
        """Remove partials that were merged; after a power cut the file may be back."""
        self._sizes.pop(key, None)
        remove_file(self._file(key))

    def _file(self, key: DeferralKey) -> Path:
        fragment, number = key
        return self.folder / f"{number:020d}-{fragment}"
