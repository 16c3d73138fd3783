"""From CREATE SINK to what delivers: which columns are its keys, and which target it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from catchment.errors import EngineError, QueryError
from catchment.project.config import Project
from catchment.query.plan import QueryPlan
from catchment.query.sql.sink_connectors import (
    CHANGELOG,
    DeltaSink,
    IcebergSink,
    KafkaSink,
    PostgresSink,
    PythonSink,
)
from catchment.query.sql.statements import DeclaredSink
from catchment.records.own_source import load_own_class
from catchment.sinks.changes import ViewChanges
from catchment.sinks.delivery import Delivery
from catchment.sinks.target import SinkError, Target
from catchment.timeline import Clock

SINKS_FOLDER = "sinks"  # in the folder of the center: places of targets that store none


def shown_keys(sink: DeclaredSink, plan: QueryPlan) -> Mapping[str, str]:
    """Return the column of the view that shows each key of GROUP BY; refuse a view that leaves one out.

    Rows of such a view cannot be told apart by what it shows, so that one would replace another.
    """
    shown = {c.source: c.name for c in plan.columns if c.source is not None}
    hidden = [key.name for key in plan.answer.keys if key.name not in shown]
    if hidden:
        expressions = ", ".join(key.sql for key in plan.answer.keys if key.name in hidden)
        raise QueryError(
            f"sink {sink.name!r}: the rows of view {plan.view!r} cannot be told apart, because it groups by "
            f"{expressions} and does not show it",
            where=sink.where,
            hint="add every key of GROUP BY to the SELECT list of the view",
        )
    return {key.name: shown[key.name] for key in plan.answer.keys}


def make_deliveries(
    sinks: Iterable[DeclaredSink], plans: Mapping[str, QueryPlan], project: Project, clock: Clock
) -> list[Delivery]:
    """Return what delivers the views that run, by the sinks that are declared."""
    by_name = {plan.view.lower(): plan for plan in plans.values()}
    running = ((sink, by_name.get(sink.view.lower())) for sink in sinks)
    return [_make_delivery(sink, plan, project, clock) for sink, plan in running if plan is not None]


def _make_delivery(sink: DeclaredSink, plan: QueryPlan, project: Project, clock: Clock) -> Delivery:
    changes = ViewChanges(
        project.state_folder, plan.name, shown_keys(sink, plan), changelog=sink.connector.changes == CHANGELOG
    )
    make = partial(make_target, sink, project.folder)
    return Delivery(sink.name, changes, make, project.state_folder / "center" / SINKS_FOLDER, clock)


def make_target(sink: DeclaredSink, folder: Path, life: str) -> Target:
    """Return the target of a sink; `life` is that of the tables of its view."""
    match sink.connector:
        case KafkaSink() as kafka:
            return _make_kafka(sink.name, kafka, folder, life)
        case PostgresSink() as postgres:
            return _make_postgres(sink.name, postgres, folder)
        case DeltaSink() as delta:
            return _make_delta(sink.name, delta, folder, life)
        case IcebergSink() as iceberg:
            return _make_iceberg(sink.name, iceberg, folder)
        case PythonSink() as python:
            return _make_own(sink.name, python, folder)


def _make_kafka(name: str, kafka: KafkaSink, folder: Path, life: str) -> Target:
    try:
        from catchment.sinks.kafka import ANSWER_MS, KafkaTarget
    except ImportError as cause:
        raise _not_installed(name, "kafka", cause) from cause
    from catchment.records.client_config import read_client_config

    config = read_client_config(str(folder / kafka.client_config) if kafka.client_config else "")
    answer_s = int(config.get("socket.timeout.ms", ANSWER_MS)) / 1000
    return KafkaTarget(name, kafka.topic, life, {**config, "bootstrap.servers": kafka.brokers}, answer_s)


def _make_postgres(name: str, postgres: PostgresSink, folder: Path) -> Target:
    try:
        from catchment.sinks.postgres import PostgresTarget
    except ImportError as cause:
        raise _not_installed(name, "postgres", cause) from cause
    from catchment.records.client_config import check_password_file

    password_file = check_password_file(str(folder / postgres.password_file)) if postgres.password_file else None
    return PostgresTarget(name, postgres.table, postgres.url, password_file)


def _make_delta(name: str, delta: DeltaSink, folder: Path, life: str) -> Target:
    from catchment.records.object_store import S3_PREFIX, S3Settings
    from catchment.sinks.delta import DeltaTarget

    if not delta.path.startswith(S3_PREFIX):
        return DeltaTarget(name, str(folder / delta.path), life)
    settings = S3Settings.read(str(folder / delta.store_config) if delta.store_config else "")
    return DeltaTarget(name, delta.path, life, settings)


def _make_iceberg(name: str, iceberg: IcebergSink, folder: Path) -> Target:
    try:
        from catchment.sinks.iceberg import IcebergTarget
    except ImportError as cause:
        raise _not_installed(name, "iceberg", cause) from cause
    from catchment.records.client_config import read_client_config

    return IcebergTarget(name, iceberg.table, read_client_config(str(folder / iceberg.catalog_config)))


def _make_own(name: str, python: PythonSink, folder: Path) -> Target:
    """Return a target of the project's own: a class in a module of its folder."""
    try:
        made: Any = load_own_class(python.target, folder)(python.argument)
    except EngineError as cause:
        raise SinkError(cause.message, where=f"sink {name!r}", hint=cause.hint) from cause
    target: Target = made
    return target


def _not_installed(name: str, extra: str, cause: ImportError) -> SinkError:
    return SinkError(f"{cause.name} is not installed", where=f"sink {name!r}", hint=f'pip install "catchment[{extra}]"')
