"""What each part of a micro-batch of one stream costs per row, whole or sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from catchment.shedding.row_cost import PRIOR_ROW_S, CostModel, RowCost

# The parts of a micro-batch beside the work of each fragment, which has the name of the fragment.
HISTORY = "history"  # to read, parse and write all records to history
PREPARE = "prepare"  # to read and parse the records of a sample
FILTER = "filter"  # to examine every arriving record in the tasks that read

PRIOR_FILTER = (4e6, 0.2)  # prior of the filter: rows, and the seconds to examine them
FREE_WORK_SHARE = 0.05  # work below this share of a row's preparation is counted with it: sampling saves nothing


class CostBook:
    """The costs of one stream at one site, by fragment.

    `deferrable`: records can be read again, so that while the stream sheds, only a sample is read and history waits.
    """

    def __init__(self, fragments: Sequence[str], deferrable: bool) -> None:
        self.fragments = tuple(fragments)
        self.deferrable = deferrable
        self.whole = {part: CostModel() for part in (HISTORY, *fragments)}
        self.sampled = {part: CostModel() for part in (PREPARE, *fragments)}
        self.filtering = RowCost(*PRIOR_FILTER)

    def adopt(self, known: CostBook) -> None:
        """Take over what another book of the same stream has learned of the parts that are here too."""
        for mine, theirs in ((self.whole, known.whole), (self.sampled, known.sampled)):
            mine.update({part: model for part, model in theirs.items() if part in mine})
        self.filtering = known.filtering

    def learn_whole(self, rows: int, seconds: Mapping[str, float]) -> None:
        """Learn from the seconds of each part of a batch that was taken whole."""
        for part, took_s in seconds.items():
            self.whole[part].learn(rows, took_s)

    def learn_sampled(
        self, rows: int, rates: Mapping[str, float], seconds: Mapping[str, float], rows_read: int | None
    ) -> None:
        """Learn from the seconds of each part of a batch that was sampled."""
        if seconds.get(FILTER):  # a batch that is wanted whole is not filtered
            self.filtering.learn(rows, seconds[FILTER])
        highest = max(rates.values(), default=1.0)
        for part, took_s in seconds.items():
            if part == FILTER:
                continue
            if part == PREPARE and rows_read is not None:
                self.sampled[part].learn(rows_read, took_s)
            else:
                self.sampled[part].learn(rows * rates.get(part, highest), took_s)

    @property
    def history_row_s(self) -> float:
        """Return the seconds to read, parse and write a row to history."""
        return self.whole[HISTORY].estimate(PRIOR_ROW_S, 1.0)

    @property
    def whole_row_s(self) -> float:
        """Return the seconds per row of a batch that is taken whole."""
        return self.history_row_s + math.fsum(self.whole[name].seconds_per_row for name in self.fragments)

    @property
    def unavoidable_row_s(self) -> float:
        """Return the seconds per arriving row that no sampler saves."""
        return self.filtering.seconds_per_row if self.deferrable else self.history_row_s

    @property
    def prepare_row_s(self) -> float:
        """Return the seconds to prepare a row of a sample; 0 where all rows are in history anyway."""
        return self.sampled[PREPARE].estimate(self.history_row_s) if self.deferrable else 0.0

    def work_row_s(self, fragment: str) -> float:
        """Return the seconds per row that a fragment takes of a sampled batch; whole batches are its prior."""
        return self.sampled[fragment].estimate(self.whole[fragment].seconds_per_row)

    @property
    def all_work_row_s(self) -> float:
        """Return the seconds of a row that is prepared and that every fragment takes."""
        return self.prepare_row_s + math.fsum(self.work_row_s(name) for name in self.fragments)

    def is_free(self, fragment: str) -> bool:
        """Return whether the work of a fragment is negligible beside the preparation."""
        return self.deferrable and self.work_row_s(fragment) <= FREE_WORK_SHARE * self.prepare_row_s
