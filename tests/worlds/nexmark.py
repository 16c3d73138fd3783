"""Nexmark's queries as views of catchment, each with what DuckDB is asked over the same events.

Nexmark (Tucker et al., 2008; queries 9 to 22 come from Apache Beam and Flink) is an online auction: people, auctions
and bids. A query is expressed as it is (`EXACT`), within windows where the original has none (`WINDOWED`), or not at
all, and then the reason is named. `catalogue_table` is the table in `docs/reference/nexmark.md`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

EXACT, WINDOWED, NOT_POSSIBLE = "yes", "in windows", "no"
START = datetime(2026, 3, 1, 23, 58, tzinfo=UTC)  # two minutes before a day ends
SPAN_S = 300
LEAST_AUCTION = 1000

SCHEMA = """
CREATE STREAM person (id BIGINT, name STRING, city STRING, state STRING, ts TIMESTAMP)
  WITH (event_time = 'ts', sites = 'a,b', path = 'person/{site}', slack = '20 seconds');
CREATE STREAM auction (id BIGINT, seller BIGINT, category BIGINT, initial_bid BIGINT, ts TIMESTAMP)
  WITH (event_time = 'ts', sites = 'b', path = 'auction/{site}', slack = '20 seconds');
CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, extra STRING, ts TIMESTAMP)
  WITH (event_time = 'ts', sites = 'a,b', path = 'bid/{site}', slack = '20 seconds');
