"""Opening a feed project, whatever makes its records: files, or a world that is made as the project says.

`feeds.toml` holds what a message costs each way and, under [world], who makes the records. A made world is the same
for the same settings in every process, so that fleets in processes of their own share one world.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.project import World, load_functions, open_recording, read_program_file
from catchment.project.options import Option, OptionKind, read_options
from catchment.project.toml_file import TomlFile
from catchment.sim.feeds.nearby_world import make_world

SETTINGS_FILE = "feeds.toml"


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ValueError(value)
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**9:
        raise ValueError(value)
    return value


def _world_kind(value: Any) -> str:
    if value not in ("nearby", "recording"):
        raise ValueError(value)
    return str(value)


_COST = OptionKind("a positive number", _positive)
_WHOLE = OptionKind("a whole number from 0 on", _whole)
_COSTS = (Option("upload", _COST, 1.0), Option("download", _COST, 1.0))
_WORLD = (
    Option(
        "kind", OptionKind("'nearby' (users made by catchment) or 'recording' (CSV files)", _world_kind), "recording"
    ),
    Option("users", _WHOLE, 100),
    Option("rate_unit", OptionKind("a positive number", _positive), 0.1),
    Option("seed", _WHOLE, 7),
)


@dataclass(frozen=True)
class WorldChoice:
    """What a command line says in place of the project's own settings; None leaves them."""

    users: int | None = None
    seed: int | None = None
    rate_unit: float | None = None
    upload_cost: float | None = None
    download_cost: float | None = None

    def over(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings with what was chosen in their place."""
        chosen = {name: getattr(self, name, None) for name in settings}
        return {**settings, **{name: value for name, value in chosen.items() if value is not None}}


def open_world(folder: Path, choice: WorldChoice | None = None) -> World:
    """The world of a project folder."""
    choice, functions = choice or WorldChoice(), load_functions(folder)
    costs_given, world = _settings(folder)
    made = choice.over(world)
    costs = LinkCosts(
        choice.upload_cost if choice.upload_cost is not None else costs_given["upload"],
        choice.download_cost if choice.download_cost is not None else costs_given["download"],
    )
    if world["kind"] == "nearby":
        program = read_program_file(folder, functions)
        return make_world(program, made["users"], seed=made["seed"], rate_unit=made["rate_unit"], costs=costs)
    if any(v is not None for v in (choice.users, choice.seed, choice.rate_unit)):
        raise FeedError(
            "the streams of this project are recorded: it has the users and rates that it has",
            where=str(folder), hint="users, seed and rate unit are for a project with [world] in feeds.toml",
        )  # fmt: skip
    return open_recording(folder, costs, functions)


def _settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checked tables [costs] and [world]."""
    path = folder / SETTINGS_FILE
    file = TomlFile.load(path) if path.is_file() else TomlFile(path, "", {})
    known = {"costs": _COSTS, "world": _WORLD}
    for name, table in file.tables.items():
        if name not in known or not isinstance(table, dict):
            raise FeedError(f"found {name!r}; possible: [costs] and [world]", where=file.at(None, name))
    costs, world = (
        read_options(
            file.tables.get(name, {}), options, what=f"[{name}]", error=FeedError,
            where=partial(file.at, name),
        )
        for name, options in known.items()
    )  # fmt: skip
    return costs, world
