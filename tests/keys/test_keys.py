"""Certificates and tokens as `catchment keys` makes them: who can read them, whom they name, how they are replaced.

The TLS library of Python judges the certificates: it is not the one that made them, nor the one that links use.
"""

from __future__ import annotations

import json
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from catchment.cli.main import app
from catchment.errors import ConfigError
from catchment.keys.authority import issue_certificate, make_authority
from catchment.keys.key_folder import DAY_US, KeyFolder
from catchment.keys.private_files import create_secret, read_secret
from catchment.keys.tls import find_expiry_us
from catchment.keys.tokens import (
    CallerTokens,
    LoopbackTokens,
    TokenCheck,
    TokenFile,
    TokenTable,
    hash_token,
    read_token,
    read_token_file,
    write_token_file,
)
from catchment.timeline import ManualClock, SystemClock


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    folder = KeyFolder(tmp_path / "keys")
    folder.create("demo")
    return folder


def site_of(check: TokenCheck, token: str) -> str | None:
    """The site whose token this is."""
    caller = check.find_caller(token)
    return None if caller is None else caller.name


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- files


def test_only_the_owner_can_read_any_key(keys: KeyFolder) -> None:
    keys.issue("eu")
    paths = [keys.folder, *keys.folder.rglob("*")]
    assert len(paths) == 10
    assert {mode(p) for p in paths if p.is_dir()} == {0o700}
    assert {mode(p) for p in paths if p.is_file()} == {0o600}


def test_a_secret_that_others_can_read_is_refused_by_name(keys: KeyFolder) -> None:
    keys.issue("eu")
    token = keys.folder / "eu" / "token"
    assert read_token(token)
    token.chmod(0o640)
    with pytest.raises(ConfigError, match="0640") as caught:
        read_token(token)
    assert str(token) in str(caught.value)
    assert "chmod 600" in str(caught.value.hint)


