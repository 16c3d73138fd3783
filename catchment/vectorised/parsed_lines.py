"""What was parsed of lines of text: records, and lines that are left to Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from catchment.vectorised.lines import LineBlock
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.text_values import ReadValues


@dataclass(frozen=True)
class ParsedLines:
    """The records of some lines, and the lines of which only Spark can say whether they are records."""

    records: RecordColumns
    doubtful: list[str]

    @classmethod
    def of(
        cls, read: Mapping[str, ReadValues], block: LineBlock, event_time: str | None, doubtful: list[str]
    ) -> ParsedLines:
        """Return the rows that were read of some lines, but for those with a doubtful value or no event time."""
        records = RecordColumns({name: column.values for name, column in read.items()}, block.rows)
        odd = np.logical_or.reduce([column.doubtful for column in read.values()])
        if event_time is not None:
            odd |= ~np.asarray(read[event_time].values.is_valid())
        if not odd.any():
            return cls(records, doubtful)
        lines = [block.text(row) for row in np.flatnonzero(odd).tolist()]
        return cls(records.filter(pa.array(~odd)), doubtful + lines)
