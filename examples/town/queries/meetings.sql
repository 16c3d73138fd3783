-- The notices of the feed view are a stream like any other.
CREATE MATERIALIZED VIEW meetings AS
SELECT window.start, friend, count(*) AS notices, min(metres) AS nearest
FROM nearby GROUP BY window(matched_at, '1 minute'), friend;
