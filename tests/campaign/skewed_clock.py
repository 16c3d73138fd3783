"""The command line of catchment on a machine whose clock is off: the first argument says by how many seconds.

Only the clock that catchment reads is off; that of Spark, of the files and of the sockets is not.
"""

from __future__ import annotations

import sys

from catchment.timeline import SystemClock


def main() -> None:
    skew_us = round(float(sys.argv.pop(1)) * 1e6)
    read_us = SystemClock.now_us

    def read_skewed_us(clock: SystemClock) -> int:
        return read_us(clock) + skew_us

    SystemClock.now_us = read_skewed_us  # type: ignore[method-assign,assignment]
    from catchment.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
