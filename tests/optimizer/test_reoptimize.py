"""When queries move to other fragments: only when measured rates have made it pay, and not back and forth.

The oracle of what is sent is the planner's own estimate; that answers do not change is shown in `test_sharing_live.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from catchment.optimizer.choices import Strength
from catchment.optimizer.move_account import PATIENCE
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.deployed import MAX_LEAVING, Deployed
from catchment.optimizer.sharing.measured_statistics import apply_measurements
from catchment.optimizer.sharing.reoptimize import SharingReoptimizer, redeployment_bytes
from catchment.optimizer.sharing.share import share
from catchment.optimizer.sharing.statistics import Statistics
from catchment.site.meter import RecentRate, SiteMeter
from tests.worlds.sharing_support import DENSE, SECOND, SPARSE, known, make_queries, select, site_rates

PAIR = (select("page, sum(bytes) AS b", "page"), select("country, sum(bytes) AS b", "country"))


def rate(deployed: Deployed, statistics: Statistics) -> float:
    return sum(site_rates(deployed.sharing, statistics).values())


def test_a_move_waits_until_its_cost_was_lost_and_then_sends_less() -> None:
    queries = make_queries(*PAIR)
    deployed, watch, at = deploy_first(queries, Strength.FULL, SPARSE.sent_bytes_per_s), SharingReoptimizer(), 0
    assert len(deployed.sharing.fragments) == 1
    best = share(queries, Strength.FULL, DENSE.sent_bytes_per_s)
    lost_a_second = rate(deployed, DENSE) - sum(site_rates(best, DENSE).values())
    price = PATIENCE * redeployment_bytes(deployed, best, DENSE.sent_bytes_per_s)
    while (target := watch.choose_move(deployed, DENSE.sent_bytes_per_s, at)) is None:
        assert at / SECOND * lost_a_second <= price, "it waits no longer than the rule says"
        at += SECOND
    assert at / SECOND * lost_a_second > price
    moved = deployed.move(target)
    used = {d.fragment for d in moved.sharing.derivations.values()}
    assert sum(DENSE.sent_bytes_per_s(moved.sharing.fragments[f]) for f in used) < rate(deployed, DENSE)
    assert set(moved.leaving) == set(deployed.sharing.fragments)


def test_nothing_moves_while_nothing_better_is_known_or_too_much_was_left() -> None:
    queries = make_queries(*PAIR)
    deployed, watch = deploy_first(queries, Strength.FULL, SPARSE.sent_bytes_per_s), SharingReoptimizer()
    for at in range(0, 10_000, 100):
        assert watch.choose_move(deployed, SPARSE.sent_bytes_per_s, at * SECOND) is None
    moved = deployed
    while len(moved.leaving) < MAX_LEAVING:
        rate = DENSE if len(moved.sharing.fragments) - len(moved.leaving) == 1 else SPARSE
        moved = moved.move(share(queries, Strength.FULL, rate.sent_bytes_per_s))
        assert watch.choose_move(moved, DENSE.sent_bytes_per_s, 0) is None, "one handover at a time"
        moved = moved.with_ends(dict.fromkeys(moved.leaving, 0))
    for at in range(10_000, 20_000, 100):
        for rates in (SPARSE, DENSE):
            assert watch.choose_move(moved, rates.sent_bytes_per_s, at * SECOND) is None


def test_a_loss_that_ends_is_forgotten() -> None:
    deployed, watch = deploy_first(make_queries(*PAIR), Strength.FULL, SPARSE.sent_bytes_per_s), SharingReoptimizer()
    watch.choose_move(deployed, DENSE.sent_bytes_per_s, 0)
    watch.choose_move(deployed, DENSE.sent_bytes_per_s, SECOND)
    assert watch.account.lost > 0
    watch.choose_move(deployed, SPARSE.sent_bytes_per_s, 2 * SECOND)
    assert watch.account.lost == 0


def test_what_sites_measure_takes_the_place_of_what_was_declared() -> None:
    (query,) = make_queries(select("page, count(*) AS n", "page", where="user > 1"))
    (plain,) = make_queries(select("page, sum(bytes) AS b", "page"))
    fragments = {"f": query.demand, "g": plain.demand}
    read: dict[str, dict[str, Any]] = {
        "us": {
            "rows_per_s": {"hits": 5.0},
            "fragments": {
                "f": {"rows": 10, "bytes": 0, "selectivity": 0.25, "distinct": {"`hits`.`page`": 3.0}},
                "g": {"rows": 10, "bytes": 0, "selectivity": 1.0, "distinct": {"`hits`.`page`": 7.0}},
            },
        },
        "eu": {"rows_per_s": {"hits": None}, "fragments": {}},
    }
    told = apply_measurements(known(1e5, 300), fragments, read).of("hits")
    assert told.rows_per_s == {"us": 5.0, "eu": 1e5}, "a site that has no rate yet keeps the declared one"
    assert told.distinct == {"page": 7.0, "country": 300}, "a filter hides values: only whole streams tell"
    assert told.selectivity == {"user": 0.25}


def test_bytes_that_left_scale_all_estimates_of_a_stream_alike() -> None:
    queries = make_queries(*PAIR)
    fragments, before = {q.name: q.demand for q in queries}, known(100.0, 50)
    sent = {
        q.name: before.partial_bytes_per_s(q.demand, "us") * 30 * share
        for q, share in zip(queries, (0.1, 0.3), strict=True)
    }
    read: dict[str, dict[str, Any]] = {
        "us": {
            "rows_per_s": {"hits": 100.0},
            "fragments": {n: {"rows": 3000, "bytes": b, "selectivity": 1.0, "distinct": {}} for n, b in sent.items()},
        }
    }
    after = apply_measurements(before, fragments, read)
    assert sum(after.partial_bytes_per_s(d, "us") for d in fragments.values()) == pytest.approx(sum(sent.values()) / 30)
    ratios = [after.sent_bytes_per_s(d) / before.sent_bytes_per_s(d) for d in fragments.values()]
    assert ratios == pytest.approx([after.of("hits").wire_ratio] * 2)


def test_a_log_that_is_read_fast_has_the_rate_of_its_own_time() -> None:
    meter, at = SiteMeter(), 0
    meter.note_batch("hits", 600, (), (), now_us=at, span_us=(0, 60 * SECOND))
    assert meter.statistics()["rows_per_s"] == {"hits": 10.0}, "one batch is enough"
    for minute in range(1, 200):  # a minute of the log in a second, the second half of it twice as dense
        at += SECOND
        meter.note_batch(
            "hits", 600 if minute < 100 else 1200, (), (), at, (minute * 60 * SECOND, (minute + 1) * 60 * SECOND)
        )
    assert meter.statistics()["rows_per_s"]["hits"] == pytest.approx(20.0)


def test_a_rate_is_that_of_the_recent_past() -> None:
    rate_of = RecentRate()
    assert rate_of.per_s is None
    for second in range(200):
        rate_of.note(second * 10 if second < 100 else 1000 + (second - 100) * 30, second * SECOND)
    assert rate_of.per_s == 30
