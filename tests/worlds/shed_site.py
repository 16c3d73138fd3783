"""A site that sheds without Spark: it samples batches by hash, and repairs them from its raw records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from catchment.aggregates import partials
from catchment.query.fragment import SLICE_COLUMN
from catchment.shedding.debts import BatchRepaired, BatchShed, FragmentSample
from catchment.shedding.places import SamplingRule
from catchment.shedding.sampler import Sampler
from catchment.shedding.terms import negate_terms
from catchment.site.events import Absorbed, LowMarkRaised
from tests.worlds.shed_partials import partials_of
from tests.worlds.world import Record, Site

RULE = SamplingRule("s", ("batch", "row"))


class SheddingSite(Site):
    """A site that may take a sample of a batch, and gives the rest when it is asked to."""

    def open(self) -> None:
        super().open()
        self.raw: dict[int, list[Record]] = getattr(self, "raw", {})  # history: it survives

    def kept(self, number: int, rate: float) -> np.ndarray:
        rows = np.arange(len(self.raw[number]))
        return RULE.keep([pa.array(np.full(len(rows), number)), pa.array(rows)], rate)

    def take(self, records: list[Record], mark: int, rate: float, repair: bool = True) -> None:
        self.raw[self.batches] = records
        keep = self.kept(self.batches, rate)
        sample = [r for r, passed in zip(records, keep, strict=True) if passed]
        table, counts = partials_of(self.fragment, sample, rate)
        events: list[object] = [Absorbed("q", table, tuple(counts.items()))]
        if rate < 1.0:
            touched = {self.fragment.slicing.start_of(ts) for ts, _, _ in records}
            lacking = tuple((s, round(counts[s] * (1 / rate - 1))) for s in sorted(touched))
            taken = FragmentSample("q", Sampler(rate), lacking, repair)
            events.append(BatchShed("s", self.batches, (taken,)))
        self.host.submit("s", [*events, LowMarkRaised("s", mark)], batch=self.batches)
        self.batches += 1
        self.core.validate()

    def repair(self) -> bool:
        owed = self.core.debts.of("s")
        if not owed:
            return False
        batch = owed[0].batch
        ((_, sampler),) = owed[0].samplers
        rate = sampler.rate
        keep = self.kept(batch, rate)
        sample = [r for r, passed in zip(self.raw[batch], keep, strict=True) if passed]
        rest = [r for r, passed in zip(self.raw[batch], keep, strict=True) if not passed]
        added, counts = partials_of(self.fragment, rest, 1.0)
        back = negate_terms(partials_of(self.fragment, sample, rate)[0], self.fragment.aggregates)
        both = partials.combine(pa.concat_tables([added, back]), [SLICE_COLUMN, "k"], self.fragment.aggregates)
        events = [Absorbed("q", both, tuple(counts.items())), BatchRepaired("s", batch, ("q",))]
        self.host.submit("repair", events)
        self.core.validate()
        return True
