"""Which fragments of a stream are evaluated in the pass over its records, and why the others are left to Spark SQL.

A pass pays even where it evaluates nothing: it writes history and parses text several times faster than Spark does, and
Spark SQL then evaluates what the pass has written. Only Parquet files of which history has no copy are read by Spark at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from catchment.deploy.fragment_plan import FragmentPlan
from catchment.deploy.landed import as_landed
from catchment.project.config import Project
from catchment.project.sections import VECTORISED
from catchment.query.fragment import Fragment
from catchment.query.sql.connectors import FilesConnector, KafkaConnector
from catchment.query.sql.statements import Stream
from catchment.site.slack import watched_values
from catchment.vectorised.coercion import NotVectorisedError, is_plain, type_name
from catchment.vectorised.csv_lines import CsvLineParser
from catchment.vectorised.fragments import VectorFragment, VectorWatch, vectorise_fragment, vectorise_watch
from catchment.vectorised.heard import HeardSources
from catchment.vectorised.json_lines import JsonLineParser
from catchment.vectorised.scan import ScanPlan
from catchment.vectorised.text_values import is_readable
from catchment.vectorised.topic import TopicScan, value_columns

Given = TypeVar("Given")
Made = TypeVar("Made")
MAX_FAILED = 3  # passes that may fail one after another, before the stream is left to Spark SQL for a while
PAUSE_BATCHES = 100  # for which it is left to Spark SQL
# Settings of Spark that change what an expression or a file means.
_MEANINGFUL = (
    "spark.sql.ansi",
    "spark.sql.caseSensitive",
    "spark.sql.files",
    "spark.sql.legacy",
    "spark.sql.parquet",
    "spark.sql.session.timeZone",
    "spark.sql.sources",
)


@dataclass(frozen=True)
class ScanChoice:
    """The plans that a pass evaluates, what it computes for them, and the plans that are left to Spark SQL.

    The pass may evaluate none of them: then it only reads the files for Spark SQL. Suspended fragments, of which only
    records are counted, are `skipping` and `native_skipping`. The fragments of the pass are those of `scanned`, then
    `skipping`.
    """

    scan: ScanPlan
    scanned: tuple[FragmentPlan, ...]
    native: tuple[FragmentPlan, ...]
    skipping: tuple[Fragment, ...] = ()
    native_skipping: tuple[Fragment, ...] = ()

    @property
    def leaves_records(self) -> bool:
        """Whether Spark SQL evaluates some of the records after the pass."""
        return bool(self.native or self.native_skipping)

    @property
    def hands_over(self) -> bool:
        """Whether the pass writes its records for Spark SQL where history has no copy: text is parsed only once."""
        return self.leaves_records and (self.scan.lines is not None or self.scan.topic is not None)


@dataclass
class StreamScans:
    """What is scanned of a stream as its plans change, and how long it is left to Spark SQL after passes that failed.

    A pass that fails costs its time, and its batch is then reduced by Spark SQL: data on which every pass fails must
    not cost that twice for ever.
    """

    project: Project
    failed: int = 0  # passes since the last one that succeeded
    reason: str | None = None  # why the last pass failed
    _chosen_from: tuple[list[FragmentPlan], list[Fragment]] | None = None
    _choice: ScanChoice | None = None
    _pause: int = 0

    def choose(
        self,
        stream: Stream,
        header: Sequence[str],
        plans: Sequence[FragmentPlan],
        skipping: Sequence[Fragment],
        topic: Mapping[str, str] | None = None,
    ) -> ScanChoice | None:
        """Return what of the next batch is scanned; None if all of it is left to Spark SQL.

        The header names the columns of CSV files, `topic` says how a topic is read.
        """
        given = (list(plans), list(skipping))
        if self._chosen_from != given:
            self._chosen_from = given
            self._choice = choose_scanned(stream, header, plans, skipping, self.project, topic)
        if self._pause > 0:
            self._pause -= 1
            return None
        return self._choice

    def note_success(self) -> None:
        self.failed = 0
        self.reason = None

    def note_failure(self, reason: str) -> None:
        self.failed += 1
        self.reason = reason
        if self.failed >= MAX_FAILED:
            self._pause = PAUSE_BATCHES


def why_native(stream: Stream, project: Project) -> str | None:
    """Return why all fragments of a stream are left to Spark SQL; None if some may be scanned."""
    connector = stream.connector
    if project.defaults.evaluator != VECTORISED:
        return f"evaluator = '{project.defaults.evaluator}' in catchment.toml"
    if type(connector) is not FilesConnector and not isinstance(connector, KafkaConnector):
        return f"the {connector.kind} source hands records to Spark"
    if isinstance(connector, KafkaConnector) and connector.progress_header is not None:
        return "a header states the progress of its sources"
    if stream.shed:
        return "the stream may be sampled"
    changed = [name for name in project.spark.settings if name.startswith(_MEANINGFUL)]
    if changed:
        return f"{changed[0]} in [spark.settings] may change what SQL means"
    parsed = () if connector.format == "parquet" else tuple(c.name for c in _parsed_columns(stream))
    for column in stream.schema:
        if column.name in parsed and not is_readable(column.type):
            return f"the column {column.name} is {type_name(column.type)}, which Spark parses in {connector.format}"
        if project.defaults.copies_history(stream.history) and not is_plain(column.type):
            return f"the column {column.name} is {type_name(column.type)}"
    try:
        HeardSources.of(stream)
    except NotVectorisedError as error:
        return error.message
    return None


def choose_scanned(
    stream: Stream,
    header: Sequence[str],
    plans: Sequence[FragmentPlan],
    skipping: Sequence[Fragment],
    project: Project,
    topic: Mapping[str, str] | None = None,
) -> ScanChoice | None:
    """Return which plans of a stream are scanned; None if Spark SQL reads it itself. `topic` says how one is read."""
    if why_native(stream, project) is not None:
        return None
    plans_apart = _try_each(plans, lambda plan: vectorise_plan(stream, plan))
    skipping_apart = _try_each(skipping, lambda fragment: vectorise_fragment(fragment, stream.schema))
    if not plans_apart.done and not _is_read_faster(stream, project):
        return None
    vectorised = [found for _, found in plans_apart.done]
    counted = [found for _, found in skipping_apart.done]
    scan = ScanPlan(
        stream.schema,
        stream.event_time,
        project.defaults.resolve_jump_us(stream.max_jump_us),
        (*(fragment for fragment, _ in vectorised), *counted),
        tuple(watch for _, watches in vectorised for watch in watches),
        _lines_of(stream, header),
        HeardSources.of(stream),
        None if topic is None else TopicScan.of(stream, topic),
    )
    return ScanChoice(
        scan,
        tuple(plan for plan, _ in plans_apart.done),
        tuple(plans_apart.refused),
        tuple(fragment for fragment, _ in skipping_apart.done),
        tuple(skipping_apart.refused),
    )


def _is_read_faster(stream: Stream, project: Project) -> bool:
    """Return whether a pass that evaluates nothing saves time: Spark would parse text, or write history."""
    is_parquet = isinstance(stream.connector, FilesConnector) and stream.connector.format == "parquet"
    return not is_parquet or project.defaults.copies_history(stream.history)


def _lines_of(stream: Stream, header: Sequence[str]) -> JsonLineParser | CsvLineParser | None:
    """Return what reads the lines of a stream's files; None if they are Parquet, or there are none."""
    files = stream.connector
    if not isinstance(files, FilesConnector):
        return None
    if files.format == "json":
        return JsonLineParser(stream.schema, stream.event_time)
    if files.format == "csv":
        return CsvLineParser(stream.schema, stream.event_time, tuple(header), files.delimiter, files.header)
    return None


