"""A topic of a real broker on loopback, filled once with the lines of JSON files, for the time of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from tests.worlds.kafka_broker import KafkaBroker

TOPIC = "events"
BROKERS = "CATCHMENT_BENCH_BROKERS"  # the environment variable that tells programs where the broker is
VALUES_PER_WRITE = 50_000


@contextmanager
def open_topic(folder: Path, files: Path, partitions: int) -> Iterator[str]:
    """Start a broker, fill its topic, and give its address; the broker ends with the block."""
    broker = KafkaBroker(folder)
    try:
        broker.start()
        broker.make_topic(TOPIC, partitions, {"retention.ms": "-1"})
        lines = (line for file in sorted(files.glob("*.json")) for line in file.read_bytes().splitlines())
        while batch := list(islice(lines, VALUES_PER_WRITE)):
            broker.produce(TOPIC, ({"value": value, "partition": n % partitions} for n, value in enumerate(batch)))
        yield broker.address
    finally:
        broker.kill()
