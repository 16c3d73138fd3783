"""Protobuf values: what can be read becomes an object that Spark reads into columns; what cannot stays countable."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import EngineError
from catchment.records.registry import HEADER
from catchment.records.values import ValueReader

FIELD_TYPES = {
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
}


def add_field(
    message: Any, name: str, number: int, type_: str, *, repeated: bool = False, optional: bool = False
) -> None:
    made = message.field.add(name=name, number=number)
    made.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if type_ in FIELD_TYPES:
        made.type = FIELD_TYPES[type_]
    else:
        made.type = FieldDescriptorProto.TYPE_ENUM if type_.startswith("enum ") else FieldDescriptorProto.TYPE_MESSAGE
        made.type_name = type_.removeprefix("enum ")
    if optional:  # as protoc writes `optional` of proto3: alone in a oneof
        made.proto3_optional = True
        made.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def places_file() -> FileDescriptorProto:
    """package shop; message Place { string city = 1; message Floor { int64 number = 1; } }"""
    file = FileDescriptorProto(name="places.proto", package="shop", syntax="proto3")
    place = file.message_type.add(name="Place")
    add_field(place, "city", 1, "string")
    add_field(place.nested_type.add(name="Floor"), "number", 1, "int64")
    return file


def requests_file() -> FileDescriptorProto:
    """A message with everything: other files, times, lists, maps, enums, bytes, values that may be absent."""
    file = FileDescriptorProto(
        name="requests.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "places.proto"],
    )
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("UNKNOWN", "READ", "WRITE")):
        kind.value.add(name=name, number=number)
    request = file.message_type.add(name="Request")
    add_field(request, "ts", 1, ".google.protobuf.Timestamp")
    add_field(request, "page", 2, "string", optional=True)
    add_field(request, "size", 3, "int64")
    add_field(request, "ms", 4, "double")
    add_field(request, "tags", 5, "string", repeated=True)
    add_field(request, "kind", 6, "enum .shop.Kind")
    add_field(request, "place", 7, ".shop.Place")
    add_field(request, "raw", 8, "bytes")
    add_field(request, "price", 9, ".google.protobuf.DoubleValue")
    entry = request.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, "string")
    add_field(entry, "value", 2, "int64")
    add_field(request, "counts", 10, ".shop.Request.CountsEntry", repeated=True)
    return file


@pytest.fixture(scope="session")
def schema_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A set of descriptors without the files that Protobuf brings itself."""
    path = tmp_path_factory.mktemp("schemas") / "requests.desc"
    path.write_bytes(FileDescriptorSet(file=[places_file(), requests_file()]).SerializeToString())
    return str(path)


@pytest.fixture(scope="session")
def request_class() -> Any:
    """The class of the message as a producer has it."""
    pool = descriptor_pool.DescriptorPool()
    for built_in in (timestamp_pb2, wrappers_pb2):
        file = FileDescriptorProto()
        built_in.DESCRIPTOR.CopyToProto(file)
        pool.Add(file)
    pool.Add(places_file())
    pool.Add(requests_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Request"))


def read_one(reader: ValueReader, value: bytes) -> str:
    (text,) = reader.read([value]).to_pylist()
    return str(text)


def test_the_example_of_the_encoding_guide(tmp_path: Path) -> None:
    """`08 96 01` is a = 150, says the description of Protobuf's encoding."""
    file = FileDescriptorProto(name="test1.proto", syntax="proto3")
    add_field(file.message_type.add(name="Test1"), "a", 1, "int64")
    path = tmp_path / "test1.desc"
    path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    assert json.loads(read_one(ValueReader("protobuf", str(path)), bytes.fromhex("089601"))) == {"a": 150}


WHEN = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
RECORDS = st.fixed_dictionaries(
    {
        "ts": st.none() | WHEN,
        "page": st.none() | st.text(),
        "size": st.integers(-(2**63), 2**63 - 1),
        "ms": st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(st.text(), max_size=3),
        "kind": st.sampled_from([0, 1, 2, 7]),
        "place": st.none() | st.text(),
        "raw": st.binary(max_size=8),
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), max_size=3),
    }
)


@given(record=RECORDS)
def test_every_field_is_read_as_it_was_written(record: dict[str, Any], schema_file: str, request_class: Any) -> None:
    message = request_class(size=record["size"], ms=record["ms"], tags=record["tags"], kind=record["kind"])
    message.raw = record["raw"]
    message.counts.update(record["counts"])
    if record["ts"] is not None:
        message.ts.FromDatetime(record["ts"])
    if record["page"] is not None:
        message.page = record["page"]
    if record["place"] is not None:
        message.place.city = record["place"]
    if record["price"] is not None:
        message.price.value = record["price"]
    found = json.loads(read_one(ValueReader("protobuf", schema_file), message.SerializeToString()))
    assert found == {
        **record,
        "ts": record["ts"] and record["ts"].isoformat(),
        "kind": {0: "UNKNOWN", 1: "READ", 2: "WRITE", 7: "7"}[record["kind"]],
        # A message that is set to its default alone is written with nothing in it, or not at all.
        "place": {"city": record["place"]} if message.HasField("place") else None,
        "raw": base64.b64encode(record["raw"]).decode(),
        "price": record["price"] if message.HasField("price") else None,
    }


