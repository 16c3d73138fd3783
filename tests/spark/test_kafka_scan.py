"""Topics that a pass reads in place of Spark, against Spark SQL on the same topics; and where a first batch begins.

Catches: a value that is kept, counted or quarantined otherwise than by Spark; a record that two ranges of offsets both
have, or neither; metadata of another record. Cannot catch: how fast it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.spark.pipelines.micro_batch import BatchReducer
from catchment.timeline import SystemClock
from tests.worlds.kafka_broker import MISSING, KafkaBroker, has_broker
from tests.worlds.one_site import kept_lines, open_site, read_once, sent_rows
from tests.worlds.text_lines import DDL, csv_lines, json_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.skipif(not has_broker(), reason=MISSING),
]
SQL = """
CREATE STREAM s ({ddl}) WITH (event_time = '{time}', sites = 'edge', connector = 'kafka', brokers = '{brokers}',
  topic = '{topic}', format = '{format}', max_jump = '40000 days'{options});
CREATE MATERIALIZED VIEW v AS
  SELECT window.start, name, count(*) AS n, sum(small) AS small, max(whole) AS whole, max(real) AS real FROM s
  GROUP BY window({time}, '1 day'), name;
"""
METADATA = (
    ", k STRING, p INT, o BIGINT, at TIMESTAMP",
    ", key_column = 'k', partition_column = 'p', offset_column = 'o', timestamp_column = 'at'",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    started = KafkaBroker(tmp_path_factory.mktemp("kafka")).start()
    yield started
    started.kill()


def read_both_ways(spark: SparkSession, folder: Path, sql: str) -> dict[str, Path]:
    """Let a site of each evaluator read the topic once, the scanning one in scan processes; return their folders."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("catchment.spark.evaluation.file_scan.SMALL_ROWS", 100)
        for evaluator in ("vectorised", "native"):
            pipeline = open_site(spark, folder / evaluator, folder, sql, evaluator, SystemClock())
            read_once(pipeline)
            found[evaluator] = pipeline.folder
    return found


