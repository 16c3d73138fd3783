"""A program in place of another one, while a cloud and its devices run: what ends, and what goes on as it was. Pure.

Law: a view whose definition is the same in both programs goes on, and its events keep their meaning: a column of a feed
has one place for as long as the cloud lives, new columns come behind those that were there. So an event that was
recorded under an earlier program is a prefix of a later one, and a view that reads more of it does not take it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from catchment.errors import FeedError
from catchment.feeds.language.template import FeedProgram, FeedTemplate, KnownFeed

MAX_KNOWN_FEEDS = 10_000  # kinds of feeds whose columns a cloud remembers; a program with more is refused


def can_continue(older: FeedProgram, newer: FeedProgram) -> bool:
    """Return whether a program can take the place of another: streams of one name are the same in both."""
    shared = older.streams.keys() & newer.streams.keys()
    return all(_columns_of(older, name) == _columns_of(newer, name) for name in shared)


def _columns_of(program: FeedProgram, stream: str) -> tuple[object, ...]:
    declared = program.streams[stream]
    return (declared.columns, declared.device, declared.born_at_cloud, declared.view, declared.rows)


def continue_program(older: FeedProgram, newer: FeedProgram) -> FeedProgram:
    """Return the newer program with the columns of its feeds where the older one has them."""
    known = dict(older.known_feeds)
    for kind, columns in older.pushed_columns.items():
        known[kind] = KnownFeed(columns, older.fewest_values(kind))
    if len(known) > MAX_KNOWN_FEEDS:
        raise FeedError(
            f"this cloud has had {len(known)} kinds of feeds, and remembers {MAX_KNOWN_FEEDS}",
            hint="stop it, remove its state folder and start it: it begins anew",
        )
    return replace(newer, known_feeds=known)


def ended_templates(older: FeedProgram, newer: FeedProgram) -> frozenset[str]:
    """Return the templates that are not in the newer program, or mean something else there."""
    ended = {name for name in older.templates if not _goes_on(name, older, newer)}
    return readers_of(older, ended)


def _goes_on(name: str, older: FeedProgram, newer: FeedProgram) -> bool:
    template = newer.templates.get(name)
    return (
        template is not None
        and _meaning(template) == _meaning(older.templates[name])
        and (name in older.consumed) == (name in newer.consumed)
    )


def _meaning(template: FeedTemplate) -> FeedTemplate:
    return replace(template, where="")


def readers_of(program: FeedProgram, names: Collection[str]) -> frozenset[str]:
    """Return these templates and all that read them, directly or not."""
    found = set(names)
    for template in program.templates.values():  # inputs come before their readers
        if any(item.source in found for item in template.inputs):
            found.add(template.name)
    return frozenset(found)


def without_templates(program: FeedProgram, names: Collection[str]) -> FeedProgram:
    """Return a program without these templates and those that read them; the others mean what they did."""
    gone = readers_of(program, names)
    if not gone:
        return program
    return replace(program, templates={name: t for name, t in program.templates.items() if name not in gone})
