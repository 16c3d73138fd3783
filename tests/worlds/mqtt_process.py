"""A process that receives from a broker into a folder until it is killed: `python -m tests.worlds.mqtt_process`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from catchment.query.sql.connectors import MqttConnector
from catchment.receivers.landing import LandingFolder
from catchment.receivers.mqtt import REMEMBERED, MqttReceiver, MqttSettings
from catchment.receivers.writer import LandingWriter


def make_receiver(
    port: int, folder: Path, topic: str, settings: MqttSettings | None = None, site: str = "edge"
) -> tuple[MqttReceiver, LandingWriter]:
    """Return a receiver of one site's session, and the writer of its folder; both are to be started."""
    connector = MqttConnector(broker=f"127.0.0.1:{port}", topic=topic, topic_column="topic")
    landing = LandingFolder(folder, "json", connector.max_waiting_bytes, REMEMBERED)
    writer = LandingWriter(landing, "stream 'readings'", is_patient=True)
    return MqttReceiver(connector, site, f"catchment-test-{site}", settings or MqttSettings(), writer), writer


if __name__ == "__main__":
    receiver, writer = make_receiver(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    writer.start()
    receiver.start()
    threading.Event().wait()
