"""What a run does around its pipelines: it checks first, keeps libraries off the terminal and stops on signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from catchment.cli.library_output import LOG_MAX_BYTES, divert_library_output, shorten_log
from catchment.cli.running import stop_on_signals
from catchment.deploy.deployment import Deployment
from catchment.deploy.preflight import check_sinks, check_sources, name_what_is_not_asked
from catchment.errors import CatchmentError, ConfigError
from catchment.records.client_config import check_password_file

NOISY = """
import os, sys
from pathlib import Path
from catchment.cli.library_output import divert_library_output

print("before")
with divert_library_output(Path(sys.argv[1])):
    os.write(1, b"a library on descriptor 1\\n")
    os.write(2, b"a library on descriptor 2\\n")
    os.system("echo a child >&2")
    print("ours")
    print("our error", file=sys.stderr)
print("after")
os.write(1, b"a library afterwards\\n")
"""


def test_what_libraries_print_goes_to_the_log_and_what_python_prints_stays(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    told = subprocess.run([sys.executable, "-c", NOISY, log], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["before", "ours", "after", "a library afterwards"]
    assert told.stderr == "our error\n"
    assert log.read_text().splitlines() == ["a library on descriptor 1", "a library on descriptor 2", "a child"]


def test_a_long_log_is_set_aside_once(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(b"x" * (LOG_MAX_BYTES + 1))
    with divert_library_output(log):
        os.write(2, b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "run.log.old").stat().st_size == LOG_MAX_BYTES + 1


def test_a_log_that_becomes_long_during_a_run_is_emptied_under_its_writers(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with divert_library_output(log):
        os.write(2, b"x" * (LOG_MAX_BYTES + 1))
        shorten_log(log)
        os.write(2, b"new\n")
        shorten_log(log)
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "run.log.old").stat().st_size == LOG_MAX_BYTES + 1


def test_a_first_interrupt_stops_and_a_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    stops: list[str] = []
    with stop_on_signals(lambda: stops.append("stop")) as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert not interrupts
        signal.raise_signal(signal.SIGINT)
        assert stops == ["stop", "stop"]
        assert len(interrupts) == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


STREAM = """
CREATE STREAM s (ts TIMESTAMP, k STRING) WITH (event_time = 'ts', {options});
CREATE TABLE t (k STRING, name STRING) WITH (path = 't.csv', format = 'csv');
CREATE MATERIALIZED VIEW v AS SELECT window.start, count(*) AS n FROM s GROUP BY window(ts, '10 seconds');
"""


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ("connector = 'files', path = 'in/{site}', format = 'json'", "in/a at site 'a', and there is no such folder"),
        ("connector = 'files', path = 'in/*.json', format = 'json'", "/in at site 'a', and there is no such folder"),
        ("connector = 'replay', path = 'in/{site}.json', format = 'json'", "in/a.json at site 'a', which does not"),
        ("connector = 'generator'", "the table 't' has no data"),
    ],
)
def test_missing_data_is_found_before_anything_starts(tmp_path: Path, options: str, missing: str) -> None:
    (tmp_path / "catchment.toml").write_text(
        '[project]\nname = "p"\ncenter = "hub"\n[sites.hub]\n[sites.a]\n[[links]]\nfrom = "a"\nto = "hub"\n'
    )
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "q.sql").write_text(STREAM.replace("{options}", options + ", sites = 'a'"))
    deployment = Deployment.load(tmp_path)
    with pytest.raises(CatchmentError, match=missing):
        check_sources(deployment, ("a",))
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a.json").touch()
    (tmp_path / "t.csv").write_text("k,name\n")
    check_sources(deployment, ("a",))


def test_the_command_line_loads_nothing_heavy_before_a_command_needs_it() -> None:
    heavy = ["numpy", "pyarrow", "sqlglot", "duckdb", "deltalake", "pandas", "scipy", "pyspark"]
    code = f"import sys, catchment.cli.main; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_ctrl_c_before_a_run_has_begun_says_what_is_kept() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import catchment.cli.main as m\ndef app():\n    raise KeyboardInterrupt\nm.app = app\nm.main()",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 130
    assert told.stderr == "interrupted; what was read and published before is kept\n"


SINK = """
CREATE STREAM s (ts TIMESTAMP, k STRING)
  WITH (event_time = 'ts', connector = 'kafka', brokers = 'nowhere:1', topic = 't-{site}', sites = 'a');
CREATE MATERIALIZED VIEW v AS SELECT window.start, count(*) AS n FROM s GROUP BY window(ts, '10 seconds');
CREATE SINK out FROM v WITH ({options});
"""


@pytest.mark.parametrize(
    "options",
    [
        "connector = 'kafka', brokers = 'nowhere:1', topic = 'out', client_config = 'c'",
        "connector = 'postgres', url = 'postgresql://u@nowhere/d', table = 'out', password_file = 'c'",
        "connector = 'delta', path = 's3://lake/out', store_config = 'c'",
        "connector = 'iceberg', table = 'shop.out', catalog_config = 'c'",
    ],
)
def test_a_file_that_a_sink_names_is_asked_for_and_what_is_elsewhere_is_not(tmp_path: Path, options: str) -> None:
    (tmp_path / "catchment.toml").write_text(
        '[project]\nname = "p"\ncenter = "hub"\n[sites.hub]\n[sites.a]\n[[links]]\nfrom = "a"\nto = "hub"\n'
    )
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "q.sql").write_text(SINK.replace("{options}", options))
    deployment = Deployment.load(tmp_path)
    assert name_what_is_not_asked(deployment, ("a",)) == ["s (kafka)"]
    with pytest.raises(CatchmentError, match="sink 'out'"):
        check_sinks(deployment)
    (tmp_path / "c").touch(mode=0o600)
    assert check_sinks(deployment) == ["out"]


def test_a_file_of_passwords_that_others_can_read_is_named(tmp_path: Path) -> None:
    passwords = tmp_path / "pgpass"
    with pytest.raises(ConfigError, match="pgpass does not exist"):
        check_password_file(str(passwords))
    passwords.touch()
    passwords.chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others") as told:
        check_password_file(str(passwords))
    assert told.value.hint == f"chmod 600 {passwords}"
    passwords.chmod(0o600)
    assert check_password_file(str(passwords)) == str(passwords)
