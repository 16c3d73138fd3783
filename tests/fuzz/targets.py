"""The readers that are fuzzed: each takes bytes that somebody else may have written, and refuses them by name.

A target has whole inputs to start from, words of its format, and a reader. Where a checksum would hide the reader
behind it, the mutated part is sealed again: that is what a hostile peer does.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.statements import Declared
from catchment.feeds.project import open_project, read_rows
from catchment.feeds.protocol.codec import decode as decode_feed_message
from catchment.feeds.protocol.codec import encode as encode_feed_message
from catchment.feeds.protocol.messages import Confirmed, FeedEvent
from catchment.keys.tokens import CallerTokens, hash_token, read_token_file, write_token_file
from catchment.project.config import Project
from catchment.project.sections import Link, Site
from catchment.project.template import template
from catchment.query.catalog import Catalog
from catchment.query.planning.build import plan_views
from catchment.query.sql.parse import parse_sql
from catchment.storage.codec import decode, encode
from catchment.storage.files import read_record, write_record
from catchment.storage.journal import Entry, Journal
from catchment.storage.journal_file import FILE_HEAD_BYTES, with_checksums
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.frames.limits import WireLimits
from catchment.wire.messages import Segment
from tests.worlds.feeds_world import DECLARED, NEARBY
from tests.worlds.projects import QUERIES
from tests.worlds.wire_messages import some_messages

LIMITS = WireLimits(raw_bytes=2**26, rows=100_000)
SQL_WORDS = ("SELECT", "FROM", "(", ")", "'", '"', "--", "/*", ";", "window(ts, '1 minute')", "NULL", "JOIN", "é", "\0")
TOML_WORDS = ("[", "]", "=", '"', "'''", "\n", "sites", "1e999", "{", "}", "#", "\\u0000", "0000-00-00")
GOLDEN = Path(__file__).parents[1] / "golden"
FILE_NAME = "file"  # the name of a record is under its checksum


@dataclass(frozen=True)
class Target:
    """A reader, what it can read, and the words of its format."""

    name: str
    read: Callable[[bytes], object]
    make_inputs: Callable[[], Sequence[bytes]]
    words: tuple[bytes, ...] = ()

    @property
    def inputs(self) -> Sequence[bytes]:
        return _inputs(self.make_inputs)


@cache
def _inputs(make: Callable[[], Sequence[bytes]]) -> Sequence[bytes]:
    return make()


# ---- the wire


def _frames() -> list[bytes]:
    return [encode_segment(Segment("eu", "life", n, tuple(some_messages(n)))).data for n in range(4)]


def _read_resealed_frame(data: bytes) -> object:
    content = data[:-4]
    return decode_segment(content + struct.pack("<I", zlib.crc32(content)), LIMITS)


def _feed_messages() -> list[bytes]:
    event = FeedEvent("location", (1, 2), 5, ("a", 1.5, None, True))
    return [encode_feed_message(3, event), encode_feed_message(4, Confirmed((1, 2), 9))]


# ---- what is durable


def _documents() -> list[bytes]:
    table = pa.table({"k": ["a", "b"], "n": [1, 2]})
    entry = Entry(4, "stream", 7, 10**15, (("x", 1), {"a": (1, 2.5, None)}, np.arange(300), table, {1, 2}))
    return [encode(entry), encode({"a": [1, "two", b"3"], 4: frozenset((5, 6))})]


def _journals() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        for number in range(3):
            journal.append(Entry(number, "s", number, number, (("event", number),)))
        journal.close()
        (log,) = Path(folder).glob("journal-*.log")
        return [log.read_bytes()]


def _read_journal(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "journal-0.log").write_bytes(data)
        journal = Journal(Path(folder))
        try:
            return list(journal.entries())
        finally:
            journal.close()


def _read_snapshot(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "snapshot-5.bin").write_bytes(data)
        journal = Journal(Path(folder))
        try:
            return journal.snapshot()
        finally:
            journal.close()


@cache
def _snapshots() -> list[bytes]:
    head = _journals()[0][:FILE_HEAD_BYTES]
    return [head + with_checksums(document) for document in _documents()]


def _read_resealed_snapshot(data: bytes) -> object:
    return _read_snapshot(_snapshots()[0][:FILE_HEAD_BYTES] + with_checksums(data))


def _records() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write_record(Path(folder) / FILE_NAME, {"discarded": 3, "origins": {"eu": {"epoch": "e", "seen": [0, []]}}})
        return [(Path(folder) / FILE_NAME).read_bytes()]


def _read_record(data: bytes) -> object:
    return _read_file(data, read_record)


def _read_resealed_record(data: bytes) -> object:
    content = data.partition(b" ")[2].rstrip(b"\n")
    return _read_record(b"%08x %s\n" % (zlib.crc32(content), content))


# ---- what people write


def _programs() -> list[bytes]:
    golden = (GOLDEN / "plans.sql").read_text(), (GOLDEN / "joins.sql").read_text()
    statements = [part for text in golden for part in text.split("\n\n")[:12]]
    return [QUERIES.replace("{sites}", "eu,us").replace("{connector}", "connector = 'generator'").encode()] + [
        part.encode() for part in statements
    ]


def _plan(data: bytes) -> object:
    project = Project(
        "fuzz",
        Path("/nowhere"),
        "center",
        {s: Site(s) for s in ("eu", "us", "center")},
        {(s, "center"): Link(s, "center") for s in ("eu", "us")},
    )
    return plan_views(Catalog(project).add(*parse_sql(data.decode("utf-8", "replace"))))


def _feed_programs() -> list[bytes]:
    return [(DECLARED + NEARBY).encode()]


def _read_feed_program(data: bytes) -> object:
    return read_program(data.decode("utf-8", "replace"))


def _load_project(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "catchment.toml").write_bytes(data)
        return Project.load(folder)


def _projects() -> list[bytes]:
    return [template().encode(), template().replace("#", "").encode()]


def _load_feed_settings(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "feeds.sql").write_text(DECLARED + NEARBY)
        (Path(folder) / "feeds.toml").write_bytes(data)
        return open_project(Path(folder))


def _feed_settings() -> list[bytes]:
    return [b'[costs]\nupload = 2\n[world]\nkind = "nearby"\nusers = 5\n[mqtt]\nbroker = "mqtts://b:1"\nuser = "u"\n']


def _tokens() -> list[bytes]:
    hashed = write_token_file(
        {"eu": CallerTokens(hash_token("a")).replace("b", 10**15), "us": CallerTokens("sha256:00")}
    )
    return [hashed, b'eu = "plain"\nus = "other"\n']


def _cells() -> list[bytes]:
    return [b"user,friend,share,friend_share,radius\n1,2,0.5,1,100.5\n3,,1e-3,1,\n"]


@cache
def _friends() -> Declared:
    return read_program(DECLARED + NEARBY).tables["friends"]


def _read_cells(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "friends.csv").write_bytes(data)
        return list(read_rows(Path(folder), _friends()))


def _read_file(data: bytes, read: Callable[[Path], object]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE_NAME
        path.write_bytes(data)
        path.chmod(0o600)
        return read(path)


def _words(*words: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in words)


TARGETS = {
    target.name: target
    for target in (
        Target("wire frame", lambda data: decode_segment(data, LIMITS), _frames),
        Target("wire frame with a right checksum", _read_resealed_frame, _frames),
        Target("feed message", decode_feed_message, _feed_messages, _words("[", "]", ",", "null", "1e400", "-1", "{}")),
        Target("document", decode, _documents),
        Target("journal", _read_journal, _journals),
        Target("snapshot", _read_snapshot, _snapshots),
        Target("snapshot with right checksums", _read_resealed_snapshot, _documents),
        Target("record", _read_record, _records),
        Target("record with a right checksum", _read_resealed_record, _records, _words("{", "}", "[", "1e400", "NaN")),
        Target("sql", _plan, _programs, _words(*SQL_WORDS)),
        Target("feed program", _read_feed_program, _feed_programs, _words(*SQL_WORDS)),
        Target("catchment.toml", _load_project, _projects, _words(*TOML_WORDS)),
        Target("feeds.toml", _load_feed_settings, _feed_settings, _words(*TOML_WORDS)),
        Target("tokens.toml", lambda data: _read_file(data, read_token_file), _tokens, _words(*TOML_WORDS)),
        Target("rows of a feed table", _read_cells, _cells, _words(",", '"', "\r", "1e400", "nan", "9" * 30)),
    )
}
