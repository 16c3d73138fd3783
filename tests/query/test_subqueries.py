"""A view over subqueries and queries of WITH has the plan of the same view written without them.

Catches: names that mean something else inside a subquery, conditions that get lost. Cannot catch: plans that are wrong
in both forms; other tests compare those with recomputed answers.
"""

from __future__ import annotations

import pytest

from catchment.optimizer.normal_form.normalize import fingerprint
from tests.worlds.query_support import as_view, make_plan

PAIRS = {
    "a filter and a computed column": (
        """WITH big AS (SELECT ts, country, bytes * 2 AS twice FROM beacons WHERE bytes > 10)
        SELECT window.start, country, max(twice) AS most FROM big GROUP BY window(ts, '1 minute'), country""",
        """SELECT window.start, country, max((bytes * 2)) AS most FROM beacons WHERE bytes > 10
        GROUP BY window(ts, '1 minute'), country""",
    ),
    "a subquery of a subquery with stars": (
        """SELECT window.start, sum(bytes) AS n FROM (SELECT * FROM (SELECT b.* FROM beacons b WHERE b.bytes > 1) i
        WHERE ms > 2) o WHERE o.cpid = 3 GROUP BY window(ts, '1 minute')""",
        "SELECT window.start, sum(bytes) AS n FROM beacons WHERE bytes > 1 AND ms > 2 AND cpid = 3 "
        "GROUP BY window(ts, '1 minute')",
    ),
    "a query of WITH that hides a stream of its name": (
        """WITH beacons AS (SELECT ts, bytes AS b FROM beacons)
        SELECT window.start, sum(b) AS n FROM beacons GROUP BY window(ts, '1 minute')""",
        "SELECT window.start, sum(bytes) AS n FROM beacons GROUP BY window(ts, '1 minute')",
    ),
    "a name that is exchanged inside": (
        """SELECT window.start, url, count(*) AS n FROM (SELECT ts, country AS url, url AS country FROM beacons)
        WHERE country = 'x' GROUP BY window(ts, '1 minute'), url""",
        """SELECT window.start, country AS url, count(*) AS n FROM beacons WHERE url = 'x'
        GROUP BY window(ts, '1 minute'), beacons.country""",
    ),
    "a lookup inside, and another outside": (
        """WITH named AS (SELECT b.ts, b.country, p.name FROM beacons b LEFT JOIN providers p ON b.cpid = p.cpid)
        SELECT window.start, name, r.region, count(*) AS n FROM named JOIN regions r ON named.country = r.country
        WHERE name <> '' GROUP BY window(ts, '1 minute'), name, r.region""",
        """SELECT window.start, name, r.region, count(*) AS n FROM beacons b LEFT JOIN providers p ON b.cpid = p.cpid
        JOIN regions r ON b.country = r.country WHERE name <> '' GROUP BY window(ts, '1 minute'), name, r.region""",
    ),
    "a join of two subqueries of one stream": (
        """SELECT window.start, x.cpid, count(*) AS n FROM (SELECT * FROM beacons WHERE bytes > 1) x
        JOIN (SELECT ts AS t2, cpid AS c2 FROM beacons WHERE bytes < 1) y ON x.cpid = y.c2
        GROUP BY window(x.ts, '1 minute'), x.cpid""",
        """SELECT window.start, x.cpid, count(*) AS n FROM beacons x JOIN beacons y ON x.cpid = y.cpid
        WHERE x.bytes > 1 AND y.bytes < 1 GROUP BY window(x.ts, '1 minute'), x.cpid""",
    ),
    "a join inside a query of WITH": (
        """WITH pairs AS (SELECT b.ts, b.country, b.bytes FROM beacons b JOIN clicks c ON b.cpid = c.cpid)
        SELECT window.start, country, sum(bytes) AS bytes FROM pairs GROUP BY window(ts, '1 minute'), country""",
        """SELECT window.start, country, sum(bytes) AS bytes FROM beacons b JOIN clicks c ON b.cpid = c.cpid
        GROUP BY window(b.ts, '1 minute'), country""",
    ),
    "the latest value of a computed column": (
        """SELECT window.start, last(x) AS x FROM (SELECT ts, upper(url) AS x FROM beacons)
        GROUP BY window(ts, '1 minute')""",
        "SELECT window.start, last((upper(url))) AS x FROM beacons GROUP BY window(ts, '1 minute')",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_view_over_subqueries_has_the_plan_of_the_view_without_them(name: str) -> None:
    nested, flat = PAIRS[name]
    view = nested if nested.lstrip().upper().startswith("SELECT") else f"CREATE MATERIALIZED VIEW v AS {nested}"
    found, expected = make_plan(view), make_plan(as_view(flat))
    assert fingerprint(found) == fingerprint(expected)
    assert [(c.name, c.type) for c in found.columns] == [(c.name, c.type) for c in expected.columns]
