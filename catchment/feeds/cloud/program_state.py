"""A planned program as a part of what a cloud keeps on disk.

What is kept is the plan, not the text: replaying a journal gives the same views, however a later release would plan the
text. Functions are code of the project and are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from catchment.feeds.forms.window import WindowForm
from catchment.feeds.language.functions import Functions
from catchment.feeds.language.statements import Declared
from catchment.feeds.language.template import FeedInput, FeedOutput, FeedProgram, FeedTemplate, KnownFeed, TableUse
from catchment.storage.codec import stored

# Devices have no codec, so it is not named where these are defined.
for _kind in (FeedInput, FeedOutput, FeedTemplate, KnownFeed, TableUse, WindowForm):
    stored()(_kind)
stored(version=2, migrations={1: dict})(Declared)  # version 2 has view and rows


@stored()
@dataclass(frozen=True)
class StoredProgram:
    """A program without its functions."""

    text: str
    streams: dict[str, Declared]
    tables: dict[str, Declared]
    templates: list[FeedTemplate]  # inputs before their readers
    consumed: list[str]
    known_feeds: dict[str, KnownFeed]


def store_program(program: FeedProgram) -> StoredProgram:
    """Return a program as it is kept."""
    return StoredProgram(
        program.text,
        dict(program.streams),
        dict(program.tables),
        [replace(template, where="") for template in program.templates.values()],
        sorted(program.consumed),
        dict(program.known_feeds),
    )


def load_program(kept: StoredProgram, functions: Functions) -> FeedProgram:
    """Return a program that was kept, with the functions that the project has now."""
    return FeedProgram(
        kept.text,
        dict(kept.streams),
        dict(kept.tables),
        {template.name: template for template in kept.templates},
        frozenset(kept.consumed),
        functions,
        dict(kept.known_feeds),
    )
