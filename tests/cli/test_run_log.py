"""The log of a process: what each line says, for people and for programs, and where it goes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from catchment.center.events import Expired, Publish
from catchment.center.log_lines import log_windows
from catchment.center.statuses import EXACT
from catchment.cli import run_log
from catchment.cli.run_log import LogChoice, LogFormat, LogLevel, write_log
from catchment.log_fields import about
from catchment.timeline import ManualClock, Window
from catchment.wire.receiving.refusals import Refusals

JSON = LogChoice(LogFormat.JSON)
WINDOW = Window(1_700_000_000_000_000, 1_700_000_010_000_000)
_log = logging.getLogger("catchment.some.room")


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_json_line_names_role_site_view_and_window(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "center.log"
    with write_log(log, JSON, "center", "hub"):
        _log.info("so it is: %d", 5, extra=about(query="traffic", window_us=WINDOW.start_us))
        _log.info("of another site", extra=about(site="eu", stream="hits"))
        _log.debug("not wanted")
    first, second = lines(log)
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "role": "center",
        "site": "hub",
        "query": "traffic",
        "window": "2023-11-14T22:13:20+00:00",
        "message": "so it is: 5",
        "logger": "catchment.some.room",
    }
    assert (second["site"], second["stream"]) == ("eu", "hits")


def test_a_text_line_has_the_same_and_a_failure_has_its_trace(tmp_path: Path) -> None:
    log = tmp_path / "site-eu.log"
    with write_log(log, LogChoice(level=LogLevel.ERROR), "site", "eu"):
        _log.warning("not wanted")
        try:
            raise ValueError("broken")
        except ValueError:
            _log.error("it failed", exc_info=True, extra=about(stream="hits"))
    text = log.read_text()
    assert " error   role=site site=eu stream=hits: it failed\nTraceback" in text
    assert "not wanted" not in text


def test_the_published_windows_are_debug_lines_and_what_came_too_late_is_not(tmp_path: Path) -> None:
    rows = pa.table({"n": [1, 2]})
    published = Publish("traffic", WINDOW, 2, EXACT, 1.0, (), "late: 1 row changed", rows)
    expired = Expired("traffic", WINDOW, rows)
    for level, expected in ((LogLevel.DEBUG, 2), (LogLevel.INFO, 1)):
        log = tmp_path / f"{level}.log"
        with write_log(log, LogChoice(LogFormat.JSON, level), "center"):
            log_windows([published, expired])
        assert len(lines(log)) == expected
        assert {(line["query"], line["window"]) for line in lines(log)} == {("traffic", "2023-11-14T22:13:20+00:00")}
    assert lines(tmp_path / "debug.log")[0]["message"] == (
        "revision 2 is exact, with 100.0% of the records: late: 1 row changed"
    )


def test_a_refusal_names_the_site_that_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "center.log"
    with write_log(log, JSON, "center", "hub"):
        Refusals(ManualClock()).note("eu", "unauthenticated", "a wrong token", retryable=False)
    assert [(line["level"], line["site"]) for line in lines(log)] == [("warning", "eu")]


def test_a_log_is_bounded_by_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "FILE_MAX_BYTES", 1_000)
    log = tmp_path / "run.log"
    with write_log(log, LogChoice(), "run"):
        for number in range(500):
            _log.info("line %d", number)
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["run.log", "run.log.1", "run.log.2", "run.log.3", "run.log.4"]
    assert all(path.stat().st_size <= 1_000 for path in kept)
    assert log.read_text().endswith("line 499\n")


def test_a_line_that_cannot_be_written_is_lost_and_nothing_else_happens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(self: logging.FileHandler, record: logging.LogRecord) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            self.handleError(record)

    monkeypatch.setattr(logging.handlers.RotatingFileHandler, "emit", is_full)
    with write_log(tmp_path / "run.log", LogChoice(), "run"):
        _log.info("lost")
    assert capfd.readouterr().err == ""


TALKING = """
import logging, sys, warnings
from pathlib import Path
from catchment.cli.run_log import LogChoice, LogFormat, write_log

with write_log(Path(sys.argv[1]), LogChoice(LogFormat(sys.argv[2])), "run"):
    logging.getLogger("catchment.room").info("for the file")
    logging.getLogger("catchment.room").warning("for a person")
    logging.getLogger("py4j.clientserver").error("There was an exception while executing the Python Proxy")
    warnings.warn("a library is deprecated")
"""


def tell(log: Path, written: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", TALKING, log, written], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_only_our_warnings_reach_the_terminal_and_the_file_has_all(tmp_path: Path) -> None:
    assert tell(tmp_path / "run.log", "text") == ["warning: for a person"]
    text = (tmp_path / "run.log").read_text()
    for told in ("for the file", "for a person", "Python Proxy", "a library is deprecated"):
        assert told in text


def test_with_json_standard_error_carries_our_lines_for_a_collector(tmp_path: Path) -> None:
    shown = [json.loads(line)["message"] for line in tell(tmp_path / "run.log", "json")]
    assert shown == ["for the file", "for a person"]
    assert len(lines(tmp_path / "run.log")) == 4
