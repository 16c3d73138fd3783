"""What each of several sites must keep of a contract, so that the answer joined from them keeps the whole of it.

Laws, for windows whose parts come from S sites:

- **Error.** Counts, ranks, and sums of one sign: if every part is off by less than eps, so is the whole, which is off
  by a weighted mean of the parts. An average is not: two sites whose averages differ and that lack different shares of
  their records are each right and together wrong. But where every site lacks less than eps' of its records and of their
  sum, the whole average is off by less than eps' / (1 - eps') (values of one sign): so with eps' = eps / (1 + eps) and
  both watched, averages are kept too.
- **Confidence.** A window is off only if one of its parts is. If each site is off in at most delta / S of the windows,
  the whole is in at most delta, however the misses of the sites fall together.
"""

from __future__ import annotations

from collections.abc import Sequence

from catchment.quality.contract_measures import Measured
from catchment.quality.coverage import Contract, Measure

COUNT = Measure("count")


def at_each_site(contract: Contract, watched: Sequence[Measured], sites: int) -> tuple[Contract, tuple[Measured, ...]]:
    """The contract of one of so many sites, and what it watches: what is published first, what only helps after it."""
    if sites <= 1:
        return contract, tuple(watched)
    averages = [m for m in watched if m.measure.name == "avg"]
    error = contract.max_error / (1.0 + contract.max_error) if averages else contract.max_error
    return Contract(error, 1.0 - contract.delta / sites), (*watched, *_helping(averages, watched))


def _helping(averages: Sequence[Measured], watched: Sequence[Measured]) -> list[Measured]:
    """The sums and the count behind averages, where no published column stands for them."""
    known = {(m.measure, m.value) for m in watched}
    wanted = [(Measure("sum"), m.value) for m in averages] + [(COUNT, None)] * bool(averages)
    return [Measured(measure, value, (), False) for measure, value in wanted if (measure, value) not in known]
