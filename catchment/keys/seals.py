"""Seals: how two ends of a way prove to each other who they are where others hand on what they say.

A certificate and a token prove who is at the other end of one connection. What goes over forwarders crosses several
connections, and a forwarder must be able neither to speak for an end nor to change what it says. So an end seals it:
with the key of its certificate, and with its token, from which a code is made that its receivers can check by the hash
that they keep. On loopback, where the processes of one user share a secret, the code is made of that.

A seal proves its maker only while the certificate is valid and the token is known, as a connection does.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from catchment.errors import WireError
from catchment.keys.tls import TlsSource
from catchment.keys.tokens import hash_token

Seal = Mapping[str, str]

MAX_CERTIFICATE_CHARS = 16_384


class KnownHashes(Protocol):
    """Whoever knows which hashes of tokens are valid for a site."""

    def hashes_of(self, site: str) -> Iterable[str]: ...


class Sealer(Protocol):
    """Whoever can seal what one site says."""

    def seal(self, text: bytes) -> Seal: ...


class SealCheck(Protocol):
    """Whoever can check what a site has sealed."""

    def check(self, site: str, text: bytes, seal: Seal) -> None:
        """Raise a WireError unless a site has sealed this."""
        ...


class BrokenSealError(WireError):
    """What came over forwarders is not sealed by the site that it names."""


@dataclass(frozen=True)
class SiteSealer:
    """Seals with the certificate of a site, if it has one, and with its token, if it has one."""

    tls: TlsSource | None
    token: str | None

    def seal(self, text: bytes) -> Seal:
        made: dict[str, str] = {}
        if self.tls is not None:
            found = self.tls.read()
            assert found.certificate is not None, "a sealer has a certificate"
            assert found.key is not None, "a sealer has the key of its certificate"
            made["certificate"] = found.certificate.decode("ascii")
            made["signature"] = _sign(found.key, text).hex()
        if self.token is not None:
            made["code"] = _code(hash_token(self.token), text)
        assert made, "a sealer has a certificate or a token"
        return made


@dataclass(frozen=True)
class SiteSealCheck:
    """Checks seals by the authority of the project, if there is one, and by the hashes of tokens, if they are known."""

    tls: TlsSource | None
    tokens: KnownHashes | None

    def check(self, site: str, text: bytes, seal: Seal) -> None:
        assert self.tls is not None or self.tokens is not None, "a check needs an authority or tokens"
        if self.tls is not None:
            authority = self.tls.read().authority
            assert authority is not None, "certificates are checked by their authority"
            _check_certificate(site, text, seal, authority)
        if self.tokens is not None:
            given = seal.get("code", "")
            if not given.isascii():
                raise BrokenSealError("a code that is no hexadecimal number")
            matching = [
                known for known in self.tokens.hashes_of(site) if hmac.compare_digest(given, _code(known, text))
            ]
            if not matching:
                raise BrokenSealError(f"this is not sealed with the token of {site!r}")


def _code(token_hash: str, text: bytes) -> str:
    return hmac.digest(token_hash.encode(), text, "sha256").hex()


def _sign(key_pem: bytes, text: bytes) -> bytes:
    key = serialization.load_pem_private_key(key_pem, password=None)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(text, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(text)
    raise WireError(f"a key of the kind {type(key).__name__} cannot seal", hint="use a key on a curve, or RSA")


def _check_certificate(site: str, text: bytes, seal: Seal, authority_pem: bytes) -> None:
    try:
        given = seal["certificate"]
        if len(given) > MAX_CERTIFICATE_CHARS:
            raise ValueError("a certificate that is too long")
        chain = x509.load_pem_x509_certificates(given.encode("ascii"))
        authorities = x509.load_pem_x509_certificates(authority_pem)
        _check_chain(chain, authorities)
        named = _name_of(chain[0])
        if named != site:
            raise BrokenSealError(f"this is sealed by {named!r}, not by {site!r}")
        _verify(chain[0], bytes.fromhex(seal["signature"]), text)
    except (KeyError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise BrokenSealError(f"this is not sealed with a certificate of {site!r}: {error!r:.200}") from error


def _check_chain(chain: list[x509.Certificate], authorities: list[x509.Certificate]) -> None:
    """Raise unless each certificate is valid now and issued by the next, and the last by an authority."""
    now = datetime.now(UTC)
    for certificate in chain:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise ValueError("a certificate that is not valid now")
    for issued, issuer in pairwise(chain):
        if not issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise ValueError("a certificate that is issued by a site")
        issued.verify_directly_issued_by(issuer)
    if not any(_is_issued_by(chain[-1], authority) for authority in authorities):
        raise ValueError("a certificate of another authority")


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return certificate == authority
    return True


def _name_of(certificate: x509.Certificate) -> str:
    """Return the name of a site, as connections read it: the first alternative name, or the common name."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return str(next(iter(names)).value)
    except (x509.ExtensionNotFound, StopIteration):
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return str(common[0].value) if common else ""


def _verify(certificate: x509.Certificate, signature: bytes, text: bytes) -> None:
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, text)
    else:
        raise TypeError(f"a key of the kind {type(key).__name__}")
