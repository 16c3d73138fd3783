"""The commented `catchment.toml` that `catchment init` writes: every setting, with its default and what it is for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from catchment.project.config import Project
from catchment.project.options import Option, options_of
from catchment.project.sections import Defaults, Link, Security, Site, SparkConfig, StorageLimits, Traces

_COMMENT_COLUMN = 31  # where comments begin
_HEAD = """\
# catchment.toml: the sites of a project, the links between them, and how they run.
# Every setting is here. Those behind a single "#" show their default, or an example: remove it to change the value.
# Durations: '250 ms', '10 s', '1 minute', '1 hour'. Sizes: '64 MB', '1 GiB'. Bandwidths: '2 MB/s', '20 Mbit/s'."""
SITES_DOC = "One table per site. Names: letters, digits, _ and -. Every setting of a site is optional."
LINKS_DOC = """\
One table per link. Every site where a stream is born needs a route to the center: a link, or links through other
sites, which merge what meets there and send it on. The route that carries a segment
soonest by bandwidth and latency is taken; where links declare nothing, the one with the fewest links."""
SPARK_SETTINGS_DOC = "passed to Spark unchanged"
SECURITY_DOC = """\
Paths are relative to the project folder; {site} in them is the name of a site. Without these files sites can be reached
on their own machine only, and links are not encrypted. `catchment keys init` makes all of them:
docs/guides/security.md."""
LIMITS_DOC = "How much is kept on disk, per site and stream. What happens at each limit: docs/reliability.md."
TRACES_DOC = "The way of each window as OpenTelemetry traces: docs/guides/logs-and-traces.md."
DEFAULTS_DOC = "What holds for streams and views that do not say otherwise in their WITH (...)."


def template() -> str:
    """Return the text of a commented `catchment.toml` with every setting in it."""
    listen = [o for o in options_of(Site) if o.name in ("listen", "address")]
    others = [o for o in options_of(Site) if o not in listen]
    settings = _comment_behind("[spark.settings]", SPARK_SETTINGS_DOC)
    tables = (
        _HEAD,
        _table("[project]", options_of(Project)),
        _table("[sites.edge]", others, SITES_DOC),
        _table("[sites.center]", listen),
        _table("[[links]]", options_of(Link), LINKS_DOC),
        _table("[spark]", options_of(SparkConfig)),
        f'{settings}\n#"spark.sql.shuffle.partitions" = 2',
        _table("[security]", options_of(Security), SECURITY_DOC),
        _table("[limits]", options_of(StorageLimits), LIMITS_DOC),
        _table("[traces]", options_of(Traces), TRACES_DOC),
        _table("[defaults]", options_of(Defaults), DEFAULTS_DOC),
    )
    return "\n\n".join(tables) + "\n"


def _table(header: str, options: Iterable[Option], doc: str = "") -> str:
    comment = [f"# {line}" for line in doc.splitlines()]
    return "\n".join([*comment, header, *map(_line, options)])


def _line(setting: Option) -> str:
    shown = setting.example if setting.default is None else setting.default
    mark = "" if setting.required else "#"
    absent = f"; absent: {setting.absent}" if setting.absent else ""
    return _comment_behind(f"{mark}{setting.name} = {_literal(setting.kind.write(shown))}", f"{setting.doc}{absent}")


def _comment_behind(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_COLUMN - 1}} # {comment}"


def _literal(value: Any) -> str:
    """Return a value as TOML, whose strings, numbers and booleans are written as in JSON."""
    return json.dumps(value, ensure_ascii=False)
