"""Where a site that has joined a deployment reads its streams and tables: `[sources.NAME]` of its `site.toml`.

The center declares what a stream is; the machine of a site may know better where its records are. Only addresses can
be changed: what records look like is the same at all sites.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from catchment.errors import ConfigError
from catchment.project.joined_site import JoinedSite
from catchment.project.options import options_of, read_options
from catchment.query.sql.parse import AnyStatement
from catchment.query.sql.statements import Stream, Table

# Options that say where records are.
ADDRESSES = (
    "path",
    "brokers",
    "broker",
    "topic",
    "schema",
    "registry",
    "client_config",
    "url",
    "password_file",
    "argument",
)


def use_own_source(statement: AnyStatement, joined: JoinedSite) -> AnyStatement:
    """Return a declared stream or table as this site reads it; other statements are returned as they are."""
    if not isinstance(statement, Stream | Table) or statement.name not in joined.sources:
        return statement
    given = joined.sources[statement.name]
    possible = [o for o in options_of(type(statement.connector)) if o.name in ADDRESSES]
    if not possible:
        raise ConfigError(
            f"{statement.name!r} has connector {statement.connector.kind!r}, which is not read from anywhere",
            where=joined.file.at(f"sources.{statement.name}", None),
            hint=f"remove [sources.{statement.name}]",
        )
    read = read_options(
        given,
        [replace(o, required=False) for o in possible],
        what=f"[sources.{statement.name}]",
        where=lambda key: joined.file.at(f"sources.{statement.name}", key),
    )
    changed: dict[str, Any] = {o.key: read[o.key] for o in possible if o.name in given}
    if isinstance(statement, Table):
        return replace(statement, connector=replace(statement.connector, **changed))
    return replace(statement, connector=replace(statement.connector, **changed))
