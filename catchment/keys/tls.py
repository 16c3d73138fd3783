"""Certificates as both ends of a link use them, from files that may be replaced while they are used."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from catchment.errors import ConfigError
from catchment.keys.private_files import read_secret
from catchment.keys.watched_files import WatchedFiles


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM texts of one end of a link: its certificate and key, and the authority that signs the other end's.

    The first alternative name of a site's certificate, or its common name if it has none, is the site's name. A client
    without an authority trusts the system's.
    """

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    authority: bytes | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a certificate needs its key, and a key its certificate")

    def read(self) -> Tls:
        return self


class TlsSource(Protocol):
    """Whoever has the certificates of one end of a link, as they are now."""

    def read(self) -> Tls: ...


class TlsFiles:
    """Certificates in files, read again when they are replaced."""

    def __init__(self, certificate: Path | None = None, key: Path | None = None, authority: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._authority = authority
        paths = [path for path in (certificate, key, authority) if path is not None]
        self._files = WatchedFiles(paths, self._load)

    def read(self) -> Tls:
        return self._files.read()

    def _load(self) -> Tls:
        certificate = _read_pem(self._certificate) if self._certificate else None
        key = read_secret(self._key, "the private key") if self._key else None
        authority = _read_pem(self._authority) if self._authority else None
        if self._certificate and self._key:
            _check_pair(self._certificate, self._key)
        return Tls(certificate, key, authority)


def _read_pem(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = "copy the folder of the site's keys to this machine; `catchment keys issue SITE` makes it"
        raise ConfigError(f"cannot read the certificate: {error.strerror}", where=str(path), hint=hint) from error
    try:  # not by cryptography, which is large: whoever only sends need not load it
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError("this is not a certificate in PEM form", where=str(path)) from error
    return data


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"the key does not belong to the certificate {certificate}", where=str(key)) from error


def find_expiry_us(certificate: bytes) -> int:
    """Return when a certificate ends to be valid, in microseconds; of a chain the earliest end."""
    from cryptography import x509

    chain = x509.load_pem_x509_certificates(certificate)
    return min(int(c.not_valid_after_utc.timestamp()) for c in chain) * 1_000_000
