"""An archive of the classes that Spark loads, so that the many JVMs of a campaign start in a third of the time.

A JVM that is given the archive maps the classes from it instead of reading, checking and linking them again. It is made
once per folder, by a short session of its own; where that fails, JVMs start as they always do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # no optimising compiler for JVMs that live for minutes
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+load=off"
PATIENCE_S = 600.0
SESSION = """\
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.schema("k STRING, v BIGINT").json(sys.argv[1])
rows.groupBy("k").sum("v").collect()
rows.write.mode("overwrite").parquet(sys.argv[2])
spark.stop()
"""


def quick_java_options(folder: Path) -> str:
    """Return options with which JVMs start quickly, with the archive of a folder; it is made if it is not there."""
    archive = folder / "spark-classes.jsa"
    if not archive.exists():
        _make(archive)
    return f"{SHORT_LIFE} {QUIET} -XX:SharedArchiveFile={archive}" if archive.exists() else SHORT_LIFE


def _make(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(f".{os.getpid()}")
    lines = archive.parent / "rows.json"
    lines.write_text('{"k": "a", "v": 1}\n')
    program = [sys.executable, "-c", SESSION, str(lines), str(archive.parent / "rows")]
    options = f"{SHORT_LIFE} {QUIET} -XX:ArchiveClassesAtExit={unfinished}"
    subprocess.run(
        program,
        env={**os.environ, "JDK_JAVA_OPTIONS": options},
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if unfinished.exists():
        os.replace(unfinished, archive)
