"""A private authority that signs the certificates of a project's sites.

Keys are on the curve P-256, which every TLS library takes. The authority may sign only certificates of sites, not
further authorities.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from catchment.errors import ConfigError

BACKDATED = timedelta(minutes=10)  # so that machines whose clocks are a little behind take a new certificate


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both in PEM form."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_authority(project: str, days: int, now: datetime | None = None) -> KeyPair:
    """Return a new authority for a project."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"catchment authority of {project}"[:64])])
    usage = _key_usage(signs_certificates=True)
    built = (
        _certificate(name, name, key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(built, key)


def issue_certificate(
    authority: KeyPair, site: str, hosts: Iterable[str], days: int, now: datetime | None = None
) -> KeyPair:
    """Return a certificate that names a site first, then the hosts at which others find it."""
    signer, signer_key = _load(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    names = [x509.DNSName(site), *(_host_name(host) for host in dict.fromkeys(hosts))]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
    built = (
        _certificate(name, signer.subject, key.public_key(), days, now)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(signed_by, critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    return _pair(built, key)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    start = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - BACKDATED)
        .not_valid_after(start + timedelta(days=days))
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        hint = "write a name of ASCII letters, or an address"
        raise ConfigError(f"{host!r} cannot stand in a certificate", hint=hint) from error


def _load(authority: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate)
        key = serialization.load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError("the authority's certificate or key cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("the authority's key is not one that `catchment keys init` made")
    return certificate, key


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private)