def test_tokens_in_plain_text_must_be_private_and_their_hashes_need_not(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text('eu = "plain-secret"\n')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by other users"):
        read_token_file(path)
    path.chmod(0o600)
    assert read_token_file(path) == {"eu": CallerTokens(hash_token("plain-secret"))}
    path.write_bytes(write_token_file({"eu": CallerTokens(hash_token("plain-secret"))}))
    path.chmod(0o644)
    assert read_token_file(path)["eu"].current == hash_token("plain-secret")


@pytest.mark.parametrize("text", ["eu = 'unclosed-secret", "eu = 3", "[eu]\ncurrent = 'plain-secret'", "[eu]\nx = 1"])
def test_a_file_of_tokens_that_cannot_be_read_is_refused_without_telling_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        read_token_file(path)
    assert "secret" not in str(caught.value)


def test_of_several_processes_that_start_at_once_all_use_one_secret(tmp_path: Path) -> None:
    made = [create_secret(tmp_path / "s", bytes([n]) * 32) for n in range(3)]
    assert made == [bytes(32)] * 3
    assert mode(tmp_path / "s") == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert read_secret(tmp_path / "s", "it") == bytes(32)


# ---- certificates


def test_a_certificate_names_its_site_first_and_then_where_it_is_found(keys: KeyFolder) -> None:
    keys.issue("eu", ["eu.example.org", "192.0.2.7"])
    certificate = x509.load_pem_x509_certificate((keys.folder / "eu" / "cert.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["eu", "eu.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "127.0.0.1", "::1"]


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Let two ends of TLS speak through memory until both are content, or raise what one of them says."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def contexts(keys: KeyFolder, server_site: str, client_site: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    made = []
    for site, kind in ((server_site, ssl.PROTOCOL_TLS_SERVER), (client_site, ssl.PROTOCOL_TLS_CLIENT)):
        context = ssl.SSLContext(kind)
        context.load_cert_chain(keys.folder / site / "cert.pem", keys.folder / site / "key.pem")
        context.load_verify_locations(keys.folder / site / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        made.append(context)
    return made[0], made[1]


def test_another_tls_library_takes_the_certificates_strictly(keys: KeyFolder) -> None:
    keys.issue("center", ["center.example.org"])
    keys.issue("eu")
    shake_hands(*contexts(keys, "center", "eu"), "center.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(*contexts(keys, "center", "eu"), "other.example.org")


def test_a_certificate_of_another_authority_is_not_taken(keys: KeyFolder, tmp_path: Path) -> None:
    keys.issue("center")
    other = KeyFolder(tmp_path / "other")
    other.create("demo")
    other.issue("eu")
    client = contexts(other, "eu", "eu")[1]
    with pytest.raises(ssl.SSLError):
        shake_hands(contexts(keys, "center", "center")[0], client, "localhost")


def test_the_end_of_a_certificate_is_found() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    authority = make_authority("demo", 100, now)
    made = issue_certificate(authority, "eu", (), 30, now)
    assert find_expiry_us(made.certificate) == int((now + timedelta(days=30)).timestamp()) * 1_000_000
    assert find_expiry_us(authority.certificate + made.certificate) == find_expiry_us(made.certificate)
    assert b"PRIVATE" not in repr(made).encode()


# ---- tokens


def test_a_table_of_tokens_names_the_site_of_a_token() -> None:
    table = TokenTable.of({"eu": "a", "us": "b"})
    assert [site_of(table, t) for t in ("a", "b", "c", "", hash_token("a"))] == ["eu", "us", None, None, None]


def test_a_replaced_token_is_taken_during_its_grace_and_not_after(keys: KeyFolder) -> None:
    clock = ManualClock(SystemClock().now_us())
    folder = KeyFolder(keys.folder, clock)
    folder.issue("eu")
    old = read_token(keys.folder / "eu" / "token")
    rotated = folder.rotate("eu", grace_days=2)
    new = read_token(keys.folder / "eu" / "token")
    table = TokenTable(read_token_file(keys.folder / "eu" / "tokens.toml"), clock)
    assert (site_of(table, old), site_of(table, new)) == ("eu", "eu")
    assert rotated.previous_token_until_us == clock.now_us() + 2 * DAY_US
    clock.advance(2 * DAY_US)
    assert (site_of(table, old), site_of(table, new)) == (None, "eu")
    assert [k.previous_token_until_us for k in folder.list_keys()] == [None]


def test_a_stolen_token_can_be_ended_at_once(keys: KeyFolder) -> None:
    keys.issue("eu")
    keys.issue("center")
    stolen = read_token(keys.folder / "eu" / "token")
    receiver = TokenFile(keys.folder / "center" / "tokens.toml")
    assert site_of(receiver, stolen) == "eu"
    keys.rotate("eu", grace_days=0)
    assert site_of(receiver, stolen) is None, "the file of the receiver is read again without a restart"
    assert site_of(receiver, read_token(keys.folder / "eu" / "token")) == "eu"


def test_a_file_of_tokens_that_is_being_replaced_leaves_the_previous_ones_in_use(keys: KeyFolder) -> None:
    keys.issue("eu")
    path = keys.folder / "eu" / "tokens.toml"
    token, receiver = read_token(keys.folder / "eu" / "token"), TokenFile(path)
    assert site_of(receiver, token) == "eu"
    path.write_text("[eu")
    assert site_of(receiver, token) == "eu"
    path.unlink()
    assert site_of(receiver, token) == "eu"


def test_the_tokens_of_loopback_name_one_site_and_need_the_secret(tmp_path: Path) -> None:
    mine, again = LoopbackTokens(tmp_path / "state"), LoopbackTokens(tmp_path / "state")
    token = mine.token_of("eu")
    assert site_of(again, token) == "eu"
    code = token.removeprefix("eu:")
    forged = (f"us:{code}", "eu:", "eu", "", ":", f":{code}", token + "0", token[:-1], "eu:é")
    assert [site_of(again, wrong) for wrong in forged] == [None] * len(forged)
    assert site_of(LoopbackTokens(tmp_path / "other"), token) is None
    assert mode(tmp_path / "state") == 0o700


# ---- mistakes


def test_keys_are_made_once_and_replaced_only_where_there_are_some(keys: KeyFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already"):
        keys.create("demo")
    with pytest.raises(ConfigError, match="no keys yet"):
        keys.rotate("eu")
    keys.issue("eu")
    with pytest.raises(ConfigError, match="keys rotate eu"):
        keys.issue("eu")
    with pytest.raises(ConfigError, match="keys init"):
        KeyFolder(tmp_path / "nowhere").issue("eu")


def test_a_project_gets_its_keys_with_one_command(tmp_path: Path) -> None:
    project = str(tmp_path / "p")
    for words in (["init", project], ["keys", "init", "-p", project], ["keys", "list", "--json", "-p", project]):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0
    listed = json.loads(done.stdout)
    assert [(row["site"], row["days_left"]) for row in listed["keys"]] == [("center", 364), ("edge", 364)]
    assert {p.name for p in (tmp_path / "p" / "keys" / "edge").iterdir()} == {
        "ca.pem",
        "cert.pem",
        "key.pem",
        "token",
        "tokens.toml",
    }
