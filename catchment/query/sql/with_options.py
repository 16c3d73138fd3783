"""Reading WITH (...): from the options of a stream, a table, a view or a sink to what they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from catchment.errors import QueryError
from catchment.project import option_kinds as kinds
from catchment.project.options import Option, options_of, read_options
from catchment.query.sql.connectors import (
    CONNECTORS,
    CSV_OPTIONS,
    STORE_OPTIONS,
    TABLE_CONNECTORS,
    Connector,
    FilesConnector,
    TableConnector,
)
from catchment.query.sql.feed_statements import ALL_REVISIONS, EXACT_ROWS
from catchment.query.sql.sink_connectors import SINK_CONNECTORS, SinkConnector
from catchment.query.sql.statements import Stream, Table
from catchment.query.sql.view_options import ViewOptions

Given = Mapping[str, Any]
Where = Callable[[str | None], str]

CONNECTOR = Option("connector", kinds.choice(*CONNECTORS), FilesConnector.kind, doc="where records come from")
TABLE_CONNECTOR = Option("connector", kinds.choice(*TABLE_CONNECTORS), FilesConnector.kind, doc="where rows come from")
DEVICE_OPTIONS = (
    Option(
        "device",
        kinds.text("the column that says whose event it is"),
        doc="the column that names the device on which a record is born",
    ),
    Option("born", kinds.choice("devices", "cloud"), "devices", doc="`cloud`: records are published at the cloud"),
    Option(
        "key",
        kinds.text("the column that says which part of the stream a record is of"),
        doc="of a stream that is born at the cloud: feed views read the parts that they need",
    ),
    Option(
        "view",
        kinds.text("the name of a materialized view"),
        doc="of a stream that is born at the cloud: the materialized view whose answers are its records",
    ),
    Option(
        "rows",
        kinds.choice(EXACT_ROWS, ALL_REVISIONS),
        EXACT_ROWS,
        doc="which answers of the view: `exact`, those of a window once, when it is first exact; `revisions`, all",
    ),
    Option(
        "rate",
        kinds.number(high=1e6),
        doc="how many records per second one device is expected to make, until it has reported them",
    ),
)
SINK_CONNECTOR = Option("connector", kinds.choice(*SINK_CONNECTORS), required=True, doc="which kind of system it is")


def read_stream_options(given: Given, name: str, where: Where) -> tuple[dict[str, Any], Connector]:
    """Return the stream's own fields, and its connector."""
    what = f"stream {name!r}"
    chosen = {k: v for k, v in given.items() if k == CONNECTOR.name}
    connector = _read(chosen, (CONNECTOR,), what, where)[CONNECTOR.name]
    own = (CONNECTOR, *options_of(Stream))
    of_connector = options_of(CONNECTORS[connector])
    _refuse_foreign(given, connector, (*own, *of_connector), name, where)
    read = _read(given, (*own, *of_connector), what, where)
    if "format" in read:
        _refuse_csv_options(read["format"], given, where)
    _refuse_growing(read, connector, where)
    _refuse_store_options(given, where)
    made = CONNECTORS[connector](**{o.key: read[o.key] for o in of_connector})
    return {o.key: read[o.key] for o in options_of(Stream)}, made


def _read(given: Given, options: Iterable[Option], what: str, where: Where) -> dict[str, Any]:
    return read_options(given, options, what=what, where=where, error=QueryError)


def _refuse_foreign(given: Given, connector: str, here: Iterable[Option], name: str, where: Where) -> None:
    """Refuse an option of another connector: that is a likelier mistake than a misspelt one."""
    possible = {o.name for o in here}
    for option in given:
        owners = [c for c, holder in CONNECTORS.items() if option in {o.name for o in options_of(holder)}]
        if option not in possible and owners:
            raise QueryError(
                f"stream {name!r} has connector {connector!r}, which has no option {option!r}",
                where=where(option),
                hint=f"it belongs to connector {' or '.join(owners)}; possible here: {', '.join(sorted(possible))}",
            )


def _refuse_csv_options(format_: str, given: Given, where: Where) -> None:
    for option in CSV_OPTIONS:
        if option in given and format_ != "csv":
            raise QueryError(
                f"the option {option!r} has no meaning for format {format_!r}",
                where=where(option),
                hint="remove it, or set format = 'csv'",
            )


