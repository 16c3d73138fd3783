"""Java is found, or what to install is said; a session has the house's settings and the project's own on top."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkRuntimeError

from catchment.errors import EngineError
from catchment.project.sections import SparkConfig
from catchment.spark import session as session_module
from catchment.spark import streaming
from catchment.spark.session import find_java, make_session
from catchment.spark.streaming import retry_slow_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(folder: Path, says: str, mode: int = 0o755) -> Path:
    """A `java` that says this when asked for its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    java.chmod(mode)
    return java


@pytest.mark.parametrize(
    "says",
    [
        'openjdk version "17.0.9" 2023-10-17',
        'java version "21" 2023-09-19 LTS',
        'openjdk version "25-ea" 2025-09-16',
        'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.9" 2023-10-17',
    ],
)
def test_java_17_or_later_is_taken_from_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    java = fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


def test_spark_connect_is_refused_with_the_reason_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="'sc://spark:15002' asks for Spark Connect") as raised:
        make_session("connected", SparkConfig(master="sc://spark:15002"))
    assert "committed in the driver" in raised.value.message
    assert "spark://HOST:7077" in (raised.value.hint or "")
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark:15002")
    with pytest.raises(EngineError, match="SPARK_REMOTE=sc://spark:15002 in the environment"):
        make_session("connected", SparkConfig())


def test_without_java_home_the_java_on_the_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, 'openjdk version "17.0.9"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    assert find_java() == java


@pytest.mark.parametrize(
    ("says", "mode", "message"),
    [
        ('java version "1.8.0_392"', 0o755, "is Java 1.8.0_392; Spark needs Java 17 or later"),
        ('openjdk version "11.0.21" 2023-10-17', 0o755, "is Java 11.0.21; Spark needs Java 17 or later"),
        ("Picked up _JAVA_OPTIONS: -Xmx1g", 0o755, "does not say its version; .*_JAVA_OPTIONS"),
        ("", 0o755, "does not say its version"),
        ('openjdk version "17.0.9"', 0o644, "no Java at JAVA_HOME="),
    ],
    ids=["8", "11", "no version", "silent", "not executable"],
)
def test_an_old_or_broken_java_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, mode: int, message: str
) -> None:
    fake_java(tmp_path, says, mode)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineError, match=message) as caught:
        find_java()
    assert caught.value.hint is not None
    assert "apt-get install openjdk-17" in caught.value.hint


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_a_missing_java_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(EngineError, match=f"no Java{f' at JAVA_HOME={home}' if home else ''}; Spark needs") as caught:
        find_java()
    assert caught.value.hint is not None
    assert "brew install" in caught.value.hint


class Starts:
    """In place of Spark: the first starts fail, the next one is a session."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.settings: list[dict[str, str]] = []

    def __call__(self, settings: dict[str, str]) -> str:
        self.settings.append(settings)
        if len(self.settings) <= self.failures:
            raise PySparkRuntimeError("java.lang.OutOfMemoryError: there is no room for the heap")
        return "a session"


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    fake_java(tmp_path, 'openjdk version "17.0.9"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    starts = Starts(0)
    monkeypatch.setattr(session_module, "_start", starts)
    return starts


def test_a_start_that_fails_is_tried_again_with_the_same_settings(
    starts: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    starts.failures = session_module.STARTS - 1
    assert make_session("tests", SparkConfig()) == "a session"
    assert len(starts.settings) == session_module.STARTS
    assert all(settings == starts.settings[0] for settings in starts.settings)
    assert "Spark did not start, attempt 1 of 3: there is no room for the heap" in caplog.text


def test_a_start_that_goes_on_failing_is_an_error_with_its_cause_and_a_hint(starts: Starts) -> None:
    starts.failures = session_module.STARTS
    with pytest.raises(EngineError, match="did not start in 3 attempts: there is no room for the heap") as caught:
        make_session("tests", SparkConfig())
    assert "[spark] memory" in (caught.value.hint or "")


def test_the_reason_of_a_failed_start_is_what_java_says_not_what_called_it() -> None:
    said = (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": java.lang.IllegalArgumentException: System memory 419430400 must be at least 471859200.\n"
        "\tat org.apache.spark.memory.UnifiedMemoryManager$.getMaxMemory(UnifiedMemoryManager.scala:216)\n"
    )
    assert streaming.reason_of(said) == "System memory 419430400 must be at least 471859200."


def test_spark_waits_for_minutes_before_it_takes_a_slow_part_for_lost_unless_a_project_says_otherwise(
    starts: Starts,
) -> None:
    make_session("tests", SparkConfig(settings={"spark.network.timeout": "5s"}))
    make_session("tests", SparkConfig())
    hasty, patient = starts.settings
    assert hasty["spark.network.timeout"] == "5s"
    for name in ("spark.network.timeout", "spark.python.authenticate.socketTimeout"):
        assert int(patient[name].removesuffix("s")) >= 600
    assert patient["spark.python.worker.reuse"] == "true"


def test_a_source_whose_python_process_is_slow_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    failures = ["Python worker failed to connect back."] * 3

    def start() -> str:
        if failures:
            raise PySparkRuntimeError(failures.pop())
        return "started"

    assert retry_slow_start("stream 'hits'", start) == "started"
    assert "the machine is busy: starting stream 'hits' again (attempt 4 of" in caplog.text


def test_a_source_that_never_comes_up_and_one_that_is_wrong_are_errors_that_say_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "STARTS", 2)
    attempts: list[str] = []

    def fail(reason: str) -> None:
        attempts.append(reason)
        raise PySparkRuntimeError(reason)

    slow = "Timed out while waiting for the Python worker to connect back"
    with pytest.raises(
        EngineError, match="'hits' could not be started: in 2 attempts no Python process came"
    ) as caught:
        retry_slow_start("stream 'hits'", lambda: fail(slow))
    assert "stop other work" in (caught.value.hint or "")
    with pytest.raises(EngineError, match="the inbox could not be started: there is no folder"):
        retry_slow_start("the inbox", lambda: fail("java.io.IOException: there is no folder"))
    assert len(attempts) == 3, "what is wrong is not tried again"


@pytest.mark.spark
def test_a_session_runs_in_utc_on_this_interpreter_with_the_settings_of_the_project(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1", "a project's own settings win"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.mark.spark
def test_threads_have_stacks_for_the_search_that_spark_makes_when_a_query_is_stopped_within_a_batch(
    spark: SparkSession,
) -> None:
    failure = "An error occurred while calling o1" + "\tat some.frame\n" * 1000 + "java.lang.InterruptedException"
    search = r"An error occurred while calling((.|\r\n|\r|\n)*)(java.lang.InterruptedException)"
    assert spark._jvm.java.util.regex.Pattern.matches(search, failure)
