"""A TCP proxy for one link, which can be told to harm the bytes that go through it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

CHUNK_BYTES = 4096
POLL_S = 0.02  # how often a link that stands still is asked whether it may go on


@dataclass
class ByteHarm:
    """What a link does to bytes now; all fields may be changed while it runs."""

    cut: bool = False  # connections are closed, new ones too
    holds_requests: bool = False  # bytes towards the receiver wait; connections stay open
    holds_answers: bool = False  # bytes back wait
    bytes_per_s: float | None = None
    delay_s: float = 0.0
    corrupted_share: float = 0.0  # of chunks towards the receiver, one bit each
    doubled_share: float = 0.0
    swapped_share: float = 0.0  # of chunks whose halves change places


class ByteProxy:
    """Listens on loopback and connects every caller with one upstream port."""

    def __init__(self, upstream_port: int, seed: int, host: str = "127.0.0.1") -> None:
        self.harm = ByteHarm()
        self.harmed_chunks = 0
        self.slowed_chunks = 0
        self.port = 0
        self._host = host
        self._upstream_port = upstream_port
        self._chance = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="byte proxy", daemon=True)

    def start(self) -> None:
        self._thread.start()
        server = self._call(asyncio.start_server(self._connect, self._host, 0))
        self.port = server.sockets[0].getsockname()[1]

    def heal(self) -> None:
        """Let everything pass again, over new connections."""
        self.harm = ByteHarm()
        self.drop_connections()

    def cut(self) -> None:
        self.harm.cut = True
        self.drop_connections()

    def drop_connections(self) -> None:
        self._call(self._drop())

    def close(self) -> None:
        self.drop_connections()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.harm.cut:
            writer.transport.abort()
            return
        try:
            upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_upstream}
        try:
            ways = (self._pump(reader, to_upstream, True), self._pump(upstream, writer, False))
            await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, to_upstream):
                end.transport.abort()
                self._writers.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_request: bool) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._wait(is_request, len(data))
                writer.write(self._harm_bytes(data) if is_request else data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            return

    async def _wait(self, is_request: bool, size_bytes: int) -> None:
        harm = self.harm
        self.slowed_chunks += bool(harm.delay_s or harm.bytes_per_s)
        if harm.delay_s:
            await asyncio.sleep(harm.delay_s)
        if harm.bytes_per_s is not None:
            await asyncio.sleep(size_bytes / harm.bytes_per_s)
        while self.harm.holds_requests if is_request else self.harm.holds_answers:
            await asyncio.sleep(POLL_S)

    def _harm_bytes(self, data: bytes) -> bytes:
        harm = self.harm
        shares = [harm.corrupted_share, harm.doubled_share, harm.swapped_share]
        what = self._chance.choices(["corrupt", "double", "swap", None], [*shares, 1.0 - sum(shares)])[0]
        if what is None:
            return data
        self.harmed_chunks += 1
        if what == "corrupt":
            at = self._chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ (1 << self._chance.randrange(8))]) + data[at + 1 :]
        half = len(data) // 2
        return data + data if what == "double" else data[half:] + data[:half]
