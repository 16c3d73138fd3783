"""A gRPC proxy for one link, which can harm whole messages: they stay well formed on the way."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc

KEPT_CALLS = 200  # old messages that may come again
WORKERS = 32
CALL_TIMEOUT_S = 120.0


@dataclass
class MessageHarm:
    """What a link does to messages now, as shares of them; all fields may be changed while it runs."""

    doubled_share: float = 0.0
    late_share: float = 0.0  # held back for up to `late_s`, so that others overtake
    late_s: float = 3.0
    unanswered_share: float = 0.0  # delivered, and the answer is lost
    lost_share: float = 0.0
    replayed_share: float = 0.0  # an old one is delivered before it
    altered_share: float = 0.0  # one bit of its content is another


class MessageProxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """Listens on loopback and passes every call on to one upstream port."""

    def __init__(self, upstream_port: int, seed: int) -> None:
        self.harm = MessageHarm()
        self.harmed_messages = 0
        self.port = 0
        self._upstream_port = upstream_port
        self._chance = random.Random(seed)
        self._old: deque[tuple[str, bytes, Any]] = deque(maxlen=KEPT_CALLS)
        self._lock = threading.Lock()
        options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(futures.ThreadPoolExecutor(WORKERS), handlers=(self,), options=options)
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{upstream_port}",
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_reconnect_backoff_ms", 500),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
            ],
        )

    def start(self) -> None:
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def heal(self) -> None:
        self.harm = MessageHarm()

    def close(self) -> None:
        self._server.stop(0.1).wait()
        self._channel.close()

    def service(self, details: Any) -> Any:
        """Return what handles a call."""
        metadata = tuple(details.invocation_metadata)
        given = tuple((key, value) for key, value in metadata if key == "authorization")

        def handle(data: bytes, context: Any) -> bytes:
            return self._pass_on(details.method, data, given, context)

        return grpc.unary_unary_rpc_method_handler(handle)

    def _pass_on(self, method: str, data: bytes, metadata: Any, context: Any) -> bytes:
        harm = self.harm
        if self._draws(harm.late_share):
            time.sleep(self._chance.uniform(0, harm.late_s))
        if self._draws(harm.lost_share):
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way")
        if self._draws(harm.replayed_share) and self._old:
            self._try(*self._chance.choice(list(self._old)))
        if self._draws(harm.altered_share) and data:
            at = self._chance.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << self._chance.randrange(8))]) + data[at + 1 :]
        else:
            self._old.append((method, data, metadata))
        if self._draws(harm.doubled_share):
            self._try(method, data, metadata)
        answer = self._call(method, data, metadata, context)
        if self._draws(harm.unanswered_share):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return answer

    def _draws(self, share: float) -> bool:
        if not share:
            return False
        with self._lock:
            is_drawn = self._chance.random() < share
            self.harmed_messages += is_drawn
            return is_drawn

    def _call(self, method: str, data: bytes, metadata: Any, context: Any) -> bytes:
        left_s = context.time_remaining()
        try:
            answer: bytes = self._channel.unary_unary(method)(
                data, metadata=metadata, timeout=min(left_s or CALL_TIMEOUT_S, CALL_TIMEOUT_S)
            )
            return answer
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
            raise

    def _try(self, method: str, data: bytes, metadata: Any) -> None:
        """Deliver a message whose answer nobody waits for."""
        try:
            self._channel.unary_unary(method)(data, metadata=metadata, timeout=10.0)
        except grpc.RpcError:
            return
