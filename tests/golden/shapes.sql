-- Views of other shapes than one stream in groups, and the plans they must get. Schema and format: tests/query_support.py.

--# without GROUP BY, records are published: every column is a key, and equal records are counted
CREATE MATERIALIZED VIEW v WITH (publish_every = '5 seconds') AS
SELECT ts, b.url, bytes / 1024 AS kib, name, 'beacon' AS kind FROM beacons b JOIN providers p ON b.cpid = p.cpid WHERE bytes > 0
--> Sink v at center
-->   Finish
-->   | ts TIMESTAMP = `ts`
-->   | url STRING = `url`
-->   | kib DOUBLE = `kib`
-->   | name STRING = `name`
-->   | kind STRING = CAST('beacon' AS STRING)
-->   | copies BIGINT = `copies`
-->     WindowAggregate tumbling 5 s
-->     | key ts TIMESTAMP = `beacons`.`ts`
-->     | key url STRING = `beacons`.`url`
-->     | key kib DOUBLE = CAST(`beacons`.`bytes` / 1024 AS DOUBLE)
-->     | key name STRING = `providers`.`name`
-->     | copies BIGINT = count(*)
-->       Filter `beacons`.`bytes` > 0
-->         LookupJoin inner providers on `beacons`.`cpid` = `providers`.`cpid`
-->           Scan beacons [ts, cpid, url, bytes] at us, eu

--# a star is every column of what is read
SELECT * FROM (SELECT ts, country FROM beacons WHERE bytes > 5)
--> Sink v at center
-->   Finish trivial
-->   | ts TIMESTAMP = `ts`
-->   | country STRING = `country`
-->   | copies BIGINT = `copies`
-->     WindowAggregate tumbling 10 s
-->     | key ts TIMESTAMP = `beacons`.`ts`
-->     | key country STRING = `beacons`.`country`
-->     | copies BIGINT = count(*)
-->       Filter `beacons`.`bytes` > 5
-->         Scan beacons [ts, country, bytes] at us, eu

--# a view that gives records is read through
CREATE MATERIALIZED VIEW paid AS SELECT ts, cpid, price FROM beacons WHERE price > 0;
CREATE MATERIALIZED VIEW v AS SELECT window.start, name, max(price) AS price FROM paid JOIN providers p ON paid.cpid = p.cpid
GROUP BY window(ts, '1 minute'), name
--> Sink v at center
-->   Finish trivial
-->   | start TIMESTAMP = `window_start`
-->   | name STRING = `name`
-->   | price DECIMAL(10, 2) = `price`
-->     WindowAggregate tumbling 1 min
-->     | key name STRING = `providers`.`name`
-->     | price DECIMAL(10, 2) = max(`beacons`.`price`)
-->       Filter `beacons`.`price` > 0
-->         LookupJoin inner providers on `beacons`.`cpid` = `providers`.`cpid`
-->           Scan beacons [ts, cpid, price] at us, eu
