-- Made by make.py of this folder: Table 1 of Sana by the rule in README.md, in the order of submission.
CREATE MATERIALIZED VIEW statistics_0 WITH (sink = 'virginia') AS
  SELECT window.start, country, count(*) / 10.0D AS rate
  FROM edits GROUP BY window(time, '10 seconds'), country;
CREATE MATERIALIZED VIEW statistics_1 WITH (sink = 'california') AS
  SELECT window.start, channel, count(*) AS total, approx_count_distinct(page) AS pages
  FROM edits GROUP BY window(time, '30 seconds'), channel;
CREATE MATERIALIZED VIEW statistics_2 WITH (sink = 'canada') AS
  SELECT window.start, namespace, count(*) / 60.0D AS rate
  FROM edits WHERE NOT robot GROUP BY window(time, '60 seconds'), namespace;
CREATE MATERIALIZED VIEW users_3 WITH (sink = 'london') AS
  SELECT window.start, anonymous, channel, count(*) AS total
  FROM edits GROUP BY window(time, '300 seconds'), anonymous, channel;
CREATE MATERIALIZED VIEW users_4 WITH (sink = 'frankfurt') AS
  SELECT window.start, robot, country, count(*) / 10.0D AS rate, approx_count_distinct(page) AS pages
  FROM edits GROUP BY window(time, '10 seconds'), robot, country;
CREATE MATERIALIZED VIEW users_5 WITH (sink = 'sydney') AS
  SELECT window.start, anonymous, channel, count(*) AS total, count(*) FILTER (WHERE minor) AS minor
  FROM edits WHERE anonymous GROUP BY window(time, '30 seconds'), anonymous, channel;
CREATE MATERIALIZED VIEW top_6 WITH (sink = 'tokyo') AS
  SELECT window.start, channel, approx_top_k(page, 10) AS best
  FROM edits GROUP BY window(time, '60 seconds'), channel;
CREATE MATERIALIZED VIEW top_7 WITH (sink = 'singapore') AS
  SELECT window.start, country, approx_top_k(user, 10) AS best
  FROM edits GROUP BY window(time, '300 seconds'), country;
CREATE MATERIALIZED VIEW sentiment_8 WITH (sink = 'virginia') AS
  SELECT window.start, category, edits.namespace, sum(added) AS added
  FROM edits JOIN categories ON edits.namespace = categories.namespace WHERE edits.namespace = 'Main' GROUP BY window(time, '10 seconds'), category, edits.namespace;
CREATE MATERIALIZED VIEW sentiment_9 WITH (sink = 'california') AS
  SELECT window.start, category, channel, count(*) AS edits
  FROM edits JOIN categories ON edits.namespace = categories.namespace GROUP BY window(time, '30 seconds'), category, channel;
CREATE MATERIALIZED VIEW load_10 WITH (sink = 'canada') AS
  SELECT window.start, channel, sum(added) AS bytes
  FROM edits GROUP BY window(time, '60 seconds'), channel;
CREATE MATERIALIZED VIEW load_11 WITH (sink = 'london') AS
  SELECT window.start, country, count(*) AS requests
  FROM edits WHERE NOT robot GROUP BY window(time, '300 seconds'), country;
