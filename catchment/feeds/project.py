"""A feed project: a folder with a program, its settings, its functions and its reference tables.

    feeds.sql        CREATE STREAM, CREATE TABLE and CREATE FEED VIEW statements; a folder with a catchment.toml has
                     them in queries/, beside its materialized views
    feeds.toml       optional: what a message costs each way, a made-up world in place of recorded streams, how much is
                     kept for views, a broker
    functions.py     optional: FUNCTIONS, a tuple of black-box functions that views may call
    <table>.csv      a header with the declared columns, one line per reference row

Cells are read by the declared types; an empty cell is NULL. A wrong cell is named with its file and line. Records of
devices are not part of a project: `runs/workload.py` has those.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.cloud.budgets import NO_BOUND, Budgets, DeviceBudget
from catchment.feeds.cloud.retention import Retention
from catchment.feeds.device.limits import CLOUD_LIMITS, HostLimits
from catchment.feeds.language.from_catalog import program_of
from catchment.feeds.language.functions import BUILT_IN, Functions, with_functions
from catchment.feeds.language.operators import as_function
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData, Row
from catchment.feeds.language.statements import Declared
from catchment.feeds.language.submitted import SubmittedView
from catchment.feeds.language.template import CLOUD_FEED, FeedProgram
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.protocol.mqtt_config import MqttConfig, check_topic_name
from catchment.project import option_kinds as kinds
from catchment.project.config import PROJECT_FILE, Project
from catchment.project.options import Option, read_options
from catchment.project.toml_file import TomlFile
from catchment.query.catalog import Catalog, load_catalog

PROGRAM_FILE = "feeds.sql"
SETTINGS_FILE = "feeds.toml"
FUNCTIONS_FILE = "functions.py"
MAX_ROWS = 5_000_000  # rows per file, which is held in memory
RECORDING = "recording"  # streams are recorded in CSV files of the project
NEARBY = "nearby"  # users, friends and positions are made by catchment

PlanProgram = Callable[[Sequence[SubmittedView]], FeedProgram]
RejectLine = Callable[[Path, int, FeedError], None]  # the file, the number of the line, and what is wrong

_PARSE: dict[str, Callable[[str], Any]] = {
    "BIGINT": int,
    "INT": int,
    "DOUBLE": float,
    "STRING": str,
    "BOOLEAN": lambda text: {"true": True, "false": False}[text.lower()],
}
_COST = kinds.number(high=1e9)
_COST_OPTIONS = (
    Option("upload", _COST, 1.0),
    Option("download", _COST, 1.0),
    Option("per_device", kinds.text("a CSV file with the columns device, upload and download")),
)
_WORLD_OPTIONS = (
    Option("kind", kinds.choice(NEARBY, RECORDING), RECORDING),
    Option("users", kinds.integer(0, 10**9), 100),
    Option("rate_unit", kinds.number(high=1e9), 0.1),
    Option("seed", kinds.integer(0, 10**9), 7),
)
_RETENTION_OPTIONS = (
    Option("away", kinds.duration(), HostLimits.away_us),
    Option("cloud_memory_events", kinds.integer(1), CLOUD_LIMITS.memory_events),
    Option("cloud_disk", kinds.size(none=True)),
    Option("device_memory_events", kinds.integer(1), HostLimits.memory_events),
    Option("device_disk", kinds.size(none=True)),
)
_MQTT_OPTIONS = (
    Option("broker", kinds.text("a broker such as 'mqtts://broker.example.org:8883'")),
    Option("user", kinds.text("the user name of all clients")),
    Option("password_file", kinds.text("the path of a file, in which {client} stands for the name of the client")),
    Option("ca", kinds.text("the path of a file")),
)
_DEVICE_OPTIONS = (
    Option("admit", kinds.text("'allow', 'deny', or a table and its column, such as 'users.user'"), "allow"),
    Option("token_file", kinds.text("the path of a file, in which {device} stands for the name of the device")),
    Option("max", kinds.integer(1, 10**7), 10_000),
    Option("retire_after", kinds.duration(none=True, positive=True), None),
)
_BUDGET_OPTIONS = (
    Option("upload", kinds.bandwidth()),
    Option("download", kinds.bandwidth()),
    Option("views", kinds.integer(0, 10**9)),
    Option("per_device", kinds.text("a CSV file with the columns device, upload, download and views")),
)
_EDGE_OPTIONS = (
    Option("clouds", kinds.names("names of edge clouds, such as ['north', 'south']"), ()),
    Option("cost", _COST, 1.0),
)
_SETTINGS = {
    "costs": _COST_OPTIONS,
    "budgets": _BUDGET_OPTIONS,
    "world": _WORLD_OPTIONS,
    "retention": _RETENTION_OPTIONS,
    "mqtt": _MQTT_OPTIONS,
    "devices": _DEVICE_OPTIONS,
    "edges": _EDGE_OPTIONS,
}


@dataclass(frozen=True)
class EdgeSettings:
    """The edge clouds of a project, and what a message costs on the link between one and the cloud, either way."""

    clouds: tuple[str, ...] = ()
    cost: float = 1.0

    def __post_init__(self) -> None:
        for name in self.clouds:
            check_topic_name(name, "an edge cloud")
            if name == CLOUD_FEED:
                raise FeedError(f"{CLOUD_FEED!r} is the name of the cloud, and of no edge cloud")


@dataclass(frozen=True)
class FeedProject:
    """The program of a folder, what messages cost, and the settings of the world that makes its records."""

    folder: Path
    program: FeedProgram
    costs: LinkCosts
    world: Mapping[str, Any]  # the options of [world], checked
    retention: Retention
    budgets: Budgets
    plan: PlanProgram  # the program as it was when the folder was opened, together with submitted views

    @property
    def has_tables(self) -> bool:
        """Whether its reference tables are files in the folder."""
        return bool(self.world["kind"] == RECORDING)

    def read_reference(self, devices: Iterable[str] | None = None) -> ReferenceData:
        """Read the reference tables as they are in the folder now; `devices`, when given, lists all that exist."""
        tables = {name: table for name, table in self.program.tables.items() if table.has_file}
        rows = {name: [row for _, row in read_rows(self.folder, table)] for name, table in tables.items()}
        named = None if devices is None else tuple(typed_device(self.program, device) for device in devices)
        return ReferenceData(rows, named)


def typed_device(program: FeedProgram, device: str) -> Any:
    """Return a device's name as the type that its streams declare."""
    stream = next(stream for stream in program.streams.values() if not stream.born_at_cloud)
    assert stream.device is not None
    kind = stream.type_of(stream.device)
    try:
        value = _PARSE[kind](device)
    except (ValueError, KeyError):
        value = None
    if value is None or str(value) != device:
        raise FeedError(f"found {device!r}; a device of this program is named by a {kind}")
    return value


