"""A feed project: a folder with the program, its settings, its reference tables and recorded streams.

    feeds.sql        CREATE STREAM, CREATE TABLE and CREATE FEED VIEW statements
    feeds.toml       optional: what a message costs each way, and a world that makes the records
    functions.py     optional: FUNCTIONS, a tuple of black-box functions that views may call
    <table>.csv      a header with the declared columns, one row a reference row
    <stream>.csv     the same with a column at_s before them: when, in seconds from the start of the recording

Cells are read by the declared types; an empty cell is NULL. A wrong cell is named with its file and line. A recording
is repeated when a run is longer than it, with a pause of its mean interval.
"""

from __future__ import annotations

import csv
import importlib.util
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from catchment.errors import FeedError
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.language.evaluate import CompiledProgram
from catchment.feeds.language.functions import BUILT_IN, Functions, with_functions
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData, Row
from catchment.feeds.language.statements import Declared
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.placement.costs import LinkCosts

PROGRAM_FILE = "feeds.sql"
FUNCTIONS_FILE = "functions.py"
MAX_ROWS = 5_000_000  # of one file: it is held in memory

_PARSE: dict[str, Callable[[str], Any]] = {
    "BIGINT": int,
    "INT": int,
    "DOUBLE": float,
    "STRING": str,
    "BOOLEAN": lambda text: {"true": True, "false": False}[text.lower()],
}


class World(Protocol):
    """Where the records of devices come from, and the reference data that says who meets whom."""

    source: str
    program: FeedProgram
    costs: LinkCosts
    rates: dict[str, float]  # events per second of each known device

    @property
    def feed_rates(self) -> dict[str, float]: ...

    def read_reference(self) -> ReferenceData: ...

    def records(self, from_us: int = 0, devices: Collection[str] | None = None) -> Iterator[DeviceRecord]: ...

    def change_rates(self) -> None: ...


