"""The folder of keys that `catchment keys` makes: an authority, and one folder per site or person.

```
keys/authority.key   signs certificates; stays where it was made
keys/authority.pem   its certificate
keys/eu/             what the machine of site eu needs, and all of its secrets
    ca.pem           the certificate of the authority
    cert.pem         the certificate of the site, which names it
    key.pem          its private key
    token            its token
    tokens.toml      hashes of the tokens of all callers, for its inbox
keys/alice/          the same of a person, without tokens.toml: nobody calls people
```

Only owners can read the folders and files. Every change is written file by file; whoever reads them in between keeps
what it read before (`watched_files.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import ConfigError
from catchment.keys.authority import KeyPair, issue_certificate, make_authority
from catchment.keys.private_files import read_secret
from catchment.keys.tls import find_expiry_us
from catchment.keys.tokens import SITE, CallerTokens, hash_token, make_token, read_token_file, write_token_file
from catchment.project.sections import SecurityFiles, key_files
from catchment.storage.files import make_folder, write_durably
from catchment.timeline import Clock, SystemClock
from catchment.units import SECOND_US

DAY_US = 86_400 * SECOND_US
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class IssuedKeys:
    """What a site or a person was given, and until when."""

    site: str
    folder: Path
    certificate_expires_us: int
    previous_token_until_us: int | None = None  # the token before the current one is still taken until then
    role: str = SITE


class KeyFolder:
    """The keys of one project."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder = folder
        self._clock = clock or SystemClock()
        self._authority_key = folder / "authority.key"
        self._authority_certificate = folder / "authority.pem"
        self._tokens = folder / "tokens.toml"

    @property
    def authority_expires_us(self) -> int:
        """When the certificate of the authority ends to be valid."""
        return find_expiry_us(self._authority().certificate)

    def create(self, project: str, days: int = 3_650) -> None:
        """Make a new authority; refused where there is one."""
        if self._authority_key.exists():
            raise ConfigError(
                "there is an authority already",
                where=str(self.folder),
                hint="add sites with `catchment keys issue SITE`; remove the folder to start over",
            )
        make_folder(self.folder)
        made = make_authority(project, days)
        write_durably(self._authority_certificate, made.certificate)
        write_durably(self._authority_key, made.key)

    def issue(self, site: str, hosts: Iterable[str] = (), days: int = 365, role: str = SITE) -> IssuedKeys:
        """Give a site, or a person with another role, its first certificate and token."""
        if site in self._read_tokens():
            hint = f"catchment keys rotate {site} replaces them"
            raise ConfigError(f"{site!r} has keys already", where=str(self.folder), hint=hint)
        token = make_token()
        return self._give(site, hosts, days, token, CallerTokens(hash_token(token), role=role))

    def rotate(self, site: str, hosts: Iterable[str] = (), days: int = 365, grace_days: int = 7) -> IssuedKeys:
        """Give a site a new certificate and a new token; without days of grace the old token ends at once."""
        known = self._read_tokens().get(site)
        if known is None:
            hint = f"catchment keys issue {site} makes them"
            raise ConfigError(f"{site!r} has no keys yet", where=str(self.folder), hint=hint)
        token = make_token()
        keep_until_us = self._clock.now_us() + grace_days * DAY_US if grace_days else None
        return self._give(site, hosts, days, token, known.replace(token, keep_until_us))

    def list_keys(self) -> Sequence[IssuedKeys]:
        """Return what every site was given."""
        self._authority()
        return [self._describe(site, tokens) for site, tokens in sorted(self._read_tokens().items())]

    def _give(self, site: str, hosts: Iterable[str], days: int, token: str, tokens: CallerTokens) -> IssuedKeys:
        authority = self._authority()
        made = issue_certificate(authority, site, (*hosts, *LOCAL_HOSTS), days)
        files = self._files(site)
        make_folder(self.folder / site)
        for path, data in (
            (files.tls_ca, authority.certificate),
            (files.tls_cert, made.certificate),
            (files.tls_key, made.key),
            (files.token, f"{token}\n".encode()),
        ):
            assert path is not None
            write_durably(path, data)
        self._write_tokens({**self._read_tokens(), site: tokens})
        return self._describe(site, tokens)

    def _describe(self, site: str, tokens: CallerTokens) -> IssuedKeys:
        certificate = self._files(site).tls_cert
        assert certificate is not None
        try:
            expires_us = find_expiry_us(certificate.read_bytes())
        except (OSError, ValueError) as error:
            hint = f"catchment keys rotate {site} makes new ones"
            raise ConfigError(f"cannot read a certificate: {error}", where=str(certificate), hint=hint) from error
        grace = tokens.previous is not None and tokens.previous_until_us > self._clock.now_us()
        until_us = tokens.previous_until_us if grace else None
        return IssuedKeys(site, self.folder / site, expires_us, until_us, tokens.role)

    def _authority(self) -> KeyPair:
        hint = "catchment keys init makes it; it is kept only on the machine where it was made"
        key = read_secret(self._authority_key, "the key of the authority", hint)
        return KeyPair(self._authority_certificate.read_bytes(), key)

    def _read_tokens(self) -> dict[str, CallerTokens]:
        return read_token_file(self._tokens) if self._tokens.exists() else {}

    def _write_tokens(self, sites: dict[str, CallerTokens]) -> None:
        """Write the hashes for this folder and for the inbox of every site."""
        content = write_token_file(sites)
        write_durably(self._tokens, content)
        for site in (name for name, tokens in sites.items() if tokens.role == SITE):
            path = self._files(site).tokens
            assert path is not None
            write_durably(path, content)

    def _files(self, site: str) -> SecurityFiles:
        return key_files(self.folder, site)
