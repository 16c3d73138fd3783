-- Computed for each pair of friends, on one of their devices or at the cloud: wherever least is sent.
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE) WITH (device = 'user', rate = 0.2);
CREATE TABLE friends (user BIGINT, friend BIGINT, radius DOUBLE) WITH (path = 'friends.csv');

CREATE FEED VIEW nearby WITH (lifetime = '10 seconds') AS
SELECT a.user, b.user AS friend, distance(a.lat, a.lon, b.lat, b.lon) AS metres
FROM location a JOIN friends f ON a.user = f.user JOIN location b ON f.friend = b.user
WHERE distance(a.lat, a.lon, b.lat, b.lon) < f.radius;
