"""Streams from a real Kafka broker: every record once, through restarts, outages, transactions and bad values."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results
from catchment.errors import EngineError
from catchment.project.config import Project
from catchment.query.sql.connectors import KafkaConnector
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream
from tests.worlds.kafka_broker import MISSING, KafkaBroker, has_broker
from tests.worlds.runs import Status, run_project
from tests.worlds.shed_project import ForcedMonitor, expected, kept_records, make_hits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.skipif(not has_broker(), reason=MISSING),
]
START = datetime(2024, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    started = KafkaBroker(tmp_path_factory.mktemp("kafka")).start()
    yield started
    started.kill()


def hit(number: int, page: str = "a") -> bytes:
    at = (START + timedelta(seconds=number)).isoformat().replace("+00:00", "Z")
    return json.dumps({"ts": at, "page": page, "ms": number}).encode()


def declare(broker: KafkaBroker, topic: str, options: str = "", columns: str = "") -> Stream:
    (stream,) = parse_sql(
        f"CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE{columns}) WITH (event_time = 'ts', "
        f"connector = 'kafka', brokers = '{broker.address}', topic = '{topic}'{options})",
        "q.sql",
    )
    assert isinstance(stream, Stream)
    return stream


def options_of(stream: Stream, base: Path) -> dict[str, str]:
    """How the source is read at the site a, with its checkpoint in `base`."""
    from catchment.records.topic_reader import topic_options

    assert isinstance(stream.connector, KafkaConnector)
    return {**topic_options(stream.connector, "a", base), "checkpoint": str(base / "checkpoints" / stream.name)}


def read(spark: SparkSession, stream: Stream, base: Path) -> list[dict[str, Any]]:
    """What the topic has now and was not read before, by a query that keeps its place in `base`."""
    from catchment.spark.sources.streams import open_stream
    from catchment.spark.streaming import start_query

    rows: list[dict[str, Any]] = []
    records = open_stream(spark, stream, "a", base, base, 86_400_000_000).records
    assert records is not None
    writer = (
        records.writeStream.foreachBatch(lambda batch, _: rows.extend(r.asDict() for r in batch.collect()))
        .option("checkpointLocation", str(base / "checkpoints" / stream.name))
        .trigger(availableNow=True)
    )
    start_query(writer).awaitTermination()
    return rows


def numbers(rows: Sequence[dict[str, Any]]) -> list[float]:
    return sorted(r["ms"] for r in rows if r["_problem"] is None)


def make_project(folder: Path, queries: str) -> Path:
    """A project with a center and the sites a and b."""
    links = "".join(f'[[links]]\nfrom = "{site}"\nto = "center"\n' for site in "ab")
    toml = f'[project]\nname = "hits"\ncenter = "center"\n[sites.center]\n[sites.a]\n[sites.b]\n{links}'
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(toml)
    (folder / "queries" / "hits.sql").write_text(queries)
    return folder


def test_every_record_is_read_once_over_restarts_and_a_killed_broker(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    broker.make_topic("steps", partitions=3)
    stream = declare(broker, "steps")
    broker.produce("steps", ({"key": str(i), "value": hit(i)} for i in range(3000)))
    assert numbers(read(spark, stream, tmp_path)) == list(range(3000))
    assert read(spark, stream, tmp_path) == []
    broker.kill()
    broker.start()
    broker.produce("steps", ({"key": str(i), "value": hit(i)} for i in range(3000, 3100)))
    assert numbers(read(spark, stream, tmp_path)) == list(range(3000, 3100))


def test_what_cannot_be_read_is_kept_word_for_word_and_nothing_is_left_out(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    broker.make_topic("odd")
    values = [
        hit(1),
        b"not json",
        b"",
        None,
        b'{"page": "no time"}',
        b'{"ts": "2024-03-01T00:00:00Z", "ms": "x"}',
        hit(2),
    ]
    broker.produce("odd", ({"value": v} for v in values))
    rows = read(spark, declare(broker, "odd"), tmp_path)
    assert len(rows) == len(values)
    assert numbers(rows) == [1, 2]
    problems = {r["_raw"]: r["_problem"] for r in rows if r["_problem"]}
    assert problems == {
        "not json": "not readable as json",
        "": "not readable as json",
        "(no value)": "not readable as json",
        '{"page": "no time"}': "no event time (ts)",
        '{"ts": "2024-03-01T00:00:00Z", "ms": "x"}': "a field has the wrong type",
    }


def test_key_partition_offset_time_and_headers_are_columns(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    broker.make_topic("beside", partitions=2)
    record = {"key": "k7", "value": hit(7), "partition": 1, "timestamp": 1_700_000_000_123}
    broker.produce("beside", [{**record, "headers": {"trace": b"abc", "none": None}}])
    stream = declare(
        broker,
        "beside",
        ", key_column = 'k', partition_column = 'p', offset_column = 'o', timestamp_column = 'at'"
        ", headers_column = 'h'",
        ", k STRING, p INT, o BIGINT, at TIMESTAMP, h MAP<STRING, STRING>",
    )
    (row,) = read(spark, stream, tmp_path)
    assert (row["k"], row["p"], row["o"], row["h"]) == ("k7", 1, 0, {"trace": "abc", "none": None})
    assert row["at"].timestamp() == pytest.approx(1_700_000_000.123)


def test_records_of_open_and_aborted_transactions_are_not_read(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    broker.make_topic("transactions")
    stream = declare(broker, "transactions")
    producer = Producer({**broker.client, "transactional.id": "t"})
    producer.init_transactions(60)
    for number, is_committed in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.produce("transactions", value=hit(number))
        producer.flush(60)
        if number == 3:
            assert numbers(read(spark, stream, tmp_path)) == [1], "3 is not committed yet"
        (producer.commit_transaction if is_committed else producer.abort_transaction)(60)
    assert numbers(read(spark, stream, tmp_path)) == [3]


def test_a_first_run_begins_where_it_is_told(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    broker.make_topic("begin", partitions=2, config={"retention.ms": "-1"})  # its records are old
    at_ms = int(START.timestamp() * 1000)
    broker.produce("begin", ({"value": hit(i), "partition": i % 2, "timestamp": at_ms + 1000 * i} for i in range(10)))
    assert read(spark, declare(broker, "begin", ", start = 'latest'"), tmp_path / "latest") == []
    since = declare(broker, "begin", ", start = '2024-03-01 00:00:06'")
    assert numbers(read(spark, since, tmp_path / "since")) == [6, 7, 8, 9]


def test_csv_avro_and_protobuf_values(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    from io import BytesIO

    import fastavro
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    broker.make_topic("csv")
    broker.produce("csv", [{"value": b"2024-03-01T00:00:01Z;a;1"}, {"value": b"2024-03-01T00:00:02Z;b"}])
    rows = read(spark, declare(broker, "csv", ", format = 'csv', delimiter = ';'"), tmp_path / "csv")
    assert numbers(rows) == [1]
    assert len(rows) == 2
    fields = [{"name": n, "type": t} for n, t in (("ts", "string"), ("page", "string"), ("ms", "double"))]
    schema = {"type": "record", "name": "Hit", "fields": fields}
    (tmp_path / "hit.avsc").write_text(json.dumps(schema))
    written = BytesIO()
    fastavro.schemaless_writer(written, schema, {"ts": "2024-03-01T00:00:03Z", "page": "a", "ms": 3.0})
    broker.make_topic("avro")
    broker.produce("avro", [{"value": written.getvalue()}, {"value": b"\xff"}])
    rows = read(spark, declare(broker, "avro", ", format = 'avro', schema = 'hit.avsc'"), tmp_path)
    assert numbers(rows) == [3]
    assert [r["_raw"] for r in rows if r["_problem"]] == ["not Avro: ff"]
    # message Hit { string ts = 1; string page = 2; double ms = 3; }
    file = FileDescriptorProto(name="hit.proto", syntax="proto3")
    message = file.message_type.add(name="Hit")
    for number, (name, type_) in enumerate((("ts", 9), ("page", 9), ("ms", 1)), 1):
        message.field.add(name=name, number=number, type=type_, label=1)
    base = tmp_path / "protobuf"
    base.mkdir()
    (base / "hit.desc").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    value = b"\x0a\x142024-03-01T00:00:04Z\x12\x01a\x19" + struct.pack("<d", 4.0)
    broker.make_topic("protobuf")
    broker.produce("protobuf", [{"value": value}, {"value": b"\xff"}])
    declared = declare(broker, "protobuf", ", format = 'protobuf', schema = 'hit.desc'")
    rows = read(spark, declared, base)
    assert numbers(rows) == [4]
    assert [r["_raw"] for r in rows if r["_problem"]] == ["not Protobuf: ff"]


def test_a_missing_topic_and_a_broker_that_is_not_there_are_named(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.spark.sources import kafka
    from catchment.spark.streaming import is_outage

    with pytest.raises(Exception, match="there is no topic 'nothing'"):
        read(spark, declare(broker, "nothing"), tmp_path)
    monkeypatch.setattr(kafka, "ANSWER_S", 1.0)
    options = options_of(declare(broker, "x"), tmp_path)
    reader = kafka.KafkaReader({**options, "brokers": "127.0.0.1:1"})
    with pytest.raises(EngineError, match=r"no answer from 127\.0\.0\.1:1") as away:
        reader.initialOffset()
    assert is_outage(away.value)
    with pytest.raises(EngineError, match="no answer"):
        reader.latestOffset({"0": 5}, reader.getDefaultReadLimit())
    broker.make_topic("short")
    found = kafka.KafkaReader({**options, "topic": "short"})
    assert found.latestOffset({"0": 0}, found.getDefaultReadLimit()) == {"0": 0}
    found.client["bootstrap.servers"] = "127.0.0.1:1"
    assert found.latestOffset({"0": 0}, found.getDefaultReadLimit()) == {"0": 0}, "a short outage is no news"
    monkeypatch.setattr(kafka, "SHORT_OUTAGE_S", 0.0)
    with pytest.raises(EngineError, match="no answer"):
        found.latestOffset({"0": 0}, found.getDefaultReadLimit())


def test_only_the_right_user_reads_and_a_wrong_password_is_told_and_never_shown(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.spark.sources import kafka

    broker.make_topic("users")
    broker.produce("users", ({"value": hit(i)} for i in range(3)))
    declared = declare(broker, "users", ", client_config = 'kafka.properties'")
    assert isinstance(declared.connector, KafkaConnector)
    connector = replace(declared.connector, brokers=broker.address_for_users)
    stream = replace(declared, connector=connector)
    config = tmp_path / "kafka.properties"
    user = "security.protocol = SASL_PLAINTEXT\nsasl.mechanism = PLAIN\nsasl.username = site\nsasl.password = "
    config.write_text(f"{user}not-this-one\n")
    monkeypatch.setattr(kafka, "ANSWER_S", 3.0)
    reader = kafka.KafkaReader(options_of(stream, tmp_path))
    with pytest.raises(EngineError, match=r"user or certificate of client_config is refused: .*uthentication") as told:
        reader.initialOffset()
    assert "not-this-one" not in str(told.value)
    config.write_text(f"{user}secret\n")
    assert numbers(read(spark, stream, tmp_path)) == [0, 1, 2]


def test_a_topic_is_read_over_tls_and_a_broker_of_another_authority_is_not_trusted(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.spark.sources import kafka
    from tests.worlds.kafka_broker import write_certificate

    broker.make_topic("tls")
    broker.produce("tls", ({"value": hit(i)} for i in range(3)))
    declared = declare(broker, "tls", ", client_config = 'kafka.properties'")
    assert isinstance(declared.connector, KafkaConnector)
    stream = replace(declared, connector=replace(declared.connector, brokers=broker.address_with_tls))
    write_certificate(tmp_path / "other-broker.pem", tmp_path / "other.pem")
    config = tmp_path / "kafka.properties"
    user = "security.protocol = SASL_SSL\nsasl.mechanism = PLAIN\nsasl.username = site\nsasl.password = secret\n"
    config.write_text(f"{user}ssl.ca.location = {tmp_path / 'other.pem'}\n")
    with monkeypatch.context() as patch:
        patch.setattr(kafka, "ANSWER_S", 3.0)
        with pytest.raises(EngineError, match=r"user or certificate of client_config is refused: .*SSL") as told:
            kafka.KafkaReader(options_of(stream, tmp_path)).initialOffset()
    assert "secret" not in str(told.value)
    config.write_text(f"{user}ssl.ca.location = {broker.authority}\n")
    assert numbers(read(spark, stream, tmp_path)) == [0, 1, 2]


def test_a_topic_that_was_made_again_and_records_that_are_gone_are_refused(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    from catchment.spark.sources.kafka import KafkaReader, OffsetTask

    broker.make_topic("gone")
    broker.produce("gone", ({"value": hit(i)} for i in range(10)))
    reader = KafkaReader(options_of(declare(broker, "gone"), tmp_path))
    assert reader.partitions({"0": 10}, {"0": 10, "1": 3}) == [OffsetTask(1, 0, 3)], "a new partition, from its start"
    with pytest.raises(EngineError, match="read up to offset 99 of partition 0, and ends before"):
        reader.latestOffset({"0": 99}, reader.getDefaultReadLimit())
    admin = AdminClient(broker.client)
    for answer in admin.delete_records([TopicPartition("gone", 0, 5)]).values():
        answer.result(60)
    with pytest.raises(EngineError, match="has deleted records of partition 0 before they were read, from offset 2"):
        list(reader.read(OffsetTask(0, 2, 10)))
    assert sum(batch.num_rows for batch in reader.read(OffsetTask(0, 5, 10))) == 5


def test_a_project_reads_a_topic_per_site_and_answers_exactly(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    for site in ("a", "b"):
        broker.make_topic(f"hits-{site}", partitions=2)
        broker.produce(f"hits-{site}", ({"value": hit(i, page=f"{site}{i % 3}")} for i in range(500)))
    queries = f"""
        CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE, p INT) WITH (event_time = 'ts', connector = 'kafka',
          brokers = '{broker.address}', topic = 'hits-{{site}}', partition_column = 'p', source = 'p');
        CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, count(*) AS n, sum(ms) AS ms
          FROM hits GROUP BY window(ts, '1 minute'), page;
    """
    folder = make_project(tmp_path, queries)
    run_project(spark, folder)
    rows = read_results(folder / "state", "pages").to_pylist()
    assert sum(r["n"] for r in rows) == 1000
    expected: dict[tuple[Any, str], list[int]] = {}
    for site in ("a", "b"):
        for i in range(500):
            expected.setdefault((START + timedelta(minutes=i // 60), f"{site}{i % 3}"), []).append(i)
    assert {(r["start"], r["page"]): (r["n"], r["ms"]) for r in rows} == {
        key: (len(found), sum(found)) for key, found in expected.items()
    }


def test_one_topic_for_several_sites_is_refused(tmp_path: Path) -> None:
    from catchment.errors import QueryError
    from catchment.query.catalog import load_catalog

    queries = """CREATE STREAM hits (ts TIMESTAMP) WITH (event_time = 'ts', connector = 'kafka', brokers = 'x:9092',
      topic = 'hits');"""
    with pytest.raises(QueryError, match="would all read topic 'hits'"):
        load_catalog(Project.load(make_project(tmp_path, queries)))


SHED_QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, bytes BIGINT, ms DOUBLE) WITH (event_time = 'ts', sites = 'a,b',
  connector = 'kafka', brokers = '{brokers}', topic = 'shed_{{site}}', shed = true);
CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits
  GROUP BY window(ts, '10 seconds'), page;
"""


