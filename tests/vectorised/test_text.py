"""Lines of text as columns: every line is a record, or is handed back; wherever files are cut, and whatever is odd.

That a line which is read here is read in the same way by Spark is shown in tests/spark/test_vectorised.py. Catches: a
line that is lost, doubled or given to another row's values. Cannot catch: what Spark makes of a line.
"""

from __future__ import annotations

import bz2
import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.files.watch import FilePiece
from catchment.site.known_files import FileStat
from catchment.vectorised import lines as lines_module
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.csv_lines import CsvLineParser
from catchment.vectorised.json_lines import JsonLineParser
from catchment.vectorised.lines import LineBlock, read_blocks, split_text
from catchment.vectorised.parts import FilePart
from catchment.vectorised.scan import ScanPlan, scan
from tests.worlds.text_lines import COLUMNS, csv_lines, json_lines

JSON = JsonLineParser(COLUMNS, "ts")
CSV = CsvLineParser(COLUMNS, "ts", tuple(COLUMNS.names), ",", has_header=True)
SMALL = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def piece(path: Path, start: int = 0, end: int | None = None) -> FilePiece:
    size = path.stat().st_size if end is None else end
    return FilePiece(path.name, str(path), start, size, FileStat(size, 0, 0))


def block_of(*lines: str) -> LineBlock:
    return LineBlock.of("\n".join(lines).encode())


@given(
    texts=st.lists(st.text("ab\r\n{} ü", max_size=12), max_size=30),
    tasks=st.integers(1, 5),
    block_bytes=st.integers(1, 40),
)
def test_however_a_file_is_cut_each_line_is_in_one_part(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], tasks: int, block_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "lines"
    path.write_bytes("\n".join(texts).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "BLOCK_BYTES", block_bytes)
        found = [
            block.text(row)
            for share in split_text([piece(path)], tasks, 0)
            for part in share
            for block in read_blocks(part)
            for row in range(block.rows)
        ]
    expected = path.read_bytes().decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert [line for line in found if line] == [line for line in expected if line]


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_compressed_files_are_read_whole(tmp_path: Path, suffix: str) -> None:
    opened = gzip.open if suffix == ".gz" else bz2.open
    path = tmp_path / f"a.json{suffix}"
    with opened(path, "wt") as file:
        file.write("one\ntwo\n")
    with opened(path, "at") as file:  # a second member
        file.write("three")
    ((part,),) = split_text([piece(path)], 4, 0)
    assert [block.text(row) for block in read_blocks(part) for row in range(block.rows)] == ["one", "two", "three"]


def test_files_that_only_spark_can_read_are_left_to_it(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b"one\n" * 100)[:-12])
    with pytest.raises(NotVectorisedError, match="cut off"):
        list(read_blocks(FilePart(str(cut), 0)))
    with pytest.raises(NotVectorisedError, match="compressed"):
        list(read_blocks(FilePart(str(tmp_path / "a.json.zst"), 0)))
    with pytest.raises(NotVectorisedError, match="not UTF-8"):
        LineBlock.of(b'{"a": "\xff"}\n')


@pytest.mark.parametrize("seed", range(5))
def test_every_line_of_json_is_a_record_or_handed_back(seed: int) -> None:
    lines = json_lines(seed, 500)
    parsed = JSON.parse(block_of(*lines), is_first=True)
    left = Counter(line for line in lines if line.strip(" ")) - Counter(parsed.doubtful)
    read = [json.loads(line) for line in lines if left[line] > 0]
    assert len(parsed.doubtful) < len(lines) * 0.7
    assert parsed.records.rows == sum(left.values())
    assert parsed.records.columns["name"].to_pylist() == [record.get("name") for record in read]
    assert parsed.records.columns["whole"].to_pylist() == [record.get("whole") for record in read]


@pytest.mark.parametrize("seed", range(5))
def test_every_line_of_csv_is_a_record_or_handed_back(seed: int) -> None:
    header = ",".join(COLUMNS.names)
    lines = csv_lines(seed, 500)
    parsed = CSV.parse(block_of(header, *lines), is_first=True)
    left = Counter(line for line in lines if line.strip(" ")) - Counter(parsed.doubtful)
    read = [line.split(",") for line in lines if left[line] > 0]
    assert len(parsed.doubtful) < len(lines) * 0.7
    assert parsed.records.rows == sum(left.values())
    assert parsed.records.columns["name"].to_pylist() == [fields[1] or None for fields in read]
    assert parsed.records.columns["whole"].to_pylist() == [int(f[2]) if f[2] else None for f in read]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_lines_of_csv_with_too_few_or_too_many_fields_are_handed_back(delimiters: list[int]) -> None:
    parser = CsvLineParser(SMALL, "ts", ("ts", "n", "rest"), ",", has_header=False)
    lines = [f"2024-05-06T07:08:09Z,{n}".ljust(22 + count, ",") for n, count in enumerate(delimiters)]
    parsed = parser.parse(block_of(*lines), is_first=True)
    assert parsed.doubtful == [line for line in lines if line.count(",") != 2]
    assert parsed.records.columns["n"].to_pylist() == [n for n, line in enumerate(lines) if line.count(",") == 2]


