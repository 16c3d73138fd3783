"""Protobuf values as JSON objects, by descriptors from a file or from a registry.

The objects are those that Spark reads into declared columns, which is not Protobuf's own mapping to JSON: fields
keep the names of the `.proto` file, 64-bit numbers are numbers, and a field that can be absent, and is, is null.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError, Message

from catchment.errors import EngineError
from catchment.records.registry import SchemaRegistry, split_header

MAX_REFERENCES = 100  # files that the schema of a registry may import, with those that they import
MAX_MESSAGE_INDEXES = 100  # how deep a registry's value may say that its message is nested
BUILT_IN_FILES = (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)  # what every schema may import
BUILT_IN = {file.DESCRIPTOR.name: file.DESCRIPTOR for file in BUILT_IN_FILES}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Write = Callable[[Any], Any]


@dataclass
class ProtobufReader:
    """Reads the values of one stream; a message is named where the schema file has several."""

    schema_file: str | None
    registry: SchemaRegistry | None
    message: str | None = None
    _files: dict[int, FileDescriptor] = field(default_factory=dict, repr=False)
    _found: Descriptor | None = field(default=None, repr=False)
    _objects: JsonObjects = field(default_factory=lambda: JsonObjects(), repr=False)

    def read(self, value: bytes) -> str:
        """Return a value as a JSON object, or as a text that says it is none."""
        try:
            if self.registry is None:
                descriptor, body = self._message_of_file(), value
            else:
                descriptor, body = self._message_of_value(self.registry, value)
            message = message_factory.GetMessageClass(descriptor).FromString(body)
            return json.dumps(self._objects.write(message), allow_nan=False)
        except (DecodeError, ValueError, OverflowError) as error:
            reason = f" ({error})" if isinstance(error, OtherMessageError) else ""
            return f"not Protobuf{reason}: {value[:2000].hex()}"

    def _message_of_file(self) -> Descriptor:
        if self._found is None:
            self._found = _find_message(_read_schema_file(self.schema_file), self.message, str(self.schema_file))
        return self._found

    def _message_of_value(self, registry: SchemaRegistry, value: bytes) -> tuple[Descriptor, bytes]:
        """Return the message that a registry's value says it is, and its bytes."""
        number, body = split_header(value)
        if number is None:
            raise DecodeError("no number of a schema")
        if number not in self._files:
            self._files[number] = _fetch_file(registry, number)
        indexes, start = _read_message_indexes(body)
        nested: Sequence[Descriptor] = list(self._files[number].message_types_by_name.values())
        found = None
        for index in indexes:
            if not 0 <= index < len(nested):
                raise DecodeError("no such message in the schema")
            found = nested[index]
            nested = list(found.nested_types)
        assert found is not None
        if self.message is not None and found.full_name != self.message:
            raise OtherMessageError(f"a {found.full_name}")
        return found, body[start:]


class OtherMessageError(ValueError):
    """A value is a message of another type than the stream has."""


class JsonObjects:
    """Messages as JSON objects; what a message type needs is looked up once."""

    def __init__(self) -> None:
        self._fields: dict[str, list[tuple[str, bool, Write]]] = {}

    def write(self, message: Message) -> Any:
        """Return a message as what `json.dumps` takes."""
        name = message.DESCRIPTOR.full_name
        if name.startswith("google.protobuf."):
            return _write_built_in(message)
        if name not in self._fields:
            self._fields[name] = [(f.name, f.has_presence, self._writer(f)) for f in message.DESCRIPTOR.fields]
        return {
            field: write(getattr(message, field)) if not has_presence or message.HasField(field) else None
            for field, has_presence, write in self._fields[name]
        }

    def _writer(self, of: FieldDescriptor) -> Write:
        entry = of.message_type
        if entry is not None and entry.GetOptions().map_entry:
            write_value = self._single_writer(entry.fields_by_name["value"])
            return lambda found: {_key(key): write_value(found[key]) for key in found}
        write = self._single_writer(of)
        return (lambda found: [write(one) for one in found]) if of.is_repeated else write

    def _single_writer(self, of: FieldDescriptor) -> Write:
        if of.message_type is not None:
            return self.write
        if of.enum_type is not None:
            names = {number: value.name for number, value in of.enum_type.values_by_number.items()}
            return lambda number: names.get(number, str(number))
        return _write_bytes if of.type == of.TYPE_BYTES else _write_number if of.cpp_type in _FLOATS else _as_is