def test_numbers_that_json_lacks_are_the_texts_that_spark_reads(schema_file: str, request_class: Any) -> None:
    reader = ValueReader("protobuf", schema_file)
    for number, text in ((float("nan"), "NaN"), (float("inf"), "Infinity"), (-float("inf"), "-Infinity")):
        assert json.loads(read_one(reader, request_class(ms=number).SerializeToString()))["ms"] == text


@given(raw=st.binary(max_size=80))
def test_whatever_the_bytes_are_a_value_is_read_or_named_as_bad(raw: bytes, schema_file: str) -> None:
    assert read_one(ValueReader("protobuf", schema_file), raw).startswith(("{", "not Protobuf: "))


def test_a_message_is_chosen_by_its_name(schema_file: str) -> None:
    value = bytes.fromhex("0807")
    assert json.loads(read_one(ValueReader("protobuf", schema_file, message="shop.Place.Floor"), value)) == {
        "number": 7
    }
    with pytest.raises(EngineError, match=r"names the message 'shop\.Nothing', and .* has: shop\.Place, shop\.Request"):
        ValueReader("protobuf", schema_file, message="shop.Nothing").read([value])


def test_a_schema_with_several_messages_needs_a_name(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="two.proto", syntax="proto3")
    for name in ("One", "Two"):
        file.message_type.add(name=name)
    path = tmp_path / "two.desc"
    path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    with pytest.raises(EngineError, match=r"names no message and .* has: One, Two"):
        ValueReader("protobuf", str(path)).read([b""])


def test_a_schema_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nothing\.desc cannot be read"):
        ValueReader("protobuf", str(tmp_path / "nothing.desc")).read([b""])
    text = tmp_path / "requests.proto"
    text.write_text('syntax = "proto3";')
    with pytest.raises(EngineError, match="is not a set of descriptors"):
        ValueReader("protobuf", str(text)).read([b""])
    alone = tmp_path / "alone.desc"  # without --include_imports
    alone.write_bytes(FileDescriptorSet(file=[requests_file()]).SerializeToString())
    with pytest.raises(EngineError, match=r"is not complete: .*places\.proto is imported, and not there"):
        ValueReader("protobuf", str(alone)).read([b""])


@pytest.fixture
def registry() -> Iterator[tuple[str, list[str]]]:
    """A registry with the requests as schema 7, which refers to the places, and the list of what it was asked for."""
    asked: list[str] = []
    reference = {"name": "places.proto", "subject": "shop/places", "version": 3}
    answers = {
        "/schemas/ids/7?format=serialized": {"schema": requests_file(), "references": [reference]},
        "/subjects/shop%2Fplaces/versions/3?format=serialized": {"schema": places_file()},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found: dict[str, Any] = dict(answers.get(self.path, {}))
            if found:
                found["schema"] = base64.b64encode(found["schema"].SerializeToString()).decode()
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_values_of_a_registry_say_their_schema_and_message(registry: tuple[str, list[str]], request_class: Any) -> None:
    address, asked = registry
    reader = ValueReader("protobuf", registry=address)
    body = request_class(size=4).SerializeToString()
    for indexes in (b"\x00", b"\x02\x00"):  # the first message, in the short form and in the long one
        assert json.loads(read_one(reader, HEADER.pack(0, 7) + indexes + body))["size"] == 4
    assert asked == ["/schemas/ids/7?format=serialized", "/subjects/shop%2Fplaces/versions/3?format=serialized"]


def test_values_of_a_registry_that_are_nothing_are_bad_and_a_schema_that_is_not_there_is_an_outage(
    registry: tuple[str, list[str]], request_class: Any
) -> None:
    reader = ValueReader("protobuf", registry=registry[0])
    body = request_class(size=4).SerializeToString()
    without_message = [b"\x02\x04", b"\x04\x00\x63", b"\x01", b"", b"\xff\xff\xff\xff\xff\xff"]
    for value in (b"", b"\x01abcdef", *(HEADER.pack(0, 7) + indexes for indexes in without_message)):
        assert read_one(reader, value) == f"not Protobuf: {value.hex()}"
    with pytest.raises(EngineError, match="did not give schema 8"):
        reader.read([HEADER.pack(0, 8) + b"\x00" + body])


def test_another_message_than_the_streams_is_named(registry: tuple[str, list[str]], request_class: Any) -> None:
    reader = ValueReader("protobuf", registry=registry[0], message="shop.Place")
    value = HEADER.pack(0, 7) + b"\x00" + request_class(size=4).SerializeToString()
    assert read_one(reader, value) == f"not Protobuf (a shop.Request): {value.hex()}"
