"""A real PostgreSQL server on a free port of loopback, with a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.worlds.waiting import free_port, wait_until

MISSING = "needs a PostgreSQL server: apt-get install postgresql"
USER = "postgres"  # the server does not run as root


def has_server() -> bool:
    """Return whether a server can be started here."""
    return _programs() is not None and (os.getuid() != 0 or _has_user())


def _programs() -> Path | None:
    """Return the folder with the programs of the newest version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    if found:
        return found[-1].parent
    known = shutil.which("initdb")
    return Path(known).parent if known else None


def _has_user() -> bool:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return False
    return True


class PostgresServer:
    """One server, which can be killed and started again with what it has stored."""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._as_user: dict[str, Any] = {"user": USER, "group": USER} if os.getuid() == 0 else {}
        if self._as_user:
            shutil.chown(self.folder, USER, USER)
        self._process: subprocess.Popen[bytes] | None = None
        made = self._run("initdb", "-D", "data", "-U", "catchment", "-A", "trust", "--no-sync")
        assert made.wait() == 0, (self.folder / "initdb.log").read_text()

    @property
    def url(self) -> str:
        return f"postgresql://catchment@127.0.0.1:{self.port}/postgres"

    def url_with_password(self, user: str, password: str) -> str:
        """Make a user who needs a password, and return the address for it, without the password."""
        self.query(f"CREATE USER {user} SUPERUSER PASSWORD '{password}'")
        rules = self.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.query("SELECT pg_reload_conf()")
        return self.url.replace("catchment@", f"{user}@")

    def start(self) -> PostgresServer:
        self._process = self._run("postgres", "-D", "data", "-p", str(self.port), "-h", "127.0.0.1", "-k", ".")
        wait_until(self._answers, "PostgreSQL answers")
        return self

    def kill(self) -> None:
        """Kill the server and its workers, as a power cut would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            answered = connection.execute(text.encode())
            return answered.fetchall() if answered.description else []

    def _run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        programs = _programs()
        assert programs is not None
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [programs / program, *words],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user,
            )

    def _answers(self) -> bool:
        import psycopg

        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "postgres.log").read_text()[-2000:]
        try:
            return self.query("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False
