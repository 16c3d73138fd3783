"""What whoever scans a share of a micro-batch is told: a task of Spark, a scan process, or the driver itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from catchment.errors import CatchmentError, EngineError
from catchment.functions.installed import FunctionsFile, install
from catchment.site.plausible import PlausibleTimes
from catchment.storage.files import sync_files
from catchment.vectorised.parts import FilePart, TopicPart
from catchment.vectorised.scan import ScanFindings, ScanPlan, scan

INLINE_BYTES = 1 << 16  # tables that are larger are handed to the driver in a file
Share = tuple[int, Sequence[FilePart | TopicPart]]  # parts of a micro-batch, and the number of the share within it


class PassEndedError(EngineError):
    """A pass was told to end: nobody wants what it would find."""


@dataclass(frozen=True)
class ScanOrder:
    """What is done with each share of a pass.

    `scratch` is a folder for what is handed to the driver; where it is removed, the pass is not wanted any more. None:
    this is the driver. With `syncs`, history is durable when a share is done; else the driver makes it so.
    """

    plan: ScanPlan
    limits: PlausibleTimes | None
    history: Path | None
    scratch: Path | None = None
    syncs: bool = True
    functions: tuple[FunctionsFile, ...] = ()  # the code that fragments may call

    def run_all(self, shares: Iterator[Share]) -> Iterator[ScanFindings | str]:
        """Yield what is in each share of the files, or why it cannot be found here."""
        for share in shares:
            yield self.run(share)

    def run(self, share: Share) -> ScanFindings | str:
        """Return what is in one share of the files, or why it cannot be found here."""
        for file in self.functions:
            install(file)
        number, parts = share
        try:
            return self._hand_over(number, self._scan(number, parts))
        except (pa.ArrowException, CatchmentError, OSError, OverflowError, ValueError) as error:
            return str(error) or type(error).__name__

    def _scan(self, number: int, parts: Sequence[FilePart | TopicPart]) -> ScanFindings:
        """Return what is in one share of the files.

        A cluster may run a task twice at once. So files have names of their own attempt, and those of the attempt
        whose findings reach the driver count.
        """
        history = None if self.history is None else self.history / f"part-{number:05d}-{uuid.uuid4().hex[:12]}.parquet"
        found = scan(self.plan, parts, self.limits, history, self.check_wanted)
        if self.syncs and self.history is not None:
            sync_files(self.history / name for name in found.history)
        return found

    def is_wanted(self) -> bool:
        """Return whether the pass was not told to end."""
        return self.scratch is None or self.scratch.exists()

    def check_wanted(self) -> None:
        """Raise where the pass was told to end."""
        if not self.is_wanted():
            raise PassEndedError("a pass over files was ended")

    def _hand_over(self, number: int, found: ScanFindings) -> ScanFindings:
        """Return the findings with large tables in files: the way through sockets takes several copies."""
        if self.scratch is None:
            return found
        tables = [None if t is None else _place(t, self.scratch / f"{number}-{i}") for i, t in enumerate(found.tables)]
        return replace(found, tables=tuple(tables))


def _place(table: pa.Table, name: Path) -> pa.Table | str:
    if table.nbytes <= INLINE_BYTES:
        return table
    path = name.with_name(f"{name.name}-{uuid.uuid4().hex[:12]}.arrow")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return str(path)


def fetch_tables(found: ScanFindings) -> ScanFindings:
    """Return findings with the tables that were handed over in files."""
    return replace(found, tables=tuple(map(_fetch, found.tables)))


def _fetch(table: pa.Table | str | None) -> pa.Table | None:
    if not isinstance(table, str):
        return table
    with pa.memory_map(table) as file:
        return pa.ipc.open_file(file).read_all()
