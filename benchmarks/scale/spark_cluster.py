"""A real Spark standalone cluster on loopback: a master and workers of one core, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

WORKER_MEMORY = "2g"
WORKERS = (1, 2)  # that benchmarks compare
EXECUTOR = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1"}
START_S = 600.0  # on a busy machine; it takes some seconds


class SparkCluster:
    """A cluster that lives as long as its `with` block; its logs and the work of its executors are in a folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.master = ""  # the address, once it has started
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    def __enter__(self) -> SparkCluster:
        here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._start("master", "org.apache.spark.deploy.master.Master", *here)
        self.master = self._wait_for("master", r"Starting Spark master at (spark://\S+)")[0]
        for number in range(self._workers):
            work = str(self.folder / f"work-{number}")
            size = ("--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", work)
            self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *size, *here, self.master)
        self._wait_for("master", r"Registering worker (\S+)", self._workers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):  # a worker that is told to end, ends its executors
            process.terminate()
        for process in self._processes:
            process.wait()

    def _start(self, name: str, *words: str) -> None:
        import pyspark

        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        own = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(program), *words], stdout=log, stderr=log, env={**os.environ, **own}, cwd=self.folder
                )
            )

    def _wait_for(self, name: str, pattern: str, times: int = 1) -> list[str]:
        """Return what a process has logged, once it has done so often enough."""
        log = self.folder / f"{name}.log"
        deadline = time.monotonic() + START_S
        while len(found := re.findall(pattern, log.read_text(errors="replace"))) < times:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"the cluster did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        return found
