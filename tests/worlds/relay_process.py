"""A relay of `relay_world` as a process of its own, for tests that kill it: FOLDER, its port, the port it sends to."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from catchment.progress.admission import Admission
from catchment.project.routes import Routes
from catchment.project.routings import Routings
from catchment.relay.pipeline import RelayPipeline
from catchment.timeline import SystemClock, WindowSpec
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.sender import Sender
from tests.worlds.relay_world import PAIR, carried, project_of
from tests.worlds.world import make_fragment

WINDOW = WindowSpec.tumbling(10)
WAIT_US = 200_000


def main(folder: str, port: str, to: str) -> None:
    fragment, project = make_fragment(WINDOW), project_of(Path(folder), PAIR, WAIT_US)
    routes = Routes.of(project)
    relay = RelayPipeline(
        project,
        "hub",
        Admission({"q": fragment}, Routings.only(routes), {fragment.stream: tuple(routes.hops)}).check,
        lambda outbox: Sender(outbox, lambda: GrpcUplink(f"127.0.0.1:{to}"), clock=SystemClock()),
        SystemClock(),
    )
    relay.carry([carried(fragment, routes, "hub", ("a", "b"), "batching")])
    relay.start()
    server = InboxServer(relay.inbox, "127.0.0.1", int(port))
    server.start()
    while not relay.finished:
        relay.tick()
        time.sleep(0.01)
    relay.stop()
    server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