def _refuse_growing(read: Given, connector: str, where: Where) -> None:
    """Refuse files that grow where only whole files can be read."""
    if read.get("growing") and (connector != FilesConnector.kind or read["format"] == "parquet"):
        given = f"format {read['format']!r}" if connector == FilesConnector.kind else f"connector {connector!r}"
        raise QueryError(
            f"the option 'growing' has no meaning for {given}",
            where=where("growing"),
            hint="only files of JSON lines or CSV, read by connector 'files', can grow",
        )


def _refuse_store_options(given: Given, where: Where) -> None:
    """Refuse options of object stores for files on disk."""
    for option in STORE_OPTIONS:
        if option in given and "://" not in str(given.get("path")):
            raise QueryError(
                f"the option {option!r} has no meaning for files on disk",
                where=where(option),
                hint="remove it, or let path be an address such as 's3://lake/hits/{site}'",
            )


def read_device_options(given: Given, name: str, where: Where) -> dict[str, Any]:
    """Return the fields of a stream of devices, or of one that is born at the cloud."""
    read = _read(given, DEVICE_OPTIONS, f"stream {name!r}", where)
    at_cloud = read["born"] == "cloud"
    if at_cloud == (read["device"] is not None) or (read["key"] is not None and not at_cloud):
        raise QueryError(
            f"stream {name!r} needs either a device or born = 'cloud', with which it may have a key",
            where=where(None),
            hint="WITH (device = 'user'), or WITH (born = 'cloud', key = 'station')",
        )
    if (read["view"] is not None and not at_cloud) or (read["view"] is None and "rows" in given):
        raise QueryError(
            f"stream {name!r} has options of the answers of a view, and is none",
            where=where("view" if read["view"] is not None else "rows"),
            hint="WITH (born = 'cloud', view = 'busy', rows = 'revisions')",
        )
    device = read["key"] if at_cloud else read["device"]
    return {"device": device, "born_at_cloud": at_cloud} | {name: read[name] for name in ("rate", "view", "rows")}


def read_table_options(given: Given, name: str, where: Where) -> tuple[dict[str, Any], TableConnector]:
    """Return the table's own fields, and where its rows are."""
    what = f"table {name!r}"
    chosen = {k: v for k, v in given.items() if k == TABLE_CONNECTOR.name}
    kind = _read(chosen, (TABLE_CONNECTOR,), what, where)[TABLE_CONNECTOR.name]
    read = _read(given, (TABLE_CONNECTOR, *table_connector_options(kind), *options_of(Table)), what, where)
    if kind == FilesConnector.kind:
        _choose_format(read, given, where)
        _refuse_store(read["path"], where)
    made = TABLE_CONNECTORS[kind](**{o.key: read[o.key] for o in table_connector_options(kind)})
    return {o.key: read[o.key] for o in options_of(Table)}, made


def table_connector_options(kind: str) -> tuple[Option, ...]:
    """Return the options of a table's connector; the files of a table are on disk, and do not grow."""
    return tuple(o for o in options_of(TABLE_CONNECTORS[kind]) if o.name not in ("growing", *STORE_OPTIONS))


def _refuse_store(path: str, where: Where) -> None:
    if "://" in path:
        raise QueryError(
            f"the rows of a table are read from disks, and {path!r} is an address",
            where=where("path"),
            hint="copy the file into the project, or use connector 'postgres'",
        )


def _choose_format(read: dict[str, Any], given: Given, where: Where) -> None:
    """Let the format follow from the name of the file, unless it is given."""
    suffix = read["path"].rsplit(".", 1)[-1].lower()
    if "format" not in given and suffix in ("json", "csv", "parquet"):
        read["format"] = suffix
    _refuse_csv_options(read["format"], given, where)


def read_sink_options(given: Given, name: str, where: Where) -> SinkConnector:
    """Return the connector of a sink."""
    what = f"sink {name!r}"
    chosen = {k: v for k, v in given.items() if k == SINK_CONNECTOR.name}
    holder = SINK_CONNECTORS[_read(chosen, (SINK_CONNECTOR,), what, where)[SINK_CONNECTOR.name]]
    read = _read(given, (SINK_CONNECTOR, *options_of(holder)), what, where)
    return holder(**{o.key: read[o.key] for o in options_of(holder)})


def read_view_options(given: Given, name: str, where: Where) -> ViewOptions:
    """Return the options of a view."""
    read = _read(given, options_of(ViewOptions), f"view {name!r}", where)
    if "confidence" in given and "max_error" not in given:
        raise QueryError(
            f"view {name!r} states a confidence but no max_error",
            where=where("confidence"),
            hint="a contract is both: max_error = 0.05, confidence = 0.95",
        )
    return ViewOptions(**read)