@dataclass
class Recording:
    """A project whose streams are recorded in files."""

    source: str
    folder: Path
    program: FeedProgram
    recorded: list[DeviceRecord] = field(repr=False)
    rates: dict[str, float] = field(repr=False)
    feed_rates: dict[str, float] = field(repr=False)
    costs: LinkCosts = field(default_factory=LinkCosts)

    def read_reference(self) -> ReferenceData:
        """The reference tables as they stand in the folder now."""
        devices = tuple(_typed_device(self.program, d) for d in self.rates)
        return ReferenceData(read_tables(self.folder, self.program), devices)

    def records(self, from_us: int = 0, devices: Collection[str] | None = None) -> Iterator[DeviceRecord]:
        """What (some) devices recorded, moved to begin at an instant, and again when it has ended."""
        kept = [r for r in self.recorded if devices is None or r.device in devices]
        while kept:
            for r in kept:
                yield DeviceRecord(from_us + r.at_us, r.device, r.stream, r.row)
            from_us += self.recorded[-1].at_us + max(1, self.recorded[-1].at_us // len(self.recorded))

    def change_rates(self) -> None:
        raise FeedError("a recording has the rates that it has", hint="rates change in mid-run in a made world only")


def open_recording(folder: Path, costs: LinkCosts | None = None, functions: Functions = BUILT_IN) -> Recording:
    """Read a folder whose streams are recorded."""
    program = read_program_file(folder, functions)
    recorded = sorted(_recorded(folder, program), key=lambda r: r.at_us)
    if not recorded:
        raise FeedError("no stream of the project has a record", where=str(folder))
    return Recording(str(folder), folder, program, recorded, *_rates(program, recorded), costs or LinkCosts())


def read_program_file(folder: Path, functions: Functions = BUILT_IN) -> FeedProgram:
    """The program of a project; a mistake in it is named with its file."""
    path = folder / PROGRAM_FILE
    if not path.is_file():
        raise FeedError(
            f"there is no {PROGRAM_FILE} in {folder}", hint="try examples/nearby_friends, or see docs/feeds.md"
        )
    try:
        return read_program(path.read_text(encoding="utf-8"), functions)
    except FeedError as error:
        where = f"{path}, {error.where}" if error.where else str(path)
        raise FeedError(error.message, where=where, hint=error.hint) from error


def load_functions(folder: Path) -> Functions:
    """The built-in functions and those of a project's own."""
    path = folder / FUNCTIONS_FILE
    if not path.is_file():
        return BUILT_IN
    spec = importlib.util.spec_from_file_location("catchment_project_functions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return with_functions(*module.FUNCTIONS)
    except (AttributeError, ImportError, SyntaxError, TypeError) as error:
        hint = "it defines FUNCTIONS, a tuple of catchment.feeds.language.functions.FeedFunction"
        raise FeedError(f"cannot be read: {error}", where=str(path), hint=hint) from error


def read_tables(folder: Path, program: FeedProgram) -> dict[str, list[Row]]:
    """The rows of every reference table."""
    return {name: [row for _, row in _rows(folder, table, ())] for name, table in program.tables.items()}


def table_files(folder: Path, program: FeedProgram) -> dict[Path, float]:
    """When each file of a reference table was last written."""
    paths = (folder / f"{name}.csv" for name in program.tables)
    return {path: path.stat().st_mtime for path in paths if path.is_file()}


def _recorded(folder: Path, program: FeedProgram) -> Iterator[DeviceRecord]:
    for name, stream in program.streams.items():
        assert stream.device is not None
        at = stream.column_names.index(stream.device)
        for number, (at_s, row) in enumerate(_rows(folder, stream, ("at_s",)), start=2):
            if row[at] is None or at_s is None or not 0 <= at_s < 1e9:
                where = f"{folder / f'{name}.csv'}, line {number}"
                raise FeedError(f"a record needs a device and a time of 0 or more: {at_s}, {row!r}", where=where)
            yield DeviceRecord(round(at_s * 1e6), str(row[at]), name, row)


def _rows(folder: Path, declared: Declared, before: tuple[str, ...]) -> Iterator[tuple[float | None, Row]]:
    """(at_s, row) of a file; a table has no at_s."""
    path = folder / f"{declared.name}.csv"
    expected = [*before, *declared.column_names]
    if not path.is_file():
        raise FeedError(f"there is no {path.name} in {folder}", hint=f"its header is {','.join(expected)}")
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.reader(lines)
        header = next(reader, [])
        if header != expected:
            raise FeedError(f"found the header {','.join(header)}; expected {','.join(expected)}", where=str(path))
        kinds = ["DOUBLE" for _ in before] + [kind for _, kind in declared.columns]
        for number, cells in enumerate(reader, start=2):
            values = _parse(cells, kinds, f"{path}, line {number}")
            if number > MAX_ROWS:
                raise FeedError(f"a file of over {MAX_ROWS} rows is refused", where=str(path))
            yield (values[0] if before else None), tuple(values[len(before) :])


def _parse(cells: list[str], kinds: list[str], where: str) -> list[Any]:
    if len(cells) != len(kinds):
        raise FeedError(f"found {len(cells)} cells; expected {len(kinds)}", where=where)
    values: list[Any] = []
    for cell, kind in zip(cells, kinds, strict=True):
        try:
            values.append(None if cell == "" else _PARSE[kind](cell))
        except (ValueError, KeyError):
            raise FeedError(f"found {cell!r}; expected {kind}", where=where) from None
    return values


def _rates(program: FeedProgram, recorded: list[DeviceRecord]) -> tuple[dict[str, float], dict[str, float]]:
    """Events per second of each device, and of each of its feeds after the filters of the program."""
    compiled, seconds = CompiledProgram(program), (recorded[-1].at_us / 1e6) or 1.0
    devices: Counter[str] = Counter()
    feeds: Counter[str] = Counter()
    for record in recorded:
        devices[record.device] += 1
        feeds.update(f"{kind}@{record.device}" for kind, _ in compiled.feeds_of(record.stream, record.row))
    return {d: n / seconds for d, n in devices.items()}, {f: n / seconds for f, n in feeds.items()}


def _typed_device(program: FeedProgram, device: str) -> Any:
    """A device's name as the type that its streams declare."""
    stream = next(iter(program.streams.values()))
    assert stream.device is not None
    return _PARSE[stream.type_of(stream.device)](device)