def open_project(folder: Path, upload_cost: float | None = None, download_cost: float | None = None) -> FeedProject:
    """Open a folder; costs that are given take the place of the project's own."""
    functions = load_functions(folder)
    settings = _read_settings(folder)
    costs = settings["costs"]
    link_costs = LinkCosts(
        costs["upload"] if upload_cost is None else upload_cost,
        costs["download"] if download_cost is None else download_cost,
        _read_device_costs(folder, costs["per_device"]),
    )
    plan = read_program_file(folder, functions)
    retention = _retention_of(settings["retention"])
    budgets = _read_budgets(folder, settings["budgets"])
    return FeedProject(folder, plan(()), link_costs, settings["world"], retention, budgets, plan)


def _read_budgets(folder: Path, settings: Mapping[str, Any]) -> Budgets:
    """Return the budget of every device, and of those that have one of their own; an empty cell is no bound."""
    every = _budget(settings["upload"], settings["download"], settings["views"])
    if settings["per_device"] is None:
        return Budgets(every)
    columns = (("device", "STRING"), ("upload", "DOUBLE"), ("download", "DOUBLE"), ("views", "BIGINT"))
    found: dict[str, DeviceBudget] = {}
    for number, (device, *bounds) in read_lines(folder, Declared("budgets", columns, file=settings["per_device"])):
        if device is None or any(bound is not None and not 0 <= bound < 1e15 for bound in bounds):
            where = f"{folder / settings['per_device']}, line {number}"
            told = ", ".join(map(str, (device, *bounds)))
            raise FeedError(f"found {told}; expected a device, bytes per second from 0, and views", where=where)
        found[device] = _budget(*bounds)
    return Budgets(every, found)


