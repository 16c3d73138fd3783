"""Results over Arrow Flight SQL, read-only: ADBC and JDBC clients query the center, at the address of its inbox.

`NAME` is a view's latest revisions and `NAME__revisions` all of them, as in `catchment sql`, with the same limits.
Readers and operators may ask. A ticket is the statement itself, so nothing is remembered for a client that never comes
back; the answer that was computed to tell its schema is held for a while, within bounds, and computed again if it was
let go. There are no parameters, no transactions and no updates.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from catchment.center.results.read import published_views
from catchment.center.results.sql import SqlLimits, query_results
from catchment.control import flight_messages as messages
from catchment.control.catalog_tables import CATALOG_TABLES, sql_info
from catchment.errors import WireError
from catchment.keys.tokens import OPERATOR, READER, Caller

PREFIX = "/arrow.flight.protocol.FlightService/"
HANDSHAKE, GET_INFO, GET_SCHEMA, DO_GET, DO_ACTION, LIST_ACTIONS = (
    f"{PREFIX}{call}" for call in ("Handshake", "GetFlightInfo", "GetSchema", "DoGet", "DoAction", "ListActions")
)
ROWS_PER_MESSAGE = 16_384
LIMITS = SqlLimits(memory_bytes=512 * 2**20, time_s=60.0)
HELD_ANSWERS = 16
HELD_BYTES = 128 * 2**20
CREATE_PREPARED, CLOSE_PREPARED = "CreatePreparedStatement", "ClosePreparedStatement"


class FlightSqlService:
    """Answers Flight calls from the results in one state folder; may be used from any thread."""

    prefix = PREFIX
    streams = frozenset({HANDSHAKE, DO_GET, DO_ACTION, LIST_ACTIONS})

    def __init__(self, state_folder: Path) -> None:
        self._state = state_folder
        self._held = HeldAnswers()

    def answer(self, call: str, data: bytes, caller: Caller) -> bytes | Iterator[bytes]:
        """Answer a call with a message, or for the calls in `streams` with several."""
        if caller.role not in (OPERATOR, READER):
            raise WireError(f"{caller.name!r} has the role {caller.role}, and only operators and readers read results")
        if call == HANDSHAKE:  # JDBC begins with it; who calls is proved with every call
            return iter([b""])
        try:
            if call == GET_INFO:
                return self._describe(messages.read("FlightDescriptor", data))
            if call == GET_SCHEMA:
                command = messages.unpack(messages.read("FlightDescriptor", data).cmd)
                return _bytes(messages.make("SchemaResult", schema=_schema(self._compute(command))))
            if call == DO_GET:
                return _send(self._take(messages.unpack(messages.read("Ticket", data).ticket)))
            if call == DO_ACTION:
                return self._act(messages.read("Action", data))
            if call == LIST_ACTIONS:
                kinds = (messages.make("ActionType", type=kind) for kind in (CREATE_PREPARED, CLOSE_PREPARED))
                return (_bytes(kind) for kind in kinds)
        except (ValueError, DecodeError) as error:
            raise WireError(f"this is not a request that Flight SQL can answer here: {error}") from error
        raise WireError(f"results are read-only: {call.removeprefix(PREFIX)!r:.80} is not answered")

    def _describe(self, descriptor: Any) -> bytes:
        command = messages.unpack(descriptor.cmd)
        found = self._compute(command)
        ticket = command
        statement = _statement(command)
        if statement is not None:
            self._held.put(statement, found)
            ticket = messages.make("TicketStatementQuery", statement_handle=statement.encode())
        info = messages.make(
            "FlightInfo",
            schema=_schema(found),
            flight_descriptor=descriptor.__class__.FromString(descriptor.SerializeToString()),
            endpoint=[
                messages.make("FlightEndpoint", ticket=messages.make("Ticket", ticket=messages.pack(ticket))),
            ],
            total_records=found.num_rows,
            total_bytes=-1,
        )
        return _bytes(info)

    def _take(self, command: Any) -> pa.Table:
        statement = _statement(command)
        held = None if statement is None else self._held.take(statement)
        return self._compute(command) if held is None else held

    def _compute(self, command: Any) -> pa.Table:
        statement = _statement(command)
        if statement is not None:
            return query_results(self._state, statement, LIMITS)
        name = command.DESCRIPTOR.name
        if name == "CommandGetSqlInfo":
            return sql_info(list(command.info))
        return CATALOG_TABLES[name](command, self._state, published_views(self._state))

    def _act(self, action: Any) -> Iterator[bytes]:
        if action.type == CLOSE_PREPARED:
            return iter(())
        if action.type != CREATE_PREPARED:
            raise ValueError(f"the action {action.type!r:.80}")
        statement = messages.unpack(action.body).query
        found = query_results(self._state, statement, LIMITS)
        self._held.put(statement, found)
        made = messages.make(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=statement.encode(),
            dataset_schema=_schema(found),
            parameter_schema=pa.schema([]).serialize().to_pybytes(),
        )
        return iter([_bytes(messages.make("Result", body=messages.pack(made)))])


class HeldAnswers:
    """The newest answers by statement, `HELD_ANSWERS` and `HELD_BYTES` at most; each is taken once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, pa.Table] = OrderedDict()

    def put(self, statement: str, answer: pa.Table) -> None:
        with self._lock:
            self._answers.pop(statement, None)
            self._answers[statement] = answer
            while len(self._answers) > HELD_ANSWERS or sum(t.nbytes for t in self._answers.values()) > HELD_BYTES:
                self._answers.popitem(last=False)

    def take(self, statement: str) -> pa.Table | None:
        with self._lock:
            return self._answers.pop(statement, None)


def _statement(command: Any) -> str | None:
    """Return the SQL of a command or ticket; None if it asks for something else."""
    match command.DESCRIPTOR.name:
        case "CommandStatementQuery":
            return str(command.query)
        case "TicketStatementQuery":
            return bytes(command.statement_handle).decode()
        case "CommandPreparedStatementQuery":
            return bytes(command.prepared_statement_handle).decode()
    return None


def _schema(table: pa.Table) -> bytes:
    return bytes(table.schema.serialize().to_pybytes())


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _send(table: pa.Table) -> Iterator[bytes]:
    """Yield a table as the messages of an Arrow stream, each in one message of Flight."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS_PER_MESSAGE)
    for part in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = b"" if part.body is None else part.body.to_pybytes()
        yield _bytes(messages.make("FlightData", data_header=part.metadata.to_pybytes(), data_body=body))
