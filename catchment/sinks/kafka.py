"""Answers in a topic of Kafka: each batch is one transaction, and the place that it reaches is committed with it.

The place is the committed offset of a consumer group that no consumer joins, named after the sink and the life of the
view's tables. So a batch is in the topic once, for readers with `isolation.level = read_committed`, through kills of
the center and of brokers.

The client may wait for ever for a broker that died in the middle of a transaction, whatever time it is given
(librdkafka, issues 5456 and 5511). So a transaction has a thread of its own, which is left behind when it takes too
long; a new producer of the same name then ends what the old one had begun, before the place is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from catchment.records.kafka_errors import ClientErrors
from catchment.sinks.messages import make_messages
from catchment.sinks.target import ChangeBatch, Place, SinkError

ANSWER_MS = 30_000  # how long a broker may take to answer, unless the settings of the client say
MAX_LEFT_BEHIND = 20  # transactions of this process that wait for ever; each keeps a client and its threads
STEPS = 1 << 20  # an offset is one number, and has the step of a place in its last digits


class KafkaTarget:
    """A topic; `client` are settings of the Kafka client."""

    def __init__(self, name: str, topic: str, life: str, client: Mapping[str, Any], answer_s: float) -> None:
        self._topic = topic
        self._life = life
        self._answer_s = answer_s
        self._group = f"catchment-sink-{name}-{life}"
        self._client = {"log_level": 0, "socket.timeout.ms": round(answer_s * 1000), **client}
        self._name = name
        self._producer: Producer | None = None
        self._groups: Consumer | None = None
        self._errors = ClientErrors()

    def place(self) -> Place | None:
        with self._told():
            self._connect()
            assert self._groups is not None
            (found,) = self._groups.committed([self._mark()], timeout=self._answer_s)
        if found.offset < 0:
            return None
        return Place(self._life, *divmod(found.offset, STEPS))

    def write(self, batch: ChangeBatch) -> None:
        with self._told():
            producer = self._connect()
            producer.begin_transaction()
            for key, value in make_messages(batch):
                self._produce(producer, key, value)
            assert self._groups is not None
            mark = self._mark(batch.end.entry * STEPS + batch.end.step)
            group = self._groups.consumer_group_metadata()

            def commit() -> None:
                producer.send_offsets_to_transaction([mark], group, self._answer_s)
                producer.commit_transaction(self._answer_s)

            if not _finish(commit, 3 * self._answer_s):  # each of the two may take its time
                self._leave_behind()

    def _leave_behind(self) -> None:
        """Forget a client that waits for ever; it cannot be closed, because it is in use."""
        _left_behind.append((self._producer, self._groups))
        self._producer = self._groups = None
        raise SinkError(
            "Kafka: a transaction was neither committed nor refused in time",
            where=f"sink {self._name!r}",
            hint="it is tried again with a new connection",
        )

    def close(self) -> None:
        """Forget the connection; what is not committed is not in the topic."""
        if self._producer is not None:
            self._producer.purge()  # else the client waits a minute for messages that nobody will commit
        if self._groups is not None:
            self._groups.close()
        self._producer = self._groups = None

    def _connect(self) -> Producer:
        """Return a producer that is the only one of this sink: a transaction of another one is ended."""
        if self._producer is None:
            if len(_left_behind) >= MAX_LEFT_BEHIND:
                raise SinkError(
                    f"Kafka: {MAX_LEFT_BEHIND} transactions were never answered, and their clients cannot be closed",
                    where=f"sink {self._name!r}",
                    hint="restart the center: nothing is lost, and delivery goes on where it stopped",
                )
            self._errors = ClientErrors()
            client = {**self._client, "error_cb": self._errors}
            self._groups = Consumer({**client, "group.id": self._group, "enable.auto.commit": False})
            self._check_topic(self._groups)
            producer = Producer({**client, "transactional.id": self._group, "compression.type": "lz4"})
            producer.init_transactions(self._answer_s)
            self._producer = producer
        return self._producer

    def _check_topic(self, client: Consumer) -> None:
        known = client.list_topics(self._topic, self._answer_s)
        error = known.topics[self._topic].error
        if error is not None:
            raise SinkError(
                f"topic {self._topic!r} cannot be written: {error.str()}",
                where=f"sink {self._name!r}",
                hint=f"make it first: kafka-topics.sh --create --topic {self._topic} --config cleanup.policy=compact",
            )

    def _produce(self, producer: Producer, key: bytes, value: bytes | None) -> None:
        while True:
            try:
                producer.produce(self._topic, value, key)
                return
            except BufferError:  # the queue of the client is full: wait until some messages are sent
                producer.poll(0.1)

    def _mark(self, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._topic, 0, offset)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of the client into errors of the sink; the next attempt begins with a new connection."""
        try:
            yield
        except KafkaException as failure:
            if self._groups is not None:
                self._groups.poll(0)  # hands over what the client was told meanwhile
            self.close()
            reason = self._errors.explain(failure.args[0].str())
            raise SinkError(f"Kafka: {reason}", where=f"sink {self._name!r}", hint="it is tried again") from failure
        except BaseException:
            self.close()
            raise


_left_behind: list[object] = []  # clients that are still in a call; to forget one would wait for that call


def _finish(act: Callable[[], None], within_s: float) -> bool:
    """Run an action to its end, and raise what it raises; return False if it does not end in time."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as failure:  # noqa: BLE001 - it is raised again where the action was asked for
            failures.append(failure)

    thread = threading.Thread(target=run, name="kafka transaction", daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        return False
    if failures:
        raise failures[0]
    return True