CREATE TABLE side_input (key BIGINT, value STRING) WITH (path = 'side_input.csv');
"""
BIDS_OF_AUCTIONS = """CREATE MATERIALIZED VIEW bids_of_auctions AS
  SELECT window.start, auction, count(*) AS bids FROM bid GROUP BY window(ts, '10 seconds', '2 seconds'), auction;"""
TOML = """
[project]
name = "nexmark"
center = "center"
[sites.a]
[sites.b]
[sites.center]
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "center"
[defaults]
trigger = "200 ms"
freshness = "none"
repair_horizon = "3 days"  # longer than the longest window: what is read once closes that, and all before it
[spark]
master = "local[2]"
memory = "700m"
"""


@dataclass(frozen=True)
class NexmarkQuery:
    """One query: what it asks, whether it can be expressed, and how; the two texts name equal columns."""

    number: int
    asks: str
    possible: str
    remark: str = ""
    view: str = ""
    oracle: str = ""  # the SELECT of the view, where DuckDB reads the same text

    @property
    def name(self) -> str:
        return f"q{self.number}"

    @property
    def duckdb(self) -> str:
        return self.oracle or self.view

    @property
    def is_possible(self) -> bool:
        return self.possible != NOT_POSSIBLE


def _buckets(column: str) -> str:
    return (
        f"count(*) FILTER (WHERE {column} < 10000) AS low, count(*) FILTER (WHERE {column} >= 10000 AND {column} < "
        f"1000000) AS middle, count(*) FILTER (WHERE {column} >= 1000000) AS high"
    )


_CHANNEL_ID = r"regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_KNOWN = "lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"
_IN_DAY = "date_trunc('day', ts)"
_IN_10_S = "time_bucket(INTERVAL '10 seconds', {}ts)"

_HOT = (
    "SELECT s AS start, auction, count(*) AS bids FROM (SELECT *, unnest(generate_series("
    "time_bucket(INTERVAL '2 seconds', ts) - INTERVAL '8 seconds', time_bucket(INTERVAL '2 seconds', ts), "
    "INTERVAL '2 seconds')) AS s FROM bid) GROUP BY ALL"
)

QUERIES = (
    NexmarkQuery(0, "all bids", EXACT, view="SELECT auction, bidder, price, ts FROM bid"),
    NexmarkQuery(
        1,
        "prices in another currency",
        EXACT,
        view="SELECT auction, bidder, CAST(0.908 * price AS DOUBLE) AS price, ts FROM bid",
    ),
    NexmarkQuery(2, "bids on some auctions", EXACT, view="SELECT auction, price FROM bid WHERE auction % 7 = 0"),
    NexmarkQuery(
        3,
        "who sells in some states and in one category",
        WINDOWED,
        "seller and auction of one window",
        "SELECT window.start, p.name, p.city, p.state AS land, a.id AS item, count(*) AS pairs "
        "FROM auction a JOIN person p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA') "
        "GROUP BY window(a.ts, '1 hour'), p.name, p.city, p.state, a.id",
        "SELECT date_trunc('hour', a.ts) AS start, p.name, p.city, p.state AS land, a.id AS item, count(*) AS pairs "
        "FROM auction a JOIN person p ON a.seller = p.id AND date_trunc('hour', a.ts) = date_trunc('hour', p.ts) "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA') GROUP BY ALL",
    ),
    NexmarkQuery(
        4,
        "average final price per category",
        NOT_POSSIBLE,
        "an auction is open for a time of its own, which is no window",
    ),
    NexmarkQuery(
        5,
        "auctions with most bids in a sliding window",
        WINDOWED,
        "a view of a view; of auctions with equally many bids one, the greatest",
        "SELECT window.start, max(bids) AS bids, max_by(auction, bids) AS auction FROM bids_of_auctions "
        "GROUP BY window(start, '2 seconds')",
        f"SELECT start, max(bids) AS bids, first(auction ORDER BY bids DESC, auction DESC) AS auction FROM ({_HOT}) "
        "GROUP BY ALL",
    ),
    NexmarkQuery(
        6,
        "average price of a seller's last ten auctions",
        NOT_POSSIBLE,
        "an auction is open for a time of its own; no OVER by rows",
    ),
    NexmarkQuery(
        7,
        "the highest bid of each window",
        WINDOWED,
        "of equal highest bids one, that of the greatest bidder",
        "SELECT window.start, max(price) AS price, max_by(bidder, price) AS bidder FROM bid "
        "GROUP BY window(ts, '10 seconds')",
        f"SELECT {_IN_10_S.format('')} AS start, max(price) AS price, first(bidder ORDER BY price DESC, bidder DESC) "
        "AS bidder FROM bid GROUP BY ALL",
    ),
    NexmarkQuery(
        8,
        "people who sell within ten seconds of registering",
        EXACT,
        view="SELECT window.start, p.id AS person, p.name, count(*) AS auctions FROM person p JOIN auction a "
        "ON p.id = a.seller GROUP BY window(p.ts, '10 seconds'), p.id, p.name",
        oracle=f"SELECT {_IN_10_S.format('p.')} AS start, p.id AS person, p.name, count(*) AS auctions "
        f"FROM person p JOIN auction a ON p.id = a.seller AND {_IN_10_S.format('p.')} = {_IN_10_S.format('a.')} "
        "GROUP BY ALL",
    ),
    NexmarkQuery(
        9,
        "the winning bid of each auction",
        NOT_POSSIBLE,
        "an auction is open for a time of its own, which is no window",
    ),
    NexmarkQuery(
        10,
        "all bids, with their day and minute",
        EXACT,
        view="SELECT auction, bidder, price, ts, date_format(ts, 'yyyy-MM-dd') AS day, "
        "date_format(ts, 'HH:mm') AS minute FROM bid",
        oracle="SELECT auction, bidder, price, ts, strftime(ts, '%Y-%m-%d') AS day, "
        "strftime(ts, '%H:%M') AS minute FROM bid",
    ),
    NexmarkQuery(
        11,
        "bids per session of a bidder",
        EXACT,
        view="SELECT bidder, count(*) AS bids, session_window.start, session_window.end FROM bid "
        "GROUP BY bidder, session_window(ts, '10 seconds')",
        oracle="SELECT bidder, count(*) AS bids, min(ts) AS start, max(ts) + INTERVAL '10 seconds' AS end FROM ("
        "SELECT *, sum(begins) OVER (PARTITION BY bidder ORDER BY ts ROWS UNBOUNDED PRECEDING) AS number FROM ("
        "SELECT *, coalesce(ts - lag(ts) OVER (PARTITION BY bidder ORDER BY ts) >= INTERVAL '10 seconds', true)::INT "
        "AS begins FROM bid)) GROUP BY bidder, number",
    ),
    NexmarkQuery(
        12,
        "bids per window of processing time",
        NOT_POSSIBLE,
        "windows are of event time, so that answers can be repaired",
    ),
    NexmarkQuery(
        13,
        "bids with a value of a table",
        EXACT,
        view="SELECT auction, bidder, price, ts, value FROM bid JOIN side_input ON auction % 10 = side_input.key",
    ),
    NexmarkQuery(
        14,
        "bids with computed columns",
        EXACT,
        "its function count_char is an expression",
        "SELECT auction, bidder, CAST(0.908 * price AS DOUBLE) AS price, "
        "CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'day' "
        "WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'night' ELSE 'other' END AS time_of_day, ts, extra, "
        "length(extra) - length(replace(extra, 'c', '')) AS c_count FROM bid WHERE 0.908 * price > 1000 AND "
        "0.908 * price < 5000000",
    ),
    NexmarkQuery(
        15,
        "numbers of bids, bidders and auctions per day",
        EXACT,
        view=f"SELECT window.start, count(*) AS bids, {_buckets('price')}, count(DISTINCT bidder) AS bidders, "
        "count(DISTINCT auction) AS auctions, count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders "
        "FROM bid GROUP BY window(ts, '1 day')",
        oracle=f"SELECT {_IN_DAY} AS start, count(*) AS bids, {_buckets('price')}, count(DISTINCT bidder) AS bidders, "
        "count(DISTINCT auction) AS auctions, count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders "
        "FROM bid GROUP BY ALL",
    ),
    NexmarkQuery(
        16,
        "the same per channel",
        EXACT,
        view=f"SELECT window.start, channel, max(date_format(ts, 'HH:mm')) AS minute, count(*) AS bids, "
        f"{_buckets('price')}, count(DISTINCT bidder) AS bidders FROM bid GROUP BY window(ts, '1 day'), channel",
        oracle=f"SELECT {_IN_DAY} AS start, channel, max(strftime(ts, '%H:%M')) AS minute, count(*) AS bids, "
        f"{_buckets('price')}, count(DISTINCT bidder) AS bidders FROM bid GROUP BY ALL",
    ),
    NexmarkQuery(
        17,
        "statistics of each auction per day",
        EXACT,
        view=f"SELECT window.start, auction, count(*) AS bids, {_buckets('price')}, min(price) AS least, max(price) AS "
        "most, avg(price) AS mean, sum(price) AS total FROM bid GROUP BY window(ts, '1 day'), auction",
        oracle=f"SELECT {_IN_DAY} AS start, auction, count(*) AS bids, {_buckets('price')}, min(price) AS least, "
        "max(price) AS most, avg(price) AS mean, sum(price)::BIGINT AS total FROM bid GROUP BY ALL",
    ),
    NexmarkQuery(
        18,
        "the last bid of each bidder on each auction",
        WINDOWED,
        "the last of each hour",
        "SELECT window.start, bidder, auction, last(price) AS price, max(ts) AS at FROM bid "
        "GROUP BY window(ts, '1 hour'), bidder, auction",
        "SELECT date_trunc('hour', ts) AS start, bidder, auction, first(price ORDER BY ts DESC, price DESC) AS price, "
        "max(ts) AS at FROM bid GROUP BY ALL",
    ),
    NexmarkQuery(
        19, "the ten highest bids of each auction", NOT_POSSIBLE, "ORDER BY with LIMIT is per window, not per key"
    ),
    NexmarkQuery(
        20,
        "bids on auctions of one category",
        WINDOWED,
        "bid and auction of one window",
        "SELECT window.start, b.auction, b.bidder, b.price, a.seller, count(*) AS pairs FROM bid b JOIN auction a "
        "ON b.auction = a.id WHERE a.category = 10 "
        "GROUP BY window(b.ts, '1 hour'), b.auction, b.bidder, b.price, a.seller",
        "SELECT date_trunc('hour', b.ts) AS start, b.auction, b.bidder, b.price, a.seller, count(*) AS pairs "
        "FROM bid b JOIN auction a ON b.auction = a.id AND date_trunc('hour', b.ts) = date_trunc('hour', a.ts) "
        "WHERE a.category = 10 GROUP BY ALL",
    ),
    NexmarkQuery(
        21,
        "bids with the number of their channel",
        EXACT,
        view="SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' "
        f"WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {_CHANNEL_ID} END AS channel_id FROM bid "
        f"WHERE {_KNOWN} OR {_CHANNEL_ID} <> ''",
    ),
    NexmarkQuery(
        22,
        "bids with the directories of their URL",
        EXACT,
        view="SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, "
        "split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid",
    ),
)


def catalogue_table() -> str:
    """Return the table of all queries, as `docs/reference/nexmark.md` has it."""
    lines = ["| query | asks for | possible | remark |", "|---|---|---|---|"]
    lines += [f"| {q.name} | {q.asks} | {q.possible} | {q.remark} |" for q in QUERIES]
    return "\n".join(lines)


def project_sql(names: Collection[str] | None = None) -> str:
    """Return the streams, and a view for each query that is possible, or for those of them that are named."""
    asked = [q for q in QUERIES if q.is_possible and (names is None or q.name in names)]
    views = [f"CREATE MATERIALIZED VIEW {q.name} AS\n  {q.view};" for q in asked]
    lower = [BIDS_OF_AUCTIONS] if any("bids_of_auctions" in q.view for q in asked) else []
    return "\n".join([SCHEMA, *lower, *views])


def draw_events(seed: int, bids: int = 400) -> dict[str, list[dict[str, Any]]]:
    """Draw people, auctions and bids, each stream in the order of its event times."""
    chance = random.Random(seed)
    people, auctions = 40, 60
    return {
        "person": [
            {
                "id": number,
                "name": chance.choice(["Ada", "Bo", "Cy", "Dü"]) + f" {number % 5}",
                "city": chance.choice(["Boise", "Bend", "Kent"]),
                "state": chance.choice(["OR", "ID", "CA", "WA"]),
                "ts": at,
            }
            for number, at in enumerate(_instants(chance, people))
        ],
        "auction": [
            {
                "id": LEAST_AUCTION + number,
                "seller": min(number * people // auctions + chance.randrange(3), people - 1),
                "category": chance.choice([10, 11, 12]),
                "initial_bid": chance.randrange(1, 1000),
                "ts": at,
            }
            for number, at in enumerate(_instants(chance, auctions))
        ],
        "bid": [_draw_bid(chance, at, auctions, people) for at in _instants(chance, bids)],
    }


def _draw_bid(chance: random.Random, at: str, auctions: int, people: int) -> dict[str, Any]:
    channel = chance.choice(["Apple", "google", "FACEBOOK", "baidu", "channel-1", "channel-2", None])
    named = f"&channel_id={chance.randrange(100)}" if chance.random() < 0.5 else ""
    return {
        "auction": LEAST_AUCTION + int(chance.paretovariate(0.8)) % auctions,
        "bidder": chance.randrange(people),
        "price": int(10 ** chance.uniform(1, 7)),
        "channel": channel,
        "url": f"https://www.nexmark.com/{chance.choice('abc')}/{chance.choice('de')}/item.htm?query=1{named}",
        "extra": "".join(chance.choices("abcd", k=chance.randrange(8))),
        "ts": at,
    }


def _instants(chance: random.Random, count: int) -> Iterator[str]:
    """Yield instants with milliseconds, ascending."""
    for offset_ms in sorted(chance.randrange(SPAN_S * 1000) for _ in range(count)):
        yield (START + timedelta(milliseconds=offset_ms)).isoformat().replace("+00:00", "Z")
