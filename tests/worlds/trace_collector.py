"""A small OpenTelemetry collector: a real OTLP/gRPC server, with the official messages, that keeps what it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_us: int
    end_us: int
    attributes: dict[str, Any]
    marks: tuple[str, ...]


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it is sent; `endpoint` is where. It answers nobody before `may_answer` is set."""

    endpoint: str = ""
    was_asked: threading.Event = field(default_factory=threading.Event)
    may_answer: threading.Event = field(default_factory=threading.Event)
    resources: list[dict[str, Any]] = field(default_factory=list)
    _spans: list[CollectedSpan] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the call
        """Take spans."""
        self.was_asked.set()
        self.may_answer.wait()
        with self._lock:
            for group in request.resource_spans:
                self.resources.append(_values(group.resource.attributes))
                self._spans += [_read(span) for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[CollectedSpan]:
        with self._lock:
            return list(self._spans)


def _values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes if a.value.WhichOneof("value")}


def _read(span: Any) -> CollectedSpan:
    return CollectedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano // 1_000,
        span.end_time_unix_nano // 1_000,
        _values(span.attributes),
        tuple(event.name for event in span.events),
    )


@contextmanager
def run_collector(answers: bool = True) -> Iterator[Collector]:
    """Serve a collector on a free port of this machine; without `answers`, it hangs until it is told to go on."""
    collector = Collector()
    if answers:
        collector.may_answer.set()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        collector.may_answer.set()
        server.stop(0)
