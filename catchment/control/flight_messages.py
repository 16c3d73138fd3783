"""The messages of Arrow Flight and Flight SQL that a read-only server needs, as protobuf classes.

Fields and numbers are those of Apache Arrow's Flight.proto and FlightSql.proto. They are declared here because pyarrow
keeps its own behind its server, which bounds no message and cannot change its certificate while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.any_pb2 import Any as AnyMessage

_FLIGHT = "arrow.flight.protocol"
_SQL = "arrow.flight.protocol.sql"
_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
}
# message -> field -> (number, type); a type that is no plain one is another message, and one in a list is repeated
_FLIGHT_MESSAGES: Mapping[str, Mapping[str, tuple[int, str | list[str]]]] = {
    "FlightDescriptor": {"type": (1, "int32"), "cmd": (2, "bytes"), "path": (3, ["string"])},
    "Ticket": {"ticket": (1, "bytes")},
    "FlightEndpoint": {"ticket": (1, "Ticket")},
    "FlightInfo": {
        "schema": (1, "bytes"),
        "flight_descriptor": (2, "FlightDescriptor"),
        "endpoint": (3, ["FlightEndpoint"]),
        "total_records": (4, "int64"),
        "total_bytes": (5, "int64"),
    },
    "FlightData": {"data_header": (2, "bytes"), "data_body": (1000, "bytes")},
    "SchemaResult": {"schema": (1, "bytes")},
    "Action": {"type": (1, "string"), "body": (2, "bytes")},
    "ActionType": {"type": (1, "string"), "description": (2, "string")},
    "Result": {"body": (1, "bytes")},
}
_SQL_MESSAGES: Mapping[str, Mapping[str, tuple[int, str | list[str]]]] = {
    "CommandStatementQuery": {"query": (1, "string")},
    "TicketStatementQuery": {"statement_handle": (1, "bytes")},
    "CommandPreparedStatementQuery": {"prepared_statement_handle": (1, "bytes")},
    "ActionCreatePreparedStatementRequest": {"query": (1, "string")},
    "ActionCreatePreparedStatementResult": {
        "prepared_statement_handle": (1, "bytes"),
        "dataset_schema": (2, "bytes"),
        "parameter_schema": (3, "bytes"),
    },
    "CommandGetCatalogs": {},
    "CommandGetDbSchemas": {},
    "CommandGetTables": {
        "table_name_filter_pattern": (3, "string"),
        "table_types": (4, ["string"]),
        "include_schema": (5, "bool"),
    },
    "CommandGetTableTypes": {},
    "CommandGetSqlInfo": {"info": (1, ["uint32"])},
}


def _declare(package: str, messages: Mapping[str, Mapping[str, tuple[int, str | list[str]]]]) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"catchment/{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated = isinstance(kind, list)
            plain = kind[0] if isinstance(kind, list) else kind
            label = descriptor_pb2.FieldDescriptorProto
            added = message.field.add(
                name=field, number=number, label=label.LABEL_REPEATED if repeated else label.LABEL_OPTIONAL
            )
            if plain in _TYPES:
                added.type = _TYPES[plain]
            else:
                added.type = label.TYPE_MESSAGE
                added.type_name = f".{package}.{plain}"
    pool = descriptor_pool.DescriptorPool()  # of its own: another library may have declared the same names
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


_CLASSES = {**_declare(_FLIGHT, _FLIGHT_MESSAGES), **_declare(_SQL, _SQL_MESSAGES)}


def make(name: str, **fields: Any) -> Any:
    """Return a message."""
    return _CLASSES[name](**fields)


def read(name: str, data: bytes) -> Any:
    """Return a message that was sent; raises ValueError if it is none."""
    return _CLASSES[name].FromString(data)


def pack(message: Any) -> bytes:
    """Return a message of Flight SQL inside an `Any`, as commands, tickets and results are sent."""
    packed = AnyMessage()
    packed.type_url = f"type.googleapis.com/{message.DESCRIPTOR.full_name}"
    packed.value = message.SerializeToString()
    return bytes(packed.SerializeToString())


def unpack(data: bytes) -> Any:
    """Return the message of Flight SQL inside an `Any`; raises ValueError if this server does not know it."""
    packed = AnyMessage.FromString(data)
    package, _, name = packed.type_url.rpartition("/")[2].rpartition(".")
    if package != _SQL or name not in _SQL_MESSAGES:
        raise ValueError(f"{packed.type_url!r:.100} is not answered here")
    return read(name, packed.value)
