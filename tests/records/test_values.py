"""Values of a broker's records: what can be read is read as it was written, and what cannot stays countable."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import EngineError
from catchment.records.registry import HEADER
from catchment.records.values import NO_VALUE, ValueReader

fastavro = pytest.importorskip("fastavro")

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Request",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "page", "type": ["null", "string"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "ms", "type": "double"},
    ],
}
RECORD = {
    "ts": datetime(2026, 1, 31, 14, 0, 0, 123456, tzinfo=UTC),
    "page": "/süß",
    "day": date(2026, 1, 31),
    "price": Decimal("12.50"),
    "ms": 1.5,
}


def encode(record: dict[str, Any], number: int | None = None) -> bytes:
    written = BytesIO()
    if number is not None:
        written.write(HEADER.pack(0, number))
    fastavro.schemaless_writer(written, fastavro.parse_schema(SCHEMA), record)
    return written.getvalue()


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    path = tmp_path / "request.avsc"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.fixture
def registry() -> Iterator[tuple[str, list[str]]]:
    """A registry that knows schema 7, and the list of what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.path == "/schemas/ids/7"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"schema": json.dumps(SCHEMA)} if known else {}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    server.server_close()


def test_texts_are_kept_as_they_are_and_no_value_is_a_text_of_its_own() -> None:
    values = [b'{"a": 1}', b"", None, b"\xff\xfe"]
    assert ValueReader("json").read(values).to_pylist() == ['{"a": 1}', "", NO_VALUE, "\ufffd\ufffd"]


def test_avro_becomes_json_with_times_dates_and_decimals_as_spark_reads_them(schema_file: str) -> None:
    (text,) = ValueReader("avro", schema_file).read([encode(RECORD)]).to_pylist()
    assert json.loads(text) == {
        "ts": "2026-01-31T14:00:00.123456+00:00",
        "page": "/süß",
        "day": "2026-01-31",
        "price": "12.50",
        "ms": 1.5,
    }


def test_a_schema_is_asked_for_once(registry: tuple[str, list[str]]) -> None:
    address, asked = registry
    reader = ValueReader("avro", registry=address)
    texts = reader.read([encode(RECORD, 7), encode({**RECORD, "page": None}, 7)]).to_pylist()
    assert [json.loads(t)["page"] for t in texts] == ["/süß", None]
    assert asked == ["/schemas/ids/7"]


def test_a_value_without_a_registrys_mark_is_bad_and_a_schema_that_is_not_there_is_an_outage(
    registry: tuple[str, list[str]],
) -> None:
    reader = ValueReader("avro", registry=registry[0])
    (text,) = reader.read([b"\x01abcdef"]).to_pylist()
    assert text.startswith("not Avro: 01616263")
    with pytest.raises(EngineError, match="did not give schema 8"):
        reader.read([encode(RECORD, 8)])


@given(raw=st.binary(max_size=60))
def test_whatever_the_bytes_are_a_value_is_read_or_named_as_bad(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.avsc"
    path.write_text(json.dumps(SCHEMA))
    (text,) = ValueReader("avro", str(path)).read([raw]).to_pylist()
    assert text.startswith(("{", "not Avro: "))


def test_a_schema_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nothing\.avsc cannot be read"):
        ValueReader("avro", str(tmp_path / "nothing.avsc")).read([b"x"])
