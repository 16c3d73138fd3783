"""The one bound that is published of a value: late records, sampling and sketches together.

Three things may make a published value differ from the answer over all records, and each misses its own statement with
a chance of its own:

- records that are not in yet: at most `late` is missing, except with chance `late_delta`;
- sampling: the value is within a half width w(d) of the answer over the received records, except with chance d;
- the sketch: its estimate is within s(d) of the answer over its input, except with chance d.

The published bound at delta gives `late_delta` to the late records and the rest of delta to the one of the other two
that applies (a sampled sketch has no bound). By the union bound it is missed with chance at most delta, whatever the
three have to do with each other. The errors are then composed, with v the value and T the truth:

- COUNT, SUM of values of one sign: late records only add, so |v| - w <= |T| <= |v| + w + late, and the relative error
  |v - T| / |T| is at most max(w / (|v| - w), (w + late) / (|v| + w + late)).
- a count or sum of which rows may be taken back too: |v| - late <= |T|, so at most late / (|v| - late).
- AVG: |v - T| <= w + late |T|, where `late` is relative; so at most late + w (1 + late) / (|v| - w).
- distinct count: the estimate v is within a share s of the distinct values received, and at most `late` more are to
  come: at most max(s, 1 - v / (v / (1 - s) + late)).
- quantiles, and MIN and MAX: an error of **rank**, as a share of the records. Missing records move the rank of a
  quantile p by at most their share times max(p, 1 - p), and that of an extreme by their share. A KLL sketch adds its
  own error.
- top-k: each count is off by at most a **share of the records**: of the missing ones, and of the sketch's own error.
- everything else (variances, computed columns): exact when nothing is missing, else unknown.

A bound that is not known is infinite here and null in the results; it is never stated too small. `BoundTerms` hold what
is needed to state the bound at any delta, and travel with each published row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.arrays import Floats, Mask
from catchment.quality.laws import BoundLaw, distinct_error, rank_error
from catchment.quality.sample_bounds import sample_widths


class BoundKind(StrEnum):
    """What kind of statement a published bound is."""

    EXACT = "exact"  # equal to the answer over every record received, and nobody is waited for
    PROVED = "proved"  # misses with chance at most 1 - confidence, whatever the values are
    ESTIMATED = "estimated"  # rests on measured behaviour: of sources, of moments in a sample, of a sketch
    UNKNOWN = "unknown"  # nothing can be said: the bound is null


# What errors are a share of, where that is not the value: the rank of a value, or the number of records.
_SCALES = {BoundLaw.QUANTILE: "rank", BoundLaw.EXTREME: "rank", BoundLaw.TOP: "share"}
_PROVED_SAMPLES = (BoundLaw.COUNT,)  # laws whose sampled bound needs nothing but the rates
_PROVED_SKETCHES = (BoundLaw.TOP,)  # laws whose sketch never exceeds its error

TERMS_TYPE = pa.struct(
    [
        pa.field("law", pa.string()),
        pa.field("size", pa.float64()),
        pa.field("late", pa.float64()),
        pa.field("late_delta", pa.float64()),
        pa.field("late_counted", pa.bool_()),
        pa.field("sampled", pa.list_(pa.float64())),
        pa.field("sketch", pa.float64()),
    ]
)


@dataclass(frozen=True, eq=False)
class BoundTerms:
    """What the bounds of one column are made of, row by row.

    `size` is the value of each row, which relative errors are relative to. `late` is the most that is missing: records
    or an amount, for AVG a relative error, for ranks and top-k a share; infinite where it is not known. `sampled` has a
    row of terms for each row that was sampled (see `sample_bounds.sample_widths`), NaN for the others; None where no
    row was. `sketch` is the error of each row's sketch as its library states it (see `catchment.quality.laws`): 0 for a
    row that is still exact, as a small distinct count is; None where no row has any. `is_awaited`: more may come by
    what is known of sources, so that a bound of 0 is an estimate as well.
    """

    law: BoundLaw
    size: Floats
    late: Floats
    late_delta: float = 0.0
    late_counted: bool = False
    sampled: Floats | None = None
    sketch: Floats | None = None
    is_awaited: bool | Mask = False

    @classmethod
    def whole(cls, law: BoundLaw, sketch: float, rows: int) -> BoundTerms:
        """Return the terms of rows that lack nothing: only a sketch may be off."""
        return cls(law, np.ones(rows), np.zeros(rows), sketch=np.full(rows, sketch))

    def errors(self, delta: float) -> Floats:
        """Return the bound of each row at confidence 1 - delta; infinite where it is not known."""
        rest = delta - np.where(self._is_late, self.late_delta, 0.0)
        known = (rest > 0.0) | ~(self._is_sampled | self._is_sketched)
        known &= rest > -1e-12
        errors = np.full(len(self.size), np.inf)
        for share in np.unique(rest[known]):
            rows = known & (rest == share)
            errors[rows] = self._take(rows)._compose(max(float(share), 0.0))
        return errors

    def kinds(self, errors: Floats) -> pa.Array:
        """Return what kind of statement each of these bounds is, and what its error is a share of if not the value.

        That is 'estimated', or 'estimated rank' for an error of rank, 'proved share' for a share of the records.
        """
        estimated = self._is_late & (not self.late_counted)
        if self.law not in _PROVED_SAMPLES:
            estimated = estimated | self._is_sampled
        if self.law not in _PROVED_SKETCHES:
            estimated = estimated | self._is_sketched
        scale = f" {_SCALES[self.law]}" if self.law in _SCALES else ""
        kinds = (f"{BoundKind.PROVED}{scale}", f"{BoundKind.ESTIMATED}{scale}", BoundKind.EXACT, BoundKind.UNKNOWN)
        nothing_off = np.where(self.is_awaited, 1, 2)
        chosen = np.where(errors == 0.0, nothing_off, np.asarray(estimated, dtype=np.int64))
        chosen = np.where(np.isfinite(errors), chosen, 3)
        return pa.array([str(kind) for kind in kinds], pa.string()).take(pa.array(chosen))

    @property
    def _is_late(self) -> Mask:
        return np.asarray(self.late > 0.0)

    @property
    def _is_sampled(self) -> Mask:
        if self.sampled is None:
            return np.zeros(len(self.size), dtype=bool)
        return np.asarray(~np.isnan(self.sampled).any(axis=1))

    @property
    def sketches(self) -> Floats:
        """The error of the sketch of each row."""
        return np.zeros(len(self.size)) if self.sketch is None else self.sketch

    @property
    def _is_sketched(self) -> Mask:
        return np.asarray(self.sketches > 0.0)

    def _take(self, rows: Mask) -> BoundTerms:
        sampled = None if self.sampled is None else self.sampled[rows]
        sketch = None if self.sketch is None else self.sketch[rows]
        return BoundTerms(
            self.law, self.size[rows], self.late[rows], self.late_delta, self.late_counted, sampled, sketch
        )

    def _compose(self, delta: float) -> Floats:
        """Return the errors where delta is what late records leave to sampling or to the sketch."""
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = _COMPOSE[self.law](self, delta)
        return np.where(np.isnan(errors), np.inf, errors)

    def widths(self, delta: float) -> Floats:
        """Return the half widths of what sampling does to each row."""
        if self.sampled is None:
            return np.zeros(len(self.size))
        is_finite = np.isfinite(self.sampled).all(axis=1)
        widths = np.where(self._is_sampled, np.inf, 0.0)
        if is_finite.any():
            widths[is_finite] = sample_widths(self.law, self.sampled[is_finite], delta)
        return widths

    # --- as columns of a table ----------------------------------------------------------------------------------

    def to_arrow(self) -> pa.Array:
        """Return the terms as a column of structs; null for rows that are exact."""
        n = len(self.size)
        is_exact = ~self._is_late & ~self._is_sampled & ~self._is_sketched
        if is_exact.all():
            return pa.nulls(n, TERMS_TYPE)
        columns = [
            pa.repeat(pa.scalar(str(self.law), pa.string()), n),
            pa.array(self.size),
            _finite(self.late),
            pa.array(np.full(n, self.late_delta)),
            pa.array(np.full(n, self.late_counted)),
            self._sampled_lists(),
            pa.array(self.sketches),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(TERMS_TYPE), mask=pa.array(is_exact))

    def _sampled_lists(self) -> pa.Array:
        """Return the terms of each row that was sampled as a list; null for the others."""
        if self.sampled is None:
            return pa.nulls(len(self.size), pa.list_(pa.float64()))
        is_sampled = self._is_sampled
        ends = np.cumsum(np.where(is_sampled, self.sampled.shape[1], 0))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        terms = _finite(self.sampled[is_sampled].ravel())
        return pa.ListArray.from_arrays(offsets, terms, mask=pa.array(~is_sampled))


def _finite(values: Floats) -> pa.Array:
    """Return values with null in place of infinity, which not every reader of a table can take."""
    return pa.array(values, pa.float64(), mask=~np.isfinite(values))


def _floats(values: Sequence[float | None]) -> Floats:
    """Return what `_finite` was made from."""
    return np.array([np.inf if v is None else v for v in values], dtype=np.float64)


def bound_at(terms: pa.Array, stated: pa.Array, delta: float) -> pa.Array:
    """Return the bounds of published rows at confidence 1 - delta, from their terms; null where it is not known.

    Rows without terms are exact, or have no bound at any confidence: they keep what was `stated`.
    """
    found = stated.to_pylist()
    for row, term in enumerate(terms.to_pylist()):
        if term is not None:
            (error,) = _read_terms(term).errors(delta)
            found[row] = float(error) if np.isfinite(error) else None
    return pa.array(found, pa.float64())


def _read_terms(term: Mapping[str, Any]) -> BoundTerms:
    sampled = term["sampled"]
    return BoundTerms(
        BoundLaw(term["law"]),
        _floats([term["size"]]),
        _floats([term["late"]]),
        term["late_delta"],
        term["late_counted"],
        None if sampled is None else _floats(sampled)[np.newaxis, :],
        np.array([term["sketch"]], dtype=np.float64),
    )


def _compose_total(terms: BoundTerms, delta: float) -> Floats:
    widths = terms.widths(delta)
    size = np.abs(terms.size)
    missing = widths + terms.late
    too_high = np.where(widths == 0.0, 0.0, np.where(size > widths, widths / (size - widths), np.inf))
    too_low = np.where(np.isfinite(missing), missing / (size + missing), np.inf)
    return np.maximum(too_high, np.where(missing == 0.0, 0.0, too_low))


def _compose_average(terms: BoundTerms, delta: float) -> Floats:
    widths = terms.widths(delta)
    size = np.abs(terms.size)
    relative = np.where(widths == 0.0, 0.0, np.where(size > widths, widths / (size - widths), np.inf))
    return terms.late + (1.0 + terms.late) * relative


def _compose_two_sided(terms: BoundTerms, delta: float) -> Floats:
    size = np.abs(terms.size)
    off = np.where(size > terms.late, terms.late / (size - terms.late), np.inf)
    return _unless_sampled(terms, np.where(terms.late == 0.0, 0.0, off))


def _compose_distinct(terms: BoundTerms, delta: float) -> Floats:
    error = _sketch_errors(terms, delta, distinct_error)
    largest = terms.size / (1.0 - error) + terms.late
    too_low = np.where(largest > 0.0, 1.0 - terms.size / largest, 0.0)
    is_known = np.isfinite(terms.late) & (error < 1.0)
    return _unless_sampled(terms, np.where(is_known, np.maximum(error, too_low), np.inf))


def _compose_quantile(terms: BoundTerms, delta: float) -> Floats:
    return _unless_sampled(terms, terms.late + _sketch_errors(terms, delta, rank_error))


def _compose_share(terms: BoundTerms, delta: float) -> Floats:
    return _unless_sampled(terms, terms.late + terms.sketches)


def _compose_nothing(terms: BoundTerms, delta: float) -> Floats:
    unknown = terms._is_late | terms._is_sampled | terms._is_sketched
    return np.where(unknown, np.inf, 0.0)


def _sketch_errors(terms: BoundTerms, delta: float, error_of: Callable[[float, float], float]) -> Floats:
    """Return the error of each row's sketch at confidence 1 - delta."""
    stated, rows = np.unique(terms.sketches, return_inverse=True)
    return np.array([error_of(float(error), delta) for error in stated])[rows]


def _unless_sampled(terms: BoundTerms, errors: Floats) -> Floats:
    return np.where(terms._is_sampled, np.inf, errors)


_COMPOSE: Mapping[BoundLaw, Callable[[BoundTerms, float], Floats]] = {
    BoundLaw.COUNT: _compose_total,
    BoundLaw.SUM: _compose_total,
    BoundLaw.AVG: _compose_average,
    BoundLaw.DISTINCT: _compose_distinct,
    BoundLaw.QUANTILE: _compose_quantile,
    BoundLaw.EXTREME: _compose_share,
    BoundLaw.TOP: _compose_share,
    BoundLaw.TWO_SIDED: _compose_two_sided,
    BoundLaw.UNBOUNDED: _compose_nothing,
}
