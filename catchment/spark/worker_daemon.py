"""The process that Spark's Python workers are forked from, with what they need already imported.

Spark forks a worker when a task needs one and ends it after a minute without work. Importing Arrow, numpy and the
modules of a scan takes most of a second, which every new worker would pay anew; here it is paid once per session.
"""

from __future__ import annotations

from pyspark.daemon import manager

import catchment.vectorised.scan  # noqa: F401 - what forked workers find imported

if __name__ == "__main__":
    manager()
