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


# Processes that tests start import the code under test, and the worlds of `tests.worlds`, from this checkout.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

register_tiers()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that catchment itself would make, on two threads and with one shuffle partition."""
    from catchment.project.config import SparkConfig
    from catchment.spark.session import make_session

    config = SparkConfig(master="local[2]", settings={"spark.sql.shuffle.partitions": "1"})
    session = make_session("tests", config, warehouse=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hold the rule that a test which starts a JVM says so: such tests run one at a time, and share one session."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("spark"):
            raise pytest.UsageError(f"{item.nodeid} uses the spark fixture and lacks @pytest.mark.spark")
