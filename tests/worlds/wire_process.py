"""A site or a center of the wire alone, as a process that a test kills: `wire_process.py site|center ...`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from tests.worlds.wire_messages import some_messages


def run_site(folder: Path, port: int, segments: int) -> None:
    """Store what is not stored yet, send until all is acked."""
    outbox = Outbox(folder, "eu", "center", 10**9)
    sender = Sender(outbox, lambda: GrpcUplink(f"127.0.0.1:{port}"))
    sender.start()
    for number in range(segments):  # a journal that begins again at its start
        outbox.append(number, some_messages(number))
        sender.notify()
    while not sender.wait_until_empty(1.0):
        sender.raise_failure()
    sender.stop()


def run_center(folder: Path, port: int) -> None:
    """Take what comes."""
    inbox = Inbox(folder)
    server = InboxServer(inbox, "127.0.0.1", port)
    server.start()
    while True:
        time.sleep(0.1)
        inbox.raise_failure()


if __name__ == "__main__":
    role, where, at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if role == "site":
        run_site(where, at, int(sys.argv[4]))
    else:
        run_center(where, at)
