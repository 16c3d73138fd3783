"""A packed environment on its way to the workers of a cluster, as settings of Spark.

Spark unpacks the archive in the folder that an executor runs in, and starts Python there by a name that it looks up in
the path: the launcher of the archive. The JVM beside this process starts Python by the same name, for what sources do
before their tasks run; here the name is a script that runs this very interpreter.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from catchment.deploy.processes.packed_environment import LAUNCHER, PackedEnvironment
from catchment.errors import ConfigError

PYTHON = "spark.pyspark.python"
ARCHIVES = "spark.archives"
WORKER_PATH = "spark.executorEnv.PATH"
UNPACKED = "catchment_environment"  # the folder, beside which an executor runs
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ship_environment(archive: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that ship an archive and let tasks run in it, beside what a project sets itself."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise ConfigError(
            "[spark] environment is for a Spark that catchment starts, and spark-submit has started this one",
            hint=f"remove it, and give spark-submit --archives {archive.name}#environment and "
            f"--conf {PYTHON}=./environment/bin/{LAUNCHER}",
        )
    if PYTHON in settings:
        raise ConfigError(
            f"[spark] environment and {PYTHON} in [spark.settings] both say which Python workers run",
            hint=f"remove {PYTHON}; the interpreter that the environment runs on is spark.executorEnv.CATCHMENT_PYTHON",
        )
    PackedEnvironment.read(archive).refuse_other(archive)
    _let_this_process_be_found()
    archives = [settings[ARCHIVES]] if ARCHIVES in settings else []
    return {
        ARCHIVES: ",".join([*archives, f"{archive.absolute()}#{UNPACKED}"]),
        PYTHON: LAUNCHER,
        WORKER_PATH: f"./{UNPACKED}/bin:{settings.get(WORKER_PATH, USUAL_PATH)}",
    }


def _let_this_process_be_found() -> None:
    """Put a launcher of this interpreter into the path of the JVM that is about to be started."""
    if shutil.which(LAUNCHER) is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="catchment-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / LAUNCHER
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