def _budget(upload: float | None, download: float | None, views: float | None) -> DeviceBudget:
    bounds = (NO_BOUND if bound is None else float(bound) for bound in (upload, download, views))
    return DeviceBudget(*bounds)


def _read_device_costs(folder: Path, file: str | None) -> dict[str, tuple[float, float]]:
    """Return the costs of devices that pay something else than the others."""
    if file is None:
        return {}
    columns = (("device", "STRING"), ("upload", "DOUBLE"), ("download", "DOUBLE"))
    found: dict[str, tuple[float, float]] = {}
    for number, (device, upload, download) in read_lines(folder, Declared("costs", columns, file=file)):
        if device is None or upload is None or download is None or not (0 <= upload < 1e9 and 0 <= download < 1e9):
            where = f"{folder / file}, line {number}"
            raise FeedError(
                f"found {device}, {upload}, {download}; expected a device and two costs from 0", where=where
            )
        found[device] = (upload, download)
    return found


def _retention_of(settings: Mapping[str, Any]) -> Retention:
    cloud, device = (
        HostLimits(settings["away"], settings[f"{host}_memory_events"], settings[f"{host}_disk"] or 0)
        for host in ("cloud", "device")
    )
    return Retention(cloud, device)


def read_broker(folder: Path, app: str = "catchment", **given: str | None) -> MqttConfig | None:
    """Return the broker in [mqtt] of a project, with what is given in place of its settings; None if none is named."""
    settings = _read_settings(folder)["mqtt"]
    chosen = {**settings, **{name: value for name, value in given.items() if value is not None}}
    if chosen["broker"] is None:
        return None
    return MqttConfig.parse(
        chosen["broker"],
        app,
        username=chosen["user"],
        password_file=_in_folder(folder, chosen["password_file"]),
        ca_certs=_in_folder(folder, chosen["ca"]),
    )


def _in_folder(folder: Path, path: str | None) -> Path | None:
    return None if path is None else folder / path


def read_edges(folder: Path) -> EdgeSettings:
    """Return the edge clouds in [edges] of a project."""
    settings = _read_settings(folder)["edges"]
    try:
        return EdgeSettings(settings["clouds"], settings["cost"])
    except FeedError as error:
        raise error.found_in(str(folder / SETTINGS_FILE)) from None


def read_device_settings(folder: Path) -> dict[str, Any]:
    """Return the options of [devices], checked: which devices a cloud takes, and for how long."""
    return _read_settings(folder)["devices"]