def test_objects_that_do_not_keep_to_lines_are_handed_back() -> None:
    plain = '{"ts": "2024-05-06T07:08:09Z", "n": 1}'
    json_small = JsonLineParser(SMALL, "ts")
    two = plain + plain
    parsed = json_small.parse(block_of(two, plain, '{"ts": "2024-05-06T07:08:09Z", "n":', "2}"), is_first=True)
    assert parsed.records.rows == 1
    assert sorted(parsed.doubtful) == sorted([two, '{"ts": "2024-05-06T07:08:09Z", "n":', "2}"])


def test_a_header_is_passed_over_once_and_handed_back_elsewhere() -> None:
    header = ",".join(COLUMNS.names)
    line = "2024-05-06T07:08:09Z,a,1,1,1.5,true,2024-05-06"
    assert CSV.parse(block_of(header, line), is_first=True).doubtful == []
    assert CSV.parse(block_of(header, line), is_first=False).doubtful == [header]
    assert CSV.parse(block_of(header.upper(), line), is_first=True).doubtful == [header.upper()]


def test_files_without_a_record_have_none(tmp_path: Path) -> None:
    header = ",".join(COLUMNS.names)
    for number, text in enumerate((f"{header}\n", "\n\n", "   \n")):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        ((part,),) = split_text([piece(path)], 1, 0)
        found = scan(ScanPlan(COLUMNS, "ts", 60_000_000, lines=CSV), [part], None, None)
        assert (found.rows, found.bad, found.doubtful) == (0, 0, ())


def test_lines_that_are_kept_stay_as_they_are() -> None:
    lines = ["", "a", "bb", "", "ü", "ccc", "d"]
    for chosen in range(2 ** len(lines)):
        mask = np.array([bool(chosen >> row & 1) for row in range(len(lines))])
        kept = block_of(*lines, "").keep(np.append(mask, False)[: len(lines)])
        assert [kept.text(row) for row in range(kept.rows)] == [t for t, m in zip(lines, mask, strict=True) if m]


def test_many_lines_that_are_no_plain_records_are_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('2024-05-06T07:08:09Z,"a",1,1,1.5,true,2024-05-06\n' * 60_000)
    plan = ScanPlan(COLUMNS, "ts", 60_000_000, lines=CSV)
    ((part,),) = split_text([piece(path)], 1, 0)
    with pytest.raises(NotVectorisedError, match="quotes"):
        scan(plan, [part], None, None)


def test_pieces_of_growing_files_are_read_from_where_they_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    line = "2024-05-06T07:08:09Z,{}\n"
    lines = ["ts,n\n", *(line.format(n) for n in range(10))]
    path.write_text("".join(lines))
    csv = CsvLineParser(SMALL, "ts", ("ts", "n"), ",", has_header=True)
    start = len("".join(lines[:4]))
    end = len("".join(lines[:8]))
    plan = ScanPlan(SMALL, "ts", 60_000_000, lines=csv)
    ((first,),) = split_text([piece(path, 0, start)], 1, 0)
    ((second,),) = split_text([piece(path, start, end)], 1, 0)
    assert scan(plan, [first], None, None).rows == 3
    assert scan(plan, [second], None, None).rows == 4


def test_history_has_every_record_with_a_number_of_its_own(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "a.json"
    path.write_text("".join(f'{{"ts": "2024-05-06T07:08:09Z", "n": {n}}}\n' for n in range(1000)))
    plan = ScanPlan(SMALL, "ts", 60_000_000, lines=JsonLineParser(SMALL, "ts"))
    shares = split_text([piece(path)], 3, 0)
    for number, parts in enumerate(shares):
        scan(plan, parts, None, tmp_path / f"{number}.parquet")
    written = pa.concat_tables([pq.read_table(tmp_path / f"{n}.parquet") for n in range(len(shares))])
    assert sorted(written["n"].to_pylist()) == list(range(1000))
    assert len(np.unique(np.asarray(written["_row"]))) == 1000
