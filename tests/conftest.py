"""Shared fixtures and the tiers of tests: one lazily started Spark session per run, no JVM where none is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.worlds.tiers import register_tiers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FOLDER = Path(__file__).parent

# Processes that tests start import the code under test, and the worlds of `tests.worlds`, from this checkout.
os.environ["PYTHONPATH"] = str(FOLDER.parent)
# The JVMs of tests live for seconds or minutes: the optimising compiler and a parallel collector cost more than they
# give, and most of all on a machine with few cores.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

register_tiers()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that catchment itself would make, on two threads and with one shuffle partition."""
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    config = SparkConfig(master="local[2]", settings={"spark.sql.shuffle.partitions": "1"})
    session = make_session("tests", config, warehouse=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hold the rule that a test which starts a JVM says so, and make two groups of such tests.

    They run one at a time; whoever has cores to spare runs the groups beside each other (`-n 2 --dist loadgroup`), each
    in one process and on one session: tests that start processes of catchment, and the others.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("spark"):
            raise pytest.UsageError(f"{item.nodeid} uses the spark fixture and lacks @pytest.mark.spark")
        if item.path.is_relative_to(FOLDER / "e2e"):
            item.add_marker(pytest.mark.xdist_group("processes"))
        elif item.get_closest_marker("spark") or item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.xdist_group("one session"))
