"""A link over loopback that can be throttled and cut while it is used: a proxy between a sender and a server."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

CHUNK_BYTES = 2048


class ThrottledLink:
    """Hands bytes on to an address, at most `bytes_per_s` towards it; none at all while it is cut."""

    def __init__(self, address: str, bytes_per_s: float | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self.bytes_per_s = bytes_per_s
        self.is_cut = False
        self.bytes_carried = 0
        self._free_s = 0.0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and let none come about."""
        self.is_cut = True
        self._end_all()

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _end_all(self) -> None:
        with self._lock:
            ended = list(self._open)
            self._open.clear()
        for connection in ended:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self.is_cut:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, origin: socket.socket, to: socket.socket, is_shaped: bool) -> None:
        with suppress(OSError):
            while data := origin.recv(CHUNK_BYTES):
                if is_shaped:
                    self._wait(len(data))
                to.sendall(data)
        for connection in (origin, to):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        with self._lock:
            self._open -= {origin, to}

    def _wait(self, size_bytes: int) -> None:
        """Wait until bytes have passed; all connections share the rate."""
        with self._lock:
            self.bytes_carried += size_bytes
            if self.bytes_per_s is None:
                return
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s) + size_bytes / self.bytes_per_s
            wait_s = self._free_s - now_s
        time.sleep(wait_s)
