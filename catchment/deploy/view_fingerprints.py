"""A view's definition is part of its state: old partials of a changed view would mean something else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from catchment.errors import ConfigError
from catchment.query.plan import QueryPlan
from catchment.storage.files import make_folder, read_record, write_record

FILE = "views.json"


def refuse_redefined_views(folder: Path, plans: Iterable[QueryPlan]) -> None:
    """Refuse a view that was redefined over the state of its old self; remember new ones."""
    known = read_record(folder / FILE) or {}
    now = {plan.name: hashlib.sha256(plan.to_text().encode()).hexdigest() for plan in plans}
    changed = sorted(name for name, definition in now.items() if known.get(name, definition) != definition)
    if changed:
        raise ConfigError(
            f"the definition of {', '.join(changed)} has changed since the state in {folder} was made",
            hint="give the changed view another name, or start over with a new state folder",
        )
    if now.keys() - known.keys():
        make_folder(folder)
        write_record(folder / FILE, {**known, **now})
