"""The link of a person or a site to the control service of a center, over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from catchment.control.protocol import COMMAND, FOLLOW, MAX_ANSWER_BYTES, read_answer, write_request
from catchment.errors import CatchmentError, ConfigError, WireError
from catchment.keys.tls import Tls, TlsFiles
from catchment.keys.tokens import read_token
from catchment.project.sections import SecurityFiles
from catchment.wire.receiving.grpc_server import BEARER, TOKEN_HEADER, is_loopback

COMMAND_TIMEOUT_S = 120.0  # planning many views, or a statement over large results, takes its time
FOLLOW_TIMEOUT_S = 20.0
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES + 2**20),
    ("grpc.enable_http_proxy", 0),
]


class UnreachableError(WireError):
    """The center does not answer; asking again later may help."""


class CenterLink:
    """Where a center is, and what proves who calls; one connection, which is opened again after a failure.

    Files of keys are read for each call: when a certificate was replaced, the next call opens another connection. It is
    used by one thread.
    """

    def __init__(self, address: str, files: SecurityFiles) -> None:
        self.address = address
        self.files = files
        self._tls = TlsFiles(files.tls_cert, files.tls_key, files.tls_ca) if files.uses_tls else None
        self._used: Tls | None = None  # what the connection was opened with
        self._channel: Any = None
        host = address.rpartition(":")[0].strip("[]")
        if not files.uses_tls and not is_loopback(host):
            raise ConfigError(
                f"the center at {self.address} would be called without TLS",
                hint="give the folder of your keys, which `catchment keys issue NAME --role operator` makes",
            )

    def run(self, command: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a command at the center; return its answer."""
        return self._call(COMMAND, write_request(command=command, arguments=arguments), COMMAND_TIMEOUT_S)

    def follow(self, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Tell the center how this site is; return what it is to follow."""
        return self._call(FOLLOW, write_request(**report), FOLLOW_TIMEOUT_S)

    def close(self) -> None:
        """End the connection; a later call opens another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _call(self, kind: str, request: bytes, timeout_s: float) -> Mapping[str, Any]:
        token = None if self.files.token is None else read_token(self.files.token)
        metadata = ((TOKEN_HEADER, BEARER + token),) if token else ()
        try:
            answer = self._open().unary_unary(kind)(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            self.close()
            raise self._explain(error) from error
        return read_answer(answer, self.address)

    def _open(self) -> Any:
        found = None if self._tls is None else self._tls.read()
        if self._channel is not None and found != self._used:
            self.close()
        if self._channel is None:
            self._channel = _open_channel(self.address, found)
            self._used = found
        return self._channel

    def _explain(self, error: Any) -> CatchmentError:
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.UNAUTHENTICATED:
            hint = "compare your keys with the tokens.toml of the center; `catchment keys list` shows who has keys"
            return WireError(f"the center does not know you: {details}", where=self.address, hint=hint)
        if code == grpc.StatusCode.PERMISSION_DENIED:
            return WireError(f"the center refuses: {details}", where=self.address)
        if code == grpc.StatusCode.UNIMPLEMENTED:
            hint = "this is the address of a relay, or of a center before control over the wire"
            return WireError("nothing is controlled there", where=self.address, hint=hint)
        hint = "is it running, and is this its address and port?"
        return UnreachableError(f"the center does not answer: {details}", where=self.address, hint=hint)


def person_files(folder: Path) -> SecurityFiles:
    """Return the files in the folder of keys of one person."""
    return SecurityFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem", folder / "token")


def _open_channel(address: str, tls: Tls | None) -> Any:
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.secure_channel(address, credentials, options=_OPTIONS)