_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def _as_is(value: Any) -> Any:
    return value


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _write_number(value: float) -> float | str:
    """Return a number; those that JSON lacks become the texts that Spark reads them from."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _write_built_in(message: Any) -> Any:
    """Return a message type of Protobuf: times as Spark reads them, wrapped values bare, the rest as Protobuf does."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        return (EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)).isoformat()
    if name.endswith("Value") and name not in ("google.protobuf.Value", "google.protobuf.ListValue"):
        value = message.value
        return _write_bytes(value) if isinstance(value, bytes) else value
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _read_message_indexes(body: bytes) -> tuple[list[int], int]:
    """Return which message of its schema a value is (one number per level), and where its bytes begin."""
    count, start = _read_signed(body, 0)
    if count == 0:
        return [0], start  # the first message is written shorter
    if not 0 < count <= MAX_MESSAGE_INDEXES:
        raise DecodeError("no such message in the schema")
    indexes = []
    for _ in range(count):
        index, start = _read_signed(body, start)
        indexes.append(index)
    return indexes, start


def _read_signed(body: bytes, start: int) -> tuple[int, int]:
    """Return a number in zigzag form, seven bits per byte, and where it ends."""
    number = 0
    for position in range(start, min(start + 5, len(body))):
        number |= (body[position] & 0x7F) << (7 * (position - start))
        if body[position] < 0x80:
            return (number >> 1) ^ -(number & 1), position + 1
    raise DecodeError("the value ends too early")


def _read_schema_file(path: str | None) -> list[FileDescriptor]:
    """Return the files of a descriptor set, as `protoc --include_imports --descriptor_set_out` writes it."""
    hint = (
        "write it with protoc --include_imports --descriptor_set_out=FILE; the path is relative to the project folder"
    )
    if path is None:
        raise EngineError(
            "format 'protobuf' needs a schema", hint="set schema = 'file.desc', or registry = 'http://...'"
        )
    try:
        files = FileDescriptorSet.FromString(Path(path).read_bytes()).file
    except OSError as error:
        raise EngineError(f"the schema {path} cannot be read: {error.strerror}", hint=hint) from error
    except DecodeError as error:
        raise EngineError(f"the schema {path} is not a set of descriptors", hint=hint) from error
    pool = _Pool({file.name: file for file in files})
    try:
        return [pool.add(file.name) for file in files]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the schema {path} is not complete: {error}", hint=hint) from error


def _find_message(files: Sequence[FileDescriptor], name: str | None, where: str) -> Descriptor:
    """Return the message of a name; without one, the only message at the top of the last file."""
    if name is not None:
        for file in files:
            try:
                return file.pool.FindMessageTypeByName(name)
            except KeyError:
                break
    there = [message.full_name for file in files for message in file.message_types_by_name.values()]
    own = list(files[-1].message_types_by_name.values()) if files else []
    if name is None and len(own) == 1:
        return own[0]
    given = "names no message and" if name is None else f"names the message {name!r}, and"
    shown = ", ".join(there[:20]) or "none"
    raise EngineError(f"the stream {given} the schema {where} has: {shown}", hint="set message = '...' to one of them")


def _fetch_file(registry: SchemaRegistry, number: int) -> FileDescriptor:
    """Return the file of a registry's schema, with those that it imports."""
    found = registry.fetch_schema(number, form="serialized")
    files: dict[str, FileDescriptorProto] = {}
    own = f"schema-{number}.proto"
    waiting = [(own, found)]
    while waiting:
        name, answer = waiting.pop()
        files[name] = _decode_file(name, answer["schema"], registry, number)
        for reference in answer.get("references", ()):
            imported = str(reference["name"])
            if imported not in files and imported not in BUILT_IN:
                if len(files) + len(waiting) > MAX_REFERENCES:
                    raise EngineError(
                        f"schema {number} imports more than {MAX_REFERENCES} files", where=registry.address
                    )
                version = registry.fetch_version(
                    str(reference["subject"]), int(reference["version"]), form="serialized"
                )
                waiting.append((imported, version))
    try:
        return _Pool(files).add(own)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"schema {number} is not complete: {error}", where=registry.address) from error


def _decode_file(name: str, schema: str, registry: SchemaRegistry, number: int) -> FileDescriptorProto:
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(schema, validate=True))
    except (ValueError, DecodeError) as error:
        raise EngineError(
            f"the schema registry did not give schema {number} as a descriptor",
            where=registry.address,
            hint="it must answer ?format=serialized, as Confluent's does; or set schema = 'file.desc'",
        ) from error
    file.name = name
    return file


class _Pool:
    """Descriptors of one schema, apart from those of others: two schemas may have messages of one name."""

    def __init__(self, files: dict[str, FileDescriptorProto]) -> None:
        self._files = files
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()

    def add(self, name: str) -> FileDescriptor:
        """Add a file after those that it imports, and return it."""
        if name not in self._added:
            self._added.add(name)
            file = self._files[name] if name in self._files else _built_in(name)
            for imported in file.dependency:
                self.add(imported)
            self._pool.Add(file)
        return self._pool.FindFileByName(name)


def _built_in(name: str) -> FileDescriptorProto:
    if name not in BUILT_IN:
        raise KeyError(f"{name} is imported, and not there")
    file = FileDescriptorProto()
    BUILT_IN[name].CopyToProto(file)
    return file
