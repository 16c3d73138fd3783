"""Which features of one engine were combined, three at a time, and which combinations it refuses and why.

The fourteen features here are those that a project or its surroundings choose. A campaign that covers draws each of
them often enough that every three of them meet in several seeds. Features meet in one deployment; what a single view
cannot have at once is refused when it is planned, and each such refusal is asked for and quoted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import combinations
from pathlib import Path

from catchment.deploy.deployment import Deployment
from catchment.errors import CatchmentError
from catchment.testing.campaigns.features import Feature, Features

COMBINED = (
    Feature.CONTRACT,
    Feature.SHED,
    Feature.RELAY,
    Feature.JOIN,
    Feature.LOOKUP,
    Feature.POLICY,
    Feature.EARLY,
    Feature.SUBMIT,
    Feature.DROP,
    Feature.MOVE,
    Feature.LATE,
    Feature.DUPLICATE,
    Feature.CRASH,
    Feature.AWAY,
)
REFUSED_MARK = " R"  # beside the seeds of a cell: refused in one view
COVERING_SHARE = 0.6  # three of them then meet in every fifth seed

_TOML = """[project]
name = "asked"
center = "center"
[sites.center]
[sites.edge]
[[links]]
from = "edge"
to = "center"
"""
_STREAMS = """CREATE STREAM hits (ts TIMESTAMP, page STRING, n BIGINT) WITH (event_time = 'ts', path = 'data/{site}');
CREATE STREAM load (ts TIMESTAMP, page STRING, n BIGINT) WITH (event_time = 'ts', path = 'load/{site}', shed = true);
CREATE TABLE sections (page STRING, section STRING) WITH (path = 'sections.csv', format = 'csv');
"""
_OPTIONS = {
    Feature.CONTRACT: "max_error = 0.1",
    Feature.POLICY: "policy = 'streaming'",
    Feature.EARLY: "emit_early = '2 s'",
}


def draw_covering(chance: random.Random, drawn: Features) -> Features:
    """Return drawn features in which each of the combined ones is with the covering share."""
    others = drawn - frozenset(COMBINED)
    return others | {f for f in COMBINED if chance.random() < COVERING_SHARE}


def uncovered(triples: Mapping[tuple[Feature, ...], int]) -> Iterator[str]:
    """Yield the threes of combined features that never met."""
    for triple in combinations(sorted(COMBINED, key=list(Feature).index), 3):
        if not triples[triple]:
            yield f"never together: {', '.join(triple)}"


def triple_table(triples: Mapping[tuple[Feature, ...], int], refused: Sequence[Features] = ()) -> str:
    """Return how many seeds had each three of the combined features, in Markdown: a row per pair.

    Threes of which some are refused in one view are marked.
    """
    ordered = sorted(COMBINED, key=list(Feature).index)
    lines = ["| together | and, in so many seeds |", "|---|---|"]
    for place, (one, other) in ((ordered.index(b), (a, b)) for a, b in combinations(ordered, 2)):
        cells = [(third, triples[one, other, third]) for third in ordered[place + 1 :]]
        marked = [f"{third} {mark_refused(seeds, {one, other, third}, refused)}" for third, seeds in cells]
        if marked:
            lines.append(f"| {one}, {other} | {', '.join(marked)} |")
    return "\n".join(lines)


def mark_refused(seeds: int, together: Set[Feature], refused: Sequence[Features]) -> str:
    """Return the number of seeds of a cell, marked where one view cannot have all these features."""
    return f"{seeds}{REFUSED_MARK}" if any(some <= together for some in refused) else str(seeds)


def refusals(folder: Path) -> list[tuple[Features, str]]:
    """Plan a view for every two and three of the features that a view can have; return those refused, with the reason.

    Of a three that is refused because two of it are, only the two are named.
    """
    in_a_view = (Feature.CONTRACT, Feature.SHED, Feature.JOIN, Feature.LOOKUP, Feature.POLICY, Feature.EARLY)
    found: list[tuple[Features, str]] = []
    for count in (2, 3):
        for chosen in map(frozenset, combinations(in_a_view, count)):
            if not any(refused < chosen for refused, _ in found):
                reason = _refusal(folder / "-".join(sorted(f.value for f in chosen)), chosen)
                found += [(chosen, reason)] if reason else []
    return found


def _refusal(folder: Path, chosen: Features) -> str | None:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(_TOML)
    (folder / "sections.csv").write_text("page,section\na,north\n")
    (folder / "queries" / "asked.sql").write_text(_STREAMS + _view_with(chosen))
    try:
        Deployment.load(folder)
    except CatchmentError as refused:
        return refused.message
    return None


def _view_with(chosen: Features) -> str:
    options = [text for feature, text in _OPTIONS.items() if feature in chosen]
    given = f"WITH ({', '.join(options)})" if options else ""
    source = "load a" if Feature.SHED in chosen else "hits a"
    key = "a.page"
    if Feature.JOIN in chosen:
        source += " JOIN hits b ON a.page = b.page"
    if Feature.LOOKUP in chosen:
        source += " JOIN sections ON a.page = sections.page"
        key = "section"
    return (
        f"CREATE MATERIALIZED VIEW asked {given} AS SELECT window.start, {key}, count(*) AS n FROM {source} "
        f"GROUP BY window(a.ts, '10 seconds'), {key};\n"
    )
