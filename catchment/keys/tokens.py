"""Tokens: what a site or a person shows to say who it is, and how a receiver checks it.

A receiver keeps only hashes of tokens, so that its files let nobody call as a site. Tokens have 256 random bits, which
cannot be guessed from a hash. Every hash is compared, each in constant time, so that the time taken tells nothing.

While a token is replaced, the previous one is valid for a while: the file of the receiver and that of the site need not
change at the same moment.

Everyone has one role: a site sends to inboxes and follows what is deployed, an operator changes and reads a deployment,
a reader only reads it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from catchment.errors import ConfigError
from catchment.keys.private_files import create_secret, read_secret
from catchment.keys.watched_files import WatchedFiles
from catchment.storage.files import make_folder
from catchment.timeline import Clock, SystemClock

HASHED = "sha256:"
LOOPBACK_FILE = "loopback.key"  # in the state folder: made at the first start, for processes of the same user
_NO_SECRETS = ("previous_until =", "role =")  # settings of a file of tokens that hold none
SITE, OPERATOR, READER = "site", "operator", "reader"
ROLES = (SITE, OPERATOR, READER)
_HEAD = "# Hashes of tokens, by name. Written by `catchment keys`; copy it to every machine that listens.\n"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a name, and what it may do."""

    name: str
    role: str = SITE


class TokenCheck(Protocol):
    """Whoever knows whom a token belongs to."""

    def find_caller(self, token: str) -> Caller | None: ...


def make_token() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return what a receiver keeps of a token."""
    return HASHED + hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CallerTokens:
    """The hashes of one caller's tokens: the current one, and the previous one until an instant in microseconds."""

    current: str
    previous: str | None = None
    previous_until_us: int = 0
    role: str = SITE

    def replace(self, token: str, keep_until_us: int | None) -> CallerTokens:
        """Return the hashes after a new token was made; the one that was current is valid until then, if at all."""
        if keep_until_us is None:
            return CallerTokens(hash_token(token), role=self.role)
        return CallerTokens(hash_token(token), self.current, keep_until_us, self.role)

    def valid_at(self, now_us: int) -> tuple[str, ...]:
        """Return the hashes that are valid at an instant."""
        previous_holds = self.previous is not None and now_us < self.previous_until_us
        return (self.current, self.previous) if previous_holds and self.previous else (self.current,)


class TokenTable:
    """The tokens that a receiver knows."""

    def __init__(self, callers: Mapping[str, CallerTokens], clock: Clock | None = None) -> None:
        self.callers = dict(callers)
        self._clock = clock or SystemClock()
        hashes = [tokens.current for tokens in self.callers.values()]
        if not hashes or len(set(hashes)) < len(hashes) or hash_token("") in hashes:
            raise ConfigError("every site needs a token of its own, and none may be empty")

    @classmethod
    def of(cls, tokens: Mapping[str, str]) -> TokenTable:
        """Return the table of some tokens, by site."""
        return cls({site: CallerTokens(hash_token(token)) for site, token in tokens.items()})

    def hashes_of(self, site: str) -> tuple[str, ...]:
        """Return the hashes that are valid for a site now; none for others than sites."""
        tokens = self.callers.get(site)
        return () if tokens is None or tokens.role != SITE else tokens.valid_at(self._clock.now_us())

    def find_caller(self, token: str) -> Caller | None:
        given = hash_token(token)
        now_us = self._clock.now_us()
        matching = [
            Caller(name, tokens.role)
            for name, tokens in self.callers.items()
            for known in tokens.valid_at(now_us)
            if hmac.compare_digest(given, known)
        ]
        return matching[0] if matching else None


class TokenFile:
    """The tokens in a file, read again when the file is replaced."""

    def __init__(self, path: Path) -> None:
        self._table = WatchedFiles((path,), lambda: TokenTable(read_token_file(path)))

    def find_caller(self, token: str) -> Caller | None:
        return self._table.read().find_caller(token)

    def hashes_of(self, site: str) -> tuple[str, ...]:
        return self._table.read().hashes_of(site)


def read_token_file(path: Path) -> dict[str, CallerTokens]:
    """Return the tokens of a TOML file: of each site a token, its hash, or a table of hashes."""
    text = _read_text(path)
    try:
        given = tomllib.loads(text)
        return {site: _read_entry(entry) for site, entry in given.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"this is not a file of tokens: {type(error).__name__}",  # the text of the error might show a token
            where=str(path),
            hint='write one line per site: eu = "the token of eu"; or let `catchment keys` write it',
        ) from None


def _read_text(path: Path) -> str:
    what = "the tokens of the sites"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "make it with `catchment keys init`, or copy it from the machine where the keys were made"
        raise ConfigError(f"cannot read {what}: {error}", where=str(path), hint=hint) from error
    lines = (line.strip() for line in text.splitlines())
    holds_tokens = any("=" in line and HASHED not in line and not line.startswith(_NO_SECRETS) for line in lines)
    if holds_tokens:
        read_secret(path, what)
    return text


def _read_entry(entry: Any) -> CallerTokens:
    if isinstance(entry, str):
        return CallerTokens(entry if entry.startswith(HASHED) else hash_token(entry))
    if not isinstance(entry, dict):
        raise TypeError("neither a token nor a table")
    for known in (entry["current"], entry.get("previous", HASHED)):
        if not isinstance(known, str) or not known.startswith(HASHED):
            raise ValueError("not a hash")
    until = entry.get("previous_until")
    until_us = int(until.timestamp() * 1_000_000) if isinstance(until, datetime) else 0
    role = entry.get("role", SITE)
    if role not in ROLES:
        raise ValueError("not a role")
    return CallerTokens(entry["current"], entry.get("previous"), until_us, role)


def write_token_file(sites: Mapping[str, CallerTokens]) -> bytes:
    """Return the content of a file of tokens."""
    return (_HEAD + "".join(_write_entry(site, tokens) for site, tokens in sorted(sites.items()))).encode()


def _write_entry(site: str, tokens: CallerTokens) -> str:
    lines = [f"[{site}]", f'current = "{tokens.current}"']
    if tokens.role != SITE:
        lines.append(f'role = "{tokens.role}"')
    if tokens.previous is not None:
        until = datetime.fromtimestamp(tokens.previous_until_us // 1_000_000, UTC)
        lines += [f'previous = "{tokens.previous}"', f"previous_until = {until:%Y-%m-%dT%H:%M:%SZ}"]
    return "\n" + "\n".join(lines) + "\n"


class LoopbackTokens:
    """Tokens for processes of one user on one machine, from a secret in the state folder that they share.

    The token of a site is its name and a code that only who can read the secret can compute.
    """

    def __init__(self, state_folder: Path) -> None:
        make_folder(state_folder)
        self._secret = create_secret(state_folder / LOOPBACK_FILE, secrets.token_bytes(32))

    def token_of(self, site: str) -> str:
        return f"{site}:{hmac.digest(self._secret, site.encode(), 'sha256').hex()}"

    def hashes_of(self, site: str) -> tuple[str, ...]:
        return (hash_token(self.token_of(site)),)

    def find_caller(self, token: str) -> Caller | None:
        site, _, _ = token.partition(":")
        return Caller(site) if site and hmac.compare_digest(token.encode(), self.token_of(site).encode()) else None


def read_token(path: Path) -> str:
    """Return the token in a file of its own."""
    hint = "copy the folder of the site's keys to this machine; `catchment keys issue SITE` makes it"
    text = read_secret(path, "the token of this site", hint).strip()
    if not text or not text.isascii() or b"\n" in text:
        raise ConfigError("this file does not hold one token on one line", where=str(path))
    return text.decode()
