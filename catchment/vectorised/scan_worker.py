"""The scan processes themselves: one process imports what a scan needs, and forks the others from it.

Each serves the socket that it was given: a call comes in, and its outcome goes back. When the process that has asked
for them is gone, however it ended, its sockets are closed: so they end, and so does the one that has forked them.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

import catchment.vectorised.scan_order  # noqa: F401 - what forked processes find imported


def serve(socket: Connection) -> None:
    """Run the calls that come, one after another, until nobody is there to call."""
    while True:
        try:
            packed = socket.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            call, argument = pickle.loads(packed)
            outcome = (True, call(argument))
        except Exception as failure:  # noqa: BLE001 - whoever has called decides what follows
            outcome = (False, describe(failure))
        try:
            socket.send(outcome)
        except OSError:
            return


def describe(failure: Exception) -> str:
    """Return an exception as a text that tells where it came from."""
    return "".join(traceback.format_exception(failure)).rstrip()


def main(sockets: Sequence[int]) -> None:
    """Fork a process for each of these sockets, and wait until all have ended."""
    for mine in sockets:
        if os.fork() == 0:
            for other in sockets:
                if other != mine:
                    os.close(other)
            serve(Connection(mine))
            os._exit(0)
    for socket in sockets:
        os.close(socket)
    for _ in sockets:
        os.wait()


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
