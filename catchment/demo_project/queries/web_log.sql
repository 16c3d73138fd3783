-- A web log, born at three sites. `catchment demo` writes its records into these folders, as a log shipper would.
CREATE STREAM requests (
  ts TIMESTAMP, client STRING, country STRING, company BIGINT, code INT, bytes BIGINT
) WITH (
  event_time = 'ts', sites = 'us,eu,asia',
  connector = 'files', path = 'arriving/{site}', format = 'json',
  shed = true                                     -- when a site is overloaded: sample now, repair later
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