@dataclass(frozen=True)
class _Apart(Generic[Given, Made]):
    """What could be vectorised, with what became of it, and what could not."""

    done: list[tuple[Given, Made]]
    refused: list[Given]


def _try_each(given: Sequence[Given], vectorise: Callable[[Given], Made]) -> _Apart[Given, Made]:
    apart: _Apart[Given, Made] = _Apart([], [])
    for each in given:
        try:
            apart.done.append((each, vectorise(each)))
        except NotVectorisedError:
            apart.refused.append(each)
    return apart


def vectorise_plan(stream: Stream, plan: FragmentPlan) -> tuple[VectorFragment, tuple[VectorWatch, ...]]:
    """Return a fragment and its watches as a pass evaluates them, or say what of them is left to Spark SQL."""
    fragment = vectorise_fragment(plan.fragment, stream.schema)
    watches = tuple(
        vectorise_watch(watch.fragment, stream.source, watched_values(watch.slack), stream.schema)
        for watch in plan.watches
    )
    return fragment, watches


def explain_evaluation(stream: Stream, plan: FragmentPlan, project: Project) -> str:
    """Return how a fragment is evaluated, and why it is not vectorised if it is not."""
    stream = as_landed(stream, project)
    reason = why_native(stream, project)
    if reason is None:
        try:
            vectorise_plan(stream, plan)
        except NotVectorisedError as error:
            reason = error.message
    what = "the topic" if isinstance(stream.connector, KafkaConnector) else "the files"
    return f"vectorised, in the tasks that read {what}" if reason is None else f"native Spark SQL: {reason}"


def _parsed_columns(stream: Stream) -> pa.Schema:
    """Return the columns that are parsed from texts, where records are texts."""
    kafka = stream.connector
    return value_columns(stream, kafka) if isinstance(kafka, KafkaConnector) else stream.schema
