"""Java is found, or what to install is said; a session has the house's settings and the project's own on top."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.errors import EngineError
from catchment.spark.session import find_java

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
    assert spark._jvm.java.util.regex.Pattern.matches(search, failure)  # type: ignore[union-attr]
