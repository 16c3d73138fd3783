-- Readings in the order in which they arrived, ten times as fast as then.
CREATE STREAM readings (
  ts TIMESTAMP, arrived TIMESTAMP, sensor INT, watts DOUBLE
) WITH (
  event_time = 'ts', sites = 'north,south',
  connector = 'replay', path = 'data/{site}.json', arrival = 'arrived', speed = 10
);

-- Readings and mean load per sensor. On time, the count is off by 5% or more in at most 5% of the windows.
CREATE MATERIALIZED VIEW load WITH (max_error = 0.05, confidence = 0.95) AS
  SELECT window.start, sensor, count(*) AS readings, avg(watts) AS watts
  FROM readings
  GROUP BY window(ts, '20 seconds'), sensor;