def test_a_topic_is_sampled_by_its_offsets_and_made_exact_from_them(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """Three times more records come, of which only samples are read; history and answers are whole afterwards."""
    from catchment.spark.pipelines.runner import Runner

    hits = {"a": make_hits(900, 1), "b": make_hits(600, 2)}
    for site in hits:
        broker.make_topic(f"shed_{site}", partitions=2)
    folder = make_project(tmp_path / "p", SHED_QUERIES.format(brokers=broker.address))
    produced = [0]

    def produce_next() -> None:
        for site, records in hits.items():
            third = records[produced[0] * len(records) // 3 : (produced[0] + 1) * len(records) // 3]
            broker.produce(f"shed_{site}", ({"key": r["page"], "value": json.dumps(r).encode()} for r in third))
        produced[0] += 1

    def is_repaired(runner: Runner, status: Status) -> bool:
        read_rows = sum(site["rows"] for site in status["sites"].values())
        if read_rows < produced[0] * 500:
            return False
        if produced[0] < 3:
            produce_next()
            return False
        busy = any(p.repairs.next_repair() or p.outbox.pending() for p in runner.pipelines)
        return not busy and runner.center is not None and runner.center.consumed

    produce_next()
    run_project(spark, folder, once=False, until=is_repaired, make_monitor=ForcedMonitor)
    everything = [*hits["a"], *hits["b"]]
    assert kept_records(folder) == len(everything)
    truth = expected(everything, 10, 10, True)
    ever = read_results(folder / "state", "pages", revisions="all").to_pylist()
    sampled = [row for row in ever if row["status"] == "on_time" and row["bound"]["n"]]
    assert sampled, "some windows were answered from samples"
    exact = [row for row in read_results(folder / "state", "pages").to_pylist() if row["status"] == "exact"]
    assert len({row["start"] for row in exact}) > 2
    for row in exact:
        assert (row["n"], row["bytes"]) == tuple(truth[row["start"], row["page"]][c] for c in ("n", "bytes"))