def check_equal(spark: SparkSession, folder: Path, found: dict[str, Path], kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        scanned, native = (kept_lines(spark, found[e] / kind / "s") for e in ("vectorised", "native"))
        assert scanned == native
    assert sent_rows(folder / "vectorised") == sent_rows(folder / "native")


@pytest.fixture
def reduced_by_spark(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches that are reduced by Spark SQL."""
    numbers: list[int] = []
    reduce = BatchReducer.reduce

    def note(self: BatchReducer, *given: Any) -> Any:
        numbers.append(given[2])
        return reduce(self, *given)

    monkeypatch.setattr(BatchReducer, "reduce", note)
    return numbers


@pytest.mark.parametrize("format", ["json", "csv"])
def test_odd_values_are_kept_counted_and_quarantined_as_spark_does(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, reduced_by_spark: list[int], format: str
) -> None:
    topic = f"odd-{format}"
    broker.make_topic(topic, partitions=3)
    lines = (json_lines if format == "json" else csv_lines)(7, 900)
    values: list[bytes | None] = [line.encode() for line in lines]
    plain = next(line for line in values if line is not None and b"long name" in line)
    values += [None, b"", b"   ", plain + b"\n", plain.replace(b",", b",\r\n", 1), b" " + plain]
    broker.produce(topic, ({"value": value, "partition": i % 3} for i, value in enumerate(values)))
    sql = SQL.format(ddl=DDL, time="ts", brokers=broker.address, topic=topic, format=format, options="")
    found = read_both_ways(spark, tmp_path, sql)
    check_equal(spark, tmp_path, found, ("history", "quarantine"))
    total = sum(sum(kept_lines(spark, found["vectorised"] / kind / "s").values()) for kind in ("history", "quarantine"))
    assert total == len(values), "each value is somewhere"
    assert len(reduced_by_spark) == 1, "only by the site that is told to"


@pytest.mark.parametrize("time", ["ts", "at"])
def test_what_records_have_beside_their_values_fills_columns(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, reduced_by_spark: list[int], time: str
) -> None:
    topic = f"beside-{time}"
    broker.make_topic(topic, partitions=2, config={"retention.ms": "-1"})  # whatever their timestamps
    records = [
        {"ts": f"2024-03-{i // 100 + 1:02d}T00:00:{i % 60:02d}Z", "name": f"n{i % 7}", "whole": i, "small": i % 9}
        for i in range(1_000)
    ]
    broker.produce(
        topic,
        (
            {
                "value": json.dumps(r).encode(),
                "key": str(i),
                "partition": i % 2,
                "timestamp": 1_700_000_000_000 + i * 1_000_000,
            }
            for i, r in enumerate(records)
        ),
    )
    columns, options = METADATA
    sql = SQL.format(ddl=DDL + columns, time=time, brokers=broker.address, topic=topic, format="json", options=options)
    found = read_both_ways(spark, tmp_path, sql)
    check_equal(spark, tmp_path, found, ("history",))
    rows = spark.read.parquet(str(found["vectorised"] / "history" / "s")).select("k", "p", "whole").collect()
    assert sorted((r.k, r.p, r.whole) for r in rows) == sorted((str(i), i % 2, i) for i in range(1_000))
    assert len(reduced_by_spark) == 1


def test_an_odd_value_beside_metadata_leaves_its_batch_to_spark(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, reduced_by_spark: list[int]
) -> None:
    broker.make_topic("mixed")
    broker.produce("mixed", [{"value": b'{"ts": "2024-03-01T00:00:00Z", "name": "a"}', "key": "k"}, {"value": b"odd"}])
    columns, options = METADATA
    sql = SQL.format(
        ddl=DDL + columns, time="ts", brokers=broker.address, topic="mixed", format="json", options=options
    )
    pipeline = open_site(spark, tmp_path / "p", tmp_path, sql, "vectorised", SystemClock())
    with pytest.raises(AssertionError):
        read_once(pipeline)  # it says why the batch was left to Spark
    assert reduced_by_spark == [0]
    assert sum(kept_lines(spark, pipeline.folder / "history" / "s").values()) == 1
    assert sum(kept_lines(spark, pipeline.folder / "quarantine" / "s").values()) == 1


def test_a_stream_that_began_with_the_latest_records_begins_there_again(broker: KafkaBroker, tmp_path: Path) -> None:
    """Spark asks again where a stream begins after a kill in its first batch: what came meanwhile must not be lost."""
    from catchment.spark.sources.kafka import KafkaReader
    from catchment.spark.sources.kafka_reread import offsets_of_batch

    broker.make_topic("latest")
    broker.produce("latest", ({"value": b"{}"} for _ in range(5)))
    options = {"brokers": broker.address, "topic": "latest", "start": "latest", "client_config": "", "format": "json"}
    options["checkpoint"] = str(tmp_path / "checkpoint")
    assert KafkaReader(options).initialOffset() == {"0": 5}
    broker.produce("latest", ({"value": b"{}"} for _ in range(3)))
    assert KafkaReader(options).initialOffset() == {"0": 5}
    (tmp_path / "checkpoint" / "offsets").mkdir()
    (tmp_path / "checkpoint" / "offsets" / "0").write_text('v1\n{}\n{"0": 8}')
    planned = offsets_of_batch(tmp_path / "checkpoint", 0)
    assert planned is not None
    assert planned.place == "[[0, 5, 8]]"


def test_a_stopped_site_does_not_wait_for_a_broker_that_is_away(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from catchment.spark.sources.topic import TopicSource
    from catchment.vectorised.parts import TopicPart
    from tests.worlds.waiting import wait_until

    broker = KafkaBroker(tmp_path_factory.mktemp("away")).start()
    broker.make_topic("away")
    sql = SQL.format(ddl=DDL, time="ts", brokers=broker.address, topic="away", format="json", options="")
    pipeline = open_site(spark, tmp_path / "p", tmp_path, sql, "vectorised", SystemClock())
    asked: list[int] = []

    def pieces(self: TopicSource, number: int) -> tuple[TopicPart, ...]:
        broker.kill()  # after Spark has planned the batch, before its records are read
        asked.append(number)
        return (TopicPart(0, 0, 0, 1),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicSource, "pieces", pieces)
        broker.produce("away", [{"value": b'{"ts": "2024-03-01T00:00:00Z", "name": "a"}'}])
        pipeline.start(once=False)
        wait_until(lambda: bool(asked), "a batch is planned", act=pipeline.tick)
        pipeline.stop()
    assert pipeline.host.batches == {}, "the batch does not count"
