-- A web log, born at three sites and replayed 600 times as fast as it happened: ten hours in a minute.
CREATE STREAM requests (
  ts TIMESTAMP, client STRING, country STRING, company BIGINT, code INT, bytes BIGINT
) WITH (
  event_time = 'ts', sites = 'us,eu,asia',
  connector = 'replay', path = 'data/{site}.jsonl.zst', format = 'json', speed = 600
);

-- Traffic by country and status, every ten minutes.
CREATE MATERIALIZED VIEW traffic AS
  SELECT window.start, country, code, count(*) AS requests, sum(bytes) AS bytes
  FROM requests
  GROUP BY window(ts, '10 minutes'), country, code;

-- How many clients there were in the last hour, and what they asked for most: sliding, approximate.
CREATE MATERIALIZED VIEW audience AS
  SELECT window.start, window.end,
         approx_count_distinct(client) AS clients,
         approx_top_k(company, 3) AS companies,
         percentile_approx(bytes, 0.5) AS median_bytes
  FROM requests
  WHERE code = 200
  GROUP BY window(ts, '1 hour', '20 minutes');
