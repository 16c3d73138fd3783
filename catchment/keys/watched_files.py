"""What is read from files, and read again when one of them is replaced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from catchment.errors import CatchmentError

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


class WatchedFiles(Generic[Value]):
    """A value made from some files; `read` makes it anew when a file has changed.

    Files that do not fit together, such as a certificate whose new key has not been copied yet, leave the value as it
    was; the next `read` tries again. Only the first `read` raises.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], Value]) -> None:
        self._paths = tuple(paths)
        self._make = make
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] | None = None
        self._value: Value | None = None
        self._complained_of: tuple[object, ...] | None = None

    def read(self) -> Value:
        """Return the value that the files hold now, or held when they last fitted together."""
        with self._lock:
            found = tuple(_stamp(path) for path in self._paths)
            if self._value is None or found != self._seen:
                self._renew(found)
            assert self._value is not None
            return self._value

    def _renew(self, found: tuple[object, ...]) -> None:
        try:
            self._value = self._make()
            self._seen = found
        except CatchmentError as error:
            if self._value is None:
                raise
            if self._complained_of != found:
                self._complained_of = found
                _log.warning("replaced files are not used yet, the previous ones are still in use: %s", error.message)


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
