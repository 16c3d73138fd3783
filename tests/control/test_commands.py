"""Commands over the wire: who may run them, that they do what the command line does, and that all is written down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.cli.exit_codes import ExitCode
from catchment.control.audit import MAX_BYTES, AuditEntry, AuditLog
from catchment.control.commands import COMMANDS
from catchment.deploy.store import DeploymentStore
from catchment.errors import CatchmentError, ConfigError, QueryError, WireError
from catchment.keys.tls import TlsFiles
from catchment.keys.tokens import OPERATOR, read_token
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.uplink import Introduction, RefusedError
from tests.worlds.control_world import ControlWorld
from tests.worlds.projects import ANOTHER_VIEW
from tests.worlds.shell import Shell

CHANGES = [name for name, command in COMMANDS.items() if command.role == OPERATOR]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ControlWorld]:
    world = ControlWorld(tmp_path)
    world.start()
    yield world
    world.stop()


@pytest.fixture
def laptop(world: ControlWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of an operator on a machine without any project."""
    folder = tmp_path / "laptop" / "catchment"
    folder.mkdir(parents=True)
    (world.folder / "keys" / "alice").rename(folder / "keys")
    (folder / "profiles.toml").write_text(f'[prod]\ncenter = "{world.address}"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "laptop"))
    return folder


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


# --- who may -----------------------------------------------------------------------------------------------------


def test_a_reader_changes_nothing(world: ControlWorld) -> None:
    for command in CHANGES:
        with pytest.raises(WireError, match="'rita' has the role reader"):
            world.as_person("rita").run(command, {})
    assert list(AuditLog(world.folder / "state").read()) == []


def test_a_site_runs_no_command(world: ControlWorld) -> None:
    for command in COMMANDS:
        with pytest.raises(WireError, match="'a' has the role site"):
            world.as_site("a").run(command, {})


def test_a_person_neither_follows_nor_sends(world: ControlWorld) -> None:
    with pytest.raises(WireError, match="only sites follow"):
        world.as_person("alice").follow({"holds": None})
    files = world.files("alice")
    tls = TlsFiles(files.tls_cert, files.tls_key, files.tls_ca)
    assert files.token is not None
    uplink = GrpcUplink(world.address, read_token(files.token), tls)
    try:
        with pytest.raises(RefusedError, match="role operator, not site"):
            uplink.connect(Introduction("alice", "life"))
    finally:
        uplink.close()


def test_somebody_with_anothers_token_is_refused(world: ControlWorld) -> None:
    (world.folder / "keys" / "rita" / "token").write_bytes((world.folder / "keys" / "alice" / "token").read_bytes())
    with pytest.raises(WireError, match="the certificate says 'rita', the token 'alice'"):
        world.as_person("rita").run("drop", {"query": "numbers"})


def test_a_token_that_was_replaced_without_grace_is_refused(world: ControlWorld) -> None:
    stolen = (world.folder / "keys" / "alice" / "token").read_bytes()
    world.keys.rotate("alice", grace_days=0)
    assert world.as_person("alice").run("show queries", {})["queries"]
    (world.folder / "keys" / "alice" / "token").write_bytes(stolen)
    with pytest.raises(WireError, match="does not know you"):
        world.as_person("alice").run("show queries", {})


def test_arguments_are_checked_before_anything_runs(world: ControlWorld) -> None:
    alice = world.as_person("alice")
    for arguments in ({"quary": "x"}, {"query": 7}, {}):
        with pytest.raises(WireError, match="drop"):
            alice.run("drop", arguments)
    with pytest.raises(WireError, match="there is no command 'erase'"):
        alice.run("erase", {})


# --- what they do ------------------------------------------------------------------------------------------------


def test_an_operator_submits_from_a_machine_without_the_project(
    world: ControlWorld, laptop: Path, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "users.sql").write_text(ANOTHER_VIEW)
    answer = shell.json("submit", tmp_path / "users.sql", "--center", "prod")
    assert [q["query"] for q in answer["queries"]] == ["users"]
    deployed = DeploymentStore(world.folder / "state").read()
    assert deployed is not None
    assert "users" in deployed.views
    names = [q["query"] for q in shell.json("show", "queries", "--center", world.address)["queries"]]
    assert sorted(names) == ["numbers", "users"]
    assert shell.json("drop", "users", "--center", "prod")["dropped"] == "users"
    assert "numbers" in shell("explain", "--center", "prod")
    assert [s["site"] for s in shell.json("sites", "list", "--center", "prod")["sites"]] == ["a", "b", "center"]
    audited = shell.json("show", "audit", "--center", "prod")["changes"]
    assert [(c["who"], c["command"]) for c in audited] == [("alice", "submit"), ("alice", "drop")]
    assert "users" in shell("show", "audit", "--center", "prod")


def test_a_mistake_in_a_file_is_the_same_error_with_its_place(
    world: ControlWorld, laptop: Path, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "wrong.sql").write_text("CREATE MATERIALIZED VIEW v AS SELECT nothing FROM nowhere;")
    here = shell.ends("submit", world.folder, tmp_path / "wrong.sql")
    there = shell.ends("submit", tmp_path / "wrong.sql", "--center", "prod")
    assert here == there
    assert here[0] == ExitCode.USER_ERROR
    assert "nowhere" in here[2]


def test_words_that_do_not_fit_together_are_explained(laptop: Path, shell: Shell, tmp_path: Path) -> None:
    assert "a center and a project" in shell.ends("drop", tmp_path, "numbers", "--center", "prod")[2]
    assert "a center and a project" in shell.ends("show", "status", "-p", tmp_path, "--center", "prod")[2]
    assert "there is no profile 'prid'" in shell.ends("show", "status", "--center", "prid")[2]
    assert "one statement" in shell.ends("sql", "--center", "prod")[2]


def test_a_person_without_keys_is_told_where_they_belong(laptop: Path, shell: Shell) -> None:
    (laptop / "keys").rename(laptop / "elsewhere")
    assert "catchment keys issue NAME --role operator" in shell.ends("show", "queries", "--center", "prod")[2]


def test_a_center_that_is_away_is_an_error_with_its_address(laptop: Path, shell: Shell, world: ControlWorld) -> None:
    world.stop()
    code, _, said = shell.ends("show", "queries", "--center", "prod")
    assert code == ExitCode.USER_ERROR
    assert world.address in said


# --- several at once ---------------------------------------------------------------------------------------------


def test_two_operators_who_submit_at_once_both_succeed_one_after_the_other(world: ControlWorld) -> None:
    start = threading.Barrier(2)
    failures: list[CatchmentError] = []

    def submit(who: str) -> None:
        try:
            start.wait()
            for number in range(3):
                sql = ANOTHER_VIEW.replace("users", f"of_{who}_{number}")
                world.as_person(who).run("submit", {"text": sql})
        except CatchmentError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=submit, args=(who,)) for who in ("alice", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    deployed = DeploymentStore(world.folder / "state").read()
    assert deployed is not None
    wanted = {f"of_{who}_{number}" for who in ("alice", "bob") for number in range(3)}
    assert wanted <= set(deployed.views)
    written = list(AuditLog(world.folder / "state").read())
    versions = [entry.version for entry in written]
    assert len(set(versions)) == len(versions) == 6
    assert versions == sorted(versions, key=lambda v: v or 0), (
        "they are in the log in the order in which they were made"
    )


def test_of_two_who_submit_the_same_name_one_is_refused_and_both_are_written_down(world: ControlWorld) -> None:
    world.as_person("alice").run("submit", {"text": ANOTHER_VIEW})
    with pytest.raises(QueryError, match="already taken"):
        world.as_person("bob").run("submit", {"text": ANOTHER_VIEW})
    made, refused = AuditLog(world.folder / "state").read()
    assert (made.who, made.refused) == ("alice", None)
    assert refused.who == "bob"
    assert "already taken" in str(refused.refused)


OVERLOADING = """CREATE MATERIALIZED VIEW everything AS
  SELECT window.start, page, user, ms, bytes, count(*) AS n FROM hits
  GROUP BY window(ts, '10 seconds'), page, user, ms, bytes;"""


def narrow_links(world: ControlWorld, capacity: str) -> None:
    """Declare what the stream brings, and links that cannot carry much."""
    path = world.folder / "catchment.toml"
    path.write_text(path.read_text().replace("20 MB/s", capacity))
    (world.folder / "statistics.toml").write_text("[streams.hits]\nrows_per_s = 1000\nrow_bytes = 50\n")


def test_a_submission_that_would_overload_a_link_needs_a_yes(
    world: ControlWorld, laptop: Path, shell: Shell, tmp_path: Path
) -> None:
    narrow_links(world, "2 KB/s")
    (tmp_path / "all.sql").write_text(OVERLOADING)
    planned = shell.json("submit", tmp_path / "all.sql", "--center", "prod", "--plan")
    assert [link["overflows"] for link in planned["links"]] == [True, True]
    assert all(link["then_bytes_per_s"] > 2000 > link["now_bytes_per_s"] for link in planned["links"])
    assert "more than it can" in shell("submit", tmp_path / "all.sql", "--center", "prod", "--plan")
    code, _, said = shell.ends("submit", tmp_path / "all.sql", "--center", "prod")
    assert code == ExitCode.USER_ERROR
    assert "--yes" in said
    store = DeploymentStore(world.folder / "state")
    assert "everything" not in getattr(store.read(), "views", ())
    assert shell.json("submit", tmp_path / "all.sql", "--center", "prod", "--yes")["deployed"]
    refused, made = AuditLog(world.folder / "state").read()
    assert "more than they can" in str(refused.refused)
    assert made.arguments["yes"] is True


def test_an_assumed_rate_stops_nobody(world: ControlWorld) -> None:
    narrow_links(world, "2 KB/s")
    (world.folder / "statistics.toml").unlink()
    answer = world.as_person("alice").run("submit", {"text": OVERLOADING})
    assert [link["overflows"] for link in answer["links"]] == [False, False]


def test_a_dry_run_is_no_change(world: ControlWorld) -> None:
    world.as_person("alice").run("submit", {"text": ANOTHER_VIEW, "dry_run": True})
    assert list(AuditLog(world.folder / "state").read()) == []


# --- the log -----------------------------------------------------------------------------------------------------


def entry(number: int, text: str = "") -> AuditEntry:
    return AuditEntry(number, "alice", OPERATOR, "submit", {"text": text}, number)


def test_a_torn_line_loses_itself_only(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.append(entry(1))
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"at_us": 2, "who"')
    log.append(entry(3))
    assert [e.at_us for e in log.read()] == [1, 3]


def test_the_log_is_bounded_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from catchment.control import audit

    monkeypatch.setattr(audit, "MAX_BYTES", 2000)
    log = AuditLog(tmp_path)
    for number in range(100):
        log.append(entry(number, "x" * 100))
    kept = [e.at_us for e in log.read()]
    assert kept == list(range(kept[0], 100))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 2000 + 1000
    assert MAX_BYTES > 2000


def test_a_long_text_is_shortened_in_the_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.append(entry(1, "x" * 10_000))
    (kept,) = log.read()
    assert len(kept.arguments["text"]) < 5000


def test_errors_keep_their_kind_over_the_wire(world: ControlWorld) -> None:
    with pytest.raises(ConfigError, match="nothing has run here yet"):
        world.as_person("rita").run("show status", {})
    with pytest.raises(CatchmentError):
        world.as_person("rita").run("show results", {"query": "numbers"})
