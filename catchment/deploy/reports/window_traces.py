"""The life of windows as OpenTelemetry traces: one trace per window of a view, with a span for each part of its way.

Every process computes the trace of a window from the names of the project and the view and the start of the window. So
the spans of all sites and of the center come together without a byte on the wire, and the same windows are sampled
everywhere. The clocks of machines may differ, and with them the times of their spans.

Bounds: `REMEMBERED` slices, segments and windows; beyond them the oldest is forgotten, and its span is not sent. Spans
that the collector does not take in time are dropped by OpenTelemetry's own queue. Nothing waits for the collector.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import pyarrow.compute as pc
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from catchment.center.events import Compose, Publish
from catchment.center.statuses import EXACT, FINAL
from catchment.deploy.deployment import Deployment
from catchment.progress.events import Gathered, Landed
from catchment.project.sections import Traces
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import Clock, Window, WindowSpec
from catchment.version import VERSION
from catchment.wire.messages import Segment, Updates

REMEMBERED = 10_000
EXPORT_TIMEOUT_S = 5  # for one call to the collector
STOP_WITHIN_MS = 5_000  # how long the end of a process waits for the last spans

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Recent(Generic[Key, Value]):
    """A table of the newest entries."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def put(self, key: Key, value: Value) -> None:
        self._entries[key] = value
        while len(self._entries) > REMEMBERED:
            self._entries.popitem(last=False)

    def put_first(self, key: Key, value: Value) -> None:
        if key not in self._entries:
            self.put(key, value)

    def get(self, key: Key) -> Value | None:
        return self._entries.get(key)

    def pop(self, key: Key) -> Value | None:
        return self._entries.pop(key, None)


@dataclass(frozen=True)
class TracedWindow:
    """A window of a view, and the numbers of its trace."""

    view: str
    window: Window
    trace_id: int
    root_id: int


@dataclass(frozen=True)
class TracedWindows:
    """Which windows are traced, and which of them a slice of a fragment belongs to."""

    project: str
    sample: float
    readers: Mapping[str, tuple[tuple[str, WindowSpec], ...]]  # fragment -> the views that are answered from it

    @classmethod
    def of(cls, deployment: Deployment) -> TracedWindows:
        """Return the windows of what is deployed."""
        readers: dict[str, dict[tuple[str, WindowSpec], None]] = {}
        for query in deployment.center_queries:
            for part in query.parts:
                readers.setdefault(part.source_fragment, {})[query.name, query.window] = None
        project = deployment.project
        return cls(project.name, project.traces.sample, {name: tuple(views) for name, views in readers.items()})

    def find(self, view: str, window: Window) -> TracedWindow | None:
        """Return a window with the numbers of its trace; None if it is not in the sample."""
        trace_id, root_id, place = _numbers(self.project, view, window.start_us)
        return TracedWindow(view, window, trace_id, root_id) if place < self.sample else None

    def containing(self, fragment: str, slices_us: Iterable[int]) -> dict[TracedWindow, list[int]]:
        """Return the windows in the sample that these slices belong to, with those slices."""
        found: dict[TracedWindow, list[int]] = {}
        for slice_us in slices_us:
            for view, spec in self.readers.get(fragment, ()):
                for window in spec.containing(slice_us):
                    traced = self.find(view, window)
                    if traced is not None:
                        found.setdefault(traced, []).append(slice_us)
        return found


@lru_cache(maxsize=REMEMBERED)
def _numbers(project: str, view: str, start_us: int) -> tuple[int, int, float]:
    """Return the trace of a window, its first span, and its place in [0, 1) by which it is sampled."""
    digest = blake2b(f"{project}\0{view}\0{start_us}".encode(), digest_size=32).digest()
    trace_id = int.from_bytes(digest[:16], "big") or 1  # 0 is not a valid number
    root_id = int.from_bytes(digest[16:24], "big") or 1
    return trace_id, root_id, int.from_bytes(digest[24:], "big") / 2**64


