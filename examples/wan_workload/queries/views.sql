-- Twelve queries of the five categories of Sana's Table 1, in the order in which they are submitted.

-- Statistics: [rate, count] of edits on [channel, namespace].
CREATE MATERIALIZED VIEW edits_by_topic WITH (sink = 'virginia') AS
  SELECT window.start, channel, namespace, count(*) AS edits, sum(added) AS added
  FROM edits GROUP BY window(time, '10 seconds'), channel, namespace;

CREATE MATERIALIZED VIEW mean_edit WITH (sink = 'london') AS
  SELECT window.start, channel, namespace, avg(added) AS mean_added, count(*) / 60.0D AS edits_per_s
  FROM edits GROUP BY window(time, '1 minute'), channel, namespace;

CREATE MATERIALIZED VIEW articles WITH (sink = 'frankfurt') AS
  SELECT window.start, channel, count(*) AS edits, sum(added) AS added
  FROM edits WHERE namespace = 'Main' GROUP BY window(time, '30 seconds'), channel;

-- Users: [rate, count] of edits by [robot, anonymous, country] per [channel, namespace].
CREATE MATERIALIZED VIEW robots WITH (sink = 'tokyo') AS
  SELECT window.start, channel, namespace, robot, count(*) AS edits
  FROM edits GROUP BY window(time, '1 minute'), channel, namespace, robot;

CREATE MATERIALIZED VIEW newcomers WITH (sink = 'sydney') AS
  SELECT window.start, country, count(*) AS edits, sum(added) AS added
  FROM edits WHERE anonymous GROUP BY window(time, '1 minute'), country;

CREATE MATERIALIZED VIEW audience WITH (sink = 'california') AS
  SELECT window.start, channel, approx_count_distinct(user) AS users
  FROM edits WHERE NOT robot GROUP BY window(time, '1 minute'), channel;

-- Top-k: the most edited pages and the busiest users per channel.
CREATE MATERIALIZED VIEW top_pages WITH (sink = 'virginia') AS
  SELECT window.start, channel, approx_top_k(page, 10) AS pages
  FROM edits GROUP BY window(time, '5 minutes', '1 minute'), channel;

CREATE MATERIALIZED VIEW top_pages_of_people WITH (sink = 'singapore') AS
  SELECT window.start, channel, approx_top_k(page, 5) AS pages, approx_top_k(user, 5) AS users
  FROM edits WHERE NOT robot GROUP BY window(time, '1 minute'), channel;

-- Categories by look-up.
CREATE MATERIALIZED VIEW by_category WITH (sink = 'canada') AS
  SELECT window.start, category, channel, count(*) AS edits, sum(added) AS added
  FROM edits JOIN categories ON edits.namespace = categories.namespace
  GROUP BY window(time, '30 seconds'), category, channel;

CREATE MATERIALIZED VIEW talk WITH (sink = 'london') AS
  SELECT window.start, channel, avg(added) AS mean_added
  FROM edits JOIN categories ON edits.namespace = categories.namespace
  WHERE category = 'talk' GROUP BY window(time, '1 minute'), channel;

-- System load: [rate, count] of [bytes, requests] in all, and per topic where an alarm watches.
CREATE MATERIALIZED VIEW load WITH (sink = 'frankfurt') AS
  SELECT window.start, count(*) AS requests, sum(added) AS bytes
  FROM edits GROUP BY window(time, '10 seconds');

CREATE MATERIALIZED VIEW bursts WITH (sink = 'singapore') AS
  SELECT window.start, channel, namespace, count(*) / 10.0D AS requests_per_s, sum(added) / 10.0D AS bytes_per_s
  FROM edits GROUP BY window(time, '10 seconds'), channel, namespace HAVING count(*) > 100;
