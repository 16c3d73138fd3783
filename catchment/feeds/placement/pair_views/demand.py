"""The demand graph: which device's feed each device wants, and at which rate.

A demand pair {i, j} is one view that joins i's feed at rate r_ij with j's feed at rate r_ji. The graph
holds one row each way, sorted by (src, dst), as compressed rows: the rows of device i are `start[i]:start[i
+ 1]`.

Invariant: every row has exactly one counterpart, `peer_rate[e]` is its rate, no row joins a device with
itself, rates are finite and not negative. The constructor `from_edges` refuses anything else and names the
row. Rates may be data sizes: for views maintained offline the same optimum holds (Chandramouli et al.,
VLDB'13, sections 3.3 and 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import ArrayLike, NDArray

from catchment.arrays import Floats, Ids
from catchment.feeds.placement.pair_views import demand_faults as faults


@dataclass(frozen=True, eq=False)
class DemandGraph:
    """Demand pairs with a rate each way, as compressed rows; build it with `from_edges` or `from_named`."""

    devices: int
    start: NDArray[np.int64]
    dst: Ids
    rate: Floats
    peer_rate: Floats
    load: Floats | None = None  # what the view of this row costs its src device to compute; None: 1 each
    names: NDArray[Any] | None = None

    @cached_property
    def src(self) -> Ids:
        """The device whose feed the row is about."""
        return np.repeat(np.arange(self.devices, dtype=np.int32), np.diff(self.start))

    def src_of(self, rows: NDArray[np.int64]) -> Ids:
        """Return the src of some rows, ascending; cheaper than `src` where they are few."""
        counts = np.diff(np.searchsorted(rows, self.start))
        return np.repeat(np.arange(self.devices, dtype=np.int32), counts)

    @cached_property
    def counterpart(self) -> NDArray[np.int64]:
        """The row of the same pair the other way."""
        shape = (self.devices, self.devices)
        by_src = sparse.csr_array((np.arange(self.edges), self.dst, self.start), shape=shape)
        return np.asarray(by_src.tocsc().data, dtype=np.int64)

    @property
    def edges(self) -> int:
        """Rows, one each way: twice the number of pairs."""
        return int(self.dst.shape[0])

    @property
    def pairs(self) -> int:
        """Views: unordered pairs of devices."""
        return self.edges // 2

    def name(self, device: int) -> str:
        """Return the name that the user gave a device."""
        return str(device if self.names is None else self.names[device])

    @classmethod
    def from_edges(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        rate: ArrayLike,
        *,
        devices: int | None = None,
        load: ArrayLike | None = None,
        names: NDArray[Any] | None = None,
        where: str = "demand graph",
    ) -> DemandGraph:
        """Build a graph of rows (src, dst, rate of src's feed that dst demands) with devices numbered from 0."""
        rows = faults.Rows(np.asarray(src), np.asarray(dst), np.asarray(rate, dtype=np.float64), names, where)
        count = rows.check_shapes(devices)
        rows.check_values(count)
        return _build(rows, count, None if load is None else rows.check_load(load))

    @classmethod
    def from_named(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        rate: ArrayLike,
        *,
        devices: ArrayLike | None = None,
        load: ArrayLike | None = None,
        where: str = "demand graph",
    ) -> DemandGraph:
        """Build a graph of rows whose devices have names; `devices`, when given, lists all that exist."""
        names, src_ids, dst_ids = faults.number_devices(src, dst, devices, where)
        return cls.from_edges(src_ids, dst_ids, rate, devices=names.shape[0], load=load, names=names, where=where)


def _build(rows: faults.Rows, devices: int, load: Floats | None) -> DemandGraph:
    forth = _sorted_by_src(rows, rows.rate, devices)
    back = forth.tocsc()  # the same rows by dst: in a graph of pairs its pattern is that of `forth`
    paired = np.array_equal(forth.indices, back.indices) and np.array_equal(forth.indptr, back.indptr)
    if not paired or _has_duplicates(forth):
        raise rows.pairing_fault()
    return DemandGraph(
        devices=devices,
        start=forth.indptr.astype(np.int64),
        dst=forth.indices.astype(np.int32, copy=False),
        rate=forth.data,
        peer_rate=back.data,
        load=None if load is None else _sorted_by_src(rows, load, devices).data,
        names=rows.names,
    )


def _sorted_by_src(rows: faults.Rows, data: Floats, devices: int) -> sparse.csr_array:
    """Return rows sorted by (src, dst) in linear time: two counting sorts, by dst and then, stably, by src."""
    ids = (rows.src.astype(np.int32, copy=False), rows.dst.astype(np.int32, copy=False))
    loose = sparse.coo_array((data, ids), shape=(devices, devices))
    loose.has_canonical_format = True  # keeps scipy from adding up duplicates, which are an error here
    return loose.tocsc().tocsr()


def _has_duplicates(forth: sparse.csr_array) -> bool:
    same = forth.indices[1:] == forth.indices[:-1]
    first_of_row = forth.indptr[1:-1]
    same[first_of_row[(first_of_row > 0) & (first_of_row <= same.shape[0])] - 1] = False
    return bool(same.any())
