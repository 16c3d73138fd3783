"""Answers in a topic of a real Kafka broker: each batch once, through kills of the broker and of the center."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catchment.center.events import FINAL, ON_TIME
from catchment.sinks.delivery import FAILING, UP_TO_DATE
from catchment.sinks.target import ChangeBatch, PlacedTarget, SinkError
from catchment.testing.check_target import PublishedView, deliver_all
from tests.worlds.kafka_broker import MISSING, KafkaBroker, has_broker
from tests.worlds.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not has_broker(), reason=MISSING)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    started = KafkaBroker(tmp_path_factory.mktemp("kafka")).start()
    yield started
    started.kill()


def target(broker: KafkaBroker, topic: str, life: str) -> PlacedTarget:
    from catchment.sinks.kafka import KafkaTarget

    return KafkaTarget(topic, topic, life, broker.client, answer_s=5.0)


def read(broker: KafkaBroker, topic: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Every committed message of a topic, key and value."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**broker.client, "group.id": "reader", "isolation.level": "read_committed"})
    found = []
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while consumer.position([TopicPartition(topic, 0)])[0].offset < end:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                value = message.value()
                found.append((json.loads(message.key() or b""), None if value is None else json.loads(value)))
    finally:
        consumer.close()
    return found


def test_the_last_message_of_every_key_is_the_newest_row(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.make_topic("answers", config={"cleanup.policy": "compact"})
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5), ("de", 3)], ON_TIME)
    delivery = view.deliver("answers", lambda life: target(broker, "answers", life))
    deliver_all(delivery)
    view.publish(0, [("nl", 6), ("de", -3)], FINAL)
    deliver_all(delivery)
    deliver_all(view.deliver("answers", lambda life: target(broker, "answers", life)))
    messages = read(broker, "answers")
    last = {key["country"]: value for key, value in messages}
    assert last["de"] is None
    assert last["nl"] is not None
    assert (last["nl"]["bytes"], last["nl"]["status"], last["nl"]["revision"]) == (6, FINAL, 2)
    assert len(messages) == 4, "the second start had nothing to deliver"


class DyingTarget:
    """A target whose process dies when a batch is in the topic, and its transaction is not committed."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.place = real.place

    def write(self, batch: ChangeBatch) -> None:
        producer = self._real._connect()
        producer.begin_transaction()
        producer.produce(self._real._topic, b'{"doubled": true}', b"{}")
        producer.flush(60)
        raise ConnectionError("killed")


def test_what_was_sent_and_not_committed_is_never_seen_and_comes_once(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.make_topic("once")
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    with pytest.raises(ConnectionError):
        view.deliver("once", lambda life: DyingTarget(target(broker, "once", life))).step()
    delivery = view.deliver("once", lambda life: target(broker, "once", life), changelog=True)
    deliver_all(delivery)
    assert [value and value["operation"] for _, value in read(broker, "once")] == ["insert"]


def test_a_broker_that_is_away_is_told_and_gets_what_it_missed(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.make_topic("away")
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    delivery = view.deliver("away", lambda life: target(broker, "away", life))
    delivery.start()
    try:
        wait_until(lambda: delivery.status()["state"] == UP_TO_DATE, "the first window is delivered")
        broker.kill()
        view.publish(1, [("de", 7)])
        wait_until(lambda: delivery.status()["state"] == FAILING, "the outage is told")
        broker.start()
        wait_until(lambda: delivery.status()["rows"] == 2, "the second window is delivered")
    finally:
        delivery.stop()
    assert [key["country"] for key, _ in read(broker, "away")] == ["nl", "de"]


def test_a_topic_that_does_not_exist_is_named(broker: KafkaBroker, tmp_path: Path) -> None:
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    with pytest.raises(SinkError, match="topic 'nowhere' cannot be written"):
        view.deliver("nowhere", lambda life: target(broker, "nowhere", life)).step()
