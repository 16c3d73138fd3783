"""What is wrong with the rows of a demand graph, said so that the user can mend it.

Finding that something is wrong is cheap and always done; finding which row is done only then. Rows are
counted from 1, without the header of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from catchment.errors import FeedError

MAX_DEVICES = 2**31 - 1
TABLE_SPARSITY = 8  # a table of numbers may have this many entries per row


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as they were given, before they are sorted."""

    src: NDArray[Any]
    dst: NDArray[Any]
    rate: NDArray[np.float64]
    names: NDArray[Any] | None
    where: str

    def check_shapes(self, devices: int | None) -> int:
        """Return the number of devices, once the columns fit together and hold whole numbers."""
        lengths = (self.src.shape, self.dst.shape, self.rate.shape)
        if self.src.ndim != 1 or len(set(lengths)) != 1:
            raise FeedError(
                f"src, dst and rate have shapes {lengths}; expected three columns of one length",
                where=self.where,
            )
        for column, ids in (("src", self.src), ("dst", self.dst)):
            if ids.size and ids.dtype.kind not in "iu":
                raise FeedError(
                    f"column {column} holds {ids.dtype}; expected device numbers from 0",
                    where=self.where,
                    hint="use DemandGraph.from_named for devices with names",
                )
        if devices is None:
            devices = 1 + max((int(ids.max()) for ids in (self.src, self.dst) if ids.size), default=-1)
        if not 0 <= devices <= MAX_DEVICES:
            raise FeedError(f"{devices} devices; expected 0 to {MAX_DEVICES}", where=self.where)
        return devices

    def check_values(self, devices: int) -> None:
        """Refuse unknown devices, self edges and rates that are no rates."""
        for column, ids in (("src", self.src), ("dst", self.dst)):
            self._refuse(
                (ids < 0) | (ids >= devices),
                f"{column} is a device that is not known; expected a number from 0 to {devices - 1}",
                "list every device, or correct the row",
            )
        self._refuse(
            self.src == self.dst,
            "a device demands its own feed (self edge)",
            "a pair joins two different devices: drop the row",
        )
        self._refuse(
            ~((self.rate >= 0) & np.isfinite(self.rate)),
            "the rate is negative, missing or not finite; expected a number, 0 or more",
            "rates are events per second (or sizes, for offline views)",
        )

    def check_load(self, load: ArrayLike) -> NDArray[np.float64]:
        """Return the loads as numbers, one per row."""
        values = np.asarray(load, dtype=np.float64)
        if values.shape != self.rate.shape:
            raise FeedError(f"{values.shape[0]} loads for {self.rate.shape[0]} rows", where=self.where)
        self._refuse(
            ~((values >= 0) & np.isfinite(values)),
            "the load is negative, missing or not finite; expected a number, 0 or more",
            "a load is what the view costs the src device to compute",
        )
        return values

    def pairing_fault(self) -> FeedError:
        """Return the first duplicate or, if there is none, the first row without its counterpart."""
        key = self.src.astype(np.uint64) << np.uint64(32) | self.dst.astype(np.uint64)
        back = self.dst.astype(np.uint64) << np.uint64(32) | self.src.astype(np.uint64)
        _, first_seen, group = np.unique(key, return_index=True, return_inverse=True)
        repeated = np.flatnonzero(first_seen[group] != np.arange(key.shape[0]))
        if repeated.size:
            row = int(repeated[0])
            return self._fault(
                row,
                f"the same demand as row {int(first_seen[group[row]]) + 1} (duplicate edge)",
                "keep one row for each direction of a pair",
            )
        row = int(np.flatnonzero(~np.isin(back, key))[0])
        src = self._name(self.src[row])
        dst = self._name(self.dst[row])
        return self._fault(
            row,
            f"this demand has no counterpart {dst} -> {src}",
            f"a view joins both feeds: add the row {dst},{src},<rate of {dst}'s feed that {src} demands>",
        )

    def _refuse(self, bad: NDArray[np.bool_], message: str, hint: str) -> None:
        if bad.any():
            raise self._fault(int(bad.argmax()), message, hint)

    def _fault(self, row: int, message: str, hint: str) -> FeedError:
        src = self._name(self.src[row])
        dst = self._name(self.dst[row])
        at = f"{self.where}, row {row + 1}"
        return FeedError(f"{src} -> {dst} at rate {self.rate[row]:g}: {message}", where=at, hint=hint)

    def _name(self, device: Any) -> str:
        known = self.names is not None and 0 <= int(device) < self.names.shape[0]
        return str(self.names[device]) if known and self.names is not None else str(device)


def number_devices(
    src: ArrayLike, dst: ArrayLike, devices: ArrayLike | None, where: str
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int32]]:
    """Return names of the devices in ascending order, and both columns as positions in it."""
    columns = _alike({"src": _flat(src), "dst": _flat(dst)})
    for column, values in columns.items():
        if values.null_count:
            row = pc.index(values.is_null(), True).as_py()
            raise FeedError(f"{column} is missing", where=f"{where}, row {row + 1}")
    if devices is None and pa.types.is_integer(columns["src"].type):
        numbered = _number_by_table(columns["src"].to_numpy(), columns["dst"].to_numpy())
        if numbered is not None:
            return numbered
    return _number_by_hash(columns, devices, where)


def _flat(values: Any) -> pa.Array:
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _alike(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Return both columns in one type: names where one of them holds names."""
    kinds = {values.type for values in columns.values()}
    if len(kinds) == 1:
        return columns
    kind = pa.int64() if all(pa.types.is_integer(k) for k in kinds) else pa.string()
    return {column: values.cast(kind) for column, values in columns.items()}


def _number_by_table(
    src: NDArray[np.integer], dst: NDArray[np.integer]
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int32]] | None:
    """Number whole numbers of a narrow range by a table of the range; return None where the range is wide."""
    if src.shape[0] == 0:
        return None
    low = min(int(src.min()), int(dst.min()))
    high = max(int(src.max()), int(dst.max()))
    if high - low > TABLE_SPARSITY * src.shape[0]:
        return None
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    seen[src - low] = seen[dst - low] = True
    position = np.cumsum(seen, dtype=np.int32) - np.int32(1)
    return low + np.flatnonzero(seen), position[src - low], position[dst - low]


def _number_by_hash(
    columns: dict[str, pa.Array], devices: ArrayLike | None, where: str
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int32]]:
    both = pa.chunked_array(list(columns.values()))
    known = pc.unique(both if devices is None else pa.array(devices).cast(both.type))
    known = known.take(pc.sort_indices(known))
    ids = {column: pc.index_in(values, value_set=known) for column, values in columns.items()}
    for column, found in ids.items():
        if found.null_count:
            row = pc.index(found.is_null(), True).as_py()
            raise FeedError(
                f"{column} names the device {columns[column][row]}, which is not in the list of devices",
                where=f"{where}, row {row + 1}",
                hint="add the device to the list, or correct the row",
            )
    return known.to_numpy(zero_copy_only=False), ids["src"].to_numpy(), ids["dst"].to_numpy()
