"""Notices of views that have a table: each becomes a record of the stream that the project reads.

A notice lands, in a file that is synced, before the journal of the cloud forgets what it followed from. After a crash
the cloud keeps it again under the same name, and the folder recognises that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from catchment.feeds.cloud.core import KeepNotice
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.protocol.messages import Notice
from catchment.query.feed_matches import AT, NOTICE, NOTIFIED
from catchment.receivers.landing import LandingFolder, ReceivedLines

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NoticeTables(Protocol):
    """Where notices are kept."""

    @property
    def has_room(self) -> bool:
        """Whether more notices may come; while not, the cloud takes no messages."""

    def keep(self, name: str, notices: Sequence[KeepNotice]) -> None:
        """Keep notices; those that were kept under this name before are the same."""


class NoTables:
    """No view has a table."""

    has_room = True

    def keep(self, name: str, notices: Sequence[KeepNotice]) -> None:
        """Keep nothing."""


class LandedNotices:
    """Notices in the folders of their streams, by the name of the view."""

    def __init__(self, program: FeedProgram, folders: Mapping[str, LandingFolder]) -> None:
        self.program = program
        self.folders = folders
        self.kept = 0
        for folder in folders.values():
            folder.open()

    @property
    def has_room(self) -> bool:
        return all(folder.has_room() for folder in self.folders.values())

    def keep(self, name: str, notices: Sequence[KeepNotice]) -> None:
        for view, folder in self.folders.items():
            lines = [self._line(kept) for kept in notices if kept.view == view]
            if lines and folder.digest_of(name) is None:
                data = b"".join(lines)
                folder.land([ReceivedLines(data, len(lines), name, hashlib.sha256(data).hexdigest())])
                self.kept += len(lines)

    def _line(self, kept: KeepNotice) -> bytes:
        names = self.program.templates[kept.view].output_names
        return json.dumps(notice_record(kept.notice, names), separators=(",", ":")).encode() + b"\n"


def notice_record(notice: Notice, names: Sequence[str]) -> dict[str, Any]:
    """Return a notice as a record of the stream of its view."""
    at = _EPOCH + timedelta(microseconds=notice.at_us)
    key = ",".join(map(str, notice.key))
    told = {AT: at.isoformat().replace("+00:00", "Z"), NOTIFIED: notice.notified, NOTICE: f"{notice.view} {key}"}
    return {**told, **dict(zip(names, notice.values, strict=True))}