def _read_settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Read and check the tables of the settings."""
    path = folder / SETTINGS_FILE
    file = TomlFile.load(path) if path.is_file() else TomlFile(path, "", {})
    for name, table in file.tables.items():
        if name not in _SETTINGS or not isinstance(table, dict):
            possible = ", ".join(f"[{known}]" for known in _SETTINGS)
            raise FeedError(f"found {name!r}; possible: {possible}", where=file.at(None, name))

    def read(name: str, options: tuple[Option, ...]) -> dict[str, Any]:
        given = file.tables.get(name, {})
        return read_options(given, options, what=f"[{name}]", error=FeedError, where=partial(file.at, name))

    return {name: read(name, options) for name, options in _SETTINGS.items()}


def read_program_file(folder: Path, functions: Functions = BUILT_IN) -> PlanProgram:
    """Read the program of a project; a mistake in it is named with its file when it is planned."""
    path = folder / PROGRAM_FILE
    if not path.is_file():
        return partial(program_of, _read_catalog(folder), functions)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FeedError("this file is not UTF-8 text", where=str(path)) from error
    return partial(read_program, text, functions, str(path))


def _read_catalog(folder: Path) -> Catalog:
    """Read the queries of a project that has feed views among them."""
    catalog = load_catalog(Project.load(folder)) if (folder / PROJECT_FILE).is_file() else None
    if catalog is None or not catalog.feed_views:
        raise FeedError(
            f"there is no {PROGRAM_FILE} in {folder}, and no feed view in its queries",
            hint="try examples/nearby_friends, or see docs/guides/feeds.md",
        )
    return catalog


def load_functions(folder: Path) -> Functions:
    """Load the built-in functions and those of the project itself."""
    path = folder / FUNCTIONS_FILE
    if not path.is_file():
        return BUILT_IN
    spec = importlib.util.spec_from_file_location("catchment_project_functions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        operators = [as_function(made) for made in getattr(module, "OPERATORS", ())]
        if not hasattr(module, "FUNCTIONS") and ((folder / PROJECT_FILE).is_file() or operators):
            return with_functions(*operators)  # other functions in it are for materialized views
        return with_functions(*module.FUNCTIONS, *operators)
    except (AttributeError, ImportError, SyntaxError, TypeError) as error:
        hint = "it defines FUNCTIONS, a tuple of FeedFunction, or OPERATORS, a tuple of subclasses of FeedOperator"
        raise FeedError(f"cannot be read: {error}", where=str(path), hint=hint) from error


def table_files(folder: Path, program: FeedProgram) -> dict[Path, float]:
    """Return when each file of a reference table was last written."""
    found: dict[Path, float] = {}
    for table in (table for table in program.tables.values() if table.has_file):
        path = folder / table.file_name
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime
    return found


def read_rows(folder: Path, declared: Declared, before: tuple[str, ...] = ()) -> Iterator[tuple[float | None, Row]]:
    """Yield the rows of a stream's or table's file, each with the number in the column before them, if there is one."""
    for _, values in read_lines(folder, declared, before):
        yield (values[0] if before else None), tuple(values[len(before) :])


def read_lines(
    folder: Path, declared: Declared, before: tuple[str, ...] = (), reject: RejectLine | None = None
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number and the values of each line; with `reject`, a wrong line is given to it and left out."""
    path = folder / declared.file_name
    expected = [*before, *declared.column_names]
    if not path.is_file():
        raise FeedError(f"there is no {path.name} in {folder}", hint=f"its header is {','.join(expected)}")
    with path.open(newline="", encoding="utf-8") as lines:
        reader = _read_lines(lines, path)
        header = next(reader, [])
        if header != expected:
            raise FeedError(f"found the header {','.join(header)}; expected {','.join(expected)}", where=str(path))
        kinds = ["DOUBLE" for _ in before] + [kind for _, kind in declared.columns]
        for number, cells in enumerate(reader, start=2):
            if number > MAX_ROWS:
                raise FeedError(f"a file of over {MAX_ROWS} rows is refused", where=str(path))
            try:
                values = _parse_cells(cells, kinds, f"{path}, line {number}")
            except FeedError as error:
                if reject is None:
                    raise
                reject(path, number, error)
                continue
            yield number, values


def _read_lines(lines: Iterable[str], path: Path) -> Iterator[list[str]]:
    reader = csv.reader(lines)
    try:
        yield from reader
    except (csv.Error, UnicodeDecodeError) as error:
        raise FeedError(f"this is not CSV in UTF-8: {error}", where=f"{path}, line {reader.line_num + 1}") from error


def _parse_cells(cells: list[str], kinds: list[str], where: str) -> list[Any]:
    if len(cells) != len(kinds):
        raise FeedError(f"found {len(cells)} cells; expected {len(kinds)}", where=where)
    values: list[Any] = []
    for cell, kind in zip(cells, kinds, strict=True):
        try:
            values.append(None if cell == "" else _PARSE[kind](cell))
        except (ValueError, KeyError):
            raise FeedError(f"found {cell!r}; expected {kind}", where=where) from None
    return values
