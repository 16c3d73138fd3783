"""What a person asks of a site that runs: to repair what was shed of a query now. A small file in the site's folder,
which the site looks at; it is gone when nothing of the query is owed any more."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from catchment.storage.files import read_record, write_record

_FILE = "repairs.json"


def ask_repair(site_folder: Path, queries: Iterable[str]) -> None:
    """Ask a site to repair what it owes these queries."""
    write_record(site_folder / _FILE, {"queries": sorted({*asked_repairs(site_folder), *queries})})


def asked_repairs(site_folder: Path) -> frozenset[str]:
    """The queries whose repair was asked for."""
    known = read_record(site_folder / _FILE) or {}
    return frozenset(known.get("queries", ()))


def forget_repairs(site_folder: Path) -> None:
    """Nothing that was asked for is owed any more."""
    (site_folder / _FILE).unlink(missing_ok=True)
