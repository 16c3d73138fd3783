-- Who of my friends is near me? One physical view a pair of friends.
CREATE STREAM location (user BIGINT, lat DOUBLE, lon DOUBLE) WITH (device = 'user');
CREATE TABLE friends (user BIGINT, friend BIGINT, share DOUBLE, friend_share DOUBLE, radius DOUBLE);

CREATE FEED VIEW nearby WITH (lifetime = '20 seconds', notify_every = '1 minute') AS
SELECT a.user, b.user AS friend, distance(a.lat, a.lon, b.lat, b.lon) AS metres
FROM location a
JOIN friends f ON a.user = f.user
JOIN location b ON f.friend = b.user
WHERE distance(a.lat, a.lon, b.lat, b.lon) < f.radius
  AND sample(a, f.share)         -- the share of a's feed that this pair demands
  AND sample(b, f.friend_share);
