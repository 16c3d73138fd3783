"""Records that are looked up by a value against a loop over the records."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from catchment.vectorised import row_index
from catchment.vectorised.fragments import EvaluatedRecords
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.row_index import INDEX_AFTER, ValueTest
from catchment.vectorised.translate import translate_condition
from tests.worlds.tiers import examples

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("t", pa.int8()), ("x", pa.float64()), ("row", pa.int64())])


def draw_records(chance: random.Random) -> RecordColumns:
    rows = chance.randrange(1, 200)
    spread = chance.choice([3, 40, 10**12])

    def column(values: list[object]) -> list[object]:
        return [None if chance.random() < 0.1 else chance.choice(values) for _ in range(rows)]

    table = pa.table(
        {
            "k": column([*range(-5, 5), spread]),
            "p": column(["", "a", "b", "ä", "a\0"]),
            "t": column([-128, 0, 1, 127]),
            "x": column([0.0, -1.5, float("nan")]),
            "row": list(range(rows)),
        },
        SCHEMA,
    )
    return RecordColumns.of(table, SCHEMA)


@pytest.mark.parametrize("seed", range(examples(20)))
def test_what_is_looked_up_is_what_a_loop_finds_in_the_same_order(seed: int) -> None:
    chance = random.Random(seed)
    records = draw_records(chance)
    evaluated = EvaluatedRecords(records)
    rows = pa.table(dict(records.columns)).to_pylist()
    for number in range(3 * INDEX_AFTER):
        value = chance.choice([*range(-7, 7), 10**12])
        text = chance.choice(["", "a", "ä", "none"])
        has_value = {r["row"] for r in rows if r["k"] == value}
        has_text = {r["row"] for r in rows if r["p"] == text}
        is_negative = {r["row"] for r in rows if r["x"] is not None and r["x"] < 0}
        expected = {
            f"k = {value}": has_value,
            f"p = '{text}'": has_text,
            f"k = {value} AND x < 0": has_value & is_negative,
            f"k = {value} AND p = '{text}'": has_value & has_text,
        }
        for sql, found in expected.items():
            condition = translate_condition(sql, "s", SCHEMA)
            assert ValueTest.of(condition) is not None
            chosen = evaluated.where(condition).records
            assert chosen.columns["row"].to_pylist() == sorted(found), (number, sql)
    assert any(index is not None for index in evaluated._indexes.values())


def test_what_may_fail_is_still_evaluated_where_the_column_is_null() -> None:
    """Spark divides for a record whose column is null, and fails; so the condition is not left out for it."""
    assert ValueTest.of(translate_condition("k = 1 AND 10 / t > 1", "s", SCHEMA)) is None
    assert ValueTest.of(translate_condition("k = 1 OR x < 0", "s", SCHEMA)) is None
    assert ValueTest.of(translate_condition("x = 0.5D", "s", SCHEMA)) is None


def test_a_column_with_many_values_is_compared_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "MAX_VALUES", 10)
    records = RecordColumns({"k": pa.array(range(50)), "row": pa.array(range(50))}, 50)
    evaluated = EvaluatedRecords(records)
    for value in range(2 * INDEX_AFTER):
        condition = translate_condition(f"k = {value}", "s", SCHEMA)
        assert evaluated.where(condition).records.columns["row"].to_pylist() == [value]
    assert set(evaluated._indexes.values()) == {None}
