-- Edits of Wikipedia, born at six sites; the table says which namespaces are of one category.
CREATE STREAM edits (
  time TIMESTAMP, channel STRING, namespace STRING, page STRING, user STRING, country STRING,
  robot BOOLEAN, anonymous BOOLEAN, new BOOLEAN, minor BOOLEAN, added BIGINT, deleted BIGINT, delta BIGINT
) WITH (
  event_time = 'time', sites = 'ohio,oregon,ireland,seoul,mumbai,saopaulo',
  connector = 'files', path = 'data/{site}', format = 'json'
);

CREATE TABLE categories (namespace STRING, category STRING) WITH (path = 'categories.csv');
