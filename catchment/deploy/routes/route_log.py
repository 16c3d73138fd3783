"""The log of sites that were moved to other routes: when, why, and what was expected of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catchment.deploy.routes.route_mover import RouteMove
from catchment.storage.files import make_folder, read_record, write_record

FILE = "route_moves.json"
MAX_MOVES = 100  # that are remembered


def note_move(state_folder: Path, move: RouteMove, now_us: int) -> None:
    """Write down that sites were moved."""
    told = {
        "at_us": now_us,
        "hops": dict(move.hops),
        "site": move.site,
        "from": list(move.route),
        "predicted_before_s": move.before_s,
        "to": list(move.moved_route),
        "predicted_s": move.after_s,
        "reason": move.reason,
    }
    make_folder(state_folder)
    write_record(state_folder / FILE, {"moves": [*read_moves(state_folder), told][-MAX_MOVES:]})


def read_moves(state_folder: Path) -> list[Mapping[str, Any]]:
    """Return the moves that are remembered, oldest first."""
    return list((read_record(state_folder / FILE) or {"moves": []})["moves"])
