"""What may stand in WITH (...): the options of streams, tables and views, and what is made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from catchment.errors import QueryError
from catchment.project import options as opt
from catchment.project.options import Option, OptionKind, read_options
from catchment.query.sql.statements import (
    ALWAYS,
    ANY,
    BOUNDED,
    NEVER,
    ON_DEMAND,
    Connector,
    FilesConnector,
    GeneratorConnector,
    ReplayConnector,
    ViewOptions,
)

Given = Mapping[str, Any]
Where = Callable[[str | None], str]


def _path(value: Any) -> str:
    path = str(opt.text().read(value))
    if set(re.findall(r"\{[^}]*\}?", path)) - {"{site}"}:
        raise ValueError(value)
    return path


def _sites(value: Any) -> tuple[str, ...]:
    names = tuple(opt.site_name().read(name.strip()) for name in str(opt.text().read(value)).split(","))
    if len(set(names)) != len(names):
        raise ValueError(value)
    return names


FILES = (
    Option("path", OptionKind("a path, in which {site} stands for the name of the site", _path), required=True),
    Option("format", opt.choice("json", "csv", "parquet"), "json"),
    Option("header", opt.flag(), True),
    Option("delimiter", OptionKind("one character", lambda v: _one_character(v)), ","),
)
CONNECTORS: dict[str, tuple[Option, ...]] = {
    "files": FILES,
    "replay": (
        *FILES,
        Option("arrival", opt.text("the name of a TIMESTAMP column")),
        Option("speed", opt.number(), 1.0),
    ),
    "generator": (
        Option("rows_per_s", opt.number(), 1000.0),
        Option("keys", opt.integer(1), 100),
        Option("seed", opt.integer(0), 0),
        Option("duration", opt.duration(positive=True)),
    ),
}
STREAM = (
    Option("event_time", opt.text("the name of a TIMESTAMP column, such as 'ts'"), required=True),
    Option("sites", OptionKind("names of sites with commas between them, such as 'us,eu'", _sites)),
    Option("connector", opt.choice(*CONNECTORS), "files"),
    Option("slack", opt.duration()),
    Option("source", opt.text("the name of a column, such as 'device'")),
    Option("max_jump", opt.duration(positive=True)),
    Option("history", opt.flag()),
    Option("shed", opt.flag(), False),
)
_FIELDS = {"slack": "slack_us", "max_jump": "max_jump_us"}
TABLE = (Option("connector", opt.choice("files"), "files"), *FILES)
VIEW = (
    Option("max_error", opt.share()),
    Option("confidence", opt.share(), 0.95),
    Option("sink", opt.site_name()),
    Option("freshness", opt.duration(positive=True)),
    Option("policy", opt.policy()),
    Option("weight", opt.number(), 1.0),
    Option("emit_early", opt.duration(none=True, positive=True)),
    Option("repair", OptionKind("'always', 'on_demand' or 'never'", lambda v: _repair(v)), ALWAYS),
    Option("shed", opt.choice(BOUNDED, ANY, NEVER), BOUNDED),
    Option("slack", opt.text("the name of a slack controller, such as 'adaptive', 'mp-k-slack' or 'fixed:5 s'")),
)


def _repair(value: Any) -> str:
    """On and off are always and never."""
    try:
        return ALWAYS if opt.flag().read(value) else NEVER
    except ValueError:
        return str(opt.choice(ALWAYS, ON_DEMAND, NEVER).read(value))


def _one_character(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise ValueError(value)
    return value


def read_stream_options(given: Given, name: str, where: Where) -> tuple[dict[str, Any], Connector]:
    """Return the stream's own fields, and its connector."""
    connector = read_options(
        {k: v for k, v in given.items() if k == "connector"},
        STREAM[2:3],
        what=f"stream {name!r}",
        where=where,
        error=QueryError,
    )["connector"]
    _refuse_foreign(given, connector, name, where)
    known = (*STREAM, *CONNECTORS[connector])
    read = read_options(given, known, what=f"stream {name!r}", where=where, error=QueryError)
    own = {_FIELDS.get(o.name, o.name): read[o.name] for o in STREAM if o.name != "connector"}
    return own, _make_connector(connector, {o.name: read[o.name] for o in CONNECTORS[connector]}, given, where)


def _refuse_foreign(given: Given, connector: str, name: str, where: Where) -> None:
    """An option of another connector is a likelier mistake than a misspelt one: say so."""
    here = {o.name for o in (*STREAM, *CONNECTORS[connector])}
    for option in given:
        owners = [c for c, known in CONNECTORS.items() if option in {o.name for o in known}]
        if option not in here and owners:
            raise QueryError(
                f"stream {name!r} has connector {connector!r}, which has no option {option!r}",
                where=where(option),
                hint=f"it belongs to connector {' or '.join(owners)}; possible here: {', '.join(sorted(here))}",
            )


def _make_connector(kind: str, read: dict[str, Any], given: Given, where: Where) -> Connector:
    if kind == "generator":
        return GeneratorConnector(read["rows_per_s"], read["keys"], read["seed"], read["duration"])
    _refuse_csv_options(read, given, where)
    return ReplayConnector(**read) if kind == "replay" else FilesConnector(**read)


def _refuse_csv_options(read: dict[str, Any], given: Given, where: Where) -> None:
    for option in ("header", "delimiter"):
        if option in given and read["format"] != "csv":
            raise QueryError(
                f"the option {option!r} has no meaning for format {read['format']!r}",
                where=where(option),
                hint="remove it, or set format = 'csv'",
            )


def read_table_options(given: Given, name: str, where: Where) -> FilesConnector:
    """Return where a table's rows are; the format is that of the file's name unless it is said."""
    read = read_options(given, TABLE, what=f"table {name!r}", where=where, error=QueryError)
    suffix = read["path"].rsplit(".", 1)[-1].lower()
    if "format" not in given and suffix in ("json", "csv", "parquet"):
        read["format"] = suffix
    read.pop("connector")
    _refuse_csv_options(read, given, where)
    return FilesConnector(**read)


def read_view_options(given: Given, name: str, where: Where) -> ViewOptions:
    """Return the contract and the running of a view."""
    read = read_options(given, VIEW, what=f"view {name!r}", where=where, error=QueryError)
    if "confidence" in given and "max_error" not in given:
        raise QueryError(
            f"view {name!r} states a confidence but no max_error",
            where=where("confidence"),
            hint="a contract is both: max_error = 0.05, confidence = 0.95",
        )
    return ViewOptions(
        read["max_error"],
        read["confidence"],
        read["sink"],
        read["freshness"],
        read["policy"],
        read["emit_early"],
        read["repair"],
        read["shed"],
        read["weight"],
        read["slack"],
    )
