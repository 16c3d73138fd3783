"""Records of streams that are born at the cloud: whoever publishes them leaves them in a folder of its state.

A delivery is one file, written in one step, so it is there whole or not at all. The cloud journals its records together
with the name of the file and removes it then; a file that is still there after a crash is known by its name. One that
cannot be read, or has records that the program does not have, is set aside under the ending `.bad`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.language.program_form import form_of
from catchment.feeds.language.statements import Declared
from catchment.feeds.language.template import FeedProgram
from catchment.storage.files import make_folder, rename_file, write_durably

PUBLISH_FOLDER = "publish"
MAX_WAITING_FILES = 10_000  # deliveries that the cloud has not taken; past it publishing is refused
MAX_RECORDS = 10_000  # of one delivery
_numbers = itertools.count()


@dataclass(frozen=True)
class PublishedDelivery:
    """Records of a stream that were published together, and the file that they are in."""

    path: Path
    stream: str
    rows: list[tuple[Any, ...]]


def publish_records(
    folder: Path, program: FeedProgram, stream: str, rows: Iterable[Mapping[str, Any] | Sequence[Any]]
) -> int:
    """Hand records to the cloud whose state is in a folder; they are safe when this returns. Return how many."""
    whole = [check_record(program, stream, row, place) for place, row in enumerate(rows, start=1)]
    waiting = folder / PUBLISH_FOLDER
    make_folder(waiting)
    if sum(1 for _ in waiting.iterdir()) >= MAX_WAITING_FILES:
        raise FeedError(
            f"{MAX_WAITING_FILES:,} deliveries wait, and the cloud takes none",
            where=str(waiting),
            hint="start the cloud; it takes them within a second",
        )
    for at in range(0, len(whole), MAX_RECORDS):
        name = f"{time.time_ns():020d}-{os.getpid()}-{next(_numbers)}.json"
        write_durably(waiting / name, json.dumps([stream.lower(), whole[at : at + MAX_RECORDS]]).encode())
    return len(whole)


def check_record(
    program: FeedProgram, stream: str, row: Mapping[str, Any] | Sequence[Any], place: int
) -> tuple[Any, ...]:
    """Return a record with all columns of its stream, in order; refuse a wrong one, with its place."""
    where = f"record {place}"
    declared = _born_at_cloud(program, stream, where)
    if isinstance(row, Mapping):
        unknown = sorted(set(row) - set(declared.column_names))
        if unknown:
            possible = ", ".join(declared.column_names)
            raise FeedError(f"found {unknown[0]!r} in a record of {stream!r}; possible: {possible}", where=where)
        row = [row.get(name) for name in declared.column_names]
    whole = tuple(row)
    form = next(form for form in form_of(program).streams if form.name == declared.name)
    try:
        form.check(whole)
    except FeedError as error:
        raise FeedError(error.message, where=where) from error
    if declared.device is not None and whole[declared.column_names.index(declared.device)] is None:
        raise FeedError(f"a record of {stream!r} has no {declared.device!r}, which is its key", where=where)
    return whole


def _born_at_cloud(program: FeedProgram, stream: str, where: str) -> Declared:
    declared = program.streams.get(stream.lower())
    if declared is None or not declared.born_at_cloud:
        known = [name for name, item in program.streams.items() if item.born_at_cloud]
        hint = f"possible: {', '.join(known)}" if known else "declare one WITH (born = 'cloud')"
        raise FeedError(f"{stream!r} is no stream that is born at the cloud", where=where, hint=hint)
    if declared.view is not None:
        raise FeedError(f"the records of {stream!r} are the answers of view {declared.view!r}", where=where)
    return declared


class PublishedRecords:
    """The deliveries that wait for a cloud."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / PUBLISH_FOLDER

    def waiting(self, program: FeedProgram) -> Iterator[PublishedDelivery]:
        """Yield deliveries in the order in which they came; wrong ones are set aside."""
        if not self.folder.is_dir():
            return
        for path in sorted(p for p in self.folder.iterdir() if p.suffix == ".json" and not p.name.startswith(".")):
            try:
                stream, rows = json.loads(path.read_bytes())
                checked = [check_record(program, stream, row, place) for place, row in enumerate(rows, start=1)]
            except (ValueError, TypeError, AttributeError, FeedError):
                rename_file(path, path.with_suffix(".bad"))
                continue
            yield PublishedDelivery(path, stream.lower(), checked)
