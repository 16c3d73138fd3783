"""The one place where a Spark session is made, and where Java is looked for.

A start on a busy machine is slow, and does not fail: time-outs are long, and a start that failed is tried again.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from catchment.deploy.processes.shipped_environment import PYTHON, ship_environment
from catchment.errors import EngineError
from catchment.project.sections import SparkConfig
from catchment.spark.streaming import reason_of

STARTS = 3  # how often a session is started before its failure is final
MINIMAL_JAVA = 17
INSTALL_JAVA = (
    "install a Java runtime of version 17 or later and set JAVA_HOME to it: "
    "Debian/Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless; "
    "macOS: brew install openjdk@17"
)

# A query stopped within a batch makes Spark search the text of its failure, some 10,000 characters, with a regular
# expression that recurses six frames per character: with stacks of the usual size it dies of that, loudly.
LARGE_STACKS = "-Xss16m"

# When the JVM compiles a method again, with its slow and thorough compiler: after ten times as many calls and rounds
# of loops as it would. A site that gets few records runs Spark's planning a few times per second for ever, and most of
# its processor time in the first minutes went into compiling that. Loops over millions of records reach this at once.
RARE_COMPILATION = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# How long Spark waits for its own parts before it takes them for lost. On a machine with far more work than cores, slow
# is common and lost is rare; and what is lost is found by its closed socket, not by a time-out.
PATIENCE = {
    "spark.network.timeout": "800s",
    "spark.executor.heartbeatInterval": "60s",
    "spark.python.authenticate.socketTimeout": "600s",  # for a Python worker to connect
    "spark.sql.broadcastTimeout": "1800",
}

# Settings that every session has; a project's own [spark.settings] come after them and win.
SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",  # replanning costs more than it saves on micro-batches
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass":  # the default one takes a third of a small trigger's time
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 has no statistics, and costs more
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.python.worker.reuse": "true",  # starting one takes most of a second of work
    "spark.python.daemon.module": "catchment.spark.worker_daemon",
    **PATIENCE,
    "spark.scheduler.mode": "FAIR",  # several sites share one session: none waits for another's job
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


_log = logging.getLogger(__name__)


def find_java() -> Path:
    """Return the Java that Spark will run on; where there is none, or an old one, say what to install."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if found is None:
        where = f" at JAVA_HOME={home}" if home else ""
        raise EngineError(f"no Java{where}; Spark needs Java {MINIMAL_JAVA} or later", hint=INSTALL_JAVA)
    said = _ask_version(found)
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
    if version is None:
        raise EngineError(
            f"{found} does not say its version; Spark needs Java {MINIMAL_JAVA} or later: {said:.200}",
            hint=INSTALL_JAVA,
        )
    if int(version.group(2)) < MINIMAL_JAVA:
        raise EngineError(
            f"{found} is Java {version.group(1)}; Spark needs Java {MINIMAL_JAVA} or later", hint=INSTALL_JAVA
        )
    return Path(found)


@cache  # a start asks twice, and each answer is a JVM
def _ask_version(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def make_session(
    name: str,
    config: SparkConfig,
    *,
    master: str | None = None,
    warehouse: Path | None = None,
    folder: Path = Path(),
    jvm: str = "",
) -> SparkSession:
    """Return a session with the settings of catchment; `folder` is the project's, `jvm` has more options of its JVM.

    In one process with Spark, its Python workers run on this very interpreter and its ports listen on loopback. On a
    cluster both are the cluster's matter: the interpreter is that of a packed environment which is shipped to workers,
    `spark.pyspark.python`, or the path of this one.
    """
    chosen = master or config.master
    _refuse_connect(chosen)
    find_java()
    shipped: Mapping[str, str] = {}
    if config.environment is not None and not is_local(chosen):
        shipped = ship_environment(folder / config.environment, config.settings)
    on_workers = str(shipped.get(PYTHON) or config.settings.get(PYTHON) or sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = sys.executable if is_local(chosen) else on_workers
    if is_local(chosen):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = resources.files("catchment.spark") / "log4j2.properties"
    settings = {
        **SETTINGS,
        "spark.app.name": f"catchment {name}",
        "spark.master": chosen,
        "spark.driver.memory": config.memory,
        "spark.ui.enabled": str(config.ui).lower(),
        "spark.driver.extraJavaOptions": " ".join(
            (f"-Dlog4j2.configurationFile=file:{quiet}", LARGE_STACKS, RARE_COMPILATION, *jvm.split())
        ),
        **({"spark.sql.warehouse.dir": str(warehouse)} if warehouse else {}),
        **dict(config.settings),
        **shipped,
    }
    given = _given_to_submit()
    return _start_patiently({key: str(value) for key, value in settings.items() if key not in given})


def _refuse_connect(master: str) -> None:
    """Refuse Spark Connect, whose client has no driver: a site is one."""
    remote = os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED")
    if master.startswith("sc://") or remote:
        given = f"master = {master!r}" if master.startswith("sc://") else f"SPARK_REMOTE={remote} in the environment"
        raise EngineError(
            f"{given} asks for Spark Connect, which cannot run a site or a center: micro-batches are committed in the "
            "driver, beside its journal, and tasks are scheduled by it",
            hint="name a master such as local[*] or spark://HOST:7077; or start this process with "
            "spark-submit, and unset SPARK_REMOTE",
        )


def _given_to_submit() -> frozenset[str]:
    """Return the settings that were given to `spark-submit`, where that has started this process: they win."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return frozenset()
    SparkContext._ensure_initialized()
    return frozenset(key for key, _ in SparkConf().getAll())


def is_local(master: str) -> bool:
    """Return whether a master is Spark within the process that asks it."""
    return master.startswith("local")


def _start_patiently(settings: Mapping[str, str]) -> SparkSession:
    """Start a session; try again where that fails, and say why if it keeps failing."""
    reason = ""
    for attempt in range(1, STARTS + 1):
        try:
            return _start(settings)
        except (PySparkException, Py4JError, OSError) as failure:
            reason = reason_of(str(failure))
            _log.warning("Spark did not start, attempt %d of %d: %s", attempt, STARTS, reason)
            _forget_dead_gateway()
    raise EngineError(
        f"Spark did not start in {STARTS} attempts: {reason}",
        hint="Java's own words above name the cause; often it is [spark] memory in catchment.toml, which must fit into "
        "the memory that is free, or a setting in [spark.settings] that Spark does not know",
    )


def _start(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _forget_dead_gateway() -> None:
    """Let the next attempt start a JVM of its own: PySpark would otherwise keep using the one that is gone."""
    gateway = SparkContext._gateway
    if gateway is not None and gateway.proc.poll() is not None:
        SparkContext._gateway = None
        SparkContext._jvm = None
