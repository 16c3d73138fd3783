"""Answers in a topic of a real Kafka broker: each batch once, through kills of the broker and of the center."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catchment.center.statuses import FINAL, ON_TIME
from catchment.sinks.delivery import FAILING, UP_TO_DATE
from catchment.sinks.target import ChangeBatch, PlacedTarget, SinkError
from catchment.testing.check_target import PublishedView, deliver_all
from tests.worlds.kafka_broker import MISSING, KafkaBroker, has_broker, read_topic
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


def test_the_last_message_of_every_key_is_the_newest_row(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.make_topic("answers", config={"cleanup.policy": "compact"})
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5), ("de", 3)], ON_TIME)
    delivery = view.deliver("answers", lambda life: target(broker, "answers", life))
    deliver_all(delivery)
    view.publish(0, [("nl", 6), ("de", -3)], FINAL)
    deliver_all(delivery)
    deliver_all(view.deliver("answers", lambda life: target(broker, "answers", life)))
    messages = read_topic(broker, "answers")
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
    assert [value and value["operation"] for _, value in read_topic(broker, "once")] == ["insert"]


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
    assert [key["country"] for key, _ in read_topic(broker, "away")] == ["nl", "de"]


class SilentProducer:
    """A producer whose transaction is never answered, as librdkafka's is when the coordinator of a group is gone."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.answered = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send_offsets_to_transaction(self, *given: Any) -> None:
        self.answered.wait()


def test_a_transaction_that_is_never_answered_is_left_behind_and_comes_once(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.sinks import kafka

    left: list[object] = []
    monkeypatch.setattr(kafka, "_left_behind", left)
    broker.make_topic("silent")
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    silent: list[SilentProducer] = []

    def make_target(life: str) -> PlacedTarget:
        made = kafka.KafkaTarget("silent", "silent", life, broker.client, answer_s=5.0)
        if not silent:
            silent.append(SilentProducer(made._connect()))
            made._producer = silent[0]  # type: ignore[assignment]
            made._answer_s = 0.1
        return made

    delivery = view.deliver("silent", make_target)
    with pytest.raises(SinkError, match="neither committed nor refused"):
        delivery.step()
    delivery._disconnect()
    deliver_all(delivery)
    assert len(left) == 1
    silent[0].answered.set()  # what it does now comes too late: another producer has its name
    wait_until(lambda: not any(t.name == "kafka transaction" for t in threading.enumerate()), "the old one to end")
    assert [key["country"] for key, _ in read_topic(broker, "silent")] == ["nl"]
    monkeypatch.setattr(kafka, "MAX_LEFT_BEHIND", 1)
    view.publish(1, [("de", 7)])
    with pytest.raises(SinkError, match="restart the center"):
        view.deliver("silent", make_target).step()


def test_a_topic_that_does_not_exist_is_named(broker: KafkaBroker, tmp_path: Path) -> None:
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    with pytest.raises(SinkError, match="topic 'nowhere' cannot be written"):
        view.deliver("nowhere", lambda life: target(broker, "nowhere", life)).step()


def test_a_user_who_is_refused_is_told_and_never_shown(broker: KafkaBroker, tmp_path: Path) -> None:
    from catchment.sinks.kafka import KafkaTarget

    broker.make_topic("users")
    user = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "site"}
    client = {**broker.client, "bootstrap.servers": broker.address_for_users, **user}
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])

    def make(password: str) -> Callable[[str], PlacedTarget]:
        return lambda life: KafkaTarget("users", "users", life, {**client, "sasl.password": password}, answer_s=3.0)

    with pytest.raises(SinkError, match="user or certificate of client_config is refused") as told:
        view.deliver("users", make("not-this-one")).step()
    assert "not-this-one" not in str(told.value)
    deliver_all(view.deliver("users", make("secret")))
    assert [key["country"] for key, _ in read_topic(broker, "users")] == ["nl"]
