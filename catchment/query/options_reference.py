"""The reference of all options, `docs/reference/options.md`, made of their declarations.

`python -m catchment.query.options_reference > docs/reference/options.md` writes it; a test holds that it is up to date.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from catchment.project import template
from catchment.project.config import Project
from catchment.project.joined_site import JoinedSite
from catchment.project.options import Option, options_of
from catchment.project.sections import Defaults, Link, Security, Site, SparkConfig, StorageLimits
from catchment.query.sql.connectors import CONNECTORS, TABLE_CONNECTORS
from catchment.query.sql.sink_connectors import SINK_CONNECTORS
from catchment.query.sql.statements import Stream, Table
from catchment.query.sql.view_options import ViewOptions
from catchment.query.sql.with_options import CONNECTOR, SINK_CONNECTOR, TABLE_CONNECTOR, table_connector_options

_HEAD = """\
# Every option

This page is generated from the declarations in the code, by
`python -m catchment.query.options_reference > docs/reference/options.md`.

Durations are written `'250 ms'`, `'10 s'`, `'1 minute'`, `'1 hour'`; sizes `'64 MB'`, `'1 GiB'`; bandwidths `'2 MB/s'`,
`'20 Mbit/s'`; flags `on` or `off`, `true` or `false`."""
_PROJECT_HEAD = """\
## The project: `catchment.toml`

`catchment init` writes this file with every setting in it, commented."""
_SITE_HEAD = """\
## A site on a machine of its own: `site.toml`

What [the machine of a site](../guides/deploy.md#machines-that-share-nothing) knows by itself. `[security]`, `[spark]`,
`[limits]` and `[traces]` are as above; where `[limits]` is absent, that of the center holds.
`[sources.NAME]` says where this machine finds the records of a stream or the rows of a table: its `path`, or its
`brokers`, `broker`, `topic`, `schema`, `registry`, `client_config`, `url`, `password_file` or `argument`."""
_SQL_HEAD = """\
## Streams, tables, views and sinks: `WITH (...)`

What the statements mean is described in [sql.md](sql.md)."""

_TABLE_DOCS = {"files": "Unless a format is given, it follows from the name of the file."}


def options_reference() -> str:
    """Return the reference of all options, as Markdown."""
    connectors = [
        _section(f"### Streams with `connector = '{kind}'`", options_of(holder)) for kind, holder in CONNECTORS.items()
    ]
    tables = [
        _section(f"### Tables with `connector = '{kind}'`", table_connector_options(kind), _TABLE_DOCS.get(kind, ""))
        for kind in TABLE_CONNECTORS
    ]
    sinks = [
        _section(f"### Sinks with `connector = '{kind}'`", (SINK_CONNECTOR, *options_of(holder)))
        for kind, holder in SINK_CONNECTORS.items()
    ]
    sections = (
        _HEAD,
        _PROJECT_HEAD,
        _section("### `[project]`", options_of(Project)),
        _section("### `[sites.NAME]`", options_of(Site), template.SITES_DOC),
        _section("### `[[links]]`", options_of(Link), template.LINKS_DOC),
        _section("### `[spark]`", options_of(SparkConfig)),
        f"Settings in `[spark.settings]` are {template.SPARK_SETTINGS_DOC}.",
        _section("### `[security]`", options_of(Security), template.SECURITY_DOC),
        _section("### `[limits]`", options_of(StorageLimits), template.LIMITS_DOC),
        _section("### `[defaults]`", options_of(Defaults), template.DEFAULTS_DOC),
        _SITE_HEAD,
        _section("### `[site]`", options_of(JoinedSite)),
        _SQL_HEAD,
        _section("### Streams", (CONNECTOR, *options_of(Stream))),
        *connectors,
        _section("### Tables", (TABLE_CONNECTOR, *options_of(Table))),
        *tables,
        _section("### Views", options_of(ViewOptions)),
        *sinks,
    )
    return "\n\n".join(sections) + "\n"


def _section(heading: str, options: Iterable[Option], doc: str = "") -> str:
    rows = ["| option | what it is | value | absent |", "|---|---|---|---|", *map(_row, options)]
    return "\n\n".join(filter(None, [heading, " ".join(doc.splitlines()), "\n".join(rows)]))


def _row(option: Option) -> str:
    cells = (f"`{option.name}`", option.doc, option.kind.expected, _absent(option))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _absent(option: Option) -> str:
    if option.required:
        return "required"
    if option.default is None:
        return option.absent or "none"
    return f"`{_literal(option.kind.write(option.default))}`"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else f"{value:g}"


if __name__ == "__main__":
    print(options_reference(), end="")
