-- A web log; each region reads the files in a folder of its own.
CREATE STREAM requests (
  ts TIMESTAMP, client STRING, country STRING, company BIGINT, code INT, bytes BIGINT
) WITH (
  event_time = 'ts', sites = 'us,eu,asia',
  connector = 'files', path = 'data/{site}', format = 'json'
);

-- Traffic by country and status, every hour.
CREATE MATERIALIZED VIEW traffic AS
  SELECT window.start, country, code, count(*) AS requests, sum(bytes) AS bytes
  FROM requests
  GROUP BY window(ts, '1 hour'), country, code;

-- How many clients there were, and what they asked for most: approximate, with its error.
CREATE MATERIALIZED VIEW audience AS
  SELECT window.start, approx_count_distinct(client) AS clients, percentile_approx(bytes, 0.5) AS median_bytes
  FROM requests
  WHERE code = 200
  GROUP BY window(ts, '1 hour');
