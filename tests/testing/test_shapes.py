"""Views of other shapes than one stream in groups, simulated under faults: their answers are those of the oracle.

The simulation kills processes and power, loses and doubles segments, and sends through a relay; what it publishes is
compared with a recomputation from all raw records.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.testing import DeploymentSimulation, Feature
from catchment.testing.campaigns.generate import draw_workload
from tests.worlds.tiers import seeds

TOML = """
[project]
name = "shapes"
center = "center"
[sites.center]
[sites.a]
[sites.b]
[sites.relay]
[[links]]
from = "a"
to = "center"
latency = "20 ms"
[[links]]
from = "b"
to = "relay"
latency = "20 ms"
[[links]]
from = "relay"
to = "center"
latency = "300 ms"
[defaults]
repair_horizon = "10 minutes"
"""
STREAM = """CREATE STREAM {name} (ts TIMESTAMP, page STRING, user INT, bytes BIGINT, ms DOUBLE)
  WITH (event_time = 'ts', sites = 'a,b', path = '{name}/{{site}}');"""
VIEWS = """
CREATE MATERIALIZED VIEW records WITH (publish_every = '4 seconds') AS
  SELECT ts, page, bytes * 2 AS twice FROM hits WHERE user > 1 OR bytes IS NULL;
CREATE MATERIALIZED VIEW united AS
  SELECT window.start, page, kind, count(*) AS n, sum(bytes) AS bytes, max(ms) AS ms FROM (
    SELECT ts, page, 'hit' AS kind, bytes, ms FROM hits
    UNION ALL SELECT ts, page, 'view', bytes, ms FROM views WHERE bytes > 5)
  GROUP BY window(ts, '10 seconds', '5 seconds'), page, kind;
CREATE MATERIALIZED VIEW parts AS
  SELECT window.start, place, part, count(*) AS n, sum(bytes) AS bytes FROM hits
  LATERAL VIEW OUTER posexplode(array(page, CAST(user AS STRING))) p AS place, part
  WHERE bytes > 3 AND (part <> 'a' OR part IS NULL) GROUP BY window(ts, '6 seconds'), place, part;
CREATE MATERIALIZED VIEW part_records AS
  SELECT ts, explode(array(page, 'every')) AS part, bytes FROM hits WHERE user = 1;
CREATE MATERIALIZED VIEW pages AS
  SELECT window.start, page, count(*) AS n, max(bytes) AS most FROM hits
  GROUP BY window(ts, '2 seconds'), page HAVING count(*) < 2;
CREATE MATERIALIZED VIEW peaks AS
  SELECT window.start, page, max(n) AS peak, count(*) AS times FROM pages WHERE most > 5
  GROUP BY window(start, '6 seconds'), page;
CREATE MATERIALIZED VIEW highest AS
  SELECT window.start, max(peak) AS peak, sum(times) AS times FROM peaks
  GROUP BY window(start, '12 seconds', '6 seconds');
CREATE MATERIALIZED VIEW unseen AS
  SELECT window.start, a.page, count(*) AS n FROM hits a LEFT JOIN views b ON a.page = b.page AND a.user = b.user
  WHERE b.ts IS NULL GROUP BY window(a.ts, '6 seconds'), a.page;
CREATE MATERIALIZED VIEW most_unseen AS
  SELECT window.start, max(n) AS n FROM unseen GROUP BY window(start, '12 seconds');
"""
FAULTS = (
    frozenset({Feature.CRASH, Feature.RECOVERY_CRASH, Feature.LATE, Feature.DUPLICATE}),
    frozenset({Feature.POWER_CUT, Feature.TORN_WRITE, Feature.LATE}),
    frozenset({Feature.LOSS, Feature.DOUBLED, Feature.DELAY, Feature.AWAY, Feature.LATE}),
)


@pytest.mark.parametrize("seed", seeds(4))
def test_under_faults_the_answers_are_those_of_the_oracle(tmp_path: Path, seed: int) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "catchment.toml").write_text(TOML)
    streams = "\n".join(STREAM.format(name=name) for name in ("hits", "views"))
    (tmp_path / "queries" / "all.sql").write_text(streams + VIEWS)
    deployment = Deployment.load(tmp_path)
    features = FAULTS[seed % len(FAULTS)]
    workload = draw_workload(deployment.catalog, random.Random(seed), features)
    simulation = DeploymentSimulation(deployment, workload, seed, features)
    simulation.run().assert_right()
    for view in deployment.plans:
        found = simulation.world.store.results(view.name)
        assert found is not None, view.name
        assert found.num_rows, view.name
