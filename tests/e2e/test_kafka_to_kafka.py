"""From Kafka to Kafka over three sites: a broker that dies and a site that is killed change no answer.

Each site is a process of its own and reads a topic of its own; the center delivers answers to a compacted topic.
Catches: records that a broker's death or a killed reader loses or gives twice, answers that are delivered twice or
never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.kafka_broker import MISSING, KafkaBroker, has_broker, read_topic
from tests.worlds.processes import Role, running
from tests.worlds.projects import as_lines, group, make_records, write_project
from tests.worlds.waiting import free_port, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.skipif(not has_broker(), reason=MISSING),
]

SITES = ("a", "b", "c")
QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE MATERIALIZED VIEW pages AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE SINK answers FROM pages WITH (connector = 'kafka', brokers = 'BROKER', topic = 'answers',
  client_config = 'client.properties');
"""
CONNECTOR = "connector = 'kafka', brokers = 'BROKER', topic = 'hits-{site}'"
RECORDS = 300  # per site, over ten minutes of event time
# One partition of a topic may be read minutes of event time before the other: what comes late must still be merged.
DEFAULTS = 'repair_horizon = "10 minutes"\nmax_jump = "1 day"\n'
LAST = "2024-03-01T00:30:00"  # every window before it is final when it was read
LAST_MINUTE = "2024-03-01T00:09:00+00:00"  # a window that only the record after it closes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    started = KafkaBroker(tmp_path / "kafka").start()
    for site in SITES:
        started.make_topic(f"hits-{site}", partitions=2)
    started.make_topic("answers", config={"cleanup.policy": "compact"})
    yield started
    started.kill()


def make_project(folder: Path, broker: KafkaBroker) -> Path:
    folder.mkdir()
    (folder / "client.properties").write_text("socket.timeout.ms = 5000\n")
    return write_project(
        folder,
        SITES,
        {},
        connector=CONNECTOR.replace("BROKER", broker.address),
        listen=f'listen = "127.0.0.1:{free_port()}"',
        queries=QUERIES.replace("BROKER", broker.address),
        toml=DEFAULTS,
    )


def produce(broker: KafkaBroker, site: str, records: list[dict[str, Any]]) -> None:
    lines = as_lines(records)
    broker.produce(f"hits-{site}", ({"value": line.encode(), "partition": i % 2} for i, line in enumerate(lines)))


def newest_answers(broker: KafkaBroker) -> dict[tuple[str, str], dict[str, Any] | None]:
    """What the compacted topic holds in the end: the last message of every key."""
    return {(key["window_start"], key["page"]): value for key, value in read_topic(broker, "answers")}


def expected_answers(records: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    groups = group(records, 60, 60, "page")
    return {
        (start.isoformat(), page): (len(rows), sum(r["bytes"] for r in rows)) for (start, page), rows in groups.items()
    }


def test_a_broker_that_dies_and_a_site_that_is_killed_change_no_answer(broker: KafkaBroker, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p", broker)
    records = {site: make_records(RECORDS, seed) for seed, site in enumerate(SITES)}
    # The last record of each site is minutes later than the others: it lets every window before it become final.
    last = {site: [{**mine[-1], "ts": f"{LAST}Z"}] for site, mine in records.items()}
    center = Role(folder, "center", state=folder / "state" / "center")
    sites = {site: Role(folder, "site", site, state=folder / "state" / "sites" / site) for site in SITES}

    def last_words() -> object:
        return {role.command: role.last_words[-800:] for role in (center, *sites.values())}

    with running([center, *sites.values()]):
        for site, mine in records.items():
            produce(broker, site, mine[:100])
        wait_until(lambda: bool(newest_answers(broker)), "the first answers in the topic", state=last_words)
        broker.kill()
        broker.start()
        for site, mine in records.items():
            produce(broker, site, mine[100:200])
        known = sites["b"].journal()
        wait_until(lambda: sites["b"].journal() != known, "the site reads after the broker is back", state=last_words)
        sites["b"].kill()
        for site, mine in records.items():
            produce(broker, site, mine[200:])
        sites["b"].start()
        expected = expected_answers([record for mine in records.values() for record in mine])

        def has_read_all() -> bool:
            found = newest_answers(broker)
            closed = {place: answer for place, answer in expected.items() if place[0] < LAST_MINUTE}
            return all((row := found.get(p)) is not None and row["n"] == n for p, (n, _) in closed.items())

        wait_until(has_read_all, "an answer of every window that has closed", state=last_words, pause_s=0.5)
        for site in SITES:
            produce(broker, site, last[site])

        def is_complete() -> bool:
            found = newest_answers(broker)
            return all((row := found.get(place)) is not None and row["status"] == "final" for place in expected)

        wait_until(is_complete, "a final answer of every window", state=last_words, pause_s=0.5)
    found = {place: row for place, row in newest_answers(broker).items() if row is not None}
    assert {p: (row["n"], row["bytes"]) for p, row in found.items() if p[0] < f"{LAST}+00:00"} == expected
    delivered = Counter(
        (key["window_start"], key["page"], value["revision"], value["status"])
        for key, value in read_topic(broker, "answers")
        if value is not None
    )
    assert max(delivered.values()) == 1, "no revision of a row was delivered twice"
