"""Sources that projects bring: what the check finds, and how their records are fitted to what is declared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catchment.errors import EngineError
from catchment.records.own_source import fit_records, load_own_class
from catchment.testing import SourceError, check_source

SCHEMA = pa.schema([("n", pa.int64())])


class _Numbers:
    """Has 0 to 9, three more at every look; its variants each break one promise."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def begin(self) -> Any:
        return (0,) if self.fault == "a place that JSON changes" else 0

    def end(self, start: Any) -> Any:
        if self.fault == "a place that JSON cannot hold":
            return object()
        return start if self.fault == "no record" else min(start + 3, 10)

    def read(self, start: int, end: int) -> Iterator[pa.Table]:
        first = start - 1 if self.fault == "overlapping pieces" and start else start
        last = end + 1 if self.fault == "something between a place and itself" and end == 10 else end
        numbers = list(range(first, last))
        if self.fault == "other records every time":
            numbers[0] += id(self)
        yield pa.table({"n": numbers})


def test_a_source_that_keeps_its_promises_passes_and_its_records_are_returned() -> None:
    assert check_source(_Numbers, SCHEMA).column("n").to_pylist() == list(range(10))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("no record", "had no record"),
        ("overlapping pieces", "are not those between"),
        ("something between a place and itself", "between a place and itself"),
        ("a place that JSON changes", "comes back from JSON"),
        ("a place that JSON cannot hold", "cannot be kept as JSON"),
    ],
)
def test_a_source_that_breaks_a_promise_is_told_which(fault: str, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        check_source(lambda: _Numbers(fault), SCHEMA)


def test_a_source_that_gives_other_records_when_asked_again_is_found() -> None:
    kept = []  # so that no two sources have one identity

    def make() -> _Numbers:
        kept.append(_Numbers("other records every time"))
        return kept[-1]

    with pytest.raises(SourceError, match="when it is asked again"):
        check_source(make, SCHEMA)


def test_records_take_the_declared_columns_and_types() -> None:
    schema = pa.schema([("n", pa.int32()), ("absent", pa.string())])
    (batch,) = fit_records([pa.record_batch({"more": ["x"], "n": ["7"]})], schema)
    assert batch.to_pylist() == [{"n": 7, "absent": None}]
    with pytest.raises(EngineError, match="column 'n' as string"):
        list(fit_records([pa.table({"n": ["seven"]})], schema))


def test_a_class_that_is_not_there_is_an_error_that_says_where_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="'Absent'") as raised:
        load_own_class("absent_module:Absent", tmp_path)
    assert "absent_module.py" in (raised.value.hint or "")