class _GivenIds(RandomIdGenerator):
    """Makes random numbers, but for the first span of a window, whose numbers every process knows."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give(self, traced: TracedWindow) -> None:
        """Let the next span of this thread be the first one of a window."""
        self._given.trace_id = traced.trace_id
        self._given.root_id = traced.root_id

    def generate_trace_id(self) -> int:
        given = self._given.__dict__.pop("trace_id", None)
        return super().generate_trace_id() if given is None else int(given)

    def generate_span_id(self) -> int:
        given = self._given.__dict__.pop("root_id", None)
        return super().generate_span_id() if given is None else int(given)


class WindowTraces:
    """Sends the lives of windows to a collector; it is a `WindowObserver`, and safe for threads."""

    def __init__(self, windows: TracedWindows, clock: Clock, exporter: SpanExporter) -> None:
        self._windows = windows
        self._clock = clock
        self._ids = _GivenIds()
        resource = Resource.create({"service.name": "catchment", "catchment.project": windows.project})
        self._provider = TracerProvider(ALWAYS_ON, resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("catchment", VERSION)
        self._lock = threading.Lock()
        self._first_read_us: _Recent[tuple[str, str, int], int] = _Recent()  # by site, fragment and slice
        self._sent: _Recent[tuple[str, int], tuple[int, frozenset[TracedWindow]]] = _Recent()  # by site and segment
        self._landed_us: _Recent[tuple[str, int], int] = _Recent()
        self._begun_us: _Recent[TracedWindow, int] = _Recent()  # at the center
        self._ended: _Recent[TracedWindow, bool] = _Recent()

    def follow(self, deployment: Deployment) -> None:
        """Trace the windows of what is deployed now."""
        self._windows = TracedWindows.of(deployment)

    def close(self) -> None:
        """Send what is left, and stop; the collector is not waited for longer than `STOP_WITHIN_MS`."""
        self._provider.force_flush(STOP_WITHIN_MS)
        self._provider.shutdown()

    # --- at a site --------------------------------------------------------------------------------------------

    def note_read(self, site: str, fragment: str, slices_us: Iterable[int]) -> None:
        now_us = self._clock.now_us()
        with self._lock:
            for slice_us in slices_us:
                self._first_read_us.put_first((site, fragment, slice_us), now_us)

    def note_flushed(self, site: str, sequence: int, updates: Sequence[Updates]) -> None:
        now_us = self._clock.now_us()
        windows: set[TracedWindow] = set()
        with self._lock:
            for update in updates:
                slices_us = pc.unique(update.table[SLICE_COLUMN]).to_pylist() if update.rows else ()
                read_us = {s: self._first_read_us.pop((site, update.fragment, s)) for s in slices_us}
                for traced, mine in self._windows.containing(update.fragment, slices_us).items():
                    windows.add(traced)
                    began = [at_us for at_us in (read_us[s] for s in mine) if at_us is not None]
                    if began:  # of a relay nothing was read
                        of = {"catchment.site": site, "catchment.fragment": update.fragment}
                        self._send(traced, "site", (min(began), now_us), of, ("first record read", "flush"))
            if windows:
                self._sent.put((site, sequence), (now_us, frozenset(windows)))

    def note_acked(self, site: str, sequence: int) -> None:
        now_us = self._clock.now_us()
        with self._lock:
            sent = self._sent.pop((site, sequence))
            for traced in sent[1] if sent is not None else ():
                assert sent is not None
                of = {"catchment.site": site, "catchment.segment": sequence}
                self._send(traced, "link", (sent[0], now_us), of, ("queued", "acknowledged"))

    # --- at the center ----------------------------------------------------------------------------------------

    def note_landed(self, segment: Segment) -> None:
        with self._lock:
            self._landed_us.put_first((segment.origin, segment.sequence), self._clock.now_us())

    def note_merged(self, events: Iterable[Any], began_us: int) -> None:
        now_us = self._clock.now_us()
        events = tuple(events)
        with self._lock:
            landed_us: dict[str, int] = {}
            for landed in (e for e in events if isinstance(e, Landed)):
                at_us = self._landed_us.pop((landed.origin, landed.sequence))
                if at_us is not None:
                    landed_us[landed.origin] = min(at_us, landed_us.get(landed.origin, at_us))
            for gathered in (e for e in events if isinstance(e, Gathered)):
                self._trace_merge(gathered, landed_us, began_us, now_us)

    def _trace_merge(self, event: Gathered, landed_us: Mapping[str, int], began_us: int, now_us: int) -> None:
        senders: dict[str, list[int]] = {}
        for sender, slice_us in event.senders:
            senders.setdefault(sender, []).append(slice_us)
        merged: dict[TracedWindow, None] = {}
        for sender, slices_us in senders.items():
            arrived_us = landed_us.get(sender, began_us)
            for traced in self._windows.containing(event.fragment, slices_us):
                merged[traced] = None
                self._begun_us.put_first(traced, arrived_us)
                of = {"catchment.site": sender, "catchment.fragment": event.fragment}
                self._send(traced, "inbox", (arrived_us, began_us), of, ("landed", "taken"))
        for traced in merged:
            self._send(traced, "merge", (began_us, now_us), {"catchment.fragment": event.fragment})

    def note_published(self, actions: Iterable[Any]) -> None:
        now_us = self._clock.now_us()
        with self._lock:
            for action in actions:
                if isinstance(action, Publish | Compose):
                    traced = self._windows.find(action.query, action.window)
                    if traced is not None:
                        self._trace_publication(traced, action, now_us)

    def _trace_publication(self, traced: TracedWindow, action: Publish | Compose, now_us: int) -> None:
        of = {
            "catchment.status": action.status,
            "catchment.revision": action.revision,
            "catchment.coverage": action.coverage,
            "catchment.reason": action.reason,
            "catchment.missing_sites": list(action.missing_sites),
        }
        self._begun_us.put_first(traced, action.published_us or now_us)
        self._send(traced, f"publish {action.status}", (action.published_us or now_us, now_us), of)
        if action.status in (EXACT, FINAL) and self._ended.get(traced) is None:
            self._ended.put(traced, True)
            began_us = self._begun_us.pop(traced) or now_us
            self._ids.give(traced)
            self._end_span(Context(), f"window of {traced.view}", traced, (began_us, now_us), of, ())

    # --- spans ------------------------------------------------------------------------------------------------

    def _send(
        self,
        traced: TracedWindow,
        name: str,
        span_us: tuple[int, int],
        attributes: Mapping[str, Any],
        marks: tuple[str, str] | tuple[()] = (),
    ) -> None:
        """Send a part of a window's life; `marks` name its two ends."""
        parent = SpanContext(traced.trace_id, traced.root_id, is_remote=True, trace_flags=TraceFlags(1))
        self._end_span(set_span_in_context(NonRecordingSpan(parent)), name, traced, span_us, attributes, marks)

    def _end_span(
        self,
        context: Context,
        name: str,
        traced: TracedWindow,
        span_us: tuple[int, int],
        attributes: Mapping[str, Any],
        marks: Iterable[str],
    ) -> None:
        start_us, end_us = span_us[0], max(span_us)
        of = {**attributes, **dict(_describe(traced))}
        span = self._tracer.start_span(name, context=context, start_time=start_us * 1_000, attributes=of)
        for mark, at_us in zip(marks, (start_us, end_us), strict=False):
            span.add_event(mark, timestamp=at_us * 1_000)
        span.end(end_time=end_us * 1_000)


def _describe(traced: TracedWindow) -> Iterator[tuple[str, str | int]]:
    yield "catchment.view", traced.view
    yield "catchment.window_start_us", traced.window.start_us
    yield "catchment.window_end_us", traced.window.end_us


def open_traces(deployment: Deployment, clock: Clock, config: Traces) -> WindowTraces:
    """Return what sends traces to the collector of a project."""
    assert config.endpoint is not None, "traces are on"
    is_plain = not config.endpoint.startswith("https://")
    exporter = OTLPSpanExporter(endpoint=config.endpoint, insecure=is_plain, timeout=EXPORT_TIMEOUT_S)
    return WindowTraces(TracedWindows.of(deployment), clock, exporter)
