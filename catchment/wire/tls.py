"""Certificates of one end of a link."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from catchment.errors import WireError


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts: this end's certificate and key, and the authority that signs the other end's certificate.

    A server with an authority asks every site for a certificate (mutual TLS); the first alternative name of
    that certificate, or its common name if it has none, is the site's name. A client without an authority
    trusts the system's.
    """

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    authority: bytes | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise WireError("a certificate needs its key, and a key its certificate")

    @classmethod
    def from_files(cls, certificate: Path | None = None, key: Path | None = None, authority: Path | None = None) -> Tls:
        return cls(*(_read(path) if path else None for path in (certificate, key, authority)))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WireError(f"cannot read the PEM file: {error.strerror}", where=str(path)) from error
