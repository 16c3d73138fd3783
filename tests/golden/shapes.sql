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

--# a union is planned branch by branch; columns that are equal in one branch are kept apart
SELECT window.start, kind, sum(seen) AS seen, sum(clicked) AS clicked FROM (
  SELECT ts, 'beacon' AS kind, 1 AS seen, 0 AS clicked FROM beacons WHERE bytes > 0
  UNION ALL SELECT ts, page, 0, 1 FROM clicks UNION ALL SELECT ts, 'none', 0, 0 FROM beacons
) GROUP BY window(ts, '1 minute'), kind
--> Sink v at center
-->   Finish trivial
-->   | start TIMESTAMP = `window_start`
-->   | kind STRING = `kind`
-->   | seen BIGINT = `seen`
-->   | clicked BIGINT = `clicked`
-->     WindowUnion tumbling 1 min
-->       WindowUnion tumbling 1 min
-->         WindowAggregate tumbling 1 min
-->         | key kind STRING = CAST(('beacon') AS STRING)
-->         | seen BIGINT = sum(CAST((1) AS BIGINT))
-->         | clicked BIGINT = sum(CAST((0) AS BIGINT))
-->           Filter `beacons`.`bytes` > 0
-->             Scan beacons [ts, bytes] at us, eu
-->         WindowAggregate tumbling 1 min
-->         | key kind STRING = `clicks`.`page`
-->         | seen BIGINT = sum(CAST((0) AS BIGINT))
-->         | clicked BIGINT = sum(CAST((1) AS BIGINT))
-->           Scan clicks [ts, page] at us, eu
-->       WindowAggregate tumbling 1 min
-->       | key kind STRING = CAST(('none') AS STRING)
-->       | seen BIGINT = sum(CAST((0) AS BIGINT))
-->       | clicked BIGINT = sum(CAST(((0)) AS BIGINT))
-->         Scan beacons [ts] at us, eu

--# a union of records
SELECT ts, cpid FROM beacons UNION ALL SELECT ts, cpid FROM clicks
--> Sink v at center
-->   Finish trivial
-->   | ts TIMESTAMP = `ts`
-->   | cpid INT = `cpid`
-->   | copies BIGINT = `copies`
-->     WindowUnion tumbling 10 s
-->       WindowAggregate tumbling 10 s
-->       | key ts TIMESTAMP = `beacons`.`ts`
-->       | key cpid INT = `beacons`.`cpid`
-->       | copies BIGINT = count(*)
-->         Scan beacons [ts, cpid] at us, eu
-->       WindowAggregate tumbling 10 s
-->       | key ts TIMESTAMP = `clicks`.`ts`
-->       | key cpid INT = `clicks`.`cpid`
-->       | copies BIGINT = count(*)
-->         Scan clicks [ts, cpid] at us, eu

--# a view of a view: windows of the lower view are its records, at their start
CREATE MATERIALIZED VIEW busy AS SELECT window.start AS began, cpid, count(*) AS n FROM beacons GROUP BY window(ts, '1 minute'), cpid;
CREATE MATERIALIZED VIEW v AS SELECT window.start, name, max(n) AS peak, last(n) AS newest
FROM (SELECT began, n, b.cpid, name FROM busy b JOIN providers p ON b.cpid = p.cpid WHERE n > 5)
GROUP BY window(began, '1 hour', '10 minutes'), name ORDER BY peak DESC LIMIT 3
--> Sink v at center
-->   Finish trivial
-->   | start TIMESTAMP = `window_start`
-->   | name STRING = `name`
-->   | peak BIGINT = `peak`
-->   | newest BIGINT = `newest`
-->   | the first 3 of each window by `peak` DESC
-->     WindowAggregate sliding 1 h every 10 min
-->     | key name STRING = `providers`.`name`
-->     | peak BIGINT = max(`busy`.`n`)
-->     | newest BIGINT = last(STRUCT(`busy`.`n` AS `value`, `busy`.`window_start` AS `by`))
-->     | _rows BIGINT = count(*)
-->       Filter `busy`.`n` > 5
-->         LookupJoin inner providers on `busy`.`cpid` = `providers`.`cpid`
-->           ViewScan busy [cpid, n, window_start] as published at center

--# the windows of a view that are read without GROUP BY
CREATE MATERIALIZED VIEW busy AS SELECT window.start AS began, cpid, count(*) AS n FROM beacons GROUP BY window(ts, '1 minute'), cpid;
CREATE MATERIALIZED VIEW v AS SELECT * FROM busy WHERE n > 100
--> Sink v at center
-->   Finish trivial
-->   | began TIMESTAMP = `began`
-->   | cpid INT = `cpid`
-->   | n BIGINT = `n`
-->   | copies BIGINT = `copies`
-->     WindowAggregate tumbling 10 s
-->     | key began TIMESTAMP = `busy`.`window_start`
-->     | key cpid INT = `busy`.`cpid`
-->     | key n BIGINT = `busy`.`n`
-->     | copies BIGINT = count(*)
-->     | _rows BIGINT = count(*)
-->       Filter `busy`.`n` > 100
-->         ViewScan busy [cpid, n, window_start] as published at center

--# an aggregate with HAVING is joined to a table by a view of it
CREATE MATERIALIZED VIEW busy AS
SELECT window.start, cpid, count(*) AS n FROM beacons GROUP BY window(ts, '1 minute'), cpid HAVING count(*) > 3;
CREATE MATERIALIZED VIEW v AS
SELECT window.start, p.name, sum(n) AS n FROM busy JOIN providers p ON busy.cpid = p.cpid GROUP BY window(start, '1 hour'), p.name
--> Sink v at center
-->   Finish trivial
-->   | start TIMESTAMP = `window_start`
-->   | name STRING = `name`
-->   | n BIGINT = `n`
-->     WindowAggregate tumbling 1 h
-->     | key name STRING = `providers`.`name`
-->     | n BIGINT = sum(`busy`.`n`)
-->     | _rows BIGINT = count(*)
-->       LookupJoin inner providers on `busy`.`cpid` = `providers`.`cpid`
-->         ViewScan busy [cpid, n, window_start] as published at center
